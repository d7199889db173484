//! Profiler v6, of NCCL 2.29 and 2.30: adds collectives by copy engines.

use super::EventType;
use super::calls::InitV5;
use super::parts::{EventDescrOf, ProfilerOf};
use core::ffi::{c_char, c_int, c_void};

pub use super::parts::{
    CeCollBatch, CeCollSync, CollApiV5 as CollApi, CollV5 as Coll, GroupApi, KernelCh, KernelChArgs, KernelLaunch,
    NetPlugin, NetPluginArgs, P2pApiV5 as P2pApi, P2pV5 as P2p, ProxyCtrlArgs, ProxyOp, ProxyStep, ProxyStepArgs,
    StateArgsV4 as StateArgs,
};

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
}

/// The union in `ncclProfilerEventDescr_v6_t`; [`EventDescr::kind`] says which member is valid.
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
}

/// `ncclProfilerEventDescr_v6_t`.
pub type EventDescr = EventDescrOf<EventType, Event>;

/// `ncclProfiler_v6_t`, which a profiler exports as the data symbol `ncclProfiler_v6`.
pub type Profiler = ProfilerOf<InitV5, EventDescr, StateArgs>;

const _: () = assert!(size_of::<EventDescr>() == 112 && size_of::<Profiler>() == 48);
