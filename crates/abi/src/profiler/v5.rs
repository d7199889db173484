//! Profiler v5, of NCCL 2.28: adds the user's calls, above the operations.

use super::EventType;
use super::calls::{Finalize, InitV5, RecordEventState, StartEvent, StopEvent};
use core::ffi::{c_char, c_int, c_void};

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

/// `ncclProfilerEventDescr_v5_t`: an event that starts.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct EventDescr {
    /// `type`: the kind of event.
    pub kind: EventType,
    /// The handle of the parent's event; NULL if it has none.
    pub parent_obj: *mut c_void,
    /// The rank that the event is for.
    pub rank: c_int,
    /// The rest, by the kind of event.
    pub event: Event,
}

/// `ncclProfiler_v5_t`: the table that a profiler exports as the data symbol `ncclProfiler_v5`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Profiler {
    /// The name of the profiler; never NULL.
    pub name: *const c_char,
    /// Starts the profiler for one communicator.
    pub init: Option<InitV5>,
    /// Starts an event.
    pub start_event: Option<StartEvent<EventDescr>>,
    /// Ends an event.
    pub stop_event: Option<StopEvent>,
    /// Records a change of an event.
    pub record_event_state: Option<RecordEventState<StateArgs>>,
    /// Ends one communicator.
    pub finalize: Option<Finalize>,
}

// SAFETY: a table holds only pointers to functions and to a constant string, and nobody writes to it.
unsafe impl Sync for Profiler {}

const _: () = assert!(size_of::<EventDescr>() == 112 && size_of::<Profiler>() == 48);
