//! The splits of the messages that are in flight: the part of each rail, in case it has to be sent again.

use railweave_fabric::{MAX_RAILS, RailId, RailSet};
use railweave_policy::Shares;

use crate::requests::Source;
use crate::sequence::Sequence;
use crate::{MAX_BUFFERS, SLOTS};

/// The bytes that each rail was given of each buffer but the first.
type Others = [[u32; MAX_RAILS]; MAX_BUFFERS - 1];

/// The splits of the last message of each slot. A message that one rail carries whole is not noted, nor is the only one
/// of a slot that is measured: the [meter](super::meter::Meter) knows its split.
pub(super) struct SlotShares {
    /// By slot, then by rail, with a power of two of places for each slot: bytes of the only buffer, or the first.
    first: Box<[u32]>,
    rail_bits: u32,
    /// The other buffers of slots; empty with one rail, which carries everything.
    others: Vec<Others>,
}

impl SlotShares {
    /// Returns the splits of a connection of `count` rails.
    pub(super) fn new(count: usize) -> Self {
        let rail_bits = count.next_power_of_two().trailing_zeros();
        let others = vec![Others::default(); if count > 1 { SLOTS } else { 0 }];
        Self { first: vec![0; SLOTS << rail_bits].into(), rail_bits, others }
    }

    #[inline(always)]
    fn place(&self, sequence: Sequence, rail: RailId) -> usize {
        sequence.slot().index() << self.rail_bits | rail.index()
    }

    /// Notes the part of a rail of a slot with one buffer.
    #[inline(always)]
    pub(super) fn note(&mut self, sequence: Sequence, rail: RailId, bytes: u64) {
        let place = self.place(sequence, rail);
        self.first[place] = bytes as u32;
    }

    /// Notes the splits of a slot's buffers.
    pub(super) fn note_group(&mut self, sequence: Sequence, shares: &[Shares], mask: RailSet) {
        for rail in mask {
            self.note(sequence, rail, shares[0].bytes[rail]);
        }
        if shares.len() == 1 {
            return;
        }
        let Some(others) = self.others.get_mut(sequence.slot().index()) else { return };
        for (place, share) in others.iter_mut().zip(&shares[1..]) {
            *place = share.bytes.map(|bytes| bytes as u32);
        }
    }

    /// Returns the offset and the bytes of a rail's part of one buffer's message, `source`. The slot's active rails are
    /// those of `mask`; `given` returns the bytes of each if the meter knows them.
    pub(super) fn part(
        &self,
        sequence: Sequence,
        buffer: usize,
        source: &Source,
        mask: RailSet,
        rail: RailId,
        given: impl Fn(RailId) -> Option<u64>,
    ) -> (u64, u64) {
        if mask.is_single() {
            return (0, source.size);
        }
        let noted = |rail: RailId| {
            let bytes = match buffer.checked_sub(1) {
                None => self.first[self.place(sequence, rail)],
                Some(other) => self.others.get(sequence.slot().index()).map_or(0, |others| others[other][rail]),
            };
            u64::from(bytes)
        };
        let bytes = |rail: RailId| given(rail).unwrap_or_else(|| noted(rail));
        let before = mask.iter().take_while(|other| *other != rail).map(bytes).sum();
        (before, bytes(rail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(bytes: [u64; 3]) -> Shares {
        let mut shares = Shares { mask: RailSet::from_bits(7), ..Shares::default() };
        shares.bytes[..3].copy_from_slice(&bytes);
        shares
    }

    #[test]
    fn each_part_has_its_place_in_its_message() {
        let mut slots = SlotShares::new(3);
        let source = |size| Source { address: 0, size, keys: [0; MAX_RAILS] };
        let (one, group) = (Sequence::new(0x103), Sequence::new(0x2ff));
        let mask = RailSet::from_bits(0b101);
        slots.note(one, RailId::new(0).unwrap(), 128);
        slots.note(one, RailId::new(2).unwrap(), 72);
        let part = |slots: &SlotShares, sequence, buffer, mask, rail| {
            slots.part(sequence, buffer, &source(200), mask, RailId::new(rail).unwrap(), |_| None)
        };
        assert_eq!([0, 2].map(|rail| part(&slots, one, 0, mask, rail)), [(0, 128), (128, 72)]);
        slots.note_group(group, &[shares([1, 2, 3]), shares([0, 5, 6]), shares([0; 3])], RailSet::from_bits(7));
        let all = RailSet::from_bits(7);
        assert_eq!([0, 1, 2].map(|rail| part(&slots, group, 0, all, rail)), [(0, 1), (1, 2), (3, 3)]);
        assert_eq!([0, 1, 2].map(|rail| part(&slots, group, 1, all, rail)), [(0, 0), (0, 5), (5, 6)]);
        assert_eq!([0, 1, 2].map(|rail| part(&slots, group, 2, all, rail)), [(0, 0); 3]);
        assert_eq!([0, 2].map(|rail| part(&slots, one, 0, mask, rail)), [(0, 128), (128, 72)]);
        assert_eq!(part(&slots, one, 0, RailSet::from_bits(4), 2), (0, 200), "one rail carries everything");
        let given = |rail: RailId| Some(50 * (1 + rail.index() as u64));
        let part = |rail| slots.part(one, 0, &source(200), mask, RailId::new(rail).unwrap(), given);
        assert_eq!([0, 2].map(part), [(0, 50), (50, 150)], "the meter knows better");
    }
}
