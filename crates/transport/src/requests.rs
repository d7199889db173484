//! The sends of a connection that are in progress: the application's requests, and the slots whose writes end them.
//!
//! Nearly all slots have one buffer. Such a slot ends the request with its own number, so [`SendSlot`] keeps both.

use std::sync::Arc;

use railweave_fabric::{MAX_RAILS, RailSet};

use crate::connection::Fatal;
use crate::measured::Measured;
use crate::sequence::Sequence;
use crate::{Fate, MAX_BUFFERS, Outgoing, Received, SLOTS, Slot};

/// The most sends that may be outstanding at once.
pub(crate) const REQUESTS: usize = SLOTS;

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free = 0,
    InProgress,
    Done,
}

/// Stands for the group of a slot whose requests have ended before its writes were complete, because the peer had
/// received what they carried.
const ENDED: u8 = u8::MAX;

/// One slot, and the request with its number.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
struct SendSlot {
    /// The request's state.
    state: State,
    /// The parts of the slot that are not known to have been placed: a part has its rail's number.
    owed: RailSet,
    /// All parts of the slot's last use.
    mask: RailSet,
    /// The number of requests in the slot's group; 0 if it ends only the request with its own number, [`ENDED`] if they
    /// have ended already.
    group: u8,
    /// Bytes of the request's message.
    size: u32,
    /// The sequence number with which the slot was posted.
    sequence: Sequence,
    /// The measurement of the completions of its writes.
    measured: Measured,
    /// True if the completion record has the sizes of the slot's messages.
    in_record: bool,
    /// The request's message: its address, and its keys on each rail. They are kept because a rail that fails may have
    /// lost what it was given.
    address: u64,
    keys: [u32; MAX_RAILS],
}

/// The message of a request.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    /// Address of its first byte.
    pub(crate) address: u64,
    /// Its length in bytes.
    pub(crate) size: u64,
    /// Its key on each rail.
    pub(crate) keys: [u32; MAX_RAILS],
}

impl Source {
    /// Returns the message that an application sends.
    #[inline(always)]
    pub(crate) fn of(message: &Outgoing<'_>) -> Self {
        Self { address: message.address, size: message.size, keys: message.keys.local }
    }
}

/// The writes that a slot was posted with.
#[derive(Clone, Copy)]
pub(crate) struct Posted {
    /// The rails that carry its parts.
    pub(crate) mask: RailSet,
    /// The number of signalled writes on each of them.
    pub(crate) writes: [u8; MAX_RAILS],
    /// The measurement of their completions.
    pub(crate) measured: Measured,
    /// True if the completion record has the sizes.
    pub(crate) in_record: bool,
}

/// The messages of a slot.
pub(crate) struct Sources {
    /// The messages, in the order of its buffers.
    pub(crate) sources: Vec<Source>,
    /// All its parts.
    pub(crate) mask: RailSet,
    /// True if the completion record has the sizes.
    pub(crate) in_record: bool,
    /// True if the measurement of the slot knows the split of its only message.
    pub(crate) is_given: bool,
}

/// A slot whose parts a rail carries.
#[derive(Clone, Copy)]
pub(crate) struct Carried {
    /// The sequence number with which it was posted.
    pub(crate) sequence: Sequence,
    /// All its parts.
    pub(crate) mask: RailSet,
    /// Those that are not known to have been placed.
    pub(crate) owed: RailSet,
    /// The exact size of its message, `None` if the completion record has the sizes.
    pub(crate) size: Option<u32>,
}

/// The requests of a connection and the slots that are posted.
pub(crate) struct Requests {
    slots: [SendSlot; SLOTS],
    /// The requests that end with each slot, for slots with a group.
    groups: Box<[[u8; MAX_BUFFERS]; SLOTS]>,
    /// The signalled writes of each part that are not complete, for slots with a group; empty if each part has one.
    writes: Box<[[u8; MAX_RAILS]]>,
    /// True once a post was refused.
    closed: bool,
    /// See [`Outstanding::fatal`](crate::connection::Outstanding::fatal).
    pub(crate) fatal: Option<Box<Fatal>>,
    /// The fate of the connection, which hears of probes that rails have carried.
    pub(crate) fate: Arc<Fate>,
}

impl Requests {
    /// Returns the requests of a connection, whose parts may have several writes if it is `striped`.
    pub(crate) fn new(fate: Arc<Fate>, striped: bool) -> Self {
        Self {
            slots: [SendSlot::default(); SLOTS],
            groups: Box::new([[0; MAX_BUFFERS]; SLOTS]),
            writes: vec![[0; MAX_RAILS]; if striped { SLOTS } else { 0 }].into(),
            closed: false,
            fatal: None,
            fate,
        }
    }

    /// Returns true if the slot can be posted with [`Self::post_one`]: it is owed no completion, and the request with
    /// its number is free.
    #[inline]
    pub(crate) fn is_slot_free(&self, sequence: Sequence) -> bool {
        let slot = &self.slots[sequence.slot()];
        // Both are tested in one comparison.
        slot.state as u8 | slot.owed.bits() == 0
    }

    /// Notes that a slot is posted with one signalled write on each rail of `mask`, which end this message. `measured`
    /// says how their completions are measured. Returns the message's request, which has the slot's number.
    #[inline]
    pub(crate) fn post_one(&mut self, sequence: Sequence, mask: RailSet, source: &Source, measured: Measured) -> u8 {
        self.slots[sequence.slot()] = SendSlot {
            state: State::InProgress,
            owed: mask,
            mask,
            group: 0,
            size: source.size as u32,
            sequence,
            measured,
            in_record: false,
            address: source.address,
            keys: source.keys,
        };
        sequence.slot().number()
    }

    /// Returns any free request. The search begins far from the slots that are posted next, because those will want the
    /// requests with their own numbers.
    pub(crate) fn find_free(&self, sequence: Sequence) -> Option<u8> {
        let first = sequence.slot().number().wrapping_add(128);
        (0..=u8::MAX).map(|step| first.wrapping_add(step)).find(|request| self.is_free(*request))
    }

    /// Takes a free request for a message of at most 1 GiB.
    pub(crate) fn take(&mut self, request: u8, source: &Source) {
        let slot = &mut self.slots[usize::from(request)];
        (slot.state, slot.size) = (State::InProgress, source.size as u32);
        (slot.address, slot.keys) = (source.address, source.keys);
    }

    /// Returns true if a request is free.
    pub(crate) fn is_free(&self, request: u8) -> bool {
        self.slots[usize::from(request)].state == State::Free
    }

    /// Returns true if this sequence number's slot is still owed completions from its previous use.
    pub(crate) fn is_owed(&self, sequence: Sequence) -> bool {
        !self.slots[sequence.slot()].owed.is_empty()
    }

    /// Notes that a slot is posted with signalled writes, which end these requests. The caller has taken the requests,
    /// or takes them before the next poll.
    pub(crate) fn post(&mut self, sequence: Sequence, posted: &Posted, requests: impl ExactSizeIterator<Item = u8>) {
        let slot = &mut self.slots[sequence.slot()];
        (slot.sequence, slot.owed, slot.mask) = (sequence, posted.mask, posted.mask);
        (slot.group, slot.measured, slot.in_record) = (requests.len() as u8, posted.measured, posted.in_record);
        if let Some(writes) = self.writes.get_mut(sequence.slot().index()) {
            *writes = posted.writes;
        }
        self.groups[sequence.slot()].iter_mut().zip(requests).for_each(|(place, request)| *place = request);
    }

    /// Notes that a signalled write of a slot is complete, on the rail in `alone`. The last one completes the slot's
    /// requests. Returns the measurement of the slot.
    #[inline]
    pub(crate) fn handle_sent(&mut self, sequence: Sequence, alone: RailSet) -> Measured {
        let slot = &mut self.slots[sequence.slot()];
        if slot.sequence != sequence || !alone.is_within(slot.owed) {
            return self.handle_nobodys(sequence);
        }
        let measured = slot.measured;
        if slot.group != 0 {
            self.handle_of_group(sequence, alone);
            return measured;
        }
        slot.owed = slot.owed.except(alone);
        if slot.owed.is_empty() {
            slot.state = State::Done;
        }
        measured
    }

    /// Handles a completion that is not owed. It is legal only after a refused post, for the slot that was being posted
    /// then.
    #[cold]
    #[inline(never)]
    fn handle_nobodys(&self, sequence: Sequence) -> Measured {
        assert!(self.closed, "a completion came for slot {:#x}, which is owed none", sequence.number());
        Measured::NOT
    }

    /// Notes that a signalled write of a slot with a group is complete.
    #[inline(never)]
    fn handle_of_group(&mut self, sequence: Sequence, alone: RailSet) {
        if let (Some(writes), Some(rail)) = (self.writes.get_mut(sequence.slot().index()), alone.first()) {
            writes[rail] = writes[rail].saturating_sub(1);
            if writes[rail] > 0 {
                return;
            }
        }
        self.end_parts(sequence, alone);
    }

    /// Notes that parts of a slot have been placed.
    pub(crate) fn end_parts(&mut self, sequence: Sequence, parts: RailSet) {
        let slot = &mut self.slots[sequence.slot()];
        if slot.sequence != sequence || slot.owed.is_empty() {
            return;
        }
        slot.owed = slot.owed.except(parts);
        if slot.owed.is_empty() {
            self.finish(sequence.slot());
        }
    }

    /// Returns the slots that have parts, or had them in their last use.
    pub(crate) fn carried(&self) -> impl Iterator<Item = Carried> {
        let used = self.slots.iter().filter(|slot| !slot.mask.is_empty() && slot.group != ENDED);
        used.map(|slot| Carried {
            sequence: slot.sequence,
            mask: slot.mask,
            owed: slot.owed,
            size: (!slot.in_record).then(|| self.size_of(slot)),
        })
    }

    /// Returns the size of the only message of a slot.
    fn size_of(&self, slot: &SendSlot) -> u32 {
        match slot.group {
            0 => slot.size,
            _ => self.slots[usize::from(self.groups[slot.sequence.slot()][0])].size,
        }
    }

    /// Returns the place of a request among the messages of a slot; `None` if it is none of them, or the slot was
    /// posted again since.
    pub(crate) fn buffer_of(&self, sequence: Sequence, request: u8) -> Option<usize> {
        let slot = &self.slots[sequence.slot()];
        match slot.group {
            _ if slot.sequence != sequence => None,
            // The messages of a group are not known any more.
            0 | ENDED => (sequence.slot().number() == request).then_some(0),
            count => self.groups[sequence.slot()][..usize::from(count)].iter().position(|other| *other == request),
        }
    }

    /// Returns all parts of a slot, and those of them that are not known to have been placed; none if the slot was
    /// posted again since.
    pub(crate) fn parts(&self, sequence: Sequence) -> (RailSet, RailSet) {
        let slot = &self.slots[sequence.slot()];
        match slot.group {
            _ if slot.sequence != sequence => (RailSet::EMPTY, RailSet::EMPTY),
            ENDED => (slot.mask, RailSet::EMPTY),
            _ => (slot.mask, slot.owed),
        }
    }

    /// Returns the message of a request, and true if the measurement of the slot, whose only message it is, knows its
    /// split.
    pub(crate) fn source(&self, sequence: Sequence, request: u8) -> (Source, bool) {
        let (slot, SendSlot { address, size, keys, .. }) =
            (&self.slots[sequence.slot()], self.slots[usize::from(request)]);
        (Source { address, size: size.into(), keys }, slot.group == 0 && slot.measured != Measured::NOT)
    }

    /// Returns the messages of a slot; `None` if the slot is owed nothing by this use.
    pub(crate) fn sources(&self, sequence: Sequence) -> Option<Sources> {
        let slot = &self.slots[sequence.slot()];
        if slot.sequence != sequence || slot.owed.is_empty() || slot.group == ENDED {
            return None;
        }
        let own = [sequence.slot().number()];
        let requests = match slot.group {
            0 => &own[..],
            count => &self.groups[sequence.slot()][..usize::from(count)],
        };
        let source = |request: &u8| {
            let SendSlot { address, size, keys, .. } = self.slots[usize::from(*request)];
            Source { address, size: size.into(), keys }
        };
        let sources = requests.iter().map(source).collect();
        let is_given = slot.group == 0 && slot.measured != Measured::NOT;
        Some(Sources { sources, mask: slot.mask, in_record: slot.in_record, is_given })
    }

    /// Notes that a post was refused, which breaks the connection. Some writes of the slot that was being posted may
    /// have gone out.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    /// Ends the requests of all slots that are owed completions although the peer has received what they carried.
    /// Returns true if there were any. Their completions may still come, or never.
    pub(crate) fn end_received(&mut self, received: &Received) -> bool {
        let mut ended = false;
        for number in 0..=u8::MAX {
            let slot = self.slots[usize::from(number)];
            if !slot.owed.is_empty() && slot.group != ENDED && received.has(slot.sequence) {
                self.finish(slot.sequence.slot());
                self.slots[usize::from(number)].group = ENDED;
                ended = true;
            }
        }
        ended
    }

    #[inline]
    fn finish(&mut self, slot: Slot) {
        match self.slots[slot].group {
            0 => self.slots[slot].state = State::Done,
            _ => self.finish_group(slot),
        }
    }

    #[inline(never)]
    fn finish_group(&mut self, slot: Slot) {
        let count = self.slots[slot].group;
        if count == ENDED {
            return;
        }
        for request in &self.groups[slot][..usize::from(count)] {
            self.slots[usize::from(*request)].state = State::Done;
        }
    }

    /// Returns the size of a request that is done, and frees the request.
    #[inline]
    pub(crate) fn release(&mut self, request: u8) -> Option<u64> {
        let slot = &mut self.slots[usize::from(request)];
        if slot.state != State::Done {
            return None;
        }
        slot.state = State::Free;
        Some(u64::from(slot.size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(number: u32) -> Sequence {
        Sequence::new(number)
    }

    fn requests() -> Requests {
        Requests::new(Arc::default(), true)
    }

    fn parts(bits: u8) -> RailSet {
        RailSet::from_bits(bits)
    }

    fn message(size: u64) -> Source {
        Source { address: 0x1000 * size, size, keys: [size as u32; MAX_RAILS] }
    }

    fn posted(mask: u8, writes: u8) -> Posted {
        let mask = parts(mask);
        Posted { mask, writes: [writes; MAX_RAILS], measured: Measured::NOT, in_record: true }
    }

    #[test]
    fn requests_come_free_only_when_they_are_done() {
        let mut requests = requests();
        for sequence in 0..=255 {
            assert!(requests.is_slot_free(at(sequence)) && requests.find_free(at(sequence)).is_some());
            assert_eq!(
                requests.post_one(at(sequence), parts(1), &message(u64::from(sequence) / 10), Measured::NOT),
                sequence as u8
            );
            assert!(!requests.is_slot_free(at(256 + sequence)) && requests.is_owed(at(256 + sequence)));
        }
        assert_eq!(requests.find_free(at(256)), None);
        assert_eq!(requests.release(70), None);
        requests.handle_sent(at(70), parts(1));
        assert!(!requests.is_slot_free(at(256 + 70)), "the application does not know yet");
        assert_eq!((requests.release(70), requests.release(70)), (Some(7), None));
        assert_eq!(requests.find_free(at(256)), Some(70));
        assert!(requests.is_slot_free(at(256 + 70)));
    }

    #[test]
    fn all_requests_of_a_slot_are_done_with_its_last_write() {
        let mut requests = requests();
        (0..3).for_each(|request| requests.take(request, &message(10 + u64::from(request))));
        requests.post(at(0x1ff), &posted(1, 2), [2, 0, 1].into_iter());
        assert!(requests.is_owed(at(0xff)) && !requests.is_owed(at(0xfe)));
        assert!(
            requests.is_free(0xff) && !requests.is_slot_free(at(0x2ff)),
            "its request is free, but the slot is not"
        );
        requests.handle_sent(at(0x1ff), parts(1));
        assert!((0..3).all(|request| requests.release(request).is_none()));
        requests.handle_sent(at(0x1ff), parts(1));
        assert_eq!([0, 1, 2].map(|request| requests.release(request)), [Some(10), Some(11), Some(12)]);
        assert!(requests.is_slot_free(at(0x2ff)));
    }

    #[test]
    fn a_request_of_a_group_keeps_its_slot_busy() {
        let mut requests = requests();
        requests.take(5, &message(1));
        requests.post(at(4), &posted(1, 1), [5].into_iter());
        requests.handle_sent(at(4), parts(1));
        assert!(requests.is_slot_free(at(4)) && !requests.is_slot_free(at(5)));
        assert_eq!(requests.release(5), Some(1));
        assert!(requests.is_slot_free(at(5)));
    }

    #[test]
    fn a_broken_connection_ignores_what_was_posted_in_part() {
        let mut requests = requests();
        requests.close();
        requests.handle_sent(at(0), parts(1));
        assert!(requests.is_slot_free(at(0)) && requests.release(0).is_none());
    }

    #[test]
    fn what_the_peer_has_received_is_sent_though_its_completions_come_late_or_never() {
        let mut requests = requests();
        (7..9).for_each(|request| requests.take(request, &message(5)));
        requests.post(at(0), &posted(1, 3), [7, 8].into_iter());
        requests.post_one(at(1), parts(3), &message(11), Measured::NOT);
        requests.post_one(at(2), parts(1), &message(12), Measured::NOT);
        let received = Received::new(at(3), |slot| slot.number() < 2);
        assert!(requests.end_received(&received));
        assert_eq!([7, 8, 1, 2].map(|request| requests.release(request)), [Some(5), Some(5), Some(11), None]);
        assert!(!requests.end_received(&received), "once is enough");
        assert!(!requests.is_slot_free(at(257)), "its writes are still out");
        requests.handle_sent(at(1), parts(1));
        requests.handle_sent(at(1), parts(2));
        assert!(requests.is_slot_free(at(257)) && requests.release(1).is_none(), "it has ended");
        requests.handle_sent(at(2), parts(1));
        assert_eq!(requests.release(2), Some(12));
    }

    #[test]
    #[should_panic(expected = "which is owed none")]
    fn a_completion_of_nothing_is_a_bug() {
        let mut requests = requests();
        requests.post_one(at(3), parts(1), &message(0), Measured::NOT);
        requests.handle_sent(at(0x103), parts(1));
    }

    #[test]
    fn parts_end_their_slot_in_any_order_and_once() {
        let mut requests = requests();
        requests.post_one(at(3), parts(0b101), &message(9), Measured::NOT);
        let Sources { sources, in_record, .. } = requests.sources(at(3)).expect("it is owed two parts");
        assert!(sources.len() == 1 && sources[0].address == 0x9000 && sources[0].keys == [9; MAX_RAILS] && !in_record);
        requests.end_parts(at(3), parts(0b100));
        requests.end_parts(at(3), parts(0b100));
        assert_eq!(requests.release(3), None);
        let carried: Vec<_> = requests.carried().map(|slot| (slot.sequence, slot.owed, slot.size)).collect();
        assert_eq!(carried, [(at(3), parts(1), Some(9))]);
        requests.end_parts(at(0x103), parts(1));
        assert_eq!(requests.release(3), None, "that is another use of the slot");
        requests.end_parts(at(3), parts(1));
        assert!(requests.release(3) == Some(9) && requests.sources(at(3)).is_none());
        requests.end_parts(at(3), parts(1));
        assert_eq!(requests.release(3), None, "it has ended");
    }

    #[test]
    fn a_group_has_the_messages_of_its_requests() {
        let mut requests = requests();
        (7..9).for_each(|request| requests.take(request, &message(request.into())));
        requests.post(at(0x105), &posted(2, 1), [8, 7].into_iter());
        let Sources { sources, in_record, .. } = requests.sources(at(0x105)).expect("it is owed a part");
        assert!(sources.iter().map(|source| source.size).eq([8, 7]) && in_record);
        assert!(requests.carried().all(|slot| slot.size.is_none() && slot.mask == parts(2)));
    }
}
