//! The world: one clock, one queue of scheduled events, and the objects that the fabric's handles name.

mod clock;
mod cut_off;
mod end;
mod ends;
mod fence;
mod flight;
mod keys;
mod land;
mod late;
mod line;
mod link;
mod outage;
mod pace;
mod path;
mod poll;
mod post;
mod queue;
mod state;
mod wire;

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use clock::SimClock;
pub(crate) use keys::{KeyPair, Registered};
pub use line::Wire;
pub(crate) use state::Port;
pub use state::State;

use crate::faults::Faults;
use crate::observer::{Observer, Unobserved};
use queue::Due;

/// A world, shared by the fabric's handles. One seed has one world and one thread.
#[derive(Debug)]
pub struct World<O: Observer = Unobserved>(Mutex<State<O>>);

impl World {
    /// Creates an empty world without an observer.
    pub fn new(seed: u64, faults: Faults) -> Arc<Self> {
        Self::observed(seed, faults, Unobserved)
    }
}

impl<O: Observer<Task = Infallible>> World<O> {
    /// Lets `ns` nanoseconds pass.
    pub fn advance(&self, ns: u64) {
        let mut state = self.lock();
        let until = state.now_ns + ns;
        while state.next_at().is_some_and(|at| at <= until) {
            if let Some(task) = state.step() {
                match task {}
            }
        }
        state.set_time(until);
    }
}

impl<O: Observer> World<O> {
    /// Creates an empty world with an observer.
    pub fn observed(seed: u64, faults: Faults, observer: O) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State::new(seed, faults, observer))))
    }

    /// Locks the world's state. While the lock is held, make no call of the fabric: it would wait for the lock forever.
    pub fn lock(&self) -> MutexGuard<'_, State<O>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a process without ports. Returns its number.
    pub fn add_process(&self) -> usize {
        let mut state = self.lock();
        state.processes += 1;
        state.processes - 1
    }
}

impl<O: Observer> State<O> {
    /// Carries out the next scheduled event. Returns the task if the event is one of the observer's.
    pub fn step(&mut self) -> Option<O::Task> {
        let (at_ns, due) = self.queue.pop()?;
        self.set_time(self.now_ns.max(at_ns));
        match due {
            Due::Wire { port, plan } => self.handle_wire(port, plan),
            Due::Arrive { end, lane } => self.handle_arrival(end, lane),
            Due::Rest { end, lane } => self.handle_rest(end, lane),
            Due::Ack { end, lane } => self.handle_ack(end, lane),
            Due::SecondAck { end, lane } => self.handle_second_ack(end, lane),
            Due::Retry { end, lane } => self.handle_retry(end, lane),
            Due::CutOff(cut_off) => self.handle_cut_off(cut_off),
            Due::GiveUp { end, lane } => self.give_up(end, lane),
            Due::Flushed { end, id, landed } => self.handle_flushed(end, id, landed),
            Due::Task(task) => return Some(task),
        }
        None
    }
}
