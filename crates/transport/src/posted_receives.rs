//! The generic receives of one rail.

/// The generic receives of one rail.
#[derive(Clone, Copy, Default)]
pub(crate) struct PostedReceives {
    /// The most receives that can be posted.
    pub(crate) depth: u32,
    /// The number of receives that are posted and not taken.
    pub(crate) posted: u32,
    /// The number of immediates that one slot may bring: [`crate::depths::immediates_of_slot`].
    pub(crate) per_slot: u8,
    /// Those among them with which a striped message comes: one for each lane, otherwise 1.
    pub(crate) stripes: u8,
}

impl PostedReceives {
    /// Notes that an immediate has taken a receive.
    #[inline]
    pub(crate) fn handle_taken(&mut self) {
        self.posted = self.posted.wrapping_sub(1);
    }
}
