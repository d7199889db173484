//! Small sets and lists, which states consist of.

use std::hash::{Hash, Hasher};
use std::ops::{BitAnd, BitOr};

/// A set of numbers below 16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Set(pub u16);

impl Set {
    /// Returns true if `number` is in the set.
    #[must_use]
    pub fn has(self, number: usize) -> bool {
        self.0 >> number & 1 == 1
    }

    /// Returns true if all of `other` is in the set.
    #[must_use]
    pub fn has_all(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if the set has no number.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the numbers in order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..16).filter(move |number| self.has(*number))
    }

    pub(crate) fn add(&mut self, number: usize) {
        self.0 |= 1 << number;
    }

    pub(crate) fn remove(&mut self, number: usize) {
        self.0 &= !(1 << number);
    }

    /// Returns the numbers below `count`.
    pub(crate) fn below(count: usize) -> Self {
        Self(u16::try_from((1_u32 << count) - 1).expect("at most 16 numbers"))
    }
}

impl BitAnd for Set {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitOr for Set {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl FromIterator<usize> for Set {
    fn from_iter<I: IntoIterator<Item = usize>>(numbers: I) -> Self {
        let mut set = Self::default();
        numbers.into_iter().for_each(|number| set.add(number));
        set
    }
}

/// A list of at most `N` items. It panics when it is full: then a configuration needs a longer one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct List<T, const N: usize> {
    length: u8,
    items: [T; N],
}

impl<T: Copy + Default, const N: usize> Default for List<T, N> {
    fn default() -> Self {
        Self { length: 0, items: [T::default(); N] }
    }
}

impl<T: Hash, const N: usize> Hash for List<T, N> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.items[..usize::from(self.length)].hash(state);
    }
}

impl<T: Copy + Default, const N: usize> List<T, N> {
    pub(crate) fn push(&mut self, item: T) {
        self.items[usize::from(self.length)] = item;
        self.length += 1;
    }

    pub(crate) fn remove(&mut self, index: usize) -> T {
        let item = self.items[index];
        let length = usize::from(self.length);
        self.items.copy_within(index + 1..length, index);
        self.items[length - 1] = T::default();
        self.length -= 1;
        item
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        let mut index = 0;
        while index < usize::from(self.length) {
            if keep(&self.items[index]) {
                index += 1;
            } else {
                self.remove(index);
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn items(&self) -> &[T] {
        &self.items[..usize::from(self.length)]
    }

    pub(crate) fn items_mut(&mut self) -> &mut [T] {
        &mut self.items[..usize::from(self.length)]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.length)
    }
}
