//! What NCCL's opaque pointers point to: listeners, connections, their requests and registered memory.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use railweave_transport::{ConnectionConfig, Error, RecvRequest, SendRequest};

use crate::control::{Control, Outcome, Route};
use crate::network::{End, Established, Network, Registrar};

/// What a connection's memory begins with, so that a pointer that NCCL mixed up is refused.
const MAGIC: u64 = u64::from_le_bytes(*b"RWVCOMM1");

/// A connection, as NCCL's `sendComm` and `recvComm`.
pub(crate) struct Comm {
    magic: u64,
    /// Only the progress thread that owns the connection looks inside (nccl-contract, section 2.1).
    end: UnsafeCell<End>,
    /// Service threads register through this, beside the progress thread.
    pub(crate) registrar: Arc<dyn Registrar>,
    pub(crate) peer: String,
    route: Route,
    control: Arc<Control>,
    requests: Box<[Request]>,
}

/// A request, as NCCL points to it.
pub(crate) struct Request {
    comm: *const Comm,
    index: usize,
}

impl Comm {
    /// Makes a connection that NCCL owns from now on.
    pub(crate) fn into_raw(established: Established, route: Route, control: Arc<Control>) -> *mut c_void {
        let count = match established.end {
            End::Send(_) => SendRequest::COUNT,
            End::Recv(_) => RecvRequest::COUNT,
        };
        let comm = Box::into_raw(Box::new(Self {
            magic: MAGIC,
            end: UnsafeCell::new(established.end),
            registrar: established.registrar,
            peer: established.peer,
            route,
            control,
            requests: Box::new([]),
        }));
        let requests = (0..count).map(|index| Request { comm, index }).collect();
        // SAFETY: the pointer was made above and nobody else has it yet.
        unsafe { (*comm).requests = requests };
        comm.cast()
    }

    /// The connection behind NCCL's pointer.
    ///
    /// # Safety
    /// The pointer must be NULL or come from [`Self::into_raw`] and not be closed yet.
    pub(crate) unsafe fn from_raw<'a>(pointer: *mut c_void) -> Result<&'a Self, Error> {
        // SAFETY: the caller's promise; NULL gives None.
        let comm = unsafe { pointer.cast::<Self>().as_ref() };
        comm.filter(|comm| comm.magic == MAGIC).ok_or_else(|| {
            Error::protocol(format!("{pointer:p} is no connection of this plugin, or one that was closed"))
        })
    }

    /// The data path's end.
    ///
    /// # Safety
    /// Only one thread at a time may use it: NCCL's progress thread of this connection, or the closing thread after
    /// the progress thread has left it.
    #[expect(clippy::mut_from_ref, reason = "the exclusive use is the caller's promise, see Safety")]
    pub(crate) unsafe fn end(&self) -> &mut End {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.end.get() }
    }

    /// The pointer that names a request.
    #[inline]
    pub(crate) fn request(&self, index: usize) -> *mut c_void {
        std::ptr::from_ref(&self.requests[index]).cast_mut().cast()
    }

    /// Closes the connection: the control thread tells the peer and sees to what is still under way.
    ///
    /// # Safety
    /// The pointer must come from [`Self::into_raw`], and neither it nor its requests may be used again.
    pub(crate) unsafe fn close(pointer: *mut c_void) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { Self::from_raw(pointer) }?;
        // SAFETY: into_raw made it from a box, and it ends here.
        let mut comm = unsafe { Box::from_raw(pointer.cast::<Self>()) };
        comm.magic = 0;
        let Self { end, route, control, .. } = *comm;
        control.close(route, end.into_inner());
        Ok(())
    }
}

impl Request {
    /// The connection and number behind NCCL's pointer.
    ///
    /// # Safety
    /// The pointer must be NULL or come from [`Comm::request`] of a connection that is not closed.
    #[inline]
    pub(crate) unsafe fn from_raw<'a>(pointer: *mut c_void) -> Result<(&'a Comm, usize), Error> {
        // SAFETY: the caller's promise; NULL gives None.
        match unsafe { pointer.cast::<Self>().as_ref() } {
            // SAFETY: a request lives inside its connection.
            Some(request) => Ok((unsafe { &*request.comm }, request.index)),
            None => Err(Error::protocol("test was called with a NULL request")),
        }
    }
}

/// A listener, as NCCL's `listenComm`: serves any number of connections.
pub(crate) struct Listener {
    pub(crate) nonce: u64,
    pub(crate) device: usize,
    pub(crate) network: Arc<dyn Network>,
    pub(crate) config: ConnectionConfig,
    pub(crate) control: Arc<Control>,
    /// What is ready to be accepted; None once the listener is closed.
    ready: Mutex<Option<VecDeque<Outcome>>>,
}

impl Listener {
    pub(crate) fn new(
        nonce: u64,
        device: usize,
        network: Arc<dyn Network>,
        config: ConnectionConfig,
        control: Arc<Control>,
    ) -> Self {
        Self { nonce, device, network, config, control, ready: Mutex::new(Some(VecDeque::new())) }
    }

    /// Adds a connection that is ready, or the reason why one did not come to be; hands it back when the listener is
    /// closed.
    pub(crate) fn give(&self, outcome: Outcome) -> Option<Outcome> {
        match &mut *self.ready() {
            Some(ready) => {
                ready.push_back(outcome);
                None
            }
            None => Some(outcome),
        }
    }

    /// The oldest result that nobody accepted yet.
    pub(crate) fn pop(&self) -> Option<Outcome> {
        self.ready().as_mut()?.pop_front()
    }

    /// Ends the listener; answers the connections that nobody accepted.
    pub(crate) fn close(&self) -> impl Iterator<Item = (Box<Established>, Route)> {
        self.ready().take().into_iter().flatten().filter_map(Result::ok)
    }

    fn ready(&self) -> MutexGuard<'_, Option<VecDeque<Outcome>>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The listener behind NCCL's pointer.
    ///
    /// # Safety
    /// The pointer must be NULL or come from `Arc::into_raw` and not be closed yet.
    pub(crate) unsafe fn from_raw<'a>(pointer: *mut c_void) -> Result<&'a Self, Error> {
        // SAFETY: the caller's promise; NULL gives None.
        unsafe { pointer.cast::<Self>().as_ref() }
            .ok_or_else(|| Error::protocol("accept was called with a NULL listener"))
    }
}
