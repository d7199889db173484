//! The sends of a connection that are in progress: the application's requests, and the slots whose writes end them.
//!
//! Nearly all slots have one buffer. Such a slot ends the request with its own number, so [`SendSlot`] keeps both.

use std::sync::Arc;

use crate::connection::Fatal;
use crate::measured::Measured;
use crate::sequence::Sequence;
use crate::{Fate, MAX_BUFFERS, Received, SLOTS, Slot};

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
#[repr(align(16))]
struct SendSlot {
    /// The request's state.
    state: State,
    /// Bytes of its message.
    size: u32,
    /// The sequence number with which the slot was posted.
    sequence: Sequence,
    /// The number of the slot's signalled writes that are not complete.
    owed: u8,
    /// The number of requests in the slot's group; 0 if it ends only the request with its own number, [`ENDED`] if they
    /// have ended already.
    group: u8,
    /// The measurement of the completions of its writes.
    measured: Measured,
}

/// The requests of a connection and the slots that are posted.
pub(crate) struct Requests {
    slots: [SendSlot; SLOTS],
    /// The requests that end with each slot, for slots with a group.
    groups: Box<[[u8; MAX_BUFFERS]; SLOTS]>,
    /// True once a post was refused.
    closed: bool,
    /// See [`Outstanding::fatal`](crate::connection::Outstanding::fatal).
    pub(crate) fatal: Option<Box<Fatal>>,
    /// The fate of the connection, which hears of probes that rails have carried.
    pub(crate) fate: Arc<Fate>,
}

impl Requests {
    pub(crate) fn new(fate: Arc<Fate>) -> Self {
        Self {
            slots: [SendSlot::default(); SLOTS],
            groups: Box::new([[0; MAX_BUFFERS]; SLOTS]),
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
        slot.state as u8 | slot.owed == 0
    }

    /// Notes that a slot is posted with `owed` signalled writes, which end a message of `size` bytes. `measured` says
    /// how their completions are measured. Returns the message's request, which has the slot's number.
    #[inline]
    pub(crate) fn post_one(&mut self, sequence: Sequence, owed: u8, size: u64, measured: Measured) -> u8 {
        let slot = &mut self.slots[sequence.slot()];
        *slot = SendSlot { state: State::InProgress, size: size as u32, sequence, owed, group: 0, measured };
        sequence.slot().number()
    }

    /// Returns any free request. The search begins far from the slots that are posted next, because those will want the
    /// requests with their own numbers.
    pub(crate) fn find_free(&self, sequence: Sequence) -> Option<u8> {
        let first = sequence.slot().number().wrapping_add(128);
        (0..=u8::MAX).map(|step| first.wrapping_add(step)).find(|request| self.is_free(*request))
    }

    /// Takes a free request for a message of `size` bytes, at most 1 GiB.
    pub(crate) fn take(&mut self, request: u8, size: u64) {
        let slot = &mut self.slots[usize::from(request)];
        (slot.state, slot.size) = (State::InProgress, size as u32);
    }

    /// Returns true if a request is free.
    pub(crate) fn is_free(&self, request: u8) -> bool {
        self.slots[usize::from(request)].state == State::Free
    }

    /// Returns true if this sequence number's slot is still owed completions from its previous use.
    pub(crate) fn is_owed(&self, sequence: Sequence) -> bool {
        self.slots[sequence.slot()].owed != 0
    }

    /// Notes that a slot is posted with `owed` signalled writes, which end these requests. `measured` says how their
    /// completions are measured. The caller has taken the requests, or takes them before the next poll.
    pub(crate) fn post(
        &mut self,
        sequence: Sequence,
        owed: u8,
        requests: impl ExactSizeIterator<Item = u8>,
        measured: Measured,
    ) {
        let slot = &mut self.slots[sequence.slot()];
        (slot.sequence, slot.owed, slot.group) = (sequence, owed, requests.len() as u8);
        slot.measured = measured;
        self.groups[sequence.slot()].iter_mut().zip(requests).for_each(|(place, request)| *place = request);
    }

    /// Notes that a signalled write of a slot is complete. The last one completes the slot's requests. Returns the
    /// measurement of the slot.
    #[inline]
    pub(crate) fn handle_sent(&mut self, sequence: Sequence) -> Measured {
        let slot = &self.slots[sequence.slot()];
        if slot.sequence != sequence || slot.owed == 0 {
            return self.handle_nobodys(sequence);
        }
        let measured = slot.measured;
        self.count_down(sequence);
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

    #[inline]
    fn count_down(&mut self, sequence: Sequence) {
        let slot = &mut self.slots[sequence.slot()];
        slot.owed = slot.owed.saturating_sub(1);
        if slot.owed > 0 {
            return;
        }
        self.finish(sequence.slot());
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
            if slot.owed > 0 && slot.group != ENDED && received.has(slot.sequence) {
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

    #[test]
    fn requests_come_free_only_when_they_are_done() {
        let mut requests = Requests::new(Arc::default());
        for sequence in 0..=255 {
            assert!(requests.is_slot_free(at(sequence)) && requests.find_free(at(sequence)).is_some());
            assert_eq!(requests.post_one(at(sequence), 1, u64::from(sequence) / 10, Measured::NOT), sequence as u8);
            assert!(!requests.is_slot_free(at(256 + sequence)) && requests.is_owed(at(256 + sequence)));
        }
        assert_eq!(requests.find_free(at(256)), None);
        assert_eq!(requests.release(70), None);
        requests.handle_sent(at(70));
        assert!(!requests.is_slot_free(at(256 + 70)), "the application does not know yet");
        assert_eq!((requests.release(70), requests.release(70)), (Some(7), None));
        assert_eq!(requests.find_free(at(256)), Some(70));
        assert!(requests.is_slot_free(at(256 + 70)));
    }

    #[test]
    fn all_requests_of_a_slot_are_done_with_its_last_write() {
        let mut requests = Requests::new(Arc::default());
        (0..3).for_each(|request| requests.take(request, 10 + u64::from(request)));
        requests.post(at(0x1ff), 2, [2, 0, 1].into_iter(), Measured::NOT);
        assert!(requests.is_owed(at(0xff)) && !requests.is_owed(at(0xfe)));
        assert!(
            requests.is_free(0xff) && !requests.is_slot_free(at(0x2ff)),
            "its request is free, but the slot is not"
        );
        requests.handle_sent(at(0x1ff));
        assert!((0..3).all(|request| requests.release(request).is_none()));
        requests.handle_sent(at(0x1ff));
        assert_eq!([0, 1, 2].map(|request| requests.release(request)), [Some(10), Some(11), Some(12)]);
        assert!(requests.is_slot_free(at(0x2ff)));
    }

    #[test]
    fn a_request_of_a_group_keeps_its_slot_busy() {
        let mut requests = Requests::new(Arc::default());
        requests.take(5, 1);
        requests.post(at(4), 1, [5].into_iter(), Measured::NOT);
        requests.handle_sent(at(4));
        assert!(requests.is_slot_free(at(4)) && !requests.is_slot_free(at(5)));
        assert_eq!(requests.release(5), Some(1));
        assert!(requests.is_slot_free(at(5)));
    }

    #[test]
    fn a_broken_connection_ignores_what_was_posted_in_part() {
        let mut requests = Requests::new(Arc::default());
        requests.close();
        requests.handle_sent(at(0));
        assert!(requests.is_slot_free(at(0)) && requests.release(0).is_none());
    }

    #[test]
    fn what_the_peer_has_received_is_sent_though_its_completions_come_late_or_never() {
        let mut requests = Requests::new(Arc::default());
        (7..9).for_each(|request| requests.take(request, 5));
        requests.post(at(0), 3, [7, 8].into_iter(), Measured::NOT);
        requests.post_one(at(1), 2, 11, Measured::NOT);
        requests.post_one(at(2), 1, 12, Measured::NOT);
        let received = Received::new(at(3), |slot| slot.number() < 2);
        assert!(requests.end_received(&received));
        assert_eq!([7, 8, 1, 2].map(|request| requests.release(request)), [Some(5), Some(5), Some(11), None]);
        assert!(!requests.end_received(&received), "once is enough");
        assert!(!requests.is_slot_free(at(257)), "its writes are still out");
        requests.handle_sent(at(1));
        requests.handle_sent(at(1));
        assert!(requests.is_slot_free(at(257)) && requests.release(1).is_none(), "it has ended");
        requests.handle_sent(at(2));
        assert_eq!(requests.release(2), Some(12));
    }

    #[test]
    #[should_panic(expected = "which is owed none")]
    fn a_completion_of_nothing_is_a_bug() {
        let mut requests = Requests::new(Arc::default());
        requests.post_one(at(3), 1, 0, Measured::NOT);
        requests.handle_sent(at(0x103));
    }
}
