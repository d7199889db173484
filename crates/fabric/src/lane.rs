//! The numbers of lanes.

use std::fmt;

/// The most lanes that one rail has.
pub const MAX_LANES: usize = 16;

/// A lane of a rail, by its number from 0. A number that is not below the rail's count of lanes, which is at most
/// [`MAX_LANES`], names no lane; a peer may send one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub u8);

impl LaneId {
    /// The first lane, which every rail has.
    pub const FIRST: Self = Self(0);

    /// The lane's place among the rail's lanes.
    #[inline(always)]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The lane at this place among a rail's lanes, below [`MAX_LANES`].
    #[inline(always)]
    pub const fn at(index: usize) -> Self {
        debug_assert!(index < MAX_LANES);
        Self(index as u8)
    }
}

impl fmt::Display for LaneId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}
