//! Flushes: making the data that rails wrote into GPU memory visible to its owner.
//!
//! NCCL flushes buffers, not requests. So testing a receive records, by address, which rails wrote into its buffers,
//! and a flush reads one byte back through each of these rails.

use railweave_fabric::{Fabric, MAX_RAILS, PostError, Rail, RailId, RailSet, RemoteSlice};

use crate::rails::Rails;
use crate::sequence::Slot;
use crate::work::WorkKind;
use crate::{Error, Incoming, Misuse};

/// The most flushes that may be outstanding at once.
pub(crate) const FLUSHES: usize = 32;

/// The last generation of a request; the first comes after it.
const GENERATIONS: u32 = 0xff_ffff;

/// The number of buffers of tested receives whose rails are remembered for a flush.
const REMEMBERED: usize = 256;

#[derive(Clone, Copy, Default)]
struct FlushRequest {
    taken: bool,
    generation: u32,
    /// The rails on which it must still be posted.
    unposted: RailSet,
    /// The rails on which it is in progress.
    outstanding: RailSet,
    /// A rail that has failed before it had made its data visible.
    failed: Option<RailId>,
    targets: [RemoteSlice; MAX_RAILS],
}

/// The flushes of a receiving connection.
pub(crate) struct Flushes {
    requests: Box<[FlushRequest; FLUSHES]>,
    /// The address of a buffer, the rails that last wrote into it, and those whose data nobody can make visible any
    /// more.
    rails_of: Box<[(u64, RailSet, RailSet); REMEMBERED]>,
    /// The rails of the latter kind of buffers for which there was no place.
    unknown_gone: RailSet,
    /// The rails that have brought parts of receives which were tested since the last flush over them began.
    unflushed: RailSet,
    /// The last receive that was tested and may have to be flushed.
    tested: Option<Slot>,
    /// The rails that have brought such parts of which nothing is left to be read back, while their lanes are ended.
    blind: RailSet,
    /// The rails whose lanes are being ended, which makes visible what they have brought.
    fencing: RailSet,
}

/// The progress of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Every rail is done with it.
    Done,
    /// It goes on.
    Pending,
    /// It can never be done: nothing makes visible any more what this rail has brought.
    Failed(RailId),
}

impl Flushes {
    /// Returns the flushes of a connection that counts from `first`.
    pub(crate) fn new(first: u32) -> Self {
        let none = FlushRequest { generation: first & GENERATIONS, ..FlushRequest::default() };
        Self {
            requests: Box::new([none; FLUSHES]),
            rails_of: Box::new([(0, RailSet::EMPTY, RailSet::EMPTY); REMEMBERED]),
            unknown_gone: RailSet::EMPTY,
            unflushed: RailSet::EMPTY,
            tested: None,
            blind: RailSet::EMPTY,
            fencing: RailSet::EMPTY,
        }
    }

    /// Remembers which rails wrote into the buffer at `address`, and those whose data nobody can make visible any more.
    #[inline]
    pub(crate) fn remember(&mut self, address: u64, mask: RailSet, gone: RailSet) {
        let place = &mut self.rails_of[remembered(address)];
        if place.0 != address && !place.2.is_empty() {
            // Whoever flushes this buffer does so over all rails, as they do one that nobody remembers.
            self.unknown_gone |= gone;
            return;
        }
        *place = (address, mask, gone);
    }

    /// Notes that a receive was tested of which these rails have brought parts, and which may have to be flushed.
    #[inline]
    pub(crate) fn note_tested(&mut self, slot: Slot, mask: RailSet) {
        self.unflushed |= mask;
        self.tested = Some(slot);
    }

    /// Begins a flush of the buffers that need one: those in GPU memory that are not empty. Returns `None` if no buffer
    /// needs one, or if no rail can flush. `flushing` has the rails that can.
    pub(crate) fn begin(&mut self, buffers: &[Incoming<'_>], flushing: RailSet) -> Result<Option<usize>, Error> {
        let flushing = flushing | self.fencing;
        let (mut unposted, mut failed) = (RailSet::EMPTY, None);
        let mut targets = [RemoteSlice::default(); MAX_RAILS];
        for buffer in buffers.iter().filter(|buffer| buffer.size > 0 && !buffer.keys.host) {
            let (address, mask, gone) = self.rails_of[remembered(buffer.address)];
            let known = address == buffer.address;
            failed = failed.or(if known { gone } else { self.unknown_gone }.first());
            // No rail is left in the mask if the end of the lanes has made everything visible.
            let mask = if known { mask & flushing } else { flushing };
            unposted |= mask;
            for rail in mask {
                targets[rail] = RemoteSlice { address: buffer.address, key: buffer.keys.remote[rail] };
            }
        }
        if unposted.is_empty() && failed.is_none() {
            return Ok(None);
        }
        let Some(index) = self.requests.iter().position(|flush| !flush.taken) else {
            return Err(Misuse::Flushes(FLUSHES).into());
        };
        // It makes everything visible that its rails have brought so far, or the end of their lanes does in its place.
        self.unflushed = self.unflushed.except(unposted);
        let flush = &mut self.requests[index];
        let generation = flush.generation.wrapping_add(1) & GENERATIONS;
        *flush = FlushRequest { taken: true, generation, unposted, outstanding: RailSet::EMPTY, failed, targets };
        Ok(Some(index))
    }

    /// Posts a flush on those of its rails that have room. If a rail refuses for another reason, returns the rail and
    /// the reason.
    pub(crate) fn post<F: Fabric>(&mut self, index: usize, rails: &mut Rails<F>) -> Result<(), (RailId, PostError)> {
        let flush = &mut self.requests[index];
        // A rail that was given up makes everything visible when its lanes end.
        for rail in flush.unposted & rails.usable() {
            let id = WorkKind::Flush { request: index as u8, generation: flush.generation }.id();
            match rails.get_mut(rail).rail.post_flush(flush.targets[rail], id) {
                Ok(()) => {
                    flush.unposted.remove(rail);
                    flush.outstanding.insert(rail);
                }
                Err(PostError::Full) => {}
                Err(error) => return Err((rail, error)),
            }
        }
        Ok(())
    }

    /// Notes that a rail is done with its part of a flush.
    pub(crate) fn handle_sent(&mut self, index: usize, generation: u32, rail: RailId) {
        let flush = &mut self.requests[index];
        let is_outstanding = flush.generation == generation && flush.outstanding.contains(rail);
        assert!(is_outstanding, "a flush on rail {rail} came back twice");
        flush.outstanding.remove(rail);
    }

    /// Returns true if this flush is in progress.
    pub(crate) fn is_in_progress(&self, index: usize) -> bool {
        self.requests.get(index).is_some_and(|flush| flush.taken)
    }

    /// Returns the pieces of memory that the flushes in progress read back through a rail.
    pub(crate) fn targets(&self, rail: RailId) -> impl Iterator<Item = RemoteSlice> {
        let on_rail = move |flush: &&FlushRequest| flush.taken && (flush.unposted | flush.outstanding).contains(rail);
        self.requests.iter().filter(on_rail).map(move |flush| flush.targets[rail])
    }

    /// Returns true if a rail has brought a part of a receive that was tested since the last flush over it began. The
    /// receive may have to be flushed yet.
    pub(crate) fn has_unflushed(&self, rail: RailId) -> bool {
        self.unflushed.contains(rail)
    }

    /// Returns the last receive that was tested and may have to be flushed. Its slot may be in use again.
    pub(crate) fn last_tested(&self) -> Option<Slot> {
        self.tested
    }

    /// Returns true if the lanes of a rail are being ended, which reads memory back.
    pub(crate) fn is_fencing(&self) -> bool {
        !self.fencing.is_empty()
    }

    /// Notes that the lanes of a rail are being ended. `is_blind` is true if nothing is left to be read back, although
    /// [`Self::has_unflushed`]: then nothing tells that the rail's data is visible.
    pub(crate) fn begin_fence(&mut self, rail: RailId, is_blind: bool) {
        self.fencing.insert(rail);
        self.blind.remove(rail);
        if is_blind {
            self.blind.insert(rail);
        }
    }

    /// Notes that the lanes of a rail have ended, and if everything that they had brought is visible then.
    pub(crate) fn handle_fenced(&mut self, rail: RailId, is_visible: bool) {
        let is_visible = is_visible && !self.blind.contains(rail);
        self.fencing.remove(rail);
        self.unflushed.remove(rail);
        for (_, mask, gone) in self.rails_of.iter_mut().filter(|(_, mask, _)| mask.contains(rail)) {
            // New lanes of the rail have nothing to do with what these have brought.
            mask.remove(rail);
            if !is_visible {
                gone.insert(rail);
            }
        }
        for flush in self.requests.iter_mut().filter(|flush| (flush.unposted | flush.outstanding).contains(rail)) {
            flush.unposted.remove(rail);
            flush.outstanding.remove(rail);
            if !is_visible {
                flush.failed = flush.failed.or(Some(rail));
            }
        }
    }

    /// Ends a flush if every rail is done with it, or one has failed.
    pub(crate) fn finish(&mut self, index: usize) -> Progress {
        let flush = &mut self.requests[index];
        let progress = match flush.failed {
            Some(rail) => Progress::Failed(rail),
            None if (flush.unposted | flush.outstanding).is_empty() => Progress::Done,
            None => Progress::Pending,
        };
        flush.taken &= progress == Progress::Pending;
        progress
    }
}

#[inline]
fn remembered(address: u64) -> usize {
    // Buffers are at least 4 KiB apart in NCCL's pipelines, and addresses that differ by a power of two must not
    // collide.
    (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % REMEMBERED
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryKeys;

    /// Rails of the tests, all of which can flush.
    const RAILS: RailSet = RailSet::first_of(4);

    fn keys(host: bool) -> MemoryKeys {
        MemoryKeys { local: [0; MAX_RAILS], remote: [1, 2, 3, 4, 5, 6, 7, 8], host }
    }

    fn buffer(address: u64, size: u64, keys: &MemoryKeys) -> Incoming<'_> {
        Incoming { address, size, tag: 0, keys }
    }

    /// Begins a flush of buffers in GPU memory. Returns the rails over which it goes.
    fn rails_of(flushes: &mut Flushes, addresses: &[u64], flushing: RailSet) -> RailSet {
        let keys = keys(false);
        let buffers: Vec<_> = addresses.iter().map(|address| buffer(*address, 1, &keys)).collect();
        let Some(index) = flushes.begin(&buffers, flushing).expect("there is a request") else {
            return RailSet::EMPTY;
        };
        let flush = flushes.requests[index];
        for rail in flush.unposted {
            assert!(addresses.contains(&flush.targets[rail].address));
            assert_eq!(flush.targets[rail].key, keys.remote[rail]);
        }
        flushes.requests[index].unposted = RailSet::EMPTY;
        assert!(flushes.finish(index) == Progress::Done && !flushes.is_in_progress(index));
        flush.unposted
    }

    #[test]
    fn a_flush_goes_over_the_rails_that_wrote_and_can_flush() {
        let mut flushes = Flushes::new(0);
        let (first, second) = (RailSet::from_bits(0b0011), RailSet::from_bits(0b0110));
        flushes.remember(0x1000, first, RailSet::EMPTY);
        flushes.remember(0x2000, second, RailSet::EMPTY);
        assert_eq!(rails_of(&mut flushes, &[0x1000], RAILS), first);
        assert_eq!(rails_of(&mut flushes, &[0x1000, 0x2000], RAILS), first | second);
        assert_eq!(rails_of(&mut flushes, &[0x2000], RailSet::from_bits(0b1100)), RailSet::from_bits(0b0100));
        assert_eq!(rails_of(&mut flushes, &[0x2000], RailSet::from_bits(0b1000)), RailSet::EMPTY);
        assert_eq!(rails_of(&mut flushes, &[0x3000], RAILS), RAILS, "nobody knows which rails wrote there");
        flushes.remember(0x1000, second, RailSet::EMPTY);
        assert_eq!(rails_of(&mut flushes, &[0x1000], RAILS), second, "the last message counts");
        flushes.remember(0x1000, RailSet::EMPTY, RailSet::EMPTY);
        assert_eq!(rails_of(&mut flushes, &[0x1000], RAILS), RailSet::EMPTY, "the rails have made it visible");
    }

    #[test]
    fn only_gpu_memory_with_bytes_needs_a_flush() {
        let (mut flushes, host, gpu) = (Flushes::new(0), keys(true), keys(false));
        for needless in [buffer(0x1000, 1, &host), buffer(0x1000, 0, &gpu), buffer(0x1000, 0, &host)] {
            assert_eq!(flushes.begin(&[needless], RAILS).map_err(drop), Ok(None));
        }
        let both = [buffer(0x1000, 1, &host), buffer(0x2000, 1, &gpu)];
        assert_eq!(flushes.begin(&both, RAILS).map_err(drop), Ok(Some(0)));
        assert_eq!(flushes.requests[0].targets[RailId::default()].address, 0x2000);
    }

    #[test]
    fn the_rails_of_buffers_at_regular_distances_are_remembered() {
        for shift in [12, 13, 16, 20, 21, 24, 30] {
            let mut flushes = Flushes::new(0);
            let address = |number: u64| 0x7f00_0000_0000 + (number << shift);
            let rails = |number: u64| RailSet::from_bits(1 << (number % 4));
            (0..64).for_each(|number| flushes.remember(address(number), rails(number), RailSet::EMPTY));
            let is_known = |number: &u64| rails_of(&mut flushes, &[address(*number)], RAILS) == rails(*number);
            let known = (0..64).filter(is_known).count();
            assert!(known >= 48, "of 64 buffers that are 2^{shift} bytes apart, only {known} are remembered");
        }
    }

    #[test]
    fn each_use_of_a_request_has_a_generation_that_fits_its_work_id() {
        let mut flushes = Flushes::new(0);
        let mut seen = Vec::new();
        for last in [0, 1, 0xff_fffe, 0xff_ffff] {
            flushes.requests[0].generation = last;
            rails_of(&mut flushes, &[0x1000], RAILS);
            let generation = flushes.requests[0].generation;
            let work = WorkKind::Flush { request: 0, generation };
            assert_eq!(WorkKind::from_id(work.id()), Some(work));
            assert_ne!(generation, last);
            seen.push(generation);
        }
        assert_eq!(seen, [1, 2, 0xff_ffff, 0]);
    }

    #[test]
    fn a_flush_is_done_once_it_is_on_every_rail_and_each_is_done() {
        let (mut flushes, gpu, rail) = (Flushes::new(0), keys(false), RailId::default());
        let index = flushes.begin(&[buffer(0x1000, 1, &gpu)], RAILS).expect("there is a request").expect("needed");
        let generation = flushes.requests[index].generation;
        assert!(flushes.is_in_progress(index) && flushes.finish(index) == Progress::Pending, "it is on no rail");
        flushes.requests[index].unposted = RailSet::from_bits(0b01);
        flushes.requests[index].outstanding = RailSet::from_bits(1);
        flushes.handle_sent(index, generation, rail);
        assert!(flushes.finish(index) == Progress::Pending, "one rail has had no room yet");
        flushes.requests[index].unposted = RailSet::EMPTY;
        flushes.requests[index].outstanding = RailSet::from_bits(3);
        flushes.handle_sent(index, generation, rail);
        assert!(flushes.finish(index) == Progress::Pending, "one rail is not done");
        flushes.handle_sent(index, generation, RailId::new(1).unwrap());
        assert!(flushes.finish(index) == Progress::Done && !flushes.is_in_progress(index));
        assert!(!flushes.is_in_progress(FLUSHES), "there is no such request");
    }

    #[test]
    fn a_rail_that_ends_has_made_its_data_visible_unless_its_adapter_is_gone() {
        let (gpu, rail) = (keys(false), RailId::default());
        let both = RailSet::from_bits(0b11);
        let begin = |flushes: &mut Flushes, flushing| flushes.begin(&[buffer(0x1000, 1, &gpu)], flushing).unwrap();
        for is_visible in [true, false] {
            let mut flushes = Flushes::new(0);
            flushes.remember(0x1000, both, RailSet::EMPTY);
            let before = begin(&mut flushes, both).expect("it is needed");
            flushes.begin_fence(rail, false);
            let during = begin(&mut flushes, RailSet::from_bits(0b10)).expect("it is needed");
            for index in [before, during] {
                flushes.requests[index].unposted.remove(RailId::new(1).unwrap());
                assert_eq!(flushes.finish(index), Progress::Pending, "the rail is ending");
            }
            flushes.handle_fenced(rail, is_visible);
            let ended = if is_visible { Progress::Done } else { Progress::Failed(rail) };
            assert_eq!([before, during].map(|index| flushes.finish(index)), [ended; 2]);
            let after = begin(&mut flushes, RailSet::from_bits(0b10)).expect("it is needed");
            assert_eq!(flushes.requests[after].unposted, RailSet::from_bits(0b10));
            flushes.requests[after].unposted = RailSet::EMPTY;
            assert_eq!(flushes.finish(after), ended);
            flushes.remember(0x1000, both, RailSet::EMPTY);
            let again = begin(&mut flushes, both).expect("it is needed");
            assert_eq!(flushes.requests[again].unposted, both, "it has come over new lanes");
            flushes.requests[again].unposted = RailSet::EMPTY;
            assert_eq!(flushes.finish(again), Progress::Done);
        }
    }

    #[test]
    fn what_a_rail_has_brought_is_not_visible_if_nothing_was_left_to_be_read_back() {
        let (gpu, rail) = (keys(false), RailId::default());
        for is_blind in [false, true] {
            let mut flushes = Flushes::new(0);
            flushes.remember(0x1000, RailSet::only(rail), RailSet::EMPTY);
            flushes.begin_fence(rail, true);
            flushes.begin_fence(rail, is_blind);
            flushes.handle_fenced(rail, true);
            let flush = flushes.begin(&[buffer(0x1000, 1, &gpu)], RailSet::EMPTY).unwrap();
            let progress = flush.map(|index| flushes.finish(index));
            assert_eq!(progress, is_blind.then_some(Progress::Failed(rail)));
        }
    }

    #[test]
    fn a_buffer_that_nobody_can_make_visible_keeps_its_place() {
        let (gpu, [first, second]) = (keys(false), [0, 1].map(|rail| RailSet::only(RailId::new(rail).unwrap())));
        let others = (2..).map(|number| number << 12).filter(|other| remembered(*other) == remembered(0x1000));
        let others: Vec<u64> = others.take(2).collect();
        let mut flushes = Flushes::new(0);
        let flush = |flushes: &mut Flushes, address| {
            let index = flushes.begin(&[buffer(address, 1, &gpu)], RAILS).unwrap().expect("it is needed");
            let unposted = std::mem::take(&mut flushes.requests[index].unposted);
            (unposted, flushes.finish(index))
        };
        let failed = Progress::Failed(first.first().unwrap());
        flushes.remember(0x1000, second, first);
        flushes.remember(others[0], second, RailSet::EMPTY);
        assert_eq!(flush(&mut flushes, 0x1000), (second, failed));
        assert_eq!(flush(&mut flushes, others[0]), (RAILS, Progress::Done), "all rails are as good");
        flushes.remember(others[1], RailSet::EMPTY, first);
        assert_eq!(flush(&mut flushes, others[1]), (RAILS, failed));
        flushes.remember(0x1000, second, RailSet::EMPTY);
        flushes.remember(others[0], second, RailSet::EMPTY);
        assert_eq!(flush(&mut flushes, others[0]), (second, Progress::Done), "the place is free again");
    }
}
