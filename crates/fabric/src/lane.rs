//! The numbers of lanes.

use std::fmt;

/// The maximum number of lanes of one rail.
pub const MAX_LANES: usize = 16;

/// A lane of a rail, by its number from 0. A number from a peer must be checked: it names a lane only if it is below
/// the rail's number of lanes, which is at most [`MAX_LANES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub u8);

impl LaneId {
    /// The first lane, which every rail has.
    pub const FIRST: Self = Self(0);

    /// Returns the lane's index among the rail's lanes.
    #[inline(always)]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the lane at this index, below [`MAX_LANES`], among a rail's lanes.
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
