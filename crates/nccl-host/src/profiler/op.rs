//! A proxy's part of an operation: one connection in one direction, and its steps.

use super::call::{Call, Parent, any};
use super::callback::Step;
use super::describe::What;
use super::started::Profiler;
use super::table::Args;
use crate::net::ProfilerHandle;
use railweave_abi::profiler::parts::{ProxyOp, ProxyOpArgs, ProxyStep, ProxyStepArgs};
use railweave_abi::profiler::{EventState, EventType};
use std::ffi::{c_int, c_void};
use std::ptr::{from_ref, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The kinds for which a step starts.
const STEP: c_int = any([EventType::PROXY_STEP, EventType::NET_PLUGIN]);
/// The kinds for which a proxy's part starts.
const OP: c_int = STEP | EventType::PROXY_OP.bit();

/// The direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// This rank sends.
    Send,
    /// This rank receives.
    Receive,
}

/// The shape of a proxy's part of an operation.
#[derive(Clone, Copy, Debug)]
pub struct OpShape {
    /// The number of the channel.
    pub channel: u8,
    /// The rank at the other end.
    pub peer: i32,
    /// The number of messages.
    pub steps: usize,
    /// The largest size of a message in bytes.
    pub chunk_bytes: usize,
    /// The direction.
    pub direction: Direction,
    /// The largest number of messages at one time, at least 1.
    pub in_flight: usize,
}

/// A proxy's part of an operation. NCCL's `ncclProxySubArgs`, as far as profilers are concerned.
///
/// The handles of its steps ([`Self::handle`]) point into it, so it must outlive the requests that got them, or their
/// connection. Dropping it stops nothing.
#[derive(Debug)]
pub struct Op<'p> {
    profiler: &'p Profiler,
    mask: c_int,
    event: *mut c_void,
    direction: Direction,
    /// The size of the last message, which every state of a step reports, even those of later messages.
    bytes: usize,
    /// The number of messages that have reached each stage, which states of v1 to v3 report.
    counts: Counts,
    /// Messages use these in turn. They never move, because net plugins have pointers to them.
    steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    posted: c_int,
    transmitted: c_int,
    done: c_int,
}

// SAFETY: the handle is only passed to the profiler, whose functions NCCL calls from any thread.
unsafe impl Send for Op<'_> {}

impl<'p> Call<'p> {
    /// Starts a proxy's part of an operation; NCCL's progress thread does it. Its first state follows
    /// ([`Op::in_progress`]).
    #[must_use]
    pub fn proxy_op(self, operation: Parent<'p>, shape: OpShape) -> Op<'p> {
        let Self { profiler, mask } = self;
        let rank = profiler.info().rank;
        let what = What::ProxyOp(ProxyOp {
            pid: std::process::id().cast_signed(),
            channel_id: shape.channel,
            peer: shape.peer,
            n_steps: int(shape.steps),
            chunk_size: int(shape.chunk_bytes),
            is_send: c_int::from(shape.direction == Direction::Send),
        });
        let parents = (operation.of(profiler), null_mut());
        let event = profiler.start(mask, OP, EventType::PROXY_OP, parents, what);
        let step = || Step { event: AtomicPtr::new(null_mut()), context: profiler.context(), mask, rank };
        let steps = (0..shape.in_flight.max(1)).map(|_| step()).collect();
        Op { profiler, mask, event, direction: shape.direction, bytes: 0, counts: Counts::default(), steps }
    }
}

impl Op<'_> {
    /// Records that the proxy has begun (v4 on).
    pub fn in_progress(&self) {
        self.record(EventState::PROXY_OP_IN_PROGRESS, Args::Zero);
    }

    /// Starts the step of message `number`, counted from 0. NCCL does so in each attempt to post a receive, even if
    /// that gets no request.
    pub fn start_step(&self, number: usize) {
        let what = What::ProxyStep(ProxyStep { step: int(number) });
        let parents = (self.event, null_mut());
        let event = self.profiler.start(self.mask, STEP, EventType::PROXY_STEP, parents, what);
        if self.mask & STEP != 0 {
            self.step(number).event.store(event, Ordering::Release);
        }
    }

    /// Returns the handle of message `number` for `isend` or `irecv`.
    #[must_use]
    pub fn handle(&self, number: usize) -> ProfilerHandle {
        ProfilerHandle::new(from_ref(self.step(number)).cast_mut().cast())
    }

    /// Records that message `number` waits for its data from the GPU.
    pub fn send_gpu_wait(&mut self, number: usize) {
        self.counts.posted += 1;
        self.progress(EventState::PROXY_OP_SEND_POSTED, self.counts.posted);
        self.record_step(number, EventState::PROXY_STEP_SEND_GPU_WAIT);
    }

    /// Records an attempt to send message `number`, before `isend`.
    pub fn send_peer_wait(&self, number: usize) {
        self.progress(EventState::PROXY_OP_SEND_REM_FIFO_WAIT, self.counts.transmitted);
        self.record_step(number, EventState::PROXY_STEP_SEND_PEER_WAIT);
    }

    /// Records that `isend` took message `number`, of this size.
    pub fn send_wait(&mut self, number: usize, bytes: usize) {
        self.bytes = bytes;
        self.counts.transmitted += 1;
        self.progress(EventState::PROXY_OP_SEND_TRANSMITTED, self.counts.transmitted);
        self.record_step(number, EventState::PROXY_STEP_SEND_WAIT);
    }

    /// Records that `irecv` took message `number`.
    pub fn recv_wait(&mut self, number: usize) {
        self.counts.posted += 1;
        self.progress(EventState::PROXY_OP_RECV_POSTED, self.counts.posted);
        self.record_step(number, EventState::PROXY_STEP_RECV_WAIT);
    }

    /// Records that message `number`, of this size, has arrived.
    pub fn recv_flush_wait(&mut self, number: usize, bytes: usize) {
        self.bytes = bytes;
        self.progress(EventState::PROXY_OP_RECV_RECEIVED, self.counts.transmitted + 1);
        self.record_step(number, EventState::PROXY_STEP_RECV_FLUSH_WAIT);
    }

    /// Records that message `number` is visible to the GPU, which now uses it.
    pub fn recv_gpu_wait(&mut self, number: usize) {
        self.counts.transmitted += 1;
        self.progress(EventState::PROXY_OP_RECV_TRANSMITTED, self.counts.transmitted);
        self.record_step(number, EventState::PROXY_STEP_RECV_GPU_WAIT);
    }

    /// Stops the step of message `number`.
    pub fn stop_step(&mut self, number: usize) {
        self.counts.done += 1;
        let done = match self.direction {
            Direction::Send => EventState::PROXY_OP_SEND_DONE,
            Direction::Receive => EventState::PROXY_OP_RECV_DONE,
        };
        self.progress(done, self.counts.done);
        let event = self.step(number).event.swap(null_mut(), Ordering::AcqRel);
        if !event.is_null() {
            // SAFETY: the profiler wrote the handle, and it was not stopped yet.
            unsafe { self.profiler.plugin().table.stop(event) };
        }
    }

    /// Stops the event. The steps stay in place until this is dropped.
    pub fn stop(&mut self) {
        let event = std::mem::replace(&mut self.event, null_mut());
        if !event.is_null() {
            // SAFETY: the profiler wrote the handle, and it was not stopped yet.
            unsafe { self.profiler.plugin().table.stop(event) };
        }
    }

    fn step(&self, number: usize) -> &Step {
        &self.steps[number % self.steps.len()]
    }

    /// Records a state of v1 to v3.
    fn progress(&self, state: EventState, steps: c_int) {
        self.record(state, Args::ProxyOp(ProxyOpArgs { trans_size: self.bytes, steps }));
    }

    fn record(&self, state: EventState, args: Args) {
        if !self.event.is_null() {
            // SAFETY: the profiler wrote the handle, and it was not stopped yet.
            unsafe { self.profiler.plugin().table.record(self.event, state, args) };
        }
    }

    /// Records a state of a step. As in NCCL, not even a step with a handle has states if the operation has none.
    fn record_step(&self, number: usize, state: EventState) {
        let event = self.step(number).event.load(Ordering::Acquire);
        if !self.event.is_null() && !event.is_null() {
            let args = Args::ProxyStep(ProxyStepArgs { trans_size: self.bytes });
            // SAFETY: as above.
            unsafe { self.profiler.plugin().table.record(event, state, args) };
        }
    }
}

fn int(value: usize) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}
