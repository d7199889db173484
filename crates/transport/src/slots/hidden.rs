//! The receives that can never be made visible to the GPU as a whole.

use railweave_fabric::{RailId, RailSet};

/// Receives of which a rail has brought a part that nobody can make visible or send again, so that a flush of them has
/// to fail. Each is named by its first CTS entry, as no other has that.
#[derive(Default)]
pub(super) struct Hidden {
    receives: Vec<(u64, RailSet)>,
}

impl Hidden {
    /// Notes a part of a receive that a rail has brought. Forgets those that are no more: nobody asks for one that was
    /// reported early.
    pub(super) fn note(&mut self, first_entry: u64, rail: RailId, exists: impl Fn(u64) -> bool) {
        self.receives.retain(|(first_entry, _)| exists(*first_entry));
        match self.receives.iter_mut().find(|(other, _)| *other == first_entry) {
            Some((_, rails)) => rails.insert(rail),
            None => self.receives.push((first_entry, RailSet::only(rail))),
        }
    }

    /// Takes the rails that have brought a hidden part of a receive.
    #[inline]
    pub(super) fn take(&mut self, first_entry: u64) -> RailSet {
        if self.receives.is_empty() { RailSet::EMPTY } else { self.find(first_entry) }
    }

    #[cold]
    fn find(&mut self, first_entry: u64) -> RailSet {
        let place = self.receives.iter().position(|(other, _)| *other == first_entry);
        place.map_or(RailSet::EMPTY, |place| self.receives.swap_remove(place).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_receive_has_its_rails_once_and_those_that_are_over_are_forgotten() {
        let [first, second] = [0, 1].map(|number| RailId::new(number).unwrap());
        let mut hidden = Hidden::default();
        assert_eq!(hidden.take(7), RailSet::EMPTY);
        hidden.note(7, first, |_| true);
        hidden.note(9, first, |_| true);
        hidden.note(7, second, |_| true);
        assert_eq!((hidden.take(8), hidden.take(7)), (RailSet::EMPTY, RailSet::first_of(2)));
        assert_eq!(hidden.take(7), RailSet::EMPTY);
        hidden.note(11, second, |first_entry| first_entry != 9);
        assert_eq!((hidden.take(9), hidden.take(11)), (RailSet::EMPTY, RailSet::only(second)));
    }
}
