//! The values of a port's counters while they are collected.

use crate::counter::Counter;

/// A value for each counter that has been read.
#[derive(Debug)]
pub(crate) struct Values([Option<u64>; Counter::COUNT]);

impl Values {
    pub(crate) fn new() -> Self {
        Self([None; Counter::COUNT])
    }

    pub(crate) fn clear(&mut self) {
        self.0.fill(None);
    }

    /// Adds `value` to the counter's. The sum wraps, as counters do, so that differences stay right.
    pub(crate) fn add(&mut self, counter: Counter, value: u64) {
        let sum = &mut self.0[counter as usize];
        *sum = Some(sum.unwrap_or(0).wrapping_add(value));
    }

    /// Takes the values of `other` for the counters that have none.
    pub(crate) fn fill(&mut self, other: &Self) {
        for (value, other) in self.0.iter_mut().zip(other.0) {
            *value = value.or(other);
        }
    }

    /// Returns the counters that have a value, in their order.
    pub(crate) fn to_vec(&self) -> Vec<(Counter, u64)> {
        Counter::ALL.iter().zip(self.0).filter_map(|(counter, value)| Some((*counter, value?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_summed_and_gaps_filled() {
        let (mut first, mut second) = (Values::new(), Values::new());
        assert_eq!(first.to_vec(), []);
        first.add(Counter::LinkDowned, 3);
        second.add(Counter::LinkDowned, 100);
        second.add(Counter::RxPrioPause, 1);
        second.add(Counter::RxPrioPause, 2);
        first.fill(&second);
        assert_eq!(first.to_vec(), [(Counter::RxPrioPause, 3), (Counter::LinkDowned, 3)], "sorted, the first one wins");
        first.add(Counter::LinkDowned, u64::MAX);
        assert_eq!(first.to_vec()[1], (Counter::LinkDowned, 2), "wraps");
        first.clear();
        assert_eq!(first.to_vec(), []);
    }
}
