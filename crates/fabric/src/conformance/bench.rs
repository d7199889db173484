//! The tools of the cases: two ends with their logs, blocks of registered memory, and seeded bytes.

use std::sync::Arc;

use railweave_patience::RAN_OUT;

use super::{Completion, End, Harness, poll};
use crate::{
    Access, Domain, Ended, Fabric, LaneId, LocalSlice, Memory, PostError, Rail, RailError, RailSpec, Region,
    Registration, RemoteSlice, Role, WorkId, Write,
};

/// The specification that cases start from.
pub(super) const SPEC: RailSpec = RailSpec {
    role: Role::Sender,
    lanes: 1,
    send_depth: 64,
    receive_depth: 64,
    lane_receives: 64,
    traffic_class: None,
    peer: None,
};

/// The pair of ends that a case drives.
pub(super) struct Bench<'h, H: Harness> {
    harness: &'h mut H,
    pub(super) near: Side<H::Fabric>,
    pub(super) far: Side<H::Fabric>,
}

impl<'h, H: Harness> Bench<'h, H> {
    /// Makes a fresh pair.
    pub(super) fn new(harness: &'h mut H, spec: &RailSpec) -> Self {
        let far = RailSpec { role: Role::Receiver, ..spec.clone() };
        let pair = harness.pair(spec, &far);
        Self { harness, near: Side::new(pair.near), far: Side::new(pair.far) }
    }

    /// Polls both ends once.
    pub(super) fn step(&mut self) {
        self.near.poll();
        self.far.poll();
        self.harness.settle();
    }

    /// Polls both ends until `done`.
    pub(super) fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        for _ in 0..self.harness.patience() {
            if done(self) {
                return;
            }
            self.step();
        }
        self.give_up(what)
    }

    /// Fails the case, because `what` never happened.
    fn give_up(&self, what: &str) -> ! {
        let polls = self.harness.patience();
        panic!("{RAN_OUT}{what} after {polls} polls\nnear: {:?}\nfar: {:?}", self.near.log, self.far.log);
    }

    /// Polls both ends until everything that can happen has happened.
    pub(super) fn until_quiet(&mut self) {
        for _ in 0..self.harness.quiet() {
            self.step();
        }
    }

    /// Polls only the near end until `done`.
    pub(super) fn until_near(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..self.harness.patience() {
            if done(self) {
                return;
            }
            self.near.poll();
            self.harness.settle();
        }
        self.give_up(what)
    }

    /// Polls only the near end until everything that it can do alone has happened.
    pub(super) fn until_near_is_quiet(&mut self) {
        for _ in 0..self.harness.quiet() {
            self.near.poll();
            self.harness.settle();
        }
    }

    /// Ends a case in which nothing may fail: waits for stragglers, and checks that no work failed or completed twice.
    pub(super) fn finish(mut self) {
        self.until_quiet();
        for (name, side) in [("near", &self.near), ("far", &self.far)] {
            assert!(side.failures().is_empty(), "the {name} end failed: {:?}", side.failures());
            let mut sent = side.sent();
            sent.sort_unstable();
            assert!(sent.windows(2).all(|two| two[0] != two[1]), "the {name} end completed work twice: {sent:?}");
        }
    }
}

/// One end, and its reports so far.
pub(super) struct Side<F: Fabric> {
    pub(super) domain: Arc<F::Domain>,
    /// `None` once the case has dropped it.
    pub(super) rail: Option<F::Rail>,
    pub(super) log: Vec<Completion>,
    /// The remains of a rail that has ended, which are to do as little as if they were gone.
    remains: Option<Box<dyn Send>>,
    /// The maximum number of reports of one poll.
    pub(super) most: usize,
    next_id: u64,
}

impl<F: Fabric> Side<F> {
    fn new(end: End<F>) -> Self {
        Self { domain: end.domain, rail: Some(end.rail), log: Vec::new(), remains: None, most: 16, next_id: 1 }
    }

    pub(super) fn poll(&mut self) {
        let Some(rail) = &mut self.rail else { return };
        self.log.append(&mut poll(rail, self.most));
    }

    pub(super) fn rail(&mut self) -> &mut F::Rail {
        self.rail.as_mut().expect("the case has not dropped this rail")
    }

    /// Ends the rail, with these flushes. Returns true if everything is visible.
    pub(super) fn end(&mut self, flushes: &[RemoteSlice]) -> bool {
        let rail = self.rail.take().expect("the case has not dropped this rail");
        let Ended { is_over, is_visible, remains } = rail.end(flushes, &mut self.log);
        assert!(is_over, "a device that works ends its lanes");
        self.remains = remains;
        is_visible
    }

    /// Posts the chain with fresh ids. Returns the last id.
    pub(super) fn try_post(&mut self, lane: u8, chain: &[Write]) -> Result<u64, PostError> {
        let mut chain = chain.to_vec();
        for write in &mut chain {
            write.id = WorkId(self.next_id);
            self.next_id += 1;
        }
        self.rail().post(LaneId(lane), &chain).map(|()| self.next_id - 1)
    }

    /// Posts the chain, which must succeed.
    pub(super) fn post(&mut self, lane: u8, chain: &[Write]) -> u64 {
        self.try_post(lane, chain).unwrap_or_else(|error| panic!("a chain of {} was refused: {error}", chain.len()))
    }

    /// Posts receives, all of which must be taken.
    pub(super) fn post_receives(&mut self, count: u32) {
        assert_eq!(self.rail().post_receives(count), Ok(count));
    }

    /// Registers a block of memory.
    pub(super) fn block(&self, length: usize, access: Access) -> Block<F> {
        let region = Arc::new(Region::new(length));
        let registration = self.domain.register(Memory::from_region(&region), access);
        let registration = registration.unwrap_or_else(|error| panic!("{length} bytes were not registered: {error}"));
        Block { region, registration }
    }

    /// Returns the ids of the completed work, in order.
    pub(super) fn sent(&self) -> Vec<u64> {
        let id = |completion: &Completion| match completion {
            Completion::Sent { id } => Some(id.0),
            _ => None,
        };
        self.log.iter().filter_map(id).collect()
    }

    pub(super) fn has_sent(&self, id: u64) -> bool {
        self.sent().contains(&id)
    }

    /// Returns lane, immediate and bytes of each arrival, in order.
    pub(super) fn received(&self) -> Vec<(u8, u32, u32)> {
        let parts = |completion: &Completion| match *completion {
            Completion::Received { lane, immediate, bytes } => Some((lane.0, immediate, bytes)),
            _ => None,
        };
        self.log.iter().filter_map(parts).collect()
    }

    pub(super) fn failures(&self) -> Vec<&RailError> {
        let mut failures = Vec::new();
        for completion in &self.log {
            if let Completion::Failed { error, .. } = completion {
                failures.push(&**error);
            }
        }
        failures
    }

    pub(super) fn has_failed(&self) -> bool {
        !self.failures().is_empty()
    }
}

/// Registered memory of one end.
pub(super) struct Block<F: Fabric> {
    pub(super) region: Arc<Region>,
    pub(super) registration: F::Registration,
}

impl<F: Fabric> Block<F> {
    /// Fills it with the seed's bytes.
    pub(super) fn filled(self, seed: u64) -> Self {
        self.region.write(0, &bytes(seed, self.region.len()));
        self
    }

    /// Returns a part of it, as a source.
    pub(super) fn source(&self, offset: usize, length: usize) -> LocalSlice {
        let address = self.region.address() + offset as u64;
        LocalSlice { address, length: length as u32, key: self.registration.local_key() }
    }

    /// Returns a place in it, as a destination.
    pub(super) fn place(&self, offset: usize) -> RemoteSlice {
        RemoteSlice { address: self.region.address().wrapping_add(offset as u64), key: self.registration.remote_key() }
    }

    /// Returns the bytes of a part.
    pub(super) fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.region.read(offset, &mut bytes);
        bytes
    }

    /// Returns all its bytes.
    pub(super) fn all(&self) -> Vec<u8> {
        self.read(0, self.region.len())
    }
}

/// Makes a plain write.
pub(super) fn write(local: LocalSlice, remote: RemoteSlice) -> Write {
    Write { local, remote, host: true, ..Write::default() }
}

/// Makes a signalled write.
pub(super) fn signalled(local: LocalSlice, remote: RemoteSlice) -> Write {
    Write { signalled: true, ..write(local, remote) }
}

/// Makes a signalled write with an immediate.
pub(super) fn immediate(local: LocalSlice, remote: RemoteSlice, immediate: u32) -> Write {
    Write { immediate: Some(immediate), ..signalled(local, remote) }
}

/// A seeded stream of numbers (SplitMix64).
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// Returns the seed's bytes.
pub(super) fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut numbers = Numbers(seed);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&numbers.next().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
