//! A connection with both ends.

use super::{Buffer, noise, until};
use railweave_nccl_host::net::{Comm, Handle, ListenComm, MAX_PARTS, NetApi, Part, RecvComm, Request, SendComm};
use railweave_nccl_host::{LoadedNet, NetError};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// The sizes that `test` wrote for the parts of a receive; -1 if it wrote none.
pub(crate) type Received = [i32; MAX_PARTS];

/// A connection from one communicator to another, or to itself.
pub(crate) struct Pair<'a> {
    pub(crate) from: &'a LoadedNet,
    pub(crate) to: &'a LoadedNet,
    pub(crate) send: SendComm,
    pub(crate) recv: RecvComm,
}

/// Listens on a device.
pub(crate) fn listen(net: &LoadedNet, device: i32) -> (ListenComm, Handle) {
    let mut handle = Handle::default();
    let listen = net.listen(device, &mut handle).expect("listen succeeds");
    (listen, handle)
}

/// Polls connect until it returns a connection.
pub(crate) fn connect(net: &LoadedNet, device: i32, handle: &Handle) -> SendComm {
    let mut handle = handle.clone();
    until("connect", || net.connect(device, &mut handle).expect("connect succeeds"))
}

/// Polls accept until it returns a connection.
pub(crate) fn accept(net: &LoadedNet, listen: &ListenComm) -> RecvComm {
    until("accept", || net.accept(listen).expect("accept succeeds"))
}

impl<'a> Pair<'a> {
    /// Sets up a connection on the device with this number at both ends.
    pub(crate) fn open(from: &'a LoadedNet, to: &'a LoadedNet, device: i32) -> Self {
        let (listen, handle) = listen(to, device);
        let send = connect(from, device, &handle);
        let recv = accept(to, &listen);
        to.close_listen(listen).expect("the listen is closed");
        Self { from, to, send, recv }
    }

    /// Closes both ends.
    pub(crate) fn close(self) {
        self.from.close_send(self.send).expect("the sending end is closed");
        self.to.close_recv(self.recv).expect("the receiving end is closed");
    }

    /// Returns a buffer with a message, registered for sending.
    pub(crate) fn outgoing(&self, message: &[u8]) -> Buffer {
        Buffer::holding(self.from, Comm::Send(&self.send), message)
    }

    /// Returns a buffer, registered for receiving.
    pub(crate) fn incoming(&self, bytes: usize) -> Buffer {
        Buffer::new(self.to, Comm::Recv(&self.recv), bytes)
    }

    pub(crate) fn release_outgoing(&self, buffer: Buffer) {
        buffer.release(self.from, Comm::Send(&self.send));
    }

    pub(crate) fn release_incoming(&self, buffer: Buffer) {
        buffer.release(self.to, Comm::Recv(&self.recv));
    }

    /// Calls irecv once.
    pub(crate) fn try_irecv(&self, parts: &[Part], optional: bool) -> Result<Option<Request>, NetError> {
        // SAFETY: scenarios keep their buffers until the request is done or the connection is closed.
        unsafe { self.to.irecv(&self.recv, parts, optional) }
    }

    /// Posts a receive.
    pub(crate) fn irecv(&self, parts: &[Part]) -> Request {
        until("room for a receive", || self.try_irecv(parts, false).expect("irecv succeeds"))
    }

    /// Calls isend once with the first bytes of a buffer.
    pub(crate) fn try_isend(&self, from: &Buffer, bytes: usize, tag: i32) -> Result<Option<Request>, NetError> {
        // SAFETY: as above.
        unsafe { self.from.isend(&self.send, from.start(), bytes, tag, from.registration()) }
    }

    /// Sends the first bytes of a buffer, once there is a receive for them.
    pub(crate) fn isend(&self, from: &Buffer, bytes: usize, tag: i32) -> Request {
        until("a receive for this send", || self.try_isend(from, bytes, tag).expect("isend succeeds"))
    }

    /// Calls test once for a send. Returns its size once it is done.
    pub(crate) fn test_send(&self, request: &Request) -> Result<Option<i32>, NetError> {
        let mut sizes = [-1; MAX_PARTS];
        // SAFETY: a request is not tested again once it is done.
        let done = unsafe { self.from.test(request, Some(&mut sizes)) }?;
        Ok(done.then_some(sizes[0]))
    }

    /// Calls test once for a receive. Returns its sizes once it is done; -1 if the plugin wrote none.
    pub(crate) fn test_recv(&self, request: &Request) -> Result<Option<Received>, NetError> {
        let mut sizes = [-1; MAX_PARTS];
        // SAFETY: as above.
        let done = unsafe { self.to.test(request, Some(&mut sizes)) }?;
        Ok(done.then_some(sizes))
    }

    /// Calls test once with NULL for the sizes.
    pub(crate) fn test_without_sizes(net: &LoadedNet, request: &Request) -> bool {
        // SAFETY: as above.
        unsafe { net.test(request, None) }.expect("test succeeds")
    }

    /// Tests both sides in turn until all is done. Returns the sizes.
    pub(crate) fn finish(&self, sends: &[Request], recvs: &[Request]) -> (Vec<i32>, Vec<Received>) {
        self.finish_beside(None, sends, recvs)
    }

    /// Like `finish`, but also tests `open`, a receive without a send, as NCCL does; it must not be done.
    pub(crate) fn finish_beside(
        &self,
        open: Option<&Request>,
        sends: &[Request],
        recvs: &[Request],
    ) -> (Vec<i32>, Vec<Received>) {
        let mut sent = vec![None; sends.len()];
        let mut received = vec![None; recvs.len()];
        until("all transfers", || {
            for (size, request) in sent.iter_mut().zip(sends).filter(|(size, _)| size.is_none()) {
                *size = self.test_send(request).expect("test of a send succeeds");
            }
            for (sizes, request) in received.iter_mut().zip(recvs).filter(|(sizes, _)| sizes.is_none()) {
                *sizes = self.test_recv(request).expect("test of a receive succeeds");
            }
            let early = open.and_then(|open| self.test_recv(open).expect("test of a receive succeeds"));
            assert_eq!(early, None, "a receive without a send cannot be done");
            (sent.iter().all(Option::is_some) && received.iter().all(Option::is_some)).then_some(())
        });
        (sent.into_iter().flatten().collect(), received.into_iter().flatten().collect())
    }

    /// Sends the first bytes of one buffer to the start of another. Returns the sizes from `test` on both sides.
    pub(crate) fn transfer(&self, from: &Buffer, bytes: usize, to: &Buffer) -> (i32, i32) {
        let recv = self.irecv(&[to.part(7)]);
        let send = self.isend(from, bytes, 7);
        let (sent, received) = self.finish(&[send], &[recv]);
        (sent[0], received[0][0])
    }

    /// Sends 8 bytes into the receive that was posted `ahead`. A thread posts the next receive, tests this one until it
    /// is done, and makes no further call, so that the control thread must send the acknowledgement. Returns the time
    /// until the sender has it.
    pub(crate) fn owed(&self, from: &Buffer, to: &Buffer, ahead: &mut Request) -> Duration {
        let epoch = Instant::now();
        self.owed_by(|| epoch.elapsed(), from, to, ahead)
    }

    /// Like [`Self::owed`], with another clock.
    pub(crate) fn owed_by(
        &self,
        clock: impl Fn() -> Duration + Sync,
        from: &Buffer,
        to: &Buffer,
        ahead: &mut Request,
    ) -> Duration {
        let ((tell_done, done), (tell_over, over)) = (channel(), channel::<()>());
        let clock = &clock;
        thread::scope(|scope| {
            scope.spawn(move || {
                let next = self.irecv(&[to.part(7)]);
                let recv = std::mem::replace(ahead, next);
                until("a receive", || self.test_recv(&recv).expect("test of a receive succeeds"));
                let _ = tell_done.send(clock());
                // The thread must not end yet: it would send its debt itself.
                let _ = over.recv();
            });
            let send = self.isend(from, 8, 7);
            let begin = done.recv().expect("the receive is done");
            until("the acknowledgement", || self.test_send(&send).expect("test of a send succeeds"));
            let took = clock() - begin;
            drop(tell_over);
            took
        })
    }

    /// Moves one message and checks every byte of it.
    pub(crate) fn exchange(&self, seed: u64, bytes: usize) {
        let message = noise(seed, bytes);
        let (from, to) = (self.outgoing(&message), self.incoming(bytes + 100));
        assert_eq!(self.transfer(&from, bytes, &to), (bytes as i32, bytes as i32));
        to.assert_holds(&message);
        self.release_outgoing(from);
        self.release_incoming(to);
    }
}
