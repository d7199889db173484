//! Entries in the order of their times, to find the next deadline or the longest wait. Each change takes time
//! logarithmic in the number of entries, so that many entries do not slow down unrelated work.

use std::collections::{BTreeMap, BTreeSet};

/// A set of entries, each with one time in nanoseconds.
pub(super) struct Agenda<T> {
    times: BTreeMap<T, u64>,
    order: BTreeSet<(u64, T)>,
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Self { times: BTreeMap::new(), order: BTreeSet::new() }
    }
}

impl<T: Copy + Ord> Agenda<T> {
    /// Sets the time of an entry; `None` removes the entry.
    pub(super) fn set(&mut self, thing: T, time_ns: Option<u64>) {
        let before = match time_ns {
            Some(time_ns) => self.times.insert(thing, time_ns),
            None => self.times.remove(&thing),
        };
        if before == time_ns {
            return;
        }
        if let Some(before) = before {
            self.order.remove(&(before, thing));
        }
        if let Some(time_ns) = time_ns {
            self.order.insert((time_ns, thing));
        }
    }

    /// Returns the earliest time and its entry.
    pub(super) fn first(&self) -> Option<(u64, T)> {
        self.order.first().copied()
    }

    /// Returns true if the entry has a time.
    pub(super) fn contains(&self, thing: T) -> bool {
        self.times.contains_key(&thing)
    }

    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_in_the_order_of_their_latest_times() {
        let mut agenda = Agenda::default();
        for (thing, time_ns) in [(1, 50), (2, 30), (3, 40), (1, 20), (2, 60), (3, 40)] {
            agenda.set(thing, Some(time_ns));
        }
        agenda.set(4, None);
        let mut order = Vec::new();
        while let Some((time_ns, thing)) = agenda.first() {
            order.push((thing, time_ns));
            agenda.set(thing, None);
        }
        assert_eq!(order, [(1, 20), (3, 40), (2, 60)]);
        assert_eq!(agenda.len(), 0);
    }
}
