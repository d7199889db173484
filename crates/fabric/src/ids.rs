//! The numbers of a connection's rails, and sets of them.

use std::fmt;
use std::ops::{BitAnd, BitOr, BitOrAssign, Index, IndexMut};

use crate::MAX_RAILS;

/// The number of a rail in its connection, below [`MAX_RAILS`].
///
/// It indexes slices: `keys[rail]` of a `[u32; MAX_RAILS]` needs no bounds check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RailId(u8);

impl RailId {
    /// Returns the rail with this number, or `None` unless it is below [`MAX_RAILS`].
    #[inline]
    pub const fn new(number: usize) -> Option<Self> {
        if number < MAX_RAILS { Some(Self(number as u8)) } else { None }
    }

    /// Returns all numbers that a rail can have, lowest first.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..MAX_RAILS as u8).map(Self)
    }

    /// Returns its number, below [`MAX_RAILS`].
    #[inline]
    pub const fn index(self) -> usize {
        // The number is below MAX_RAILS anyway. The remainder tells the compiler, at the price of one instruction.
        self.0 as usize % MAX_RAILS
    }
}

impl fmt::Display for RailId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl<T> Index<RailId> for [T] {
    type Output = T;

    #[inline]
    fn index(&self, rail: RailId) -> &T {
        &self[rail.index()]
    }
}

impl<T> IndexMut<RailId> for [T] {
    #[inline]
    fn index_mut(&mut self, rail: RailId) -> &mut T {
        &mut self[rail.index()]
    }
}

/// Some of a connection's rails.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct RailSet(u8);

impl RailSet {
    /// No rail.
    pub const EMPTY: Self = Self(0);
    /// Every rail that a connection can have.
    pub const ALL: Self = Self(u8::MAX);

    /// Returns the rails whose bits are set, bit 0 for rail 0.
    #[inline]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Returns one bit for each rail, bit 0 for rail 0.
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns the set of this rail alone.
    #[inline]
    pub const fn only(rail: RailId) -> Self {
        Self(1 << rail.index())
    }

    /// Returns the rails of a connection with `count` rails, at most [`MAX_RAILS`].
    pub const fn first_of(count: usize) -> Self {
        if count < MAX_RAILS { Self((1 << count) - 1) } else { Self::ALL }
    }

    /// Returns true if the set has no rail.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns true if the set has exactly one rail.
    #[inline]
    pub const fn is_single(self) -> bool {
        self.0.is_power_of_two()
    }

    /// Returns the number of rails, at most [`MAX_RAILS`].
    #[inline]
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Returns true if the rail is one of them.
    #[inline]
    pub const fn contains(self, rail: RailId) -> bool {
        self.0 & Self::only(rail).0 != 0
    }

    /// Returns true if all rails are in `others` too.
    #[inline]
    pub const fn is_within(self, others: Self) -> bool {
        self.0 & !others.0 == 0
    }

    /// Returns the rail with the lowest number.
    #[inline]
    pub const fn first(self) -> Option<RailId> {
        if self.is_empty() { None } else { Some(RailId(self.0.trailing_zeros() as u8)) }
    }

    /// Returns the rail with the highest number.
    #[inline]
    pub const fn last(self) -> Option<RailId> {
        if self.is_empty() { None } else { Some(RailId(7 - self.0.leading_zeros() as u8)) }
    }

    /// Returns the set of the first rail alone, or the empty set if this one is empty.
    #[inline]
    pub const fn first_only(self) -> Self {
        // `x & -x` is the lowest bit of x.
        Self(self.0 & self.0.wrapping_neg())
    }

    /// Returns the set without this rail.
    #[inline]
    pub const fn without(self, rail: RailId) -> Self {
        Self(self.0 & !Self::only(rail).0)
    }

    /// Returns the set without these rails.
    #[inline]
    pub const fn except(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// Adds a rail.
    #[inline]
    pub fn insert(&mut self, rail: RailId) {
        *self |= Self::only(rail);
    }

    /// Removes a rail.
    #[inline]
    pub fn remove(&mut self, rail: RailId) {
        *self = self.without(rail);
    }

    /// Returns the rails, lowest number first.
    #[inline]
    pub const fn iter(self) -> RailSetIter {
        RailSetIter(self)
    }
}

impl BitOr for RailSet {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for RailSet {
    #[inline]
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl BitAnd for RailSet {
    type Output = Self;

    #[inline]
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl FromIterator<RailId> for RailSet {
    #[inline]
    fn from_iter<I: IntoIterator<Item = RailId>>(rails: I) -> Self {
        rails.into_iter().fold(Self::EMPTY, |set, rail| set | Self::only(rail))
    }
}

impl IntoIterator for RailSet {
    type Item = RailId;
    type IntoIter = RailSetIter;

    #[inline]
    fn into_iter(self) -> RailSetIter {
        self.iter()
    }
}

/// Writes the set in binary, rail 0 last: `0b101`.
impl fmt::Debug for RailSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:#b}", self.0)
    }
}

impl fmt::Binary for RailSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// The iterator of [`RailSet::iter`]: the rails of a set, lowest number first.
#[derive(Clone, Debug)]
pub struct RailSetIter(RailSet);

impl Iterator for RailSetIter {
    type Item = RailId;

    #[inline]
    fn next(&mut self) -> Option<RailId> {
        let rail = self.0.first()?;
        // `x & (x - 1)` is x without its lowest bit.
        self.0 = RailSet(self.0.0 & (self.0.0 - 1));
        Some(rail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rails(numbers: &[usize]) -> RailSet {
        numbers.iter().map(|number| RailId::new(*number).unwrap()).collect()
    }

    #[test]
    fn a_rail_has_a_number_below_the_limit() {
        assert_eq!(RailId::new(7).map(RailId::index), Some(7));
        assert_eq!(RailId::new(MAX_RAILS), None);
        assert!(RailId::all().map(RailId::index).eq(0..MAX_RAILS));
        let mut weights = [0; MAX_RAILS];
        weights[RailId(3)] = 5;
        assert_eq!((weights[3], weights[RailId(3)]), (5, 5));
    }

    #[test]
    fn a_set_is_its_rails() {
        for bits in 0..=u8::MAX {
            let set = RailSet::from_bits(bits);
            let listed: Vec<RailId> = RailId::all().filter(|rail| bits & 1 << rail.index() != 0).collect();
            assert_eq!(set.bits(), bits);
            assert!(set.iter().eq(listed.iter().copied()), "lowest first");
            assert_eq!(listed.iter().copied().collect::<RailSet>(), set);
            assert_eq!((set.first(), set.last()), (listed.first().copied(), listed.last().copied()));
            assert_eq!(set.first_only().iter().next(), set.first());
            assert_eq!((set.len() as usize, set.is_single()), (listed.len(), listed.len() == 1));
            assert_eq!(set.is_empty(), listed.is_empty());
            assert!(RailId::all().all(|rail| set.contains(rail) == listed.contains(&rail)));
        }
    }

    #[test]
    fn rails_come_and_go() {
        let mut set = rails(&[1, 4]);
        set.insert(RailId(1));
        set.insert(RailId(7));
        assert_eq!(set, rails(&[1, 4, 7]));
        set.remove(RailId(4));
        set.remove(RailId(4));
        assert_eq!(set, rails(&[1, 7]));
        assert_eq!(set.without(RailId(1)), RailSet::only(RailId(7)));
        assert_eq!((set | rails(&[0]), set & rails(&[0, 1])), (rails(&[0, 1, 7]), rails(&[1])));
        assert!(rails(&[1]).is_within(set) && !rails(&[0, 1]).is_within(set) && RailSet::EMPTY.is_within(set));
    }

    #[test]
    fn a_connection_has_its_first_rails() {
        assert_eq!(RailSet::first_of(0), RailSet::EMPTY);
        assert_eq!(RailSet::first_of(3), rails(&[0, 1, 2]));
        assert_eq!(RailSet::first_of(MAX_RAILS), RailSet::ALL);
        assert_eq!(format!("{:?} {:#b}", rails(&[0, 2]), rails(&[0, 2])), "0b101 0b101");
    }
}
