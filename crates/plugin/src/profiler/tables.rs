//! The tables that NCCL looks up, one per version of its profiler interface. No logic: each entry adapts a version's
//! arguments.

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use railweave_abi::profiler::{EventState, v1, v2, v3, v4, v5, v6, v7};
use railweave_abi::{NcclLogger, NcclResult};
use railweave_trace::Communicator;

use super::NAME;
use super::describe::{self, Arguments, Describe};
use crate::log;

// NCCL calls every function below. Its promises (profiler_v*.h): pointers are NULL or valid for the call, a context
// comes from init and is not finalized, and a description's union holds what its kind says.

/// Runs a call. A panic is a bug that must not end the job; the trace lacks what the call was about.
fn guarded(run: impl FnOnce() -> NcclResult) -> NcclResult {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        log::warn("a bug in Railweave's profiler: a call panicked; please report it with the job's log");
        NcclResult::INTERNAL_ERROR
    })
}

fn begin(context: *mut *mut c_void, mask: *mut c_int, communicator: Communicator) -> NcclResult {
    guarded(|| {
        // SAFETY: NCCL's promise.
        match unsafe { super::init(context, mask, communicator) } {
            Ok(()) => NcclResult::SUCCESS,
            Err(error) => {
                log::warn(&error.to_string());
                NcclResult::INVALID_ARGUMENT
            }
        }
    })
}

unsafe extern "C" fn init_v1(context: *mut *mut c_void, mask: *mut c_int) -> NcclResult {
    begin(context, mask, Communicator::default())
}

unsafe extern "C" fn init_v4(
    context: *mut *mut c_void,
    mask: *mut c_int,
    name: *const c_char,
    id: u64,
    hosts: c_int,
    ranks: c_int,
    rank: c_int,
    logger: Option<NcclLogger>,
) -> NcclResult {
    log::set_logger(logger);
    let known = |number: c_int| u32::try_from(number).ok();
    // SAFETY: NCCL's promise.
    let name = unsafe { describe::text(name) };
    let (rank, ranks, nodes) = (known(rank), known(ranks), known(hosts));
    begin(context, mask, Communicator { number: 0, id, name, rank, ranks, nodes })
}

unsafe extern "C" fn init_v5(
    context: *mut *mut c_void,
    id: u64,
    mask: *mut c_int,
    name: *const c_char,
    hosts: c_int,
    ranks: c_int,
    rank: c_int,
    logger: Option<NcclLogger>,
) -> NcclResult {
    // SAFETY: NCCL's promise.
    unsafe { init_v4(context, mask, name, id, hosts, ranks, rank, logger) }
}

unsafe extern "C" fn start_event<D: Describe>(
    context: *mut c_void,
    event: *mut *mut c_void,
    description: *mut D,
) -> NcclResult {
    guarded(|| {
        // SAFETY: NCCL's promises.
        let handle = super::start(context, unsafe { describe::started(description.cast_const()) });
        if !event.is_null() {
            // SAFETY: not NULL, and NCCL's promise.
            unsafe { event.write(handle) };
        }
        NcclResult::SUCCESS
    })
}

unsafe extern "C" fn stop_event(event: *mut c_void) -> NcclResult {
    guarded(|| {
        super::stop(event);
        NcclResult::SUCCESS
    })
}

unsafe extern "C" fn record_event_state<A: Arguments>(
    event: *mut c_void,
    state: EventState,
    arguments: *mut A,
) -> NcclResult {
    guarded(|| {
        // SAFETY: NCCL's promises; NULL becomes `None`.
        let bytes = unsafe { arguments.as_ref().map_or(0, |arguments| arguments.bytes(state.0)) };
        super::record(event, state.0, bytes);
        NcclResult::SUCCESS
    })
}

unsafe extern "C" fn finalize(context: *mut c_void) -> NcclResult {
    guarded(|| {
        super::finalize(context);
        NcclResult::SUCCESS
    })
}

/// A table, and zeros behind it. Forks of NCCL have longer tables under a name of NCCL's, `ncclProfiler_v7`: there they
/// find no function.
#[repr(C)]
pub struct Exported<T> {
    table: T,
    zeros: [usize; 8],
}

/// Defines one table.
macro_rules! table {
    ($symbol:ident: $version:ident, $init:ident) => {
        /// The table of this version of NCCL's profiler interface; NCCL looks it up by name.
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals, reason = "the name is NCCL's")]
        pub static $symbol: Exported<$version::Profiler> = Exported {
            table: $version::Profiler {
                name: NAME.as_ptr(),
                init: Some($init),
                start_event: Some(start_event::<$version::EventDescr>),
                stop_event: Some(stop_event),
                record_event_state: Some(record_event_state::<$version::StateArgs>),
                finalize: Some(finalize),
            },
            zeros: [0; 8],
        };
    };
}

table!(ncclProfiler_v1: v1, init_v1);
table!(ncclProfiler_v2: v2, init_v1);
table!(ncclProfiler_v3: v3, init_v1);
table!(ncclProfiler_v4: v4, init_v4);
table!(ncclProfiler_v5: v5, init_v5);
table!(ncclProfiler_v6: v6, init_v5);
table!(ncclProfiler_v7: v7, init_v5);
