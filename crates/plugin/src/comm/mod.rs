//! The objects behind NCCL's pointers to connections and requests.

mod barrier;
mod debtor;
mod memory;
mod observer;
pub(crate) mod owing;
mod registrations;

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use railweave_abi::{NcclResult, ProfilerCallback};
use railweave_fabric::{Part, Step};
use railweave_transport::{
    ConnectionEnd, Debt, Error, Event, Fate, Incoming, RailInfo, Recovers, RecvRequest, SendRequest, Steering, Turn,
    call,
};

pub(crate) use observer::{Observer, Traced};

pub(crate) use memory::{MemoryHandle, Registrar, RegistrarOf};
pub(crate) use registrations::Registrations;

use crate::sync::AtomicLink;
use owing::Linked;

/// Sends `size` bytes at `data`: connection, data, size, tag, memory, NCCL's profiler handle, request. The order is
/// that of NCCL's function since v10, so that the arguments stay in their places.
pub(crate) type Isend =
    unsafe extern "C" fn(&Comm, *mut c_void, usize, c_int, *mut c_void, *mut c_void, *mut *mut c_void) -> NcclResult;

/// Receives into `count` buffers: connection, count, data, sizes, tags, memory, NCCL's profiler handles, request. The
/// order is that of NCCL's function since v10, so that the arguments stay in their registers.
pub(crate) type Irecv = unsafe extern "C" fn(
    &Comm,
    c_int,
    *mut *mut c_void,
    *mut usize,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> NcclResult;

/// Tests a request: request, done, sizes.
pub(crate) type Test = unsafe extern "C" fn(&Request, *mut c_int, *mut c_int) -> NcclResult;

/// Makes the data received into buffers visible to their owner: connection, buffers, request.
pub(crate) type Iflush = unsafe fn(&Comm, &[Incoming<'_>], *mut *mut c_void) -> Result<(), Error>;

/// NCCL's calls on one kind of connection: one fabric and one end.
#[derive(Clone, Copy)]
pub(crate) struct Calls {
    pub(crate) isend: Isend,
    pub(crate) irecv: Irecv,
    pub(crate) test: Test,
    pub(crate) iflush: Iflush,
}

/// One end of a connection.
pub(crate) trait End: ConnectionEnd + Recovers + Send {
    /// Returns NCCL's calls for this kind of end, those with an observer if it `is_observed`; no other function may
    /// look into it.
    fn calls(&self, is_observed: bool) -> Calls;

    /// Returns true if this is the sending end.
    fn sends(&self) -> bool;

    /// Returns true if this end owes its peer something.
    fn owes(&mut self) -> bool;

    /// Sends what this end owes the peer. Returns true if all of it is on its way.
    fn acknowledge(&mut self) -> bool;
}

/// A connection that a handshake made.
pub(crate) struct Established {
    pub(crate) end: Box<dyn End>,
    pub(crate) registrar: Arc<dyn Registrar>,
    pub(crate) fate: Arc<Fate>,
    pub(crate) steering: Arc<Steering>,
    /// The parts of this host that it uses.
    pub(crate) parts: Vec<Part>,
    pub(crate) rails: Vec<RailInfo>,
    pub(crate) peer: String,
    /// The step of the ladder that gave the rails, if this end is the connector.
    pub(crate) step: Option<Step>,
    /// The trace of this process, and the connection's number there.
    pub(crate) trace: Option<Traced>,
}

/// The control thread's name for a connection of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Route {
    /// The session's token.
    pub(crate) session: usize,
    /// The connection in the numbering of the session's opener.
    pub(crate) connection: u32,
}

/// The control thread, as connections see it.
pub(crate) trait ControlHandle: Send + Sync {
    /// Returns true if this is the process that the thread runs in. A forked child has no such thread, and must not
    /// touch what its parent's threads may have held at the fork.
    fn is_ours(&self) -> bool;

    /// Checks that the thread runs.
    ///
    /// # Errors
    /// If it has ended early (the log says why), or this is a forked child.
    fn check(&self) -> Result<(), Error>;

    /// Refuses objects of the parent. Takes no lock, because a thread of the parent may have held it at the fork.
    ///
    /// # Errors
    /// If this is a forked child.
    fn check_process(&self) -> Result<(), Error>;

    /// Has the control thread send a connection's debts while no call uses the connection.
    fn look_after(&self, comm: Arc<Comm>);

    /// Lets the control thread use an open connection between two calls.
    fn opened(&self, route: Route, comm: Weak<Comm>);

    /// Takes over a connection that is to be closed.
    fn close(&self, route: Route, end: Box<dyn End>);

    /// Takes note of an event of an open connection.
    fn note(&self, route: Route, event: Event);
}

/// The reasons why the control thread has no turn on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoTurn {
    /// NCCL does not have the connection yet.
    Early,
    /// Another thread uses it. A later attempt may succeed.
    Busy,
    /// The connection is closed.
    Closed,
}

/// The longest wait of the control thread for a call of NCCL to end. Calls take microseconds; a longer one has met a
/// busy processor.
const PATIENCE: Duration = Duration::from_millis(1);

/// The mark of every connection, so that a wrong pointer is refused.
const MAGIC: u64 = u64::from_le_bytes(*b"RWVCOMM1");

/// A connection, as NCCL's `sendComm` and `recvComm`.
#[repr(C)]
pub(crate) struct Comm {
    /// The turns of NCCL's calls and of the control thread.
    turn: Turn,
    magic: u64,
    /// One thread at a time uses it; [`Self::end`] says which (ARCHITECTURE.md, "Threads"). `None` once closed.
    end: UnsafeCell<Option<Box<dyn End>>>,
    /// The calls for `end`'s type.
    pub(crate) calls: Calls,
    /// The watcher of its requests, for NCCL's profiler and the trace. The thread that makes NCCL's calls uses it.
    observer: UnsafeCell<Option<Box<Observer>>>,
    /// The debt to the peer, and whose turn it is to send it.
    debt: Debt,
    /// Service threads register through this while the progress thread runs.
    pub(crate) registrar: Arc<dyn Registrar>,
    pub(crate) peer: String,
    route: Route,
    control: Arc<dyn ControlHandle>,
    /// A fixed number, enough for either end, so that the compiler knows that a slot's number is in bounds.
    requests: Box<[Request; RecvRequest::COUNT]>,
    itself: Weak<Comm>,
    /// The link of the stack in which connections are handed to the control thread.
    link: AtomicLink<Comm>,
}

// SAFETY: One thread at a time uses `end`: NCCL promises that for its calls, `debt` ensures it for settling after them,
// and `turn` for the control thread between them. Only NCCL's calls use `observer`. Requests point back to their
// connection. All other fields are safe to share by their own types.
unsafe impl Send for Comm {}
// SAFETY: as above.
unsafe impl Sync for Comm {}

/// A request, as NCCL points to it.
pub(crate) struct Request {
    comm: *const Comm,
    index: usize,
}

impl Comm {
    /// Makes a connection that NCCL owns until [`Self::close`].
    /// NCCL's callback for events is `profiler`, if it has one.
    pub(crate) fn into_raw(
        established: Established,
        route: Route,
        control: Arc<dyn ControlHandle>,
        profiler: Option<ProfilerCallback>,
    ) -> *mut c_void {
        let (trace, sends) = (established.trace, established.end.sends());
        let observer = Observer::of(profiler, trace, &established.rails, &established.fate, sends);
        let calls = established.end.calls(observer.is_some());
        let comm = Arc::new_cyclic(|itself: &Weak<Self>| Self {
            magic: MAGIC,
            end: UnsafeCell::new(Some(established.end)),
            calls,
            observer: UnsafeCell::new(observer),
            debt: Debt::new(),
            turn: Turn::new(barrier::is_there()),
            registrar: established.registrar,
            peer: established.peer,
            route,
            control,
            requests: requests_of(itself.as_ptr()),
            itself: itself.clone(),
            link: AtomicLink::default(),
        });
        comm.control.opened(comm.route, comm.itself.clone());
        Arc::into_raw(comm).cast_mut().cast()
    }

    /// Returns the connection behind NCCL's pointer; `None` if there is none.
    ///
    /// # Safety
    /// The pointer must be NULL or come from [`Self::into_raw`] and not be closed yet.
    #[inline]
    pub(crate) unsafe fn known<'a>(pointer: *mut c_void) -> Option<&'a Self> {
        // SAFETY: the caller's promise; NULL becomes `None`.
        let comm = unsafe { pointer.cast::<Self>().as_ref() };
        comm.filter(|comm| comm.magic == MAGIC)
    }

    /// Returns the connection behind NCCL's pointer.
    ///
    /// # Errors
    /// If there is none.
    ///
    /// # Safety
    /// The same as for [`Self::known`].
    #[inline]
    pub(crate) unsafe fn from_raw<'a>(pointer: *mut c_void) -> Result<&'a Self, Error> {
        // SAFETY: the caller's promise.
        unsafe { Self::known(pointer) }.ok_or_else(|| no_connection(pointer))
    }

    /// Returns the end; `None` once the connection is closed.
    ///
    /// # Safety
    /// Only one thread at a time may use it: NCCL's progress thread of this connection, in a call of
    /// [`railweave_transport::call`]; the thread that runs [`Debt::settle`]; or one that has the turn.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the exclusive use is the caller's promise, see Safety")]
    pub(crate) unsafe fn end(&self) -> Option<&mut (dyn End + 'static)> {
        // SAFETY: the caller's promise.
        unsafe { (*self.end.get()).as_deref_mut() }
    }

    /// Returns the watcher of the connection's requests; `None` if it has none.
    ///
    /// # Safety
    /// Only a call of NCCL's progress thread of this connection may use it, one reference at a time.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the exclusive use is the caller's promise, see Safety")]
    pub(crate) unsafe fn observer(&self) -> Option<&mut Observer> {
        // SAFETY: the caller's promise.
        unsafe { (*self.observer.get()).as_deref_mut() }
    }

    /// Lets the control thread use the end between two of NCCL's calls. A call of NCCL that comes meanwhile waits, so
    /// `use_end` must take little time.
    ///
    /// # Errors
    /// If there is no turn. Gives up after [`PATIENCE`] if a call of NCCL takes that long.
    pub(crate) fn with_end<R>(&self, use_end: impl FnOnce(&mut (dyn End + 'static)) -> R) -> Result<R, NoTurn> {
        let begun = Instant::now();
        let wait = |checks: u32| {
            std::hint::spin_loop();
            checks < 100 || {
                std::thread::yield_now();
                begun.elapsed() < PATIENCE
            }
        };
        let use_end = || {
            // SAFETY: `between` calls this in this thread's turn.
            let Some(end) = (unsafe { self.end() }) else {
                return (Err(NoTurn::Closed), false);
            };
            let result = use_end(end);
            (Ok(result), end.owes())
        };
        call::between(self, barrier::pass, wait, use_end).unwrap_or(Err(NoTurn::Busy))
    }

    /// Returns NCCL's pointer to a request.
    #[inline]
    pub(crate) fn request(&self, index: usize) -> *mut c_void {
        std::ptr::from_ref(&self.requests[index]).cast_mut().cast()
    }

    /// Reports an event of the connection to the control thread.
    pub(crate) fn note(&self, event: Event) {
        self.control.note(self.route, event);
    }

    /// Refuses a connection of the parent process.
    ///
    /// # Errors
    /// If this is a forked child.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        self.control.check_process()
    }

    /// Closes the connection: the control thread tells the peer and completes what is in progress.
    ///
    /// # Safety
    /// The pointer must come from [`Self::into_raw`], and neither it nor its requests may be used again.
    pub(crate) unsafe fn close(pointer: *mut c_void) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        let comm = unsafe { Self::from_raw(pointer) }?;
        if !comm.control.is_ours() {
            // The connection is the parent's, and its threads may have been using it at the fork.
            return Ok(());
        }
        // SAFETY: NCCL has left the connection, and `close` calls this after the take-over.
        let end = call::close(comm, || unsafe { (*comm.end.get()).take() })?;
        if let Some(end) = end {
            comm.control.close(comm.route, end);
        }
        // SAFETY: into_raw made it from an Arc, NCCL's share of it ends here, and `comm` is not used after this.
        drop(unsafe { Arc::from_raw(pointer.cast::<Self>().cast_const()) });
        Ok(())
    }
}

impl Linked for Comm {
    fn link(&self) -> &AtomicLink<Self> {
        &self.link
    }
}

const _: () = assert!(SendRequest::COUNT <= RecvRequest::COUNT);

/// Makes all requests of a connection.
fn requests_of(comm: *const Comm) -> Box<[Request; RecvRequest::COUNT]> {
    let all: Vec<Request> = (0..RecvRequest::COUNT).map(|index| Request { comm, index }).collect();
    all.into_boxed_slice().try_into().unwrap_or_else(|_| unreachable!("the vector has this length"))
}

/// Returns the error for a pointer that is none of this plugin's connections.
#[cold]
pub(crate) fn no_connection(pointer: *mut c_void) -> Error {
    Error::protocol(format!("{pointer:p} is not an open connection of this plugin"))
}

impl Request {
    /// Returns the request behind NCCL's pointer; `None` if that is NULL.
    ///
    /// # Safety
    /// The pointer must be NULL or come from [`Comm::request`] of a connection that is not closed.
    #[inline]
    pub(crate) unsafe fn known<'a>(pointer: *mut c_void) -> Option<&'a Self> {
        // SAFETY: the caller's promise; NULL becomes `None`.
        unsafe { pointer.cast::<Self>().as_ref() }
    }

    /// Returns the request's connection.
    #[inline]
    pub(crate) fn comm(&self) -> &Comm {
        // SAFETY: a request lives inside its connection, which outlives every reference to the request.
        unsafe { &*self.comm }
    }

    /// Returns the request's number in its connection.
    #[inline]
    pub(crate) fn index(&self) -> usize {
        self.index
    }
}
