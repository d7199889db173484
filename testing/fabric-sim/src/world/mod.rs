//! The world: one clock, one queue of what is due, and everything that the fabric's handles point into.

mod end;
mod ends;
mod keys;
mod land;
mod poll;
mod post;
mod queue;
mod state;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use railweave_fabric::WorkStatus;

pub(crate) use keys::{KeyPair, Registered};
pub(crate) use state::Port;
pub use state::State;

use crate::faults::Faults;
use crate::observer::{Observer, Unobserved};
use queue::Due;

/// A world, as the fabric's handles share it. One seed has one world and one thread.
#[derive(Debug)]
pub struct World<O: Observer = Unobserved>(Mutex<State<O>>);

impl World {
    /// An empty world at which nobody looks.
    pub fn new(seed: u64, faults: Faults) -> Arc<Self> {
        Self::observed(seed, faults, Unobserved)
    }

    /// Lets `ns` nanoseconds pass.
    pub fn advance(&self, ns: u64) {
        let mut state = self.lock();
        let until = state.now_ns + ns;
        while state.next_at().is_some_and(|at| at <= until) {
            if let Some(task) = state.step() {
                match task {}
            }
        }
        state.now_ns = until;
    }
}

impl<O: Observer> World<O> {
    /// An empty world, and who looks at it.
    pub fn observed(seed: u64, faults: Faults, observer: O) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State::new(seed, faults, observer))))
    }

    /// Everything that is in it. While it is held no call of the fabric may be made: each of them takes it.
    pub fn lock(&self) -> MutexGuard<'_, State<O>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process that nothing has been said about yet. Returns its number.
    pub fn add_process(&self) -> usize {
        let mut state = self.lock();
        state.processes += 1;
        state.processes - 1
    }
}

impl<O: Observer> State<O> {
    /// Lets the next thing happen. Returns the observer's task where it is one.
    pub fn step(&mut self) -> Option<O::Task> {
        let (at_ns, due) = self.queue.pop()?;
        self.now_ns = self.now_ns.max(at_ns);
        match due {
            Due::Arrive { end, lane } => self.handle_arrival(end, lane),
            Due::Rest { end, lane } => self.handle_rest(end, lane),
            Due::Ack { end, lane } => self.handle_ack(end, lane),
            Due::GiveUp { end, lane } => {
                let error = self.work_failed(end, lane, WorkStatus::RetriesExceeded, "in the simulated world");
                self.fail_lane(end, lane, error);
            }
            Due::Flushed { end, id, landed } => self.handle_flushed(end, id, landed),
            Due::Task(task) => return Some(task),
        }
        None
    }
}
