//! The parts of messages that rails have lost, and that go again over other rails.

use railweave_fabric::{RailId, RailSet};

use crate::sequence::Sequence;

/// A part that has to be sent again. It has the number of the rail that was to carry it first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Repair {
    pub(super) sequence: Sequence,
    pub(super) part: RailId,
    /// The rail that it was posted on last; `None` while it waits for one.
    pub(super) on: Option<RailId>,
    /// True once that rail has placed it.
    pub(super) is_placed: bool,
}

/// All such parts of a connection. A part that is placed stays as long as its slot is not used again, because its
/// receiver may lose it with an adapter.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    all: Vec<Repair>,
}

impl Repairs {
    /// Notes that a part has to be sent again.
    pub(super) fn add(&mut self, sequence: Sequence, part: RailId) {
        let is_of_part = |repair: &Repair| repair.sequence == sequence && repair.part == part;
        self.all.retain(|repair| repair.sequence.slot() != sequence.slot() || repair.sequence == sequence);
        let repair = Repair { sequence, part, on: None, is_placed: false };
        match self.all.iter_mut().find(|repair| is_of_part(repair)) {
            Some(known) => *known = repair,
            None => self.all.push(repair),
        }
    }

    /// Returns the first part from `from` on that waits for a rail, and its place.
    pub(super) fn next_waiting(&self, from: usize) -> Option<(usize, Repair)> {
        let waiting = |(_, repair): &(usize, &Repair)| repair.on.is_none() && !repair.is_placed;
        self.all.iter().enumerate().skip(from).find(waiting).map(|(place, repair)| (place, *repair))
    }

    /// Returns true if a part waits for a rail.
    pub(super) fn wait(&self) -> bool {
        self.next_waiting(0).is_some()
    }

    /// Notes that the part at this place is posted on a rail.
    pub(super) fn note_posted(&mut self, place: usize, on: RailId) {
        self.all[place].on = Some(on);
    }

    /// Forgets the part at this place: the peer has it.
    pub(super) fn note_needless(&mut self, place: usize) {
        self.all[place].is_placed = true;
    }

    /// Notes that a rail has placed a part. Returns false if it was not posted there.
    pub(super) fn note_placed(&mut self, sequence: Sequence, part: RailId, on: RailId) -> bool {
        let is_it = |repair: &&mut Repair| (repair.sequence, repair.part, repair.on) == (sequence, part, Some(on));
        match self.all.iter_mut().find(is_it) {
            Some(repair) => {
                repair.is_placed = true;
                true
            }
            None => false,
        }
    }

    /// Notes that the peer has seen a part, whatever rail brought it.
    pub(super) fn note_seen(&mut self, sequence: Sequence, part: RailId) {
        let is_it = |repair: &&mut Repair| (repair.sequence, repair.part) == (sequence, part);
        if let Some(repair) = self.all.iter_mut().find(is_it) {
            repair.is_placed = true;
        }
    }

    /// Returns the parts of a slot, of those in `mask`, that `rail` carries, or carried last: its own part, and those
    /// of others that were repaired over it.
    pub(super) fn carried_by(&self, rail: RailId, sequence: Sequence, mask: RailSet) -> RailSet {
        let mut carried = mask & RailSet::only(rail);
        for repair in self.all.iter().filter(|repair| repair.sequence == sequence) {
            if repair.on == Some(rail) {
                carried.insert(repair.part);
            } else {
                carried.remove(repair.part);
            }
        }
        carried & mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rail(number: usize) -> RailId {
        RailId::new(number).unwrap()
    }

    fn at(number: u32) -> Sequence {
        Sequence::new(number)
    }

    #[test]
    fn a_part_is_carried_by_the_rail_that_it_was_posted_on_last() {
        let mut repairs = Repairs::default();
        let mask = RailSet::from_bits(0b011);
        let carried = |repairs: &Repairs| [0, 1, 2].map(|on| repairs.carried_by(rail(on), at(7), mask).bits());
        assert_eq!(carried(&repairs), [1, 2, 0]);
        repairs.add(at(7), rail(0));
        assert_eq!((carried(&repairs), repairs.wait()), ([0, 2, 0], true), "it waits");
        repairs.note_posted(0, rail(2));
        assert_eq!((carried(&repairs), repairs.wait()), ([0, 2, 1], false));
        repairs.add(at(7), rail(0));
        repairs.note_posted(0, rail(1));
        assert_eq!(carried(&repairs), [0, 3, 0]);
        assert!(!repairs.note_placed(at(7), rail(0), rail(2)) && repairs.note_placed(at(7), rail(0), rail(1)));
        assert_eq!(carried(&repairs), [0, 3, 0], "it may still be lost there");
        repairs.add(at(0x107), rail(1));
        assert_eq!(carried(&repairs), [1, 2, 0], "the slot is used again");
        assert_eq!(
            repairs.next_waiting(0).map(|(_, repair)| (repair.sequence, repair.part)),
            Some((at(0x107), rail(1)))
        );
        repairs.note_seen(at(0x107), rail(1));
        assert!(!repairs.wait());
    }
}
