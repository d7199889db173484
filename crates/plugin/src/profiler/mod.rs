//! The profiler in this library. NCCL looks for one here unless the user names another (NCCL_PROFILER_PLUGIN). It
//! sleeps, and NCCL then reports nothing to it, unless the process is traced: then NCCL's collectives and steps go into
//! the trace, next to the rails that carry them.
//!
//! An event's handle is no pointer but a number, so that nothing has to be kept for it, and a handle that is used once
//! too often does no harm.
#![allow(clippy::disallowed_types, reason = "NCCL starts and ends communicators on its service threads")]

mod describe;
mod tables;

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use railweave_abi::profiler::EventType;
use railweave_trace::{Communicator, Kind, Record, What};
use railweave_transport::Error;

pub use tables::{
    ncclProfiler_v1, ncclProfiler_v2, ncclProfiler_v3, ncclProfiler_v4, ncclProfiler_v5, ncclProfiler_v6,
    ncclProfiler_v7,
};

use self::describe::{Facts, Started};
use crate::callback;
use crate::process;
use crate::trace::{self, Tracer};

/// The name of the profiler.
const NAME: &CStr = c"Railweave";

/// A communicator that has this profiler.
struct Context {
    /// The trace; `None` while the profiler sleeps.
    tracer: Option<Arc<Tracer>>,
    /// The communicator's number in the trace.
    communicator: u32,
}

/// The events that the trace has. The work of GPUs is not among them: NCCL would start a proxy for each kernel.
const WANTED: [EventType; 10] = [
    EventType::GROUP,
    EventType::COLL,
    EventType::P2P,
    EventType::PROXY_OP,
    EventType::PROXY_STEP,
    EventType::NET_PLUGIN,
    EventType::GROUP_API,
    EventType::COLL_API,
    EventType::P2P_API,
    EventType::KERNEL_LAUNCH,
];

/// `init`: begins a communicator, and says which events the trace wants.
///
/// # Safety
/// `context` and `mask` must be NULL or valid for writing.
unsafe fn init(context: *mut *mut c_void, mask: *mut c_int, communicator: Communicator) -> Result<(), Error> {
    if context.is_null() || mask.is_null() {
        return Err(Error::protocol("the profiler's init was called with NULL for the context or the mask"));
    }
    let tracer = process::tracer();
    let number = tracer.as_ref().map_or(0, |tracer| tracer.add_communicator(communicator));
    let wanted = WANTED.iter().fold(0, |mask, kind| mask | kind.bit());
    // SAFETY: not NULL, and the caller's promise.
    unsafe { mask.write(if tracer.is_some() { wanted } else { 0 }) };
    let made = Box::new(Context { tracer, communicator: number });
    callback::add_own();
    // SAFETY: as above.
    unsafe { context.write(Box::into_raw(made).cast()) };
    Ok(())
}

/// `finalize`: ends a communicator.
///
/// # Safety
/// `context` must be NULL or come from [`init`], and not be used again.
unsafe fn finalize(context: *mut c_void) {
    if context.is_null() {
        return;
    }
    // SAFETY: init made it from a box, and NCCL hands it back once.
    drop(unsafe { Box::from_raw(context.cast::<Context>()) });
    callback::remove_own();
}

/// `startEvent`: `describe` returns the event, with the names that the trace gives texts. Returns the event's handle;
/// NULL for one that the trace does not have.
///
/// # Safety
/// `context` must be NULL or come from [`init`].
unsafe fn start(context: *mut c_void, describe: impl FnOnce(&Tracer) -> Started) -> *mut c_void {
    // SAFETY: the caller's promise; NULL becomes `None`.
    let Some(context) = (unsafe { context.cast::<Context>().as_ref() }) else { return ptr::null_mut() };
    let Some(tracer) = &context.tracer else { return ptr::null_mut() };
    let Started { kind, parent, facts } = describe(tracer);
    if kind == EventType::NET_PLUGIN {
        // The rails are in the trace already. This library only asks for the step that its request belongs to.
        return parent;
    }
    let Some(kind) = Kind::of(kind.0.trailing_zeros()).filter(|_| kind.0.is_power_of_two()) else {
        return ptr::null_mut();
    };
    let event = trace::new_event(tracer);
    let number = match facts {
        Facts::Step(step) => step,
        _ => context.communicator,
    };
    let at_ns = trace::now_ns();
    let begin = Record { at_ns, what: What::EventBegin { event, parent: parent.addr() as u64, kind, number } };
    let facts = match facts {
        Facts::Coll(facts) => What::Coll(facts),
        Facts::P2p(facts) => What::P2p(facts),
        Facts::Op(facts) => What::Op(facts),
        Facts::Step(_) | Facts::None => {
            trace::note(tracer, begin);
            return ptr::without_provenance_mut(event as usize);
        }
    };
    trace::note_all(tracer, &[begin, Record { at_ns, what: facts }]);
    ptr::without_provenance_mut(event as usize)
}

/// `stopEvent`. NULL is an event that nobody wanted.
fn stop(event: *mut c_void) {
    if !event.is_null() {
        trace::note_here(Record { at_ns: trace::now_ns(), what: What::EventEnd { event: event.addr() as u64 } });
    }
}

/// `recordEventState`: the event enters a state, with this many bytes.
fn record(event: *mut c_void, state: c_int, bytes: u64) {
    if !event.is_null()
        && let Ok(state) = u16::try_from(state)
    {
        let what = What::State { event: event.addr() as u64, state, bytes };
        trace::note_here(Record { at_ns: trace::now_ns(), what });
    }
}
