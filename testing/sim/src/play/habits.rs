//! The habits of applications: the order in which they test their requests, the memory that they use, and the time that
//! they let pass when they are done.

use railweave_fabric::MemoryKind;
use railweave_fabric_sim::Chance;

/// The time that an idle application lets pass between its last completion and its close: longer than everything that
/// could stop its peer, so that the peer must be served without it.
const IDLE_NS: u64 = 150_000_000;

/// The order in which an application tests its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Any request.
    Any,
    /// The oldest request, until it is done.
    OldestFirst,
    /// Mostly the newest request. A send of a group that is not filled yet waits for further sends, for which there may
    /// be no place until older ones have ended, so one test in eight is of any request.
    NewestFirst,
}

impl Order {
    /// Returns the place of the request to test next among requests with these numbers; younger ones have higher
    /// numbers. There must be at least one.
    pub(crate) fn pick(self, chance: &mut Chance, numbers: impl ExactSizeIterator<Item = u64>) -> usize {
        if self == Self::Any || self == Self::NewestFirst && chance.permille(125) {
            return chance.index(numbers.len());
        }
        let places = numbers.enumerate().map(|(place, number)| (number, place));
        let chosen = if self == Self::OldestFirst { places.min() } else { places.max() };
        chosen.map_or(0, |(_, place)| place)
    }
}

/// The kinds of memory that an application uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kinds {
    /// This kind only.
    Only(MemoryKind),
    /// Host and GPU memory in turns, also within one receive.
    Mixed,
}

/// The habits of the applications of one connection. Arrays have the receiver first and the sender second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Habits {
    pub(crate) orders: [Order; 2],
    /// The time that each lets pass, once it is done, before it closes.
    pub(crate) idle_ns: [u64; 2],
    /// True if both use memory of several kinds.
    pub(crate) mixes_kinds: bool,
    /// True if both use buffers that other connections of their processes use too.
    pub(crate) shares_buffers: bool,
}

impl Habits {
    /// Returns the habits of an application that has none.
    pub(crate) const fn none() -> Self {
        Self { orders: [Order::Any; 2], idle_ns: [0; 2], mixes_kinds: false, shares_buffers: false }
    }

    /// Draws habits: each that is out of the ordinary is absent from most connections.
    pub(crate) fn draw(chance: &mut Chance) -> Self {
        let mut order = || match chance.below(10) {
            0 => Order::OldestFirst,
            1 => Order::NewestFirst,
            _ => Order::Any,
        };
        let orders = [order(), order()];
        let idle_ns = [0, 1].map(|_| if chance.permille(30) { IDLE_NS } else { 0 });
        Self { orders, idle_ns, mixes_kinds: chance.permille(150), shares_buffers: chance.permille(200) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_and_the_newest_request_are_found_wherever_they_are() {
        let chance = &mut Chance::new(1);
        let numbers = [7, 3, 9, 4];
        assert_eq!(Order::OldestFirst.pick(chance, numbers.into_iter()), 1);
        let newest = (0..1000).filter(|_| Order::NewestFirst.pick(chance, numbers.into_iter()) == 2).count();
        assert!((850..1000).contains(&newest), "{newest}");
        let mut seen = [false; 4];
        (0..100).for_each(|_| seen[Order::Any.pick(chance, numbers.into_iter())] = true);
        assert_eq!(seen, [true; 4]);
    }
}
