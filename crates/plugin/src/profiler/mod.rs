//! The profiler in this library. NCCL looks for one here unless the user names another (NCCL_PROFILER_PLUGIN). It
//! sleeps, and NCCL then reports nothing to it, unless the process is traced: then NCCL's collectives and steps go into
//! the trace, next to the rails that carry them.
//!
//! An event's handle is no pointer but a number, so that nothing has to be kept for it, and a handle that is used once
//! too often does no harm.
#![allow(clippy::disallowed_types, reason = "NCCL starts and ends communicators on its service threads")]

mod describe;
mod tables;

use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use railweave_abi::profiler::EventType;
use railweave_trace::{Communicator, Kind, What};
use railweave_transport::Error;

pub use tables::{
    ncclProfiler_v1, ncclProfiler_v2, ncclProfiler_v3, ncclProfiler_v4, ncclProfiler_v5, ncclProfiler_v6,
    ncclProfiler_v7,
};

use self::describe::{Facts, Started};
use crate::callback;
use crate::per_process::PerProcess;
use crate::process;
use crate::trace::{self, Begin, Tracer};

/// The name of the profiler.
const NAME: &CStr = c"Railweave";

/// A communicator, as NCCL passes it back: the number of its process, and its own number there.
///
/// It is no pointer: if a process sends through the proxy of another one of its host, NCCL passes the context of the
/// first to the profiler of the second.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Context {
    process: u32,
    communicator: u32,
}

impl Context {
    fn of(pointer: *mut c_void) -> Self {
        let bits = pointer.addr() as u64;
        Self { process: (bits >> 32) as u32, communicator: bits as u32 }
    }

    fn pointer(self) -> *mut c_void {
        let bits = u64::from(self.process) << 32 | u64::from(self.communicator);
        ptr::without_provenance_mut(bits as usize)
    }

    /// Returns its number in the trace; 0 for a communicator of another process.
    fn communicator(self) -> u32 {
        if self.process == std::process::id() { self.communicator } else { 0 }
    }
}

/// The communicators that have this profiler, and their traces, which last as long as one of them does; `None` while
/// the profiler sleeps.
static HELD: PerProcess<Mutex<HashMap<Context, Option<Arc<Tracer>>>>> = PerProcess::new();

fn held() -> MutexGuard<'static, HashMap<Context, Option<Arc<Tracer>>>> {
    // A panicking thread leaves nothing by halves: every change is one step.
    HELD.get().lock().unwrap_or_else(PoisonError::into_inner)
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
    let number = trace::next_communicator();
    let made = Context { process: std::process::id(), communicator: number };
    let wanted = WANTED.iter().fold(0, |mask, kind| mask | kind.bit());
    // SAFETY: not NULL, and the caller's promise.
    unsafe {
        mask.write(if tracer.is_some() { wanted } else { 0 });
        context.write(made.pointer());
    }
    if let Some(tracer) = &tracer {
        tracer.add_communicator(Communicator { number, ..communicator });
    }
    held().insert(made, tracer);
    callback::add_own();
    Ok(())
}

/// `finalize`: ends a communicator. One that has ended already is left alone.
fn finalize(context: *mut c_void) {
    // The last one writes the rest of the trace, and must not hold the lock meanwhile.
    let ended = held().remove(&Context::of(context));
    if let Some(tracer) = ended {
        callback::remove_own();
        drop(tracer);
    }
}

/// `startEvent`. Returns the event's handle; NULL for one that the trace does not have.
fn start(context: *mut c_void, started: Started) -> *mut c_void {
    let Started { kind, parent, facts } = started;
    if kind == EventType::NET_PLUGIN {
        // The rails are in the trace already. This library only asks for the step that its request belongs to.
        return parent;
    }
    let Some(kind) = Kind::of(kind.0.trailing_zeros()).filter(|_| kind.0.is_power_of_two()) else {
        return ptr::null_mut();
    };
    let communicator = Context::of(context).communicator();
    let (number, facts) = match facts {
        Facts::Step(step) => (step, None),
        Facts::Coll(facts) => (communicator, Some(What::Coll(facts))),
        Facts::P2p(facts) => (communicator, Some(What::P2p(facts))),
        Facts::Op(facts) => (communicator, Some(What::Op(facts))),
        Facts::None => (communicator, None),
    };
    let event = trace::start(&Begin { kind, parent: parent.addr() as u64, number, facts });
    ptr::without_provenance_mut(event.map_or(0, |event| event as usize))
}

/// `stopEvent`. NULL is an event that nobody wanted.
fn stop(event: *mut c_void) {
    if !event.is_null() {
        trace::stop(event.addr() as u64);
    }
}

/// `recordEventState`: the event enters a state, with this many bytes.
fn record(event: *mut c_void, state: c_int, bytes: u64) {
    if !event.is_null()
        && let Ok(state) = u16::try_from(state)
    {
        trace::enter(event.addr() as u64, state, bytes);
    }
}
