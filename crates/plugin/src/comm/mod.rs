//! What NCCL's pointers to connections and requests point to.

pub(crate) mod debt;
pub(crate) mod debtor;
mod memory;
pub(crate) mod owing;
mod registrations;

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Weak};

use railweave_abi::NcclResult;
use railweave_fabric::Part;
use railweave_transport::{ConnectionEnd, Error, Flushed, Incoming, Link, RailInfo, RecvRequest, SendRequest};

pub(crate) use memory::{MemoryHandle, Registrar, RegistrarOf};
pub(crate) use registrations::Registrations;

use crate::sync::AtomicLink;
use debt::Debt;
use owing::Linked;

/// Sends `size` bytes at `data`: connection, data, size, tag, memory, request.
pub(crate) type Isend =
    unsafe extern "C" fn(&Comm, *mut c_void, usize, c_int, *mut c_void, *mut *mut c_void) -> NcclResult;

/// Receives into `count` buffers: connection, count, data, sizes, tags, memory, NCCL's profiler handles, request. As
/// NCCL's own function since v10, so that arguments stay where they are.
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

/// NCCL's calls on one kind of connection: of one fabric, and one end.
#[derive(Clone, Copy)]
pub(crate) struct Calls {
    pub(crate) isend: Isend,
    pub(crate) irecv: Irecv,
    pub(crate) test: Test,
}

/// One end of a connection.
pub(crate) trait End: ConnectionEnd + Send {
    /// NCCL's calls on this kind of end: none but these may look into it.
    fn calls(&self) -> Calls;

    /// Makes what came into these buffers visible to their owner.
    ///
    /// # Errors
    /// When the connection is broken, or does not receive.
    fn iflush(&mut self, buffers: &[Incoming<'_>]) -> Result<Flushed, Error>;

    /// Whether the peer may be waiting for what this end has not sent yet.
    fn owes(&mut self) -> bool;

    /// Sends what this end owes the peer; whether all of it is on its way.
    fn acknowledge(&mut self) -> bool;
}

/// A connection that a handshake made.
pub(crate) struct Established {
    pub(crate) end: Box<dyn End>,
    pub(crate) registrar: Arc<dyn Registrar>,
    pub(crate) link: Arc<Link>,
    /// What of this host it is made of.
    pub(crate) parts: Vec<Part>,
    pub(crate) rails: Vec<RailInfo>,
    pub(crate) peer: String,
}

/// Names an open connection to the control thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Route {
    /// The session's token.
    pub(crate) session: usize,
    /// The connection in the numbering of the session's opener.
    pub(crate) connection: u32,
}

/// The control thread, as connections see it.
pub(crate) trait Keeper: Send + Sync {
    /// Whether this is the process that the thread runs in, and not a forked child, which has no such thread and must
    /// not touch what its parent's threads may have held at that moment.
    fn is_ours(&self) -> bool;

    /// Whether the thread is there to do what it was asked.
    ///
    /// # Errors
    /// When it ended before its time (its last words are in the log), or this is a forked child.
    fn check(&self) -> Result<(), Error>;

    /// Refuses what belongs to the parent, without a lock that one of the parent's threads may have held.
    ///
    /// # Errors
    /// When this is a forked child.
    fn check_process(&self) -> Result<(), Error>;

    /// Looks after what a connection owes while no call is on it.
    fn look_after(&self, comm: Arc<Comm>);

    /// Takes over a connection that is to be closed.
    fn close(&self, route: Route, end: Box<dyn End>);
}

/// What a connection's memory begins with, so that a pointer that NCCL mixed up is refused.
const MAGIC: u64 = u64::from_le_bytes(*b"RWVCOMM1");

/// A connection, as NCCL's `sendComm` and `recvComm`.
pub(crate) struct Comm {
    magic: u64,
    /// Only the progress thread that owns the connection looks inside (ARCHITECTURE.md, "Threads"). None once closed.
    end: UnsafeCell<Option<Box<dyn End>>>,
    /// The calls that fit `end`.
    pub(crate) calls: Calls,
    /// Who looks after what the connection owes.
    pub(crate) debt: Debt,
    /// Service threads register through this, beside the progress thread.
    pub(crate) registrar: Arc<dyn Registrar>,
    pub(crate) peer: String,
    route: Route,
    control: Arc<dyn Keeper>,
    /// As many as the end that has more of them needs: so the compiler knows that a slot's number is in bounds.
    requests: Box<[Request; RecvRequest::COUNT]>,
    itself: Weak<Comm>,
    /// Its place among those that are handed to the control thread.
    link: AtomicLink<Comm>,
}

// SAFETY: `end` is used by one thread at a time: NCCL promises that for its calls, and `debt` sees to it for what a
// thread settles after it has left. Requests point back to their connection. All else is shared between threads by its
// own types.
unsafe impl Send for Comm {}
// SAFETY: as above.
unsafe impl Sync for Comm {}

/// A request, as NCCL points to it.
pub(crate) struct Request {
    comm: *const Comm,
    index: usize,
}

impl Comm {
    /// Makes a connection that NCCL owns from now on.
    pub(crate) fn into_raw(established: Established, route: Route, control: Arc<dyn Keeper>) -> *mut c_void {
        let calls = established.end.calls();
        let comm = Arc::new_cyclic(|itself: &Weak<Self>| Self {
            magic: MAGIC,
            end: UnsafeCell::new(Some(established.end)),
            calls,
            debt: Debt::new(),
            registrar: established.registrar,
            peer: established.peer,
            route,
            control,
            requests: requests_of(itself.as_ptr()),
            itself: itself.clone(),
            link: AtomicLink::default(),
        });
        Arc::into_raw(comm).cast_mut().cast()
    }

    /// The connection behind NCCL's pointer.
    ///
    /// # Safety
    /// The pointer must be NULL or come from [`Self::into_raw`] and not be closed yet.
    #[inline]
    pub(crate) unsafe fn from_raw<'a>(pointer: *mut c_void) -> Result<&'a Self, Error> {
        // SAFETY: the caller's promise; NULL gives None.
        let comm = unsafe { pointer.cast::<Self>().as_ref() };
        comm.filter(|comm| comm.magic == MAGIC).ok_or_else(|| no_connection(pointer))
    }

    /// The data path's end.
    ///
    /// # Safety
    /// Only one thread at a time may use it: NCCL's progress thread of this connection, or the closing thread after
    /// the progress thread has left it, in both cases after [`Debt::take_over`]; or whoever the debt's turn it is.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the exclusive use is the caller's promise, see Safety")]
    pub(crate) unsafe fn end(&self) -> Option<&mut (dyn End + 'static)> {
        // SAFETY: the caller's promise.
        unsafe { (*self.end.get()).as_deref_mut() }
    }

    /// The pointer that names a request.
    #[inline]
    pub(crate) fn request(&self, index: usize) -> *mut c_void {
        std::ptr::from_ref(&self.requests[index]).cast_mut().cast()
    }

    /// A name of the connection, for a thread that looks after its debt: it may be closed meanwhile.
    pub(crate) fn itself(&self) -> Weak<Self> {
        self.itself.clone()
    }

    /// The thread that uses the connection leaves it with a debt.
    #[inline]
    pub(crate) fn incur(&self) {
        if self.debt.incur() {
            self.hand_over();
        }
    }

    /// Has the control thread look after the connection's debts from now on.
    #[cold]
    fn hand_over(&self) {
        if let Some(comm) = self.itself.upgrade() {
            self.control.look_after(comm);
        }
    }

    /// Takes the connection for a call.
    ///
    /// # Errors
    /// When this is a forked child whose parent's control thread had it at that moment.
    #[inline]
    pub(crate) fn take_over(&self) -> Result<(), Error> {
        if self.debt.take_over(|| self.control.is_ours()) { Ok(()) } else { self.control.check() }
    }

    /// Refuses a connection of the parent.
    ///
    /// # Errors
    /// When this is a forked child.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        self.control.check_process()
    }

    /// Sends what the connection owes, if nobody else has it now; whether nothing is owed any more.
    pub(crate) fn settle(&self) -> bool {
        // SAFETY: the debt says that nobody else uses the connection until it is settled.
        self.debt.settle(|| unsafe { self.end() }.is_none_or(End::acknowledge))
    }

    /// Closes the connection: the control thread tells the peer and sees to what is still under way.
    ///
    /// # Safety
    /// The pointer must come from [`Self::into_raw`], and neither it nor its requests may be used again.
    pub(crate) unsafe fn close(pointer: *mut c_void) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        let comm = unsafe { Self::from_raw(pointer) }?;
        if !comm.control.is_ours() {
            // A forked child closes what is its parent's, whose threads were at it perhaps when it was forked.
            return Ok(());
        }
        // SAFETY: into_raw made it from an Arc, and NCCL's share of it ends here.
        let comm = unsafe { Arc::from_raw(pointer.cast::<Self>().cast_const()) };
        let _ = comm.debt.take_over(|| true);
        // SAFETY: NCCL has left the connection, and no thread settles its debt any more.
        let end = unsafe { (*comm.end.get()).take() };
        if let Some(end) = end {
            comm.control.close(comm.route, end);
        }
        Ok(())
    }
}

impl Linked for Comm {
    fn link(&self) -> &AtomicLink<Self> {
        &self.link
    }
}

const _: () = assert!(SendRequest::COUNT <= RecvRequest::COUNT);

/// All requests of a connection.
fn requests_of(comm: *const Comm) -> Box<[Request; RecvRequest::COUNT]> {
    let all: Vec<Request> = (0..RecvRequest::COUNT).map(|index| Request { comm, index }).collect();
    all.into_boxed_slice().try_into().unwrap_or_else(|_| unreachable!("so many were made"))
}

#[cold]
fn no_connection(pointer: *mut c_void) -> Error {
    Error::protocol(format!("{pointer:p} is no connection of this plugin, or one that was closed"))
}

impl Request {
    /// The request behind NCCL's pointer.
    ///
    /// # Safety
    /// The pointer must be NULL or come from [`Comm::request`] of a connection that is not closed.
    #[inline]
    pub(crate) unsafe fn from_raw<'a>(pointer: *mut c_void) -> Result<&'a Self, Error> {
        // SAFETY: the caller's promise; NULL gives None.
        unsafe { pointer.cast::<Self>().as_ref() }.ok_or_else(no_request)
    }

    /// The connection.
    #[inline]
    pub(crate) fn comm(&self) -> &Comm {
        // SAFETY: a request lives inside its connection, which outlives every reference to the request.
        unsafe { &*self.comm }
    }

    /// The request's number in its connection.
    #[inline]
    pub(crate) fn index(&self) -> usize {
        self.index
    }
}

#[cold]
fn no_request() -> Error {
    Error::protocol("test was called with a NULL request")
}
