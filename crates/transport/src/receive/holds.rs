//! The places of the CTS ring that must not be used again yet, because an old write to them may still land.
//!
//! CTS entries that went out once have landed when their slot is complete: its sender had them. Entries that are
//! written again over another rail exist twice, and only the adapters know when the second copy has landed. Each
//! rewriting therefore holds the ring where it is, until each copy is known to have landed or to be lost: a signalled
//! write behind it on its rail has completed, or the sender has said that the rail's lanes are gone.

use railweave_fabric::{RailId, RailSet};

/// One rewriting of entries.
struct Hold {
    number: u32,
    /// The oldest entry that may have two copies.
    oldest: u64,
    /// The rails whose signalled write has not completed.
    unsent: RailSet,
    /// The rails that were given up, and whose sender has not said that its lanes are gone.
    not_down: RailSet,
}

/// All rewritings whose copies may still land.
#[derive(Default)]
pub(super) struct Holds {
    last: u32,
    all: Vec<Hold>,
}

impl Holds {
    /// Notes a rewriting of all entries from `oldest` on. A signalled write follows on each rail of `posted`; the rails
    /// of `given_up` may still land older copies. The signalled writes carry its [number](Self::next_number).
    pub(super) fn add(&mut self, number: u32, oldest: u64, posted: RailSet, given_up: RailSet) {
        self.last = number;
        self.all.push(Hold { number, oldest, unsent: posted, not_down: given_up });
    }

    /// Returns the number of the next rewriting.
    pub(super) fn next_number(&self) -> u32 {
        self.last.wrapping_add(1)
    }

    /// Notes that the signalled write of a rewriting has completed on a rail. Returns true if a hold has ended.
    pub(super) fn handle_sent(&mut self, number: u32, rail: RailId) -> bool {
        for hold in self.all.iter_mut().filter(|hold| hold.number == number) {
            hold.unsent.remove(rail);
        }
        self.forget_ended()
    }

    /// Notes that a rail is given up: its signalled writes may never complete.
    pub(super) fn handle_given_up(&mut self, rail: RailId) {
        for hold in self.all.iter_mut().filter(|hold| hold.unsent.contains(rail)) {
            hold.unsent.remove(rail);
            hold.not_down.insert(rail);
        }
    }

    /// Notes that the sender's lanes of a rail are gone. Returns true if a hold has ended.
    pub(super) fn handle_down(&mut self, rail: RailId) -> bool {
        self.all.iter_mut().for_each(|hold| hold.not_down.remove(rail));
        self.forget_ended()
    }

    fn forget_ended(&mut self) -> bool {
        let before = self.all.len();
        self.all.retain(|hold| !(hold.unsent.is_empty() && hold.not_down.is_empty()));
        self.all.len() < before
    }

    /// Returns the oldest entry that may have two copies.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.all.iter().map(|hold| hold.oldest).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rail(number: usize) -> RailId {
        RailId::new(number).unwrap()
    }

    #[test]
    fn a_hold_ends_when_each_copy_has_landed_or_is_lost() {
        let mut holds = Holds::default();
        assert_eq!(holds.oldest(), None);
        let (first, second) = (1, 2);
        holds.add(first, 70, RailSet::from_bits(0b110), RailSet::from_bits(1));
        assert_eq!(holds.next_number(), second);
        holds.add(second, 90, RailSet::from_bits(0b100), RailSet::EMPTY);
        assert!(!holds.handle_sent(first, rail(1)) && !holds.handle_down(rail(0)));
        assert_eq!(holds.oldest(), Some(70), "rail 2 may still land it");
        assert!(!holds.handle_down(rail(2)), "it was not given up");
        holds.handle_given_up(rail(2));
        assert!(!holds.handle_sent(second.wrapping_add(1), rail(2)));
        assert!(holds.handle_down(rail(2)));
        assert_eq!(holds.oldest(), None);
    }

    #[test]
    fn a_later_write_says_nothing_of_another_hold() {
        let mut holds = Holds::default();
        let (first, second) = (u32::MAX, 0);
        holds.add(first, 7, RailSet::from_bits(1), RailSet::EMPTY);
        holds.add(second, 9, RailSet::from_bits(1), RailSet::EMPTY);
        assert!(holds.handle_sent(second, rail(0)));
        assert_eq!(holds.oldest(), Some(7));
        assert!(holds.handle_sent(first, rail(0)));
        assert_eq!(holds.oldest(), None);
    }
}
