//! Profiler v2, of NCCL 2.24 and 2.25: operations have names instead of numbers.

use super::calls::InitV1;
use super::parts::{EventDescrOf, ProfilerOf};
use core::ffi::{c_char, c_int, c_void};

pub use super::parts::{P2pV2 as P2p, ProxyCtrlArgs, ProxyOp, ProxyOpArgs, ProxyStep, StateArgsV1 as StateArgs};

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
    /// The name of the operation, such as `AllReduce`.
    pub func: *const c_char,
    /// The user's input.
    pub send_buff: *const c_void,
    /// The user's output.
    pub recv_buff: *mut c_void,
    /// The number of elements.
    pub count: usize,
    /// The root, for operations that have one.
    pub root: c_int,
    /// The name of the type of the elements, such as `ncclFloat32`.
    pub datatype: *const c_char,
    /// The bytes that move on the wire.
    pub traffic_bytes: usize,
    /// The maximum number of channels.
    pub n_max_channels: u8,
    /// The number of warps per channel.
    pub n_warps: u8,
    /// The name of the algorithm, such as `RING`.
    pub algo: *const c_char,
    /// The name of the protocol, such as `SIMPLE`.
    pub proto: *const c_char,
}

/// The union in `ncclProfilerEventDescr_v2_t`; [`EventDescr::kind`] says which member is valid.
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

/// `ncclProfilerEventDescr_v2_t`.
pub type EventDescr = EventDescrOf<u8, Event>;

/// `ncclProfiler_v2_t`, which a profiler exports as the data symbol `ncclProfiler_v2`.
pub type Profiler = ProfilerOf<InitV1, EventDescr, StateArgs>;

const _: () = assert!(size_of::<EventDescr>() == 128 && size_of::<Profiler>() == 48);
