//! Profiler v1, of NCCL 2.23: operations and proxies.

use super::calls::InitV1;
use super::parts::{EventDescrOf, ProfilerOf};
use core::ffi::{c_char, c_int, c_void};

pub use super::parts::{ProxyCtrlArgs, ProxyOp, ProxyOpArgs, ProxyStep, StateArgsV1 as StateArgs};

/// `coll`: a collective.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Coll {
    /// The communicator's name.
    pub name: *const c_char,
    /// The communicator's hash.
    pub comm_hash: u64,
    /// The number of earlier operations of this kind in the communicator.
    pub seq_number: u64,
    /// The operation, in NCCL's own numbers (`ncclFunc_t`).
    pub func: u8,
    /// The user's input.
    pub send_buff: *const c_void,
    /// The user's output.
    pub recv_buff: *mut c_void,
    /// The number of elements.
    pub count: usize,
    /// The root, for operations that have one.
    pub root: c_int,
    /// The type of the elements: an `ncclDataType_t`.
    pub datatype: u8,
    /// The reduction: an `ncclRedOp_t`.
    pub op: u32,
    /// The bytes that move on the wire.
    pub traffic_bytes: usize,
    /// The maximum number of channels.
    pub n_max_channels: u8,
    /// The number of warps per channel.
    pub n_warps: u8,
    /// The algorithm, in NCCL's own numbers.
    pub algo: u8,
    /// The protocol, in NCCL's own numbers.
    pub proto: u8,
    /// 1 if the network reduces.
    pub is_collnet: c_int,
    /// 1 if NVLink SHARP reduces.
    pub is_nvls: c_int,
}

/// `p2p`: a send or receive.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct P2p {
    /// The communicator's name.
    pub name: *const c_char,
    /// The communicator's hash.
    pub comm_hash: u64,
    /// The operation, in NCCL's own numbers (`ncclFunc_t`).
    pub func: u8,
    /// The user's buffer.
    pub buff: *mut c_void,
    /// The type of the elements: an `ncclDataType_t`.
    pub datatype: u8,
    /// The number of elements.
    pub count: usize,
    /// The rank at the other end.
    pub peer: c_int,
}

/// The union in `ncclProfilerEventDescr_v1_t`; [`EventDescr::kind`] says which member is valid.
#[repr(C)]
#[derive(Clone, Copy)]
pub union Event {
    /// For [`EventType::COLL`](super::EventType::COLL).
    pub coll: Coll,
    /// For [`EventType::P2P`](super::EventType::P2P).
    pub p2p: P2p,
    /// For [`EventType::PROXY_OP`](super::EventType::PROXY_OP).
    pub proxy_op: ProxyOp,
    /// For [`EventType::PROXY_STEP`](super::EventType::PROXY_STEP).
    pub proxy_step: ProxyStep,
}

/// `ncclProfilerEventDescr_v1_t`.
pub type EventDescr = EventDescrOf<u8, Event>;

/// `ncclProfiler_v1_t`, which a profiler exports as the data symbol `ncclProfiler_v1`.
pub type Profiler = ProfilerOf<InitV1, EventDescr, StateArgs>;

const _: () = assert!(size_of::<EventDescr>() == 120 && size_of::<Profiler>() == 48);
