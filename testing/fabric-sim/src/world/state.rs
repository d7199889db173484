//! Everything that is in a world, and its clock.

use railweave_fabric::LaneId;

use super::end::End;
use super::keys::Keys;
use super::queue::{Due, Queue};
use crate::chance::Chance;
use crate::faults::Faults;
use crate::observer::{Breach, Event, Mishap, Observer, Opening, Place};

/// A port of a process.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub(crate) process: usize,
    pub(crate) max_write: u32,
    pub(crate) byte_counts: bool,
    pub(crate) dead: bool,
}

/// Everything that is in a world. Times are in nanoseconds of its clock.
#[derive(Debug)]
pub struct State<O: Observer> {
    /// The time.
    pub now_ns: u64,
    /// Where the world's chance comes from.
    pub chance: Chance,
    /// The faults that may strike.
    pub faults: Faults,
    /// The one who looks.
    pub observer: O,
    /// The connection whose rails are opened next.
    pub opening: Option<Opening>,
    /// When something last moved on a wire.
    pub moved_ns: u64,
    pub(super) queue: Queue<O::Task>,
    pub(super) processes: usize,
    pub(crate) ports: Vec<Port>,
    pub(crate) keys: Keys,
    pub(crate) ends: Vec<Option<Box<End>>>,
    /// Writes that have landed so far.
    pub(super) landed: u64,
    pub(super) scratch: Vec<u8>,
}

impl<O: Observer> State<O> {
    pub(super) fn new(seed: u64, faults: Faults, observer: O) -> Self {
        Self {
            now_ns: 0,
            chance: Chance::new(seed),
            faults,
            observer,
            opening: None,
            moved_ns: 0,
            queue: Queue::new(),
            processes: 0,
            ports: Vec::new(),
            keys: Keys::default(),
            ends: Vec::new(),
            landed: 0,
            scratch: Vec::new(),
        }
    }

    pub(super) fn schedule(&mut self, at_ns: u64, due: Due<O::Task>) {
        self.queue.push(at_ns, due);
    }

    /// Has a task come back after `delay_ns`.
    pub fn later(&mut self, delay_ns: u64, task: O::Task) {
        self.schedule(self.now_ns + delay_ns, Due::Task(task));
    }

    /// Has a task come back at a time, at once where that is over.
    pub fn at(&mut self, at_ns: u64, task: O::Task) {
        self.schedule(at_ns.max(self.now_ns), Due::Task(task));
    }

    /// When the next thing happens. None where nothing will.
    pub fn next_at(&self) -> Option<u64> {
        self.queue.next_at()
    }

    pub(super) fn see(&mut self, place: Place, event: &Event<'_>) {
        self.observer.see(self.now_ns, place, event);
    }

    pub(crate) fn suffer(&mut self, mishap: Mishap) {
        self.observer.suffer(mishap);
    }

    pub(super) fn breach(&mut self, place: Place, breach: Breach) {
        self.see(place, &Event::Broken(breach));
    }

    /// Registrations and ends of rails that are in the world.
    pub fn left(&self) -> (usize, usize) {
        (self.keys.len(), self.ends.iter().flatten().count())
    }

    /// How many ports there are. Their numbers count from 0.
    pub fn ports(&self) -> usize {
        self.ports.len()
    }

    /// From now on a port carries nothing any more, and nobody says so.
    pub fn silence_port(&mut self, port: usize) {
        self.ports[port].dead = true;
    }

    /// The connected ends of rails, each with its other end.
    pub fn connected_ends(&self) -> Vec<(usize, usize)> {
        (0..self.ends.len()).filter_map(|end| Some((end, self.ends[end].as_ref()?.peer?))).collect()
    }

    /// From now on an end carries nothing any more, and nobody says so. Returns the place of its first lane, None where
    /// the end is gone.
    pub fn cut(&mut self, end: usize) -> Option<Place> {
        let found = self.ends[end].as_mut()?;
        found.cut = true;
        Some(found.place(LaneId::FIRST))
    }
}
