//! The sends of a connection that are under way: the application's requests, and the slots by whose writes they end.
//!
//! A slot with one buffer, as nearly all have, ends the request with its own number, so both stand in one place.

use crate::connection::Fatal;
use crate::sequence::Sequence;
use crate::{MAX_BUFFERS, SLOTS, Slot};

/// Sends that may be outstanding at once.
pub(crate) const REQUESTS: usize = SLOTS;

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free = 0,
    UnderWay,
    Done,
}

/// One slot, and the request with its number.
#[derive(Clone, Copy, Default)]
#[repr(align(16))]
struct Place {
    /// The request.
    state: State,
    /// Bytes of its message.
    size: u32,
    /// With which the slot was posted.
    sequence: Sequence,
    /// The slot's signalled writes that are not complete.
    owed: u8,
    /// How many requests of other places end with the slot; 0 where its own one does.
    group: u8,
}

/// The requests of a connection and the slots that are posted.
pub(crate) struct Requests {
    places: [Place; SLOTS],
    /// The requests that end with each slot, where it is not that with its number.
    groups: Box<[[u8; MAX_BUFFERS]; SLOTS]>,
    /// A post was refused.
    closed: bool,
    /// See [`Outstanding::fatal`](crate::connection::Outstanding::fatal).
    pub(crate) fatal: Option<Box<Fatal>>,
}

impl Requests {
    pub(crate) fn new() -> Self {
        Self {
            places: [Place::default(); SLOTS],
            groups: Box::new([[0; MAX_BUFFERS]; SLOTS]),
            closed: false,
            fatal: None,
        }
    }

    /// Whether a slot can be posted whose only request has its number: [`Self::post_one`].
    #[inline]
    pub(crate) fn is_place_free(&self, sequence: Sequence) -> bool {
        let place = &self.places[sequence.slot()];
        // Both in one comparison.
        place.state as u8 | place.owed == 0
    }

    /// A slot is posted with `owed` signalled writes. It ends a message of `size` bytes, whose request has its number.
    #[inline]
    pub(crate) fn post_one(&mut self, sequence: Sequence, owed: u8, size: u64) -> u8 {
        let place = &mut self.places[sequence.slot()];
        *place = Place { state: State::UnderWay, size: size as u32, sequence, owed, group: 0 };
        sequence.slot().number()
    }

    /// Any free request. The search begins far from the slots that are posted next, whose own ones are wanted then.
    pub(crate) fn find_free(&self, sequence: Sequence) -> Option<u8> {
        let first = sequence.slot().number().wrapping_add(128);
        (0..=u8::MAX).map(|step| first.wrapping_add(step)).find(|request| self.is_free(*request))
    }

    /// Takes a free request for a message of `size` bytes, at most 1 GiB.
    pub(crate) fn take(&mut self, request: u8, size: u64) {
        let place = &mut self.places[usize::from(request)];
        (place.state, place.size) = (State::UnderWay, size as u32);
    }

    /// Whether nobody uses a request.
    pub(crate) fn is_free(&self, request: u8) -> bool {
        self.places[usize::from(request)].state == State::Free
    }

    /// Whether writes of the last use of a sequence number's slot are not complete.
    pub(crate) fn is_owed(&self, sequence: Sequence) -> bool {
        self.places[sequence.slot()].owed != 0
    }

    /// A slot is posted with `owed` signalled writes. It ends these requests, which are taken.
    pub(crate) fn post(&mut self, sequence: Sequence, owed: u8, requests: impl ExactSizeIterator<Item = u8>) {
        let place = &mut self.places[sequence.slot()];
        (place.sequence, place.owed, place.group) = (sequence, owed, requests.len() as u8);
        self.groups[sequence.slot()].iter_mut().zip(requests).for_each(|(place, request)| *place = request);
    }

    /// A signalled write of a slot is complete; with the last one its requests are.
    #[inline]
    pub(crate) fn handle_sent(&mut self, sequence: Sequence) {
        let place = &self.places[sequence.slot()];
        if place.sequence != sequence || place.owed == 0 {
            return self.handle_nobodys(sequence);
        }
        self.count_down(sequence);
    }

    /// A completion of which none is owed. Where a post was refused, it is of the slot that was being posted then.
    #[cold]
    #[inline(never)]
    fn handle_nobodys(&self, sequence: Sequence) {
        assert!(self.closed, "a completion came for slot {:#x}, of which none is owed", sequence.number());
    }

    #[inline]
    fn count_down(&mut self, sequence: Sequence) {
        let place = &mut self.places[sequence.slot()];
        place.owed = place.owed.saturating_sub(1);
        if place.owed > 0 {
            return;
        }
        if place.group == 0 {
            place.state = State::Done;
        } else {
            self.finish_group(sequence.slot());
        }
    }

    /// A post was refused, and the connection is broken: of the slot that was being posted then, some writes may have
    /// gone out.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    #[inline(never)]
    fn finish_group(&mut self, slot: Slot) {
        let count = self.places[slot].group;
        for request in &self.groups[slot][..usize::from(count)] {
            self.places[usize::from(*request)].state = State::Done;
        }
    }

    /// The size of a request that is done, which is then free again.
    #[inline]
    pub(crate) fn release(&mut self, request: u8) -> Option<u64> {
        let place = &mut self.places[usize::from(request)];
        if place.state != State::Done {
            return None;
        }
        place.state = State::Free;
        Some(u64::from(place.size))
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
        let mut requests = Requests::new();
        for sequence in 0..=255 {
            assert!(requests.is_place_free(at(sequence)) && requests.find_free(at(sequence)).is_some());
            assert_eq!(requests.post_one(at(sequence), 1, u64::from(sequence) / 10), sequence as u8);
        }
        assert_eq!(requests.find_free(at(256)), None);
        assert_eq!(requests.release(70), None);
        requests.handle_sent(at(70));
        assert!(!requests.is_place_free(at(256 + 70)), "the application does not know yet");
        assert_eq!((requests.release(70), requests.release(70)), (Some(7), None));
        assert_eq!(requests.find_free(at(256)), Some(70));
        assert!(requests.is_place_free(at(256 + 70)));
    }

    #[test]
    fn all_requests_of_a_slot_are_done_with_its_last_write() {
        let mut requests = Requests::new();
        (0..3).for_each(|request| requests.take(request, 10 + u64::from(request)));
        requests.post(at(0x1ff), 2, [2, 0, 1].into_iter());
        assert!(requests.is_owed(at(0xff)) && !requests.is_owed(at(0xfe)));
        assert!(
            requests.is_free(0xff) && !requests.is_place_free(at(0x2ff)),
            "its request is free, but the slot is not"
        );
        requests.handle_sent(at(0x1ff));
        assert!((0..3).all(|request| requests.release(request).is_none()));
        requests.handle_sent(at(0x1ff));
        assert_eq!([0, 1, 2].map(|request| requests.release(request)), [Some(10), Some(11), Some(12)]);
        assert!(requests.is_place_free(at(0x2ff)));
    }

    #[test]
    fn a_request_of_a_group_keeps_its_place() {
        let mut requests = Requests::new();
        requests.take(5, 1);
        requests.post(at(4), 1, [5].into_iter());
        requests.handle_sent(at(4));
        assert!(requests.is_place_free(at(4)) && !requests.is_place_free(at(5)));
        assert_eq!(requests.release(5), Some(1));
        assert!(requests.is_place_free(at(5)));
    }

    #[test]
    fn a_broken_connection_ignores_what_was_posted_in_part() {
        let mut requests = Requests::new();
        requests.close();
        requests.handle_sent(at(0));
        assert!(requests.is_place_free(at(0)) && requests.release(0).is_none());
    }

    #[test]
    #[should_panic(expected = "of which none is owed")]
    fn a_completion_of_nothing_is_a_bug() {
        let mut requests = Requests::new();
        requests.post_one(at(3), 1, 0);
        requests.handle_sent(at(0x103));
    }
}
