//! The state of a world, and its clock.

use railweave_fabric::LaneId;

use super::clock::SimClock;
use super::end::End;
use super::keys::{KeyPair, Keys, Registered};
use super::line::Line;
use super::link::Pace;
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
    /// The time from which it carries nothing; `u64::MAX` while it lives.
    pub(crate) dead_from_ns: u64,
    /// True once its device has failed: nothing completes on it any more.
    pub(crate) is_gone: bool,
    /// True while its loop-back carries nothing: flushes fail.
    pub(crate) loops_nothing: bool,
    /// Its wire, if its ends share one.
    pub(crate) line: Option<Box<Line>>,
}

impl Port {
    /// Returns a port that works.
    pub(crate) fn new(process: usize, max_write: u32, byte_counts: bool) -> Self {
        let (dead_from_ns, is_gone, loops_nothing, line) = (u64::MAX, false, false, None);
        Self { process, max_write, byte_counts, dead_from_ns, is_gone, loops_nothing, line }
    }
}

/// The state of a world. Times are in nanoseconds of its clock.
#[derive(Debug)]
pub struct State<O: Observer> {
    /// The time; `set_time` changes it.
    pub now_ns: u64,
    clock: SimClock,
    /// The world's random numbers.
    pub chance: Chance,
    /// The random numbers of the network's faults. They have a generator of their own, so that a world without them
    /// draws the same as ever.
    pub(super) weather: Chance,
    /// The faults that may strike.
    pub faults: Faults,
    /// The observer.
    pub observer: O,
    /// The connection whose rails are opened next.
    pub opening: Option<Opening>,
    /// True if no device confirms that it has taken lanes out of service.
    pub refuses_ends: bool,
    /// True while no end takes receives, as if its queue were full.
    pub refuses_receives: bool,
    /// The time at which a write last landed or an acknowledgement last arrived.
    pub moved_ns: u64,
    /// The latest time at which a write that has been posted arrives.
    pub arrives_ns: u64,
    /// The end of a connection, and true if it is the sending one, at which something last happened that its next call
    /// may find: work was completed, or a write has landed. Callers take it to know which end has something to do.
    pub woken: Option<(usize, bool)>,
    pub(super) queue: Queue<O::Task>,
    pub(super) processes: usize,
    pub(crate) ports: Vec<Port>,
    pub(crate) keys: Keys,
    pub(crate) ends: Vec<Option<Box<End>>>,
    /// The number of writes that have landed so far.
    pub(super) landed: u64,
    pub(super) scratch: Vec<u8>,
}

impl<O: Observer> State<O> {
    pub(super) fn new(seed: u64, faults: Faults, observer: O) -> Self {
        Self {
            now_ns: 0,
            clock: SimClock::default(),
            chance: Chance::new(seed),
            weather: Chance::new(seed ^ 0x3ea7_4e12),
            faults,
            observer,
            opening: None,
            refuses_ends: false,
            refuses_receives: false,
            moved_ns: 0,
            arrives_ns: 0,
            woken: None,
            queue: Queue::new(),
            processes: 0,
            ports: Vec::new(),
            keys: Keys::default(),
            ends: Vec::new(),
            landed: 0,
            scratch: Vec::new(),
        }
    }

    /// Moves the time.
    pub(super) fn set_time(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.clock.set(now_ns);
    }

    /// Returns the clock that connections read.
    pub(crate) fn clock(&self) -> SimClock {
        self.clock.clone()
    }

    pub(super) fn schedule(&mut self, at_ns: u64, due: Due<O::Task>) {
        self.queue.push(at_ns, due);
    }

    /// Schedules a task after `delay_ns`.
    pub fn later(&mut self, delay_ns: u64, task: O::Task) {
        self.schedule(self.now_ns + delay_ns, Due::Task(task));
    }

    /// Schedules a task for a time, or for now if that time has passed.
    pub fn at(&mut self, at_ns: u64, task: O::Task) {
        self.schedule(at_ns.max(self.now_ns), Due::Task(task));
    }

    /// Moves the time to this one, or leaves it if it has passed. Events before it must have been carried out.
    pub fn pass_until(&mut self, now_ns: u64) {
        self.set_time(self.now_ns.max(now_ns));
    }

    /// Returns the time of the next scheduled event; `None` if there is none.
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

    /// Adds a registration, which may get the key of one that has ended.
    pub(crate) fn register(&mut self, registered: Registered) -> KeyPair {
        if !self.weather.permille(self.faults.key_reuse_permille) {
            return self.keys.add(registered);
        }
        match self.keys.add_again(registered) {
            Err(registered) => self.keys.add(registered),
            Ok(keys) => {
                self.suffer(Mishap::KeyReused);
                keys
            }
        }
    }

    /// Returns the number of registrations, and that of ends of rails, that exist in the world.
    pub fn left(&self) -> (usize, usize) {
        (self.keys.len(), self.ends.iter().flatten().count())
    }

    /// Returns the longest time for which the host behind an end's lanes has been silent, over sockets.
    pub(crate) fn silence_ns(&self, id: usize) -> u64 {
        let lanes = self.ends[id].iter().filter(|end| !end.one_sided).flat_map(|end| &end.lanes);
        let since_ns = lanes.filter_map(|lane| lane.silent_since_ns).min();
        since_ns.map_or(0, |since_ns| self.now_ns - since_ns)
    }

    /// Returns the number of ports. They are numbered from 0.
    pub fn ports(&self) -> usize {
        self.ports.len()
    }

    /// Silences a port: from this call on it carries nothing, and no event reports that.
    pub fn silence_port(&mut self, port: usize) {
        let dead_from_ns = &mut self.ports[port].dead_from_ns;
        *dead_from_ns = (*dead_from_ns).min(self.now_ns);
    }

    /// Lets a port that was [silenced](Self::silence_port) carry packets again, over rails that are opened from this
    /// call on. Those that were open meanwhile stay silent.
    pub fn heal_port(&mut self, port: usize) {
        let dead_from_ns = std::mem::replace(&mut self.ports[port].dead_from_ns, u64::MAX);
        for end in self.ends.iter_mut().flatten().filter(|end| end.port == port) {
            end.cut_from_ns = end.cut_from_ns.min(dead_from_ns);
        }
        if self.ports[port].is_gone {
            self.ports[port].dead_from_ns = dead_from_ns;
        }
    }

    /// Lets the device of a port fail: from this call on the port carries nothing, none of its work completes, and no
    /// poll reports that. Completions that no poll has reported are lost, or stay.
    pub fn fail_device(&mut self, port: usize) {
        self.silence_port(port);
        self.ports[port].is_gone = true;
        let forgets = self.weather.permille(500);
        for end in self.ends.iter_mut().flatten().filter(|end| end.port == port && forgets) {
            if !end.completions.is_empty() {
                end.completions.clear();
                self.observer.suffer(Mishap::CompletionsForgotten);
            }
        }
    }

    /// Lets the loop-back of a port work or fail, from this call on. While it fails, so do flushes after their retries.
    pub fn set_loop_back(&mut self, port: usize, works: bool) {
        self.ports[port].loops_nothing = !works;
    }

    /// Returns the connected ends of rails, each with its peer, by their numbers in the world.
    pub fn connected_ends(&self) -> Vec<(usize, usize)> {
        (0..self.ends.len()).filter_map(|end| Some((end, self.ends[end].as_ref()?.peer?))).collect()
    }

    /// Returns the number in the world of the connected end of a rail; `None` if it is gone, or not connected yet.
    pub fn connected_end(&self, connection: usize, sender: bool, rail: u8) -> Option<usize> {
        let is_it = |end: &End| (end.connection, end.sender, end.rail) == (connection, sender, rail);
        self.ends.iter().position(|end| end.as_deref().is_some_and(|end| end.peer.is_some() && is_it(end)))
    }

    /// Returns true if a rail of an end of a connection has something that a poll at this time would have reported. A
    /// rail whose last poll came just before it does not count.
    pub fn has_unreported(&self, connection: usize, sender: bool, at_ns: u64) -> bool {
        let is_it = |end: &&End| {
            (end.connection, end.sender, end.lingering, end.is_blind) == (connection, sender, false, false)
        };
        let mut ends = self.ends.iter().flatten().map(|end| &**end).filter(is_it);
        ends.any(|end| end.completions.front().is_some_and(|entry| entry.visible_at_ns <= at_ns))
    }

    /// Returns the rails' ends at one end of a connection, by their numbers in the world.
    pub fn ends_of(&self, connection: usize, sender: bool) -> Vec<usize> {
        let is_it = |end: &usize| {
            self.ends[*end].as_deref().is_some_and(|end| (end.connection, end.sender) == (connection, sender))
        };
        (0..self.ends.len()).filter(is_it).collect()
    }

    /// Returns the place of an end's first lane; `None` if the end is gone.
    pub fn place_of(&self, end: usize) -> Option<Place> {
        self.ends[end].as_ref().map(|end| end.place(LaneId::FIRST))
    }

    /// Sets the rate of an end's rail, in Mbit/s, for writes that are posted from this call on.
    pub fn set_rate(&mut self, end: usize, mbps: u64) {
        if let Some(end) = self.ends[end].as_mut() {
            end.pace = Pace::new(mbps);
        }
    }

    /// Cuts an end: nothing that leaves it or its peer from this call on arrives, and no event reports that. Returns
    /// the place of its first lane; `None` if the end is gone.
    pub fn cut(&mut self, end: usize) -> Option<Place> {
        let now_ns = self.now_ns;
        let found = self.ends[end].as_mut()?;
        found.cut_from_ns = found.cut_from_ns.min(now_ns);
        Some(found.place(LaneId::FIRST))
    }
}
