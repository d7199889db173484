//! The progress loop: executes a plan on its connections as NCCL's progress thread does. Receives are posted as soon as
//! there is room for them, sends as soon as their data is there; requests are tested strictly in order; a call that
//! returns no request is retried in the next round. One loop serves both directions, so neither can wait for the other
//! forever.

use crate::announcement::Announcement;
use crate::error::CommunicatorError;
use crate::patience::Patience;
use crate::plan::{Action, Place, Plan, RecvStream, SendStream};
use railweave_nccl_host::connection::Connection;
use railweave_nccl_host::net::{MAX_PARTS, NetApi, Part, ProfilerHandle, RecvComm, Registration, Request, SendComm};
use railweave_nccl_host::profiler::Op;
use std::collections::VecDeque;
use std::iter::repeat_with;
use std::ptr::NonNull;

/// The bytes of one element.
pub(crate) const ELEMENT_BYTES: usize = size_of::<f32>();

/// The tag of every message: tags only distinguish the parts of a grouped receive, and these receives have one part.
const SINGLE_TAG: i32 = 0;

/// The user's buffers of one collective, as addresses, because plugins read and write them meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers {
    input: NonNull<f32>,
    input_length: usize,
    output: NonNull<f32>,
    output_length: usize,
}

// SAFETY: these are only addresses; `run` says what its caller guarantees.
unsafe impl Send for Buffers {}
// SAFETY: as above.
unsafe impl Sync for Buffers {}

impl Buffers {
    /// Returns the addresses of an input and an output.
    #[must_use]
    pub(crate) fn new(input: &[f32], output: &mut [f32]) -> Self {
        let (input_length, output_length) = (input.len(), output.len());
        // The NonNull of the input is only read from: no plan writes to its input.
        Self {
            input: NonNull::from_ref(input).cast(),
            input_length,
            output: NonNull::from_mut(output).cast(),
            output_length,
        }
    }

    /// Returns the address of one buffer that is both input and output.
    #[must_use]
    pub(crate) fn in_place(data: &mut [f32]) -> Self {
        let (data, length) = (NonNull::from_mut(data).cast(), data.len());
        Self { input: data, input_length: length, output: data, output_length: length }
    }

    /// Returns the address and the bytes of a whole buffer.
    #[must_use]
    pub(crate) fn whole(&self, place: Place) -> (NonNull<u8>, usize) {
        match place {
            Place::Input => (self.input.cast(), self.input_length * ELEMENT_BYTES),
            Place::Output => (self.output.cast(), self.output_length * ELEMENT_BYTES),
        }
    }

    /// Returns true if a plan lies inside the buffers.
    #[must_use]
    pub(crate) fn hold(&self, plan: &Plan) -> bool {
        plan.fits(self.input_length, self.output_length)
    }

    /// # Safety
    /// `offset` is inside the buffer or at its end.
    unsafe fn at(&self, place: Place, offset: usize) -> NonNull<f32> {
        let start = if place == Place::Input { self.input } else { self.output };
        // SAFETY: the caller promises it.
        unsafe { start.add(offset) }
    }
}

/// Executes `plan`, whose announcement gets the events of this thread.
///
/// # Errors
/// If the plugin returns an error, nothing moves for too long, the parent says stop, or a message has the wrong size.
/// Transfers may then be in flight: close all connections before using the buffers again.
///
/// # Safety
/// The buffers hold the plan (see [`Buffers::hold`]), stay in place, and are not touched by others until this returns
/// or, after an error, until the connections are closed. A connection with a user's registration has registered the
/// whole buffer that its stream uses. The announcement stays in place as long as the buffers do.
///
/// # Panics
/// If a plan names a connection that does not exist, or a slice does not fit the staging slot that it goes through.
pub(crate) unsafe fn run<N: NetApi>(
    net: &N,
    plan: &Plan,
    senders: &[Connection<'_, N, SendComm>],
    receivers: &[Connection<'_, N, RecvComm>],
    buffers: Buffers,
    mut announcement: Option<&mut Announcement<'_>>,
    mut patience: Patience<'_>,
) -> Result<(), CommunicatorError> {
    let (send_ops, receive_ops) =
        announcement.as_deref_mut().map(|announcement| announcement.start(plan, (senders, receivers))).unzip();
    let mut send_ops = send_ops.into_iter().flatten();
    let mut receive_ops = receive_ops.into_iter().flatten();
    let mut sends: Vec<_> = plan
        .sends
        .iter()
        .zip(repeat_with(|| send_ops.next()))
        .map(|(stream, op)| Sending::new(stream, &senders[stream.connection], op))
        .collect();
    let mut receives: Vec<_> = plan
        .receives
        .iter()
        .zip(repeat_with(|| receive_ops.next()))
        .map(|(stream, op)| Receiving::new(stream, &receivers[stream.connection], op))
        .collect();
    loop {
        let (mut moved, mut done) = (false, true);
        for receive in &mut receives {
            // SAFETY: the caller promises it; `progress` handles requests and buffers by the rules of the trait.
            moved |= unsafe { receive.progress(net, buffers) }?;
            done &= receive.is_done();
        }
        for send in &mut sends {
            let fed = send.stream.after.map_or(0, |after| receives[after].done);
            // SAFETY: as above.
            moved |= unsafe { send.progress(net, buffers, fed) }?;
            done &= send.is_done();
        }
        if done {
            break;
        }
        patience.after_round(moved, || {
            let stuck = receives.iter().filter(|stream| !stream.is_done()).map(Receiving::describe);
            let stuck = stuck.chain(sends.iter().filter(|stream| !stream.is_done()).map(Sending::describe));
            stuck.collect::<Vec<_>>().join("; ")
        })?;
    }
    if let Some(announcement) = announcement {
        announcement.end();
    }
    Ok(())
}

/// A send stream in progress.
struct Sending<'a, 'net, 'p, N: NetApi> {
    stream: &'a SendStream,
    connection: &'a Connection<'net, N, SendComm>,
    requests: VecDeque<Request>,
    posted: usize,
    done: usize,
    /// True while the next slice is already in its staging slot, from an attempt that returned no request.
    staged: bool,
    /// Its event; `None` without a profiler.
    op: Option<&'a mut Op<'p>>,
    /// The slices whose steps have started.
    announced: usize,
}

impl<'a, 'net, 'p, N: NetApi> Sending<'a, 'net, 'p, N> {
    fn new(stream: &'a SendStream, connection: &'a Connection<'net, N, SendComm>, op: Option<&'a mut Op<'p>>) -> Self {
        let requests = VecDeque::with_capacity(connection.shape().in_flight);
        Self { stream, connection, requests, posted: 0, done: 0, staged: false, op, announced: 0 }
    }

    /// Starts the steps of all slices that fit in the staging buffer; NCCL gives the GPU that much room.
    fn announce(&mut self) {
        let Some(op) = &mut self.op else { return };
        let all = self.stream.slices.len().min(self.done + self.connection.shape().in_flight);
        for number in self.announced..all {
            op.start_step(number);
            op.send_gpu_wait(number);
            self.announced = number + 1;
        }
    }

    /// # Safety
    /// As for `run`.
    unsafe fn progress(&mut self, net: &N, buffers: Buffers, fed: usize) -> Result<bool, CommunicatorError> {
        let mut moved = false;
        self.announce();
        while let Some(slice) = self.stream.slices.get(self.posted)
            && self.posted - self.done < self.connection.shape().in_flight
            && (self.stream.after.is_none() || slice.needs <= fed)
        {
            let bytes = slice.length * ELEMENT_BYTES;
            // SAFETY: the plan fits the buffers.
            let data: NonNull<u8> = unsafe { buffers.at(self.stream.place, slice.offset) }.cast();
            let (data, registration) = match self.connection.user() {
                Some(user) => (data, user),
                None => {
                    let (slot, registration) = self.connection.slot(self.posted);
                    if !self.staged {
                        assert!(bytes <= self.connection.shape().slice_bytes, "a slice fits its slot");
                        // SAFETY: both places have room for the slice; the slot's last request is done, because no
                        // more than `in_flight` requests are pending.
                        unsafe { slot.copy_from_nonoverlapping(data, bytes) };
                        self.staged = true;
                    }
                    (slot, registration)
                }
            };
            let side = self.connection.side();
            let handle = self.op.as_ref().map_or(ProfilerHandle::NONE, |op| {
                op.send_peer_wait(self.posted);
                op.handle(self.posted)
            });
            // SAFETY: the data lies inside the registration and is not touched until the request is done; the caller
            // keeps the announcement, and thus the step, in place.
            let request = unsafe { net.isend_profiled(side, data, bytes, SINGLE_TAG, registration, handle) }?;
            let Some(request) = request else { break };
            if let Some(op) = &mut self.op {
                op.send_wait(self.posted, bytes);
            }
            self.requests.push_back(request);
            self.staged = false;
            self.posted += 1;
            moved = true;
        }
        while let Some(request) = self.requests.front() {
            // SAFETY: the request is not done yet; it is dropped as soon as it is.
            if !unsafe { net.test(request, None) }? {
                break;
            }
            self.requests.pop_front();
            if let Some(op) = &mut self.op {
                op.stop_step(self.done);
            }
            self.done += 1;
            moved = true;
        }
        if self.is_done()
            && let Some(op) = self.op.take()
        {
            op.stop();
        }
        Ok(moved)
    }

    fn is_done(&self) -> bool {
        self.done == self.stream.slices.len()
    }

    fn describe(&self) -> String {
        let (peer, all) = (self.connection.peer(), self.stream.slices.len());
        format!("send to rank {peer}: {} of {all} slices posted, {} done", self.posted, self.done)
    }
}

/// A receive stream in progress.
struct Receiving<'a, 'net, 'p, N: NetApi> {
    stream: &'a RecvStream,
    connection: &'a Connection<'net, N, RecvComm>,
    requests: VecDeque<Request>,
    posted: usize,
    done: usize,
    /// Its event; `None` without a profiler.
    op: Option<&'a mut Op<'p>>,
}

impl<'a, 'net, 'p, N: NetApi> Receiving<'a, 'net, 'p, N> {
    fn new(stream: &'a RecvStream, connection: &'a Connection<'net, N, RecvComm>, op: Option<&'a mut Op<'p>>) -> Self {
        let requests = VecDeque::with_capacity(connection.shape().in_flight);
        Self { stream, connection, requests, posted: 0, done: 0, op }
    }

    /// Returns the user's registration if slice `index` goes straight to the user's buffer; sums always go through a
    /// slot.
    fn direct(&self, index: usize) -> Option<Registration> {
        self.connection.user().filter(|_| self.stream.slices[index].action == Action::Store)
    }

    /// # Safety
    /// As for `run`.
    unsafe fn progress(&mut self, net: &N, buffers: Buffers) -> Result<bool, CommunicatorError> {
        let mut moved = false;
        while let Some(slice) = self.stream.slices.get(self.posted)
            && self.posted - self.done < self.connection.shape().in_flight
        {
            let part = match self.direct(self.posted) {
                Some(registration) => {
                    // SAFETY: the plan fits the buffers.
                    let data = unsafe { buffers.at(Place::Output, slice.offset) }.cast();
                    Part { data, bytes: slice.length * ELEMENT_BYTES, tag: SINGLE_TAG, registration }
                }
                None => {
                    // The size of a receive is an upper bound: NCCL always passes that of a whole slice here.
                    let (data, registration) = self.connection.slot(self.posted);
                    assert!(
                        slice.length * ELEMENT_BYTES <= self.connection.shape().slice_bytes,
                        "a slice fits its slot"
                    );
                    Part { data, bytes: self.connection.shape().slice_bytes, tag: SINGLE_TAG, registration }
                }
            };
            let handle = self.op.as_ref().map(|op| {
                op.start_step(self.posted);
                op.handle(self.posted)
            });
            // SAFETY: the buffer lies inside its registration and is not touched until the request is done: a slot
            // because no more than `in_flight` requests are pending, the user's because the caller promises it. The
            // caller keeps the announcement, and thus the step, in place.
            let request = unsafe { net.irecv_profiled(self.connection.side(), &[part], false, handle.as_slice()) }?;
            let Some(request) = request else { break };
            if let Some(op) = &mut self.op {
                op.recv_wait(self.posted);
            }
            self.requests.push_back(request);
            self.posted += 1;
            moved = true;
        }
        while let Some(request) = self.requests.front() {
            let mut sizes = [0; MAX_PARTS];
            // SAFETY: the request is not done yet; it is dropped as soon as it is.
            if !unsafe { net.test(request, Some(&mut sizes)) }? {
                break;
            }
            self.requests.pop_front();
            if let Some(op) = &mut self.op {
                op.recv_flush_wait(self.done, usize::try_from(sizes[0]).unwrap_or(0));
                // Memory of the host needs no flush.
                op.recv_gpu_wait(self.done);
            }
            // SAFETY: the slice was just received.
            unsafe { self.take_in(buffers, i64::from(sizes[0])) }?;
            if let Some(op) = &mut self.op {
                op.stop_step(self.done);
            }
            self.done += 1;
            moved = true;
        }
        if self.is_done()
            && let Some(op) = self.op.take()
        {
            op.stop();
        }
        Ok(moved)
    }

    /// Checks the size of the slice that was received last, and copies or adds it to its place unless the plugin has
    /// put it there.
    ///
    /// # Safety
    /// As for `run`; and the request of slice number `self.done` is done.
    unsafe fn take_in(&self, buffers: Buffers, bytes: i64) -> Result<(), CommunicatorError> {
        let slice = self.stream.slices[self.done];
        let expected = slice.length * ELEMENT_BYTES;
        if usize::try_from(bytes) != Ok(expected) {
            let (peer, index) = (self.connection.peer(), self.done);
            return Err(CommunicatorError::WrongSize { peer, index, bytes, expected });
        }
        if self.direct(self.done).is_some() {
            return Ok(());
        }
        let (slot, _) = self.connection.slot(self.done);
        // SAFETY: the slot is aligned for float32, because the size of a slot is a multiple of 4; it has room for this
        // many, and the plugin is done with it; the plan fits the output, and nothing else uses this part of it now.
        let (received, output) = unsafe {
            let received = std::slice::from_raw_parts(slot.cast::<f32>().as_ptr(), slice.length);
            let output = buffers.at(Place::Output, slice.offset).as_ptr();
            (received, std::slice::from_raw_parts_mut(output, slice.length))
        };
        match slice.action {
            Action::Store => output.copy_from_slice(received),
            Action::Add => output.iter_mut().zip(received).for_each(|(sum, value)| *sum += value),
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.done == self.stream.slices.len()
    }

    fn describe(&self) -> String {
        let (peer, all) = (self.connection.peer(), self.stream.slices.len());
        format!("receive from rank {peer}: {} of {all} slices posted, {} done", self.posted, self.done)
    }
}
