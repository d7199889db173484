//! The world: one clock, one queue of events, and everything that the fabric's handles point into.

pub(crate) mod end;
mod keys;
mod land;
mod post;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use railweave_fabric::{LaneId, WorkId, WorkStatus};

pub(crate) use keys::{KeyPair, Keys, Registered};

use crate::counts::Counts;
use crate::history::{Event as Happened, History, Kind, Who};
use crate::play::Task;
use crate::watch::Watch;
use crate::{Chance, Faults, Seen};
use end::End;

/// A world, as the fabric's handles share it. One seed has one world and one thread.
#[derive(Debug)]
pub struct World(Mutex<State>);

/// A port of a process.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub(crate) process: usize,
    pub(crate) max_write: u32,
    pub(crate) byte_counts: bool,
    pub(crate) dead: bool,
}

/// What the world does at a time.
#[derive(Debug)]
enum Event {
    /// The next write of this end's lane reaches the other end.
    Arrive { end: usize, lane: LaneId },
    /// The rest of a torn write lands.
    Rest { end: usize, lane: LaneId },
    /// The oldest write of this end's lane is acknowledged.
    Ack { end: usize, lane: LaneId },
    /// The lane has tried for long enough.
    GiveUp { end: usize, lane: LaneId },
    /// A flush comes back.
    Flushed { end: usize, id: WorkId, landed: u64 },
    /// Whoever plays NCCL has something to do.
    Task(Task),
}

#[derive(Debug)]
struct Scheduled {
    at_ns: u64,
    sequence: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_ns, self.sequence).cmp(&(other.at_ns, other.sequence))
    }
}

/// Which connection's rails are being opened: the fabric's trait does not say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening {
    pub(crate) connection: usize,
    pub(crate) sender: bool,
    pub(crate) next_rail: u8,
}

/// Everything.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) now_ns: u64,
    sequence: u64,
    queue: BinaryHeap<Reverse<Scheduled>>,
    pub(crate) chance: Chance,
    pub(crate) faults: Faults,
    pub(crate) ports: Vec<Port>,
    pub(crate) processes_dead: Vec<bool>,
    pub(crate) keys: Keys,
    pub(crate) ends: Vec<Option<Box<End>>>,
    pub(crate) opening: Option<Opening>,
    pub(crate) watch: Watch,
    pub(crate) counts: Counts,
    pub(crate) history: History,
    /// Writes that have landed so far.
    landed: u64,
    /// When something last moved on a wire.
    pub(crate) moved_ns: u64,
    scratch: Vec<u8>,
}

impl World {
    /// An empty world.
    pub fn new(seed: u64, faults: Faults) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            now_ns: 0,
            sequence: 0,
            queue: BinaryHeap::new(),
            chance: Chance::new(seed),
            faults,
            ports: Vec::new(),
            processes_dead: Vec::new(),
            keys: Keys::default(),
            ends: Vec::new(),
            opening: None,
            watch: Watch::default(),
            counts: Counts::default(),
            history: History::default(),
            landed: 0,
            moved_ns: 0,
            scratch: Vec::new(),
        })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process that nothing has been said about yet.
    pub fn add_process(&self) -> usize {
        let mut state = self.lock();
        state.processes_dead.push(false);
        state.processes_dead.len() - 1
    }

    /// Lets `ns` nanoseconds pass.
    pub fn advance(&self, ns: u64) {
        let mut state = self.lock();
        let until = state.now_ns + ns;
        while state.next_at().is_some_and(|at| at <= until) {
            let task = state.step();
            debug_assert!(task.is_none(), "a world without players has no tasks");
        }
        state.now_ns = until;
    }
}

impl State {
    fn schedule(&mut self, at_ns: u64, event: Event) {
        self.sequence += 1;
        self.queue.push(Reverse(Scheduled { at_ns, sequence: self.sequence, event }));
    }

    /// Has a task come back after `delay_ns`.
    pub(crate) fn later(&mut self, delay_ns: u64, task: Task) {
        self.schedule(self.now_ns + delay_ns, Event::Task(task));
    }

    pub(crate) fn at(&mut self, at_ns: u64, task: Task) {
        self.schedule(at_ns.max(self.now_ns), Event::Task(task));
    }

    pub(crate) fn next_at(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse(next)| next.at_ns)
    }

    /// Lets the next event happen; a task is handed back.
    pub(crate) fn step(&mut self) -> Option<Task> {
        let Reverse(next) = self.queue.pop()?;
        self.now_ns = self.now_ns.max(next.at_ns);
        match next.event {
            Event::Arrive { end, lane } => self.handle_arrival(end, lane),
            Event::Rest { end, lane } => self.handle_rest(end, lane),
            Event::Ack { end, lane } => self.handle_ack(end, lane),
            Event::GiveUp { end, lane } => {
                let error = self.work_failed(end, lane, WorkStatus::RetriesExceeded, "in the simulated world");
                self.fail_lane(end, lane, error);
            }
            Event::Flushed { end, id, landed } => self.handle_flushed(end, id, landed),
            Event::Task(task) => return Some(task),
        }
        None
    }

    pub(crate) fn record(&mut self, kind: Kind, who: Who, numbers: [u64; 4]) {
        self.history.record(Happened { at_ns: self.now_ns, kind, who, numbers });
    }

    pub(crate) fn saw(&mut self, seen: Seen) {
        self.counts.saw(seen);
    }

    /// A process vanishes: its memory, its rails, and what they had not sent.
    pub(crate) fn kill_process(&mut self, process: usize) {
        self.processes_dead[process] = true;
        self.keys.remove_process(process);
        for end in 0..self.ends.len() {
            if self.ends[end].as_ref().is_some_and(|found| found.process == process) {
                self.drop_end(end);
            }
        }
    }
}
