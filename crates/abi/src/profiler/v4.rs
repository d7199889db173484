//! Profiler v4, of NCCL 2.27: `init` describes the communicator, and proxies have new states.

use super::calls::InitV4;
use super::parts::{EventDescrOf, ProfilerOf};
use core::ffi::{c_char, c_int, c_void};

pub use super::parts::{
    KernelCh, KernelChArgs, NetPlugin, NetPluginArgs, ProxyCtrlArgs, ProxyOp, ProxyStep, ProxyStepArgs,
    StateArgsV4 as StateArgs,
};

/// `coll`: a collective.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Coll {
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
    /// The number of channels.
    pub n_channels: u8,
    /// The number of warps per channel.
    pub n_warps: u8,
    /// The name of the algorithm, such as `RING`.
    pub algo: *const c_char,
    /// The name of the protocol, such as `SIMPLE`.
    pub proto: *const c_char,
}

/// `p2p`: a send or receive.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct P2p {
    /// The name of the operation, `Send` or `Recv`.
    pub func: *const c_char,
    /// The user's buffer.
    pub buff: *mut c_void,
    /// The name of the type of the elements, such as `ncclFloat32`.
    pub datatype: *const c_char,
    /// The number of elements.
    pub count: usize,
    /// The rank at the other end.
    pub peer: c_int,
    /// The number of channels.
    pub n_channels: u8,
}

/// The union in `ncclProfilerEventDescr_v4_t`; [`EventDescr::kind`] says which member is valid.
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
    /// For [`EventType::KERNEL_CH`](super::EventType::KERNEL_CH).
    pub kernel_ch: KernelCh,
    /// For [`EventType::NET_PLUGIN`](super::EventType::NET_PLUGIN).
    pub net_plugin: NetPlugin,
}

/// `ncclProfilerEventDescr_v4_t`.
pub type EventDescr = EventDescrOf<u8, Event>;

/// `ncclProfiler_v4_t`, which a profiler exports as the data symbol `ncclProfiler_v4`.
pub type Profiler = ProfilerOf<InitV4, EventDescr, StateArgs>;

const _: () = assert!(size_of::<EventDescr>() == 104 && size_of::<Profiler>() == 48);
