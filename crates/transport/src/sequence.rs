//! The numbers of receives, and of the slots that they use.

use std::fmt;
use std::ops::{Index, IndexMut};

use crate::SLOTS;

/// The number of a receive in its connection, modulo 2^32, and of the messages that fill it: both ends count from
/// [`ConnectionConfig::first_number`](crate::ConnectionConfig::first_number).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Sequence(u32);

impl Sequence {
    /// Returns the receive with this number.
    #[inline]
    pub(crate) const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Returns its number.
    #[inline]
    pub(crate) const fn number(self) -> u32 {
        self.0
    }

    /// Returns the slot that it uses.
    #[inline]
    pub(crate) const fn slot(self) -> Slot {
        Slot(self.0 as u8)
    }

    /// Returns the next receive.
    #[inline]
    pub(crate) const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Returns the receive that came `count` before this one.
    #[inline]
    pub(crate) const fn before(self, count: u32) -> Self {
        Self(self.0.wrapping_sub(count))
    }

    /// Returns the number of receives from `earlier` up to, but not including, this one.
    #[inline]
    pub(crate) const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }
}

/// One of the [`SLOTS`] places for an outstanding receive in a connection.
///
/// It indexes slices; indexing a `[T; SLOTS]` needs no bounds check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u8);

const _: () = assert!(SLOTS == u8::MAX as usize + 1, "a slot's number has 8 bits");

impl Slot {
    /// Returns the slot with this number.
    #[inline]
    pub const fn new(number: u8) -> Self {
        Self(number)
    }

    /// Returns its number, as it travels on the wire.
    #[inline]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Returns its number, below [`SLOTS`].
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl<T> Index<Slot> for [T] {
    type Output = T;

    #[inline]
    fn index(&self, slot: Slot) -> &T {
        &self[slot.index()]
    }
}

impl<T> IndexMut<Slot> for [T] {
    #[inline]
    fn index_mut(&mut self, slot: Slot) -> &mut T {
        &mut self[slot.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_round() {
        let last = Sequence::new(u32::MAX);
        assert_eq!(last.next(), Sequence::default());
        assert_eq!((last.slot().index(), last.next().slot().index()), (SLOTS - 1, 0));
        assert_eq!(last.next().since(last), 1);
        assert_eq!(Sequence::new(9).before(10), last);
        assert_eq!(Sequence::new(0x1234_5678).slot(), Slot::new(0x78));
    }
}
