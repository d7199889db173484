//! Profiler v5, of NCCL 2.28: adds the user's calls, above the operations.

use super::EventType;
use super::calls::InitV5;
use super::parts::{EventDescrOf, ProfilerOf};

pub use super::parts::{
    CollApiV5 as CollApi, CollV5 as Coll, GroupApi, KernelCh, KernelChArgs, KernelLaunch, NetPlugin, NetPluginArgs,
    P2pApiV5 as P2pApi, P2pV5 as P2p, ProxyCtrlArgs, ProxyOp, ProxyStep, ProxyStepArgs, StateArgsV4 as StateArgs,
};

/// The union in `ncclProfilerEventDescr_v5_t`; [`EventDescr::kind`] says which member is valid.
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
}

/// `ncclProfilerEventDescr_v5_t`.
pub type EventDescr = EventDescrOf<EventType, Event>;

/// `ncclProfiler_v5_t`, which a profiler exports as the data symbol `ncclProfiler_v5`.
pub type Profiler = ProfilerOf<InitV5, EventDescr, StateArgs>;

const _: () = assert!(size_of::<EventDescr>() == 112 && size_of::<Profiler>() == 48);
