//! One side of a connection with the buffers that are registered for it, as NCCL's proxies keep them.

use crate::memory::HostMemory;
use crate::net::{Comm, NetApi, NetError, RecvComm, Registration, SendComm};
use std::ptr::NonNull;

/// The size and the number of the slices into which a connection cuts its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepShape {
    /// Bytes of one slice, a multiple of 4.
    pub slice_bytes: usize,
    /// Slices in flight at one time, 1 to 32.
    pub in_flight: usize,
}

impl StepShape {
    /// The shape of NCCL's rings with protocol Simple: a slice is two of the eight steps of the 4 MiB buffer.
    pub const RING: Self = Self { slice_bytes: 1 << 20, in_flight: 4 };
    /// The shape of connections between two peers: a slice is one of NCCL's steps of 512 KiB, and all eight are in
    /// flight.
    pub const PEER: Self = Self { slice_bytes: 1 << 19, in_flight: 8 };

    /// Returns the size of the staging buffer in bytes.
    #[must_use]
    pub fn buffer_bytes(self) -> usize {
        self.slice_bytes * self.in_flight
    }
}

/// A side of a connection: [`SendComm`] or [`RecvComm`].
pub trait Side {
    /// Returns the side for a registration.
    fn comm(&self) -> Comm<'_>;

    /// Closes the side.
    ///
    /// # Errors
    /// If the plugin returns an error.
    fn close<N: NetApi>(self, net: &N) -> Result<(), NetError>;
}

impl Side for SendComm {
    fn comm(&self) -> Comm<'_> {
        Comm::Send(self)
    }

    fn close<N: NetApi>(self, net: &N) -> Result<(), NetError> {
        net.close_send(self)
    }
}

impl Side for RecvComm {
    fn comm(&self) -> Comm<'_> {
        Comm::Recv(self)
    }

    fn close<N: NetApi>(self, net: &N) -> Result<(), NetError> {
        net.close_recv(self)
    }
}

/// One side of a connection, its staging buffer, and the registration of a user's buffer if there is one. Dropping it
/// closes it, even with transfers in flight, in NCCL's order: first the registrations, then the connection, then the
/// memory.
#[derive(Debug)]
pub struct Connection<'net, N: NetApi, S: Side> {
    net: &'net N,
    /// `None` once closed.
    side: Option<S>,
    /// The staging buffer's registration, until it ends.
    staged: Option<Registration>,
    /// The registration of a user's buffer, during a collective.
    user: Option<Registration>,
    staging: HostMemory,
    peer: usize,
    shape: StepShape,
}

impl<'net, N: NetApi, S: Side> Connection<'net, N, S> {
    /// Takes over a connection to rank `peer` and registers a staging buffer for it.
    ///
    /// # Errors
    /// If the registration fails, which also closes the connection.
    pub fn new(net: &'net N, side: S, peer: usize, shape: StepShape) -> Result<Self, NetError> {
        let staging = HostMemory::new(shape.buffer_bytes());
        let mut this = Self { net, side: Some(side), staged: None, user: None, staging, peer, shape };
        // SAFETY: the memory lives in `this` and is freed after the connection is closed.
        let staged = unsafe { net.reg_mr(this.side().comm(), this.staging.start(), shape.buffer_bytes()) }?;
        this.staged = Some(staged);
        Ok(this)
    }

    /// Returns the rank at the other end.
    #[must_use]
    pub fn peer(&self) -> usize {
        self.peer
    }

    /// Returns the shape of the slices into which it cuts its data.
    #[must_use]
    pub fn shape(&self) -> StepShape {
        self.shape
    }

    /// Returns the open side.
    ///
    /// # Panics
    /// Only once `close` or `drop` has taken the side, after which no caller has the connection.
    #[must_use]
    pub fn side(&self) -> &S {
        self.side.as_ref().expect("open until closed")
    }

    /// Returns the start of the staging buffer's slot for slice number `index`, and the registration of that memory.
    #[must_use]
    pub fn slot(&self, index: usize) -> (NonNull<u8>, Registration) {
        let offset = index % self.shape.in_flight * self.shape.slice_bytes;
        // SAFETY: the offset is below the size of the staging buffer.
        let start = unsafe { self.staging.start().add(offset) };
        (start, self.staged.expect("registered when made"))
    }

    /// Returns the registration of the user's buffer, if there is one.
    #[must_use]
    pub fn user(&self) -> Option<Registration> {
        self.user
    }

    /// Registers a user's buffer, as NCCL does for zero-copy.
    ///
    /// # Errors
    /// If the plugin returns an error.
    ///
    /// # Safety
    /// The buffer stays in place until [`Self::deregister_user`] or the end of this connection.
    pub unsafe fn register_user(&mut self, data: NonNull<u8>, bytes: usize) -> Result<(), NetError> {
        self.deregister_user()?;
        // SAFETY: the caller promises it.
        self.user = Some(unsafe { self.net.reg_mr(self.side().comm(), data, bytes) }?);
        Ok(())
    }

    /// Ends the registration of the user's buffer, if there is one.
    ///
    /// # Errors
    /// If the plugin returns an error.
    pub fn deregister_user(&mut self) -> Result<(), NetError> {
        let Some(user) = self.user.take() else { return Ok(()) };
        // SAFETY: the registration was made for this connection, and this is its last use.
        unsafe { self.net.dereg_mr(self.side().comm(), user) }
    }

    /// Ends the registrations and the connection.
    ///
    /// # Errors
    /// If the plugin returns an error: the first one. The remaining steps are still done.
    pub fn close(mut self) -> Result<(), NetError> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), NetError> {
        let user = if self.side.is_some() { self.deregister_user() } else { Ok(()) };
        let Some(side) = self.side.take() else { return Ok(()) };
        let staged = match self.staged.take() {
            // SAFETY: the registration was made for this connection, and this is its last use.
            Some(staged) => unsafe { self.net.dereg_mr(side.comm(), staged) },
            None => Ok(()),
        };
        let closed = side.close(self.net);
        user.and(staged).and(closed)
    }
}

impl<N: NetApi, S: Side> Drop for Connection<'_, N, S> {
    fn drop(&mut self) {
        // `close` returns the error to a caller who needs it.
        let _ = self.finish();
    }
}
