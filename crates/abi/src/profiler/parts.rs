//! Structures with the same layout in several versions of the profiler's interface, and those that differ by the parts
//! that they hold. A name ends with the first version that has this form, unless every version that has the structure
//! has it in this form.

use super::calls::{Finalize, RecordEventState, StartEvent, StopEvent};
use core::ffi::{c_char, c_int, c_void};
use core::fmt;

/// `ncclProfilerEventDescr_v1_t` to `_v7_t`: an event that starts.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct EventDescrOf<Kind, Event> {
    /// `type`: the kind of event, an [`EventType`](super::EventType), which has one byte up to v4.
    pub kind: Kind,
    /// The handle of the parent's event; NULL if it has none.
    pub parent_obj: *mut c_void,
    /// The rank that the event is for.
    pub rank: c_int,
    /// The rest, by the kind of event.
    pub event: Event,
}

/// `ncclProfiler_v1_t` to `_v7_t`: the table that a profiler exports.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ProfilerOf<Init, EventDescr, StateArgs> {
    /// The name of the profiler; never NULL.
    pub name: *const c_char,
    /// Starts the profiler for one communicator.
    pub init: Option<Init>,
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
unsafe impl<Init: Sync, EventDescr, StateArgs> Sync for ProfilerOf<Init, EventDescr, StateArgs> {}

impl<Init, EventDescr, StateArgs> fmt::Debug for ProfilerOf<Init, EventDescr, StateArgs> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ProfilerOf").field("name", &self.name).finish_non_exhaustive()
    }
}

/// `p2p` of v2 and v3: a send or receive.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct P2pV2 {
    /// The communicator's name.
    pub name: *const c_char,
    /// The communicator's hash.
    pub comm_hash: u64,
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
}

/// `coll` of v5 and v6: a collective. Its parent is the user's call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CollV5 {
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
}

/// `p2p` of v5 and v6: a send or receive. Its parent is the user's call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct P2pV5 {
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
}

/// `proxyOp` of every version: a proxy's part of an operation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProxyOp {
    /// The process that asked for the operation, which owns the parent event.
    pub pid: c_int,
    /// The number of the channel.
    pub channel_id: u8,
    /// The rank at the other end.
    pub peer: c_int,
    /// The number of steps.
    pub n_steps: c_int,
    /// The largest size of a step in bytes.
    pub chunk_size: c_int,
    /// 1 for sends, 0 for receives.
    pub is_send: c_int,
}

/// `proxyStep` of every version: one message.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProxyStep {
    /// The number of the step in its operation.
    pub step: c_int,
}

/// `kernelCh` of v4 on: the work of the GPU on one channel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelCh {
    /// The number of the channel.
    pub channel_id: u8,
    /// The GPU's own time at the start in nanoseconds.
    pub p_timer: u64,
}

/// `netPlugin` of v3 on: an event of a net plugin.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NetPlugin {
    /// The plugin's id, such as [`PLUGIN_ID_V1`](super::ib::PLUGIN_ID_V1).
    pub id: i64,
    /// The plugin's own description, of the layout that `id` says.
    pub data: *mut c_void,
}

/// `groupApi` of v5 on: a group of calls.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GroupApi {
    /// True if a CUDA graph captures the call.
    pub graph_captured: bool,
    /// The depth of the user's nested groups.
    pub group_depth: c_int,
}

/// `collApi` of v5 and v6: a call of a collective.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CollApiV5 {
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
}

/// `p2pApi` of v5 and v6: a call of a send or receive.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct P2pApiV5 {
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
}

/// `kernelLaunch` of v5 on: the launch of a kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelLaunch {
    /// The CUDA stream.
    pub stream: *mut c_void,
}

/// `ceCollSync` of v6 on: a synchronisation of copy engines.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CeCollSync {
    /// True if it ends the collective, false if it begins it.
    pub is_complete: bool,
    /// The number of ranks.
    pub n_ranks: c_int,
}

/// `ceCollBatch` of v6 on: a batch of copies.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CeCollBatch {
    /// The number of copies.
    pub num_ops: c_int,
    /// Their bytes.
    pub total_bytes: usize,
    /// True if the copies are synchronised.
    pub use_intra_sync: bool,
}

/// `proxyOp` of the arguments of v1 to v3: the progress of a proxy.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProxyOpArgs {
    /// The size of the message in bytes.
    pub trans_size: usize,
    /// The number of steps so far.
    pub steps: c_int,
}

/// `proxyCtrl` of the arguments of every version.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProxyCtrlArgs {
    /// The number of operations that were taken over.
    pub appended_proxy_ops: c_int,
}

/// `proxyStep` of the arguments of v4 on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProxyStepArgs {
    /// The size of the message in bytes.
    pub trans_size: usize,
}

/// `netPlugin` of the arguments of v4 on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NetPluginArgs {
    /// The plugin's own description, of the layout of its event.
    pub data: *mut c_void,
}

/// `kernelCh` of the arguments of v4 on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelChArgs {
    /// The GPU's own time at the end in nanoseconds.
    pub p_timer: u64,
}

/// `ncclProfilerEventStateArgs_v1_t` to `_v3_t`: the arguments of a state, by the kind of the event.
#[repr(C)]
#[derive(Clone, Copy)]
pub union StateArgsV1 {
    /// For states of [`EventType::PROXY_OP`](super::EventType::PROXY_OP).
    pub proxy_op: ProxyOpArgs,
    /// For states of [`EventType::PROXY_CTRL`](super::EventType::PROXY_CTRL).
    pub proxy_ctrl: ProxyCtrlArgs,
}

/// `ncclProfilerEventStateArgs_v4_t` to `_v7_t`: the arguments of a state, by the kind of the event.
#[repr(C)]
#[derive(Clone, Copy)]
pub union StateArgsV4 {
    /// For states of [`EventType::PROXY_STEP`](super::EventType::PROXY_STEP).
    pub proxy_step: ProxyStepArgs,
    /// For states of [`EventType::PROXY_CTRL`](super::EventType::PROXY_CTRL).
    pub proxy_ctrl: ProxyCtrlArgs,
    /// For states of [`EventType::NET_PLUGIN`](super::EventType::NET_PLUGIN).
    pub net_plugin: NetPluginArgs,
    /// For states of [`EventType::KERNEL_CH`](super::EventType::KERNEL_CH) and, in v7,
    /// [`EventType::KERNEL_PHASE`](super::EventType::KERNEL_PHASE).
    pub kernel_ch: KernelChArgs,
}

const _: () = {
    assert!(size_of::<ProxyOp>() == 24 && size_of::<NetPlugin>() == 16 && size_of::<KernelCh>() == 16);
    assert!(size_of::<CollV5>() == 88 && size_of::<P2pV5>() == 48);
    assert!(size_of::<StateArgsV1>() == 16 && size_of::<StateArgsV4>() == 8);
};
