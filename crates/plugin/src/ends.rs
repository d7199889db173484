//! The two ends of connections, whatever the fabric: one virtual call per NCCL call leads from `data_path` into
//! `SendConnection<F>` or `RecvConnection<F>`. What NCCL wants written is written below that call, so that nothing but the
//! error has to come back through it.

use std::ffi::{c_int, c_void};

use railweave_abi::net::OPTIONAL_RECV_COMPLETION;
use railweave_fabric::Fabric;
use railweave_transport::{
    Error, Flushed, Incoming, MemoryKeys, Outgoing, RecvConnection, RecvRequest, SendConnection, SendRequest,
};

use crate::comm::Comm;
use crate::debtor;
use crate::log;

/// The sending end of a connection, whatever the fabric.
pub(crate) trait SendEnd: Send {
    /// Sends a message; writes the request once that is under way, else leaves it.
    ///
    /// # Safety
    /// `request` must be valid for writing.
    unsafe fn isend(
        &mut self,
        comm: &Comm,
        address: u64,
        size: u64,
        tag: u32,
        keys: &MemoryKeys,
        request: *mut *mut c_void,
    ) -> Result<(), Error>;

    /// Writes `done`, and the size where it is wanted, once the request with this number is over.
    ///
    /// # Safety
    /// `done` must be valid for writing, `size` NULL or valid for writing.
    unsafe fn test(&mut self, comm: &Comm, request: usize, done: *mut c_int, size: *mut c_int) -> Result<(), Error>;

    fn start_linger(&mut self);
    fn linger(&mut self) -> bool;
}

/// The receiving end of a connection, whatever the fabric.
pub(crate) trait RecvEnd: Send {
    /// Receives into one buffer. `request` says on the way in whether the completion is optional; on the way out it is NULL
    /// unless the receive is under way.
    ///
    /// # Safety
    /// `request` must be valid for reading and writing.
    unsafe fn irecv_one(
        &mut self,
        comm: &Comm,
        address: u64,
        size: u64,
        tag: u32,
        keys: &MemoryKeys,
        request: *mut *mut c_void,
    ) -> Result<(), Error>;

    /// Receives into several buffers; else as [`Self::irecv_one`].
    ///
    /// # Safety
    /// As for [`Self::irecv_one`].
    unsafe fn irecv(&mut self, comm: &Comm, buffers: &[Incoming<'_>], request: *mut *mut c_void) -> Result<(), Error>;

    /// Writes `done`, and the sizes where they are wanted, once the request with this number is over.
    ///
    /// # Safety
    /// `done` must be valid for writing, `sizes` NULL or valid for writing one number per buffer.
    unsafe fn test(&mut self, comm: &Comm, request: usize, done: *mut c_int, sizes: *mut c_int) -> Result<(), Error>;

    fn iflush(&mut self, buffers: &[Incoming<'_>]) -> Result<Flushed, Error>;
    fn acknowledge(&mut self) -> bool;
    fn start_linger(&mut self);
    fn linger(&mut self) -> bool;
}

impl<F: Fabric> SendEnd for SendConnection<F>
where
    Self: Send,
{
    unsafe fn isend(
        &mut self,
        comm: &Comm,
        address: u64,
        size: u64,
        tag: u32,
        keys: &MemoryKeys,
        request: *mut *mut c_void,
    ) -> Result<(), Error> {
        let message = Outgoing { address, size, tag, keys };
        match self.isend_quick(&message) {
            Some(sent) => {
                // SAFETY: the caller's promise.
                unsafe { request.write(comm.request(sent.index())) };
                Ok(())
            }
            // SAFETY: the caller's promise.
            None => unsafe { isend_rest(self, comm, message, request) },
        }
    }

    unsafe fn test(&mut self, comm: &Comm, request: usize, done: *mut c_int, size: *mut c_int) -> Result<(), Error> {
        let request = SendRequest::from_index(request);
        // What another connection was left with is settled before or after, as it suits.
        debtor::leave(comm, false);
        let sent = match self.test_quick(request) {
            Ok(bytes) => Some(bytes),
            Err(moved) => self.test_rest(request, moved)?,
        };
        if let Some(bytes) = sent {
            // SAFETY: the caller's promises. Sizes are at most 1 GiB, which an int holds.
            unsafe {
                done.write(1);
                if !size.is_null() {
                    size.write(bytes as c_int);
                }
            }
        }
        Ok(())
    }

    fn start_linger(&mut self) {
        Self::start_linger(self);
    }

    fn linger(&mut self) -> bool {
        Self::linger(self)
    }
}

impl<F: Fabric> RecvEnd for RecvConnection<F>
where
    Self: Send,
{
    unsafe fn irecv_one(
        &mut self,
        comm: &Comm,
        address: u64,
        size: u64,
        tag: u32,
        keys: &MemoryKeys,
        request: *mut *mut c_void,
    ) -> Result<(), Error> {
        let buffer = Incoming { address, size, tag, keys };
        // SAFETY: the caller's promise.
        let optional = unsafe { take_hint(request) };
        let received = self.irecv_quick(&buffer, optional);
        if let Some(received) = received
            && !self.owes()
        {
            // SAFETY: the caller's promise.
            unsafe { request.write(comm.request(received.index())) };
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { irecv_rest(self, comm, received, &[buffer], optional, request) }
    }

    unsafe fn irecv(&mut self, comm: &Comm, buffers: &[Incoming<'_>], request: *mut *mut c_void) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe {
            let optional = take_hint(request);
            irecv_rest(self, comm, None, buffers, optional, request)
        }
    }

    unsafe fn test(&mut self, comm: &Comm, request: usize, done: *mut c_int, sizes: *mut c_int) -> Result<(), Error> {
        let request = RecvRequest::from_index(request);
        let may_owe = F::ONE_SIDED || debtor::may_owe(comm);
        if F::ONE_SIDED {
            debtor::leave(comm, false);
        }
        let received = match self.poll_quick(request) {
            Ok(()) => self.take_sizes(request, may_owe),
            Err(moved) => self.test_rest(request, may_owe, moved)?,
        };
        if let Some(received) = received {
            // SAFETY: the caller's promises. Sizes are at most 1 GiB, which an int holds.
            unsafe {
                done.write(1);
                if !sizes.is_null() {
                    received.iter().enumerate().for_each(|(place, size)| sizes.add(place).write(*size as c_int));
                }
            }
        }
        if !F::ONE_SIDED {
            debtor::leave(comm, self.owes());
        }
        Ok(())
    }

    fn iflush(&mut self, buffers: &[Incoming<'_>]) -> Result<Flushed, Error> {
        Self::iflush(self, buffers)
    }

    fn acknowledge(&mut self) -> bool {
        Self::acknowledge(self)
    }

    fn start_linger(&mut self) {
        Self::start_linger(self);
    }

    fn linger(&mut self) -> bool {
        Self::linger(self)
    }
}

/// Whether NCCL takes a receive for done before it is; what says so is replaced by NULL.
///
/// # Safety
/// `request` must be valid for reading and writing.
#[inline]
unsafe fn take_hint(request: *mut *mut c_void) -> bool {
    // SAFETY: the caller's promise.
    unsafe { request.replace(std::ptr::null_mut()) }.addr() == OPTIONAL_RECV_COMPLETION
}

/// What is left of [`SendEnd::isend`] when it is not quick.
///
/// # Safety
/// `request` must be valid for writing.
#[inline(never)]
unsafe fn isend_rest<F: Fabric>(
    end: &mut SendConnection<F>,
    comm: &Comm,
    message: Outgoing<'_>,
    request: *mut *mut c_void,
) -> Result<(), Error> {
    let Some(sent) = end.isend_rest(&message)? else {
        debtor::leave(comm, false);
        return Ok(());
    };
    // SAFETY: the caller's promise.
    unsafe { request.write(comm.request(sent.index())) };
    report_cut(end, comm);
    Ok(())
}

/// What is left of [`RecvEnd::irecv`] when it is not quick, or when it was (`received`) but there is a debt.
///
/// # Safety
/// `request` must be valid for writing.
#[inline(never)]
unsafe fn irecv_rest<F: Fabric>(
    end: &mut RecvConnection<F>,
    comm: &Comm,
    received: Option<RecvRequest>,
    buffers: &[Incoming<'_>],
    optional: bool,
    request: *mut *mut c_void,
) -> Result<(), Error> {
    let received = match received {
        Some(received) => Some(received),
        None => end.irecv_rest(buffers, optional)?,
    };
    // A thread that has posted something posts or tests more: what it owes elsewhere may still travel with that.
    if received.is_none() || end.owes() {
        debtor::leave(comm, end.owes());
    }
    if let Some(received) = received {
        // SAFETY: the caller's promise.
        unsafe { request.write(comm.request(received.index())) };
    }
    Ok(())
}

/// Says once per connection that a message was cut.
#[cold]
fn report_cut<F: Fabric>(end: &mut SendConnection<F>, comm: &Comm) {
    if let Some(cut) = end.take_cut() {
        log::warn(&format!(
            "to {}: a message of {} bytes (tag {:#x}) was cut to the {} bytes of its receive; the application's send and \
             receive sizes differ (said once per connection)",
            comm.peer, cut.message, cut.tag, cut.receive
        ));
    }
}

/// Either end.
pub(crate) enum End {
    Send(Box<dyn SendEnd>),
    Recv(Box<dyn RecvEnd>),
}

impl End {
    /// Sends what this end owes the peer; whether all of it is on its way.
    pub(crate) fn acknowledge(&mut self) -> bool {
        match self {
            Self::Send(_) => true,
            Self::Recv(end) => end.acknowledge(),
        }
    }

    pub(crate) fn start_linger(&mut self) {
        match self {
            Self::Send(end) => end.start_linger(),
            Self::Recv(end) => end.start_linger(),
        }
    }

    pub(crate) fn linger(&mut self) -> bool {
        match self {
            Self::Send(end) => end.linger(),
            Self::Recv(end) => end.linger(),
        }
    }
}
