//! The function tables of all versions of a profiler, and the differences between their calls.

use super::describe::Start;
use crate::logger;
use railweave_abi::NcclResult;
use railweave_abi::profiler::parts::{
    KernelChArgs, NetPluginArgs, ProxyOpArgs, ProxyStepArgs, StateArgsV1, StateArgsV4,
};
use railweave_abi::profiler::{EventState, v1, v2, v3, v4, v5, v6, v7};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

/// One version's table in a loaded profiler.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Table {
    V1(&'static v1::Profiler),
    V2(&'static v2::Profiler),
    V3(&'static v3::Profiler),
    V4(&'static v4::Profiler),
    V5(&'static v5::Profiler),
    V6(&'static v6::Profiler),
    V7(&'static v7::Profiler),
}

/// Evaluates one expression with the table, whatever its version.
macro_rules! each {
    ($table:expr, $profiler:ident => $value:expr) => {
        match $table {
            Table::V1($profiler) => $value,
            Table::V2($profiler) => $value,
            Table::V3($profiler) => $value,
            Table::V4($profiler) => $value,
            Table::V5($profiler) => $value,
            Table::V6($profiler) => $value,
            Table::V7($profiler) => $value,
        }
    };
}

/// The arguments of `init`, those that the newest version gets.
#[derive(Clone, Copy)]
pub(super) struct InitArgs {
    pub(super) comm_id: u64,
    pub(super) name: *const c_char,
    pub(super) hosts: c_int,
    pub(super) ranks: c_int,
    pub(super) rank: c_int,
}

/// The arguments of a state.
#[derive(Clone, Copy)]
pub(super) enum Args {
    /// NULL instead of arguments.
    Null,
    /// All zeros.
    Zero,
    ProxyOp(ProxyOpArgs),
    ProxyStep(ProxyStepArgs),
    NetPlugin(NetPluginArgs),
    KernelCh(KernelChArgs),
}

impl Table {
    /// Returns the table of `version` at the address of its symbol; `None` for a version that does not exist.
    ///
    /// # Safety
    /// `address` is the profiler's symbol for that version, and the profiler stays loaded while the table is in use.
    pub(super) unsafe fn at(version: u32, address: *const c_void) -> Option<Self> {
        // SAFETY: the caller promises that each cast is to the type that the symbol of this version has.
        unsafe {
            Some(match version {
                1 => Self::V1(address.cast::<v1::Profiler>().as_ref()?),
                2 => Self::V2(address.cast::<v2::Profiler>().as_ref()?),
                3 => Self::V3(address.cast::<v3::Profiler>().as_ref()?),
                4 => Self::V4(address.cast::<v4::Profiler>().as_ref()?),
                5 => Self::V5(address.cast::<v5::Profiler>().as_ref()?),
                6 => Self::V6(address.cast::<v6::Profiler>().as_ref()?),
                7 => Self::V7(address.cast::<v7::Profiler>().as_ref()?),
                _ => return None,
            })
        }
    }

    /// Returns the version of the interface.
    pub(super) fn version(self) -> u32 {
        match self {
            Self::V1(_) => 1,
            Self::V2(_) => 2,
            Self::V3(_) => 3,
            Self::V4(_) => 4,
            Self::V5(_) => 5,
            Self::V6(_) => 6,
            Self::V7(_) => 7,
        }
    }

    /// Returns the pointer to the profiler's name.
    pub(super) fn name(self) -> *const c_char {
        each!(self, profiler => profiler.name)
    }

    /// Returns the C name of the first function that is NULL, if there is one.
    pub(super) fn missing(self) -> Option<&'static str> {
        each!(self, profiler => [
            ("init", profiler.init.is_none()),
            ("startEvent", profiler.start_event.is_none()),
            ("stopEvent", profiler.stop_event.is_none()),
            ("recordEventState", profiler.record_event_state.is_none()),
            ("finalize", profiler.finalize.is_none()),
        ])
        .into_iter()
        .find_map(|(name, missing)| missing.then_some(name))
    }

    /// Calls `init`; success without a call if it is NULL.
    ///
    /// # Safety
    /// `context` and `mask` can be written, `mask` as long as the profiler is loaded; the name is a string or NULL.
    pub(super) unsafe fn init(self, context: *mut *mut c_void, mask: *mut c_int, args: InitArgs) -> NcclResult {
        let InitArgs { comm_id, name, hosts, ranks, rank } = args;
        let log = Some(logger::function());
        macro_rules! call {
            ($profiler:ident, $($argument:expr),*) => {
                // SAFETY: the arguments are those of this version; the caller promises the pointers.
                $profiler.init.map_or(NcclResult::SUCCESS, |call| unsafe { call(context, $($argument),*) })
            };
        }
        match self {
            Self::V1(profiler) => call!(profiler, mask),
            Self::V2(profiler) => call!(profiler, mask),
            Self::V3(profiler) => call!(profiler, mask),
            Self::V4(profiler) => call!(profiler, mask, name, comm_id, hosts, ranks, rank, log),
            Self::V5(profiler) => call!(profiler, comm_id, mask, name, hosts, ranks, rank, log),
            Self::V6(profiler) => call!(profiler, comm_id, mask, name, hosts, ranks, rank, log),
            Self::V7(profiler) => call!(profiler, comm_id, mask, name, hosts, ranks, rank, log),
        }
    }

    /// Calls `startEvent`, unless the version does not have this kind of event.
    ///
    /// # Safety
    /// The context is the profiler's, `event` can be written, and the pointers in `start` are valid or NULL.
    pub(super) unsafe fn start(self, context: *mut c_void, event: *mut *mut c_void, start: Start<'_>) {
        macro_rules! call {
            ($profiler:ident, $description:expr) => {
                if let (Some(mut description), Some(call)) = ($description, $profiler.start_event) {
                    // SAFETY: the description is of this version, and the caller promises the rest. NCCL ignores the
                    // result.
                    let _ = unsafe { call(context, event, &raw mut description) };
                }
            };
        }
        match self {
            Self::V1(profiler) => call!(profiler, start.v1()),
            Self::V2(profiler) => call!(profiler, start.v2()),
            Self::V3(profiler) => call!(profiler, start.v3()),
            Self::V4(profiler) => call!(profiler, start.v4()),
            Self::V5(profiler) => call!(profiler, start.v5()),
            Self::V6(profiler) => call!(profiler, start.v6()),
            Self::V7(profiler) => call!(profiler, start.v7()),
        }
    }

    /// Calls `stopEvent`.
    ///
    /// # Safety
    /// The handle is of an event of this profiler that was not stopped yet, or NULL.
    pub(super) unsafe fn stop(self, event: *mut c_void) {
        if let Some(call) = each!(self, profiler => profiler.stop_event) {
            // SAFETY: the caller promises it. NCCL ignores the result.
            let _ = unsafe { call(event) };
        }
    }

    /// Calls `recordEventState`, unless the version does not have this state.
    ///
    /// # Safety
    /// The handle is of an event of this profiler that was not stopped yet, or NULL; a pointer in `args` is valid.
    pub(super) unsafe fn record(self, event: *mut c_void, state: EventState, args: Args) {
        if !self.has(state) {
            return;
        }
        let (mut old, mut new) = (args.v1(), args.v4());
        macro_rules! call {
            ($profiler:ident, $args:ident) => {
                if let Some(call) = $profiler.record_event_state {
                    let args = if matches!(args, Args::Null) { null_mut() } else { &raw mut $args };
                    // SAFETY: the arguments are of this version, and the caller promises the rest. NCCL ignores the
                    // result.
                    let _ = unsafe { call(event, state, args) };
                }
            };
        }
        match self {
            Self::V1(profiler) => call!(profiler, old),
            Self::V2(profiler) => call!(profiler, old),
            Self::V3(profiler) => call!(profiler, old),
            Self::V4(profiler) => call!(profiler, new),
            Self::V5(profiler) => call!(profiler, new),
            Self::V6(profiler) => call!(profiler, new),
            Self::V7(profiler) => call!(profiler, new),
        }
    }

    /// Calls `finalize`; success without a call if it is NULL.
    ///
    /// # Safety
    /// The context is one that `init` wrote, and this is its last use.
    pub(super) unsafe fn finalize(self, context: *mut c_void) -> NcclResult {
        let call = each!(self, profiler => profiler.finalize);
        // SAFETY: the caller promises it.
        call.map_or(NcclResult::SUCCESS, |call| unsafe { call(context) })
    }

    /// Returns true if NCCL reports this state to profilers of this version.
    fn has(self, state: EventState) -> bool {
        let version = self.version();
        match state {
            EventState::PROXY_OP_SEND_POSTED
            | EventState::PROXY_OP_SEND_REM_FIFO_WAIT
            | EventState::PROXY_OP_SEND_TRANSMITTED
            | EventState::PROXY_OP_SEND_DONE
            | EventState::PROXY_OP_RECV_POSTED
            | EventState::PROXY_OP_RECV_RECEIVED
            | EventState::PROXY_OP_RECV_TRANSMITTED
            | EventState::PROXY_OP_RECV_DONE => version <= 3,
            EventState::PROXY_OP_IN_PROGRESS
            | EventState::PROXY_STEP_SEND_PEER_WAIT
            | EventState::NET_PLUGIN_UPDATE
            | EventState::KERNEL_CH_STOP => version >= 4,
            EventState::GROUP_START_API_STOP | EventState::GROUP_END_API_START => version >= 5,
            _ => true,
        }
    }
}

impl Args {
    /// Returns the arguments in the form of v1 to v3, where steps have none.
    fn v1(self) -> StateArgsV1 {
        let zero = StateArgsV1 { proxy_op: ProxyOpArgs { trans_size: 0, steps: 0 } };
        match self {
            Self::ProxyOp(proxy_op) => StateArgsV1 { proxy_op },
            Self::Null | Self::Zero | Self::ProxyStep(_) | Self::NetPlugin(_) | Self::KernelCh(_) => zero,
        }
    }

    /// Returns the arguments in the form of v4 on, where operations have none.
    fn v4(self) -> StateArgsV4 {
        match self {
            Self::Null | Self::Zero | Self::ProxyOp(_) => StateArgsV4 { kernel_ch: KernelChArgs { p_timer: 0 } },
            Self::ProxyStep(proxy_step) => StateArgsV4 { proxy_step },
            Self::NetPlugin(net_plugin) => StateArgsV4 { net_plugin },
            Self::KernelCh(kernel_ch) => StateArgsV4 { kernel_ch },
        }
    }
}
