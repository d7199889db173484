//! Profiler v7, of NCCL 2.31 and 2.32: adds the user's tags and the phases of kernels.

use super::EventType;
use super::calls::InitV5;
use super::parts::{EventDescrOf, ProfilerOf};
use core::ffi::{c_char, c_int, c_void};

pub use super::parts::{
    CeCollBatch, CeCollSync, GroupApi, KernelCh, KernelChArgs, KernelLaunch, NetPlugin, NetPluginArgs, ProxyCtrlArgs,
    ProxyOp, ProxyStep, ProxyStepArgs, StateArgsV4 as StateArgs,
};

/// `coll`: a collective. Its parent is the user's call.
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
    /// The handle of the group's event, which was the parent before v5.
    pub parent_group: *mut c_void,
    /// The name of the kernel's variant.
    pub kernel_variant: *const c_char,
    /// True if a symmetric kernel is used.
    pub is_sym_coll: bool,
    /// The user's tag of the call; 0 if there is none.
    pub user_tag: u64,
}

/// `p2p`: a send or receive. Its parent is the user's call.
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
    /// The handle of the group's event, which was the parent before v5.
    pub parent_group: *mut c_void,
    /// The user's tag of the call; 0 if there is none.
    pub user_tag: u64,
}

/// `collApi`: a call of a collective.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CollApi {
    /// The name of the operation, such as `AllReduce`.
    pub func: *const c_char,
    /// The number of elements.
    pub count: usize,
    /// The name of the type of the elements, such as `ncclFloat32`.
    pub datatype: *const c_char,
    /// The root, for operations that have one.
    pub root: c_int,
    /// The CUDA stream.
    pub stream: *mut c_void,
    /// True if a CUDA graph captures the call.
    pub graph_captured: bool,
    /// The user's tag of the call; 0 if there is none.
    pub user_tag: u64,
}

/// `p2pApi`: a call of a send or receive.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct P2pApi {
    /// The name of the operation, `Send` or `Recv`.
    pub func: *const c_char,
    /// The number of elements.
    pub count: usize,
    /// The name of the type of the elements, such as `ncclFloat32`.
    pub datatype: *const c_char,
    /// The CUDA stream.
    pub stream: *mut c_void,
    /// True if a CUDA graph captures the call.
    pub graph_captured: bool,
    /// The user's tag of the call; 0 if there is none.
    pub user_tag: u64,
}

/// `ceColl`: a collective by copy engines.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CeColl {
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
    /// The kind of synchronisation: `MC` with multicast, or `UC`.
    pub sync_strategy: *const c_char,
    /// True if the copies of a batch are synchronised.
    pub intra_batch_sync: bool,
    /// The number of copies in a batch.
    pub batch_size: u32,
    /// The number of batches.
    pub num_batches: u32,
    /// The number of earlier collectives by copy engines.
    pub ce_seq_num: u32,
    /// The CUDA stream.
    pub stream: *mut c_void,
    /// The user's tag of the call; 0 if there is none.
    pub user_tag: u64,
}

/// `kernelPhase`: a phase of a kernel on one channel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelPhase {
    /// The number of the channel.
    pub channel_id: u8,
    /// The phase: 0 for the first synchronisation, 1 for the work, 2 for the last synchronisation.
    pub phase_id: u8,
    /// The name of the phase.
    pub phase_name: *const c_char,
    /// The GPU's own time at the start in nanoseconds.
    pub p_timer: u64,
}

/// The union in `ncclProfilerEventDescr_v7_t`; [`EventDescr::kind`] says which member is valid.
#[repr(C)]
#[derive(Clone, Copy)]
pub union Event {
    /// For [`EventType::GROUP_API`].
    pub group_api: GroupApi,
    /// For [`EventType::COLL_API`].
    pub coll_api: CollApi,
    /// For [`EventType::P2P_API`].
    pub p2p_api: P2pApi,
    /// For [`EventType::KERNEL_LAUNCH`].
    pub kernel_launch: KernelLaunch,
    /// For [`EventType::COLL`].
    pub coll: Coll,
    /// For [`EventType::P2P`].
    pub p2p: P2p,
    /// For [`EventType::PROXY_OP`].
    pub proxy_op: ProxyOp,
    /// For [`EventType::PROXY_STEP`].
    pub proxy_step: ProxyStep,
    /// For [`EventType::KERNEL_CH`].
    pub kernel_ch: KernelCh,
    /// For [`EventType::NET_PLUGIN`].
    pub net_plugin: NetPlugin,
    /// For [`EventType::CE_COLL`].
    pub ce_coll: CeColl,
    /// For [`EventType::CE_SYNC`].
    pub ce_coll_sync: CeCollSync,
    /// For [`EventType::CE_BATCH`].
    pub ce_coll_batch: CeCollBatch,
    /// For [`EventType::KERNEL_PHASE`].
    pub kernel_phase: KernelPhase,
}

/// `ncclProfilerEventDescr_v7_t`.
pub type EventDescr = EventDescrOf<EventType, Event>;

/// `ncclProfiler_v7_t`, which a profiler exports as the data symbol `ncclProfiler_v7`.
pub type Profiler = ProfilerOf<InitV5, EventDescr, StateArgs>;

const _: () = assert!(size_of::<EventDescr>() == 136 && size_of::<Profiler>() == 48);
