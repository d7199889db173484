//! The generic receives of one rail.

/// The generic receives of one rail.
#[derive(Clone, Copy, Default)]
pub(crate) struct Pool {
    /// The most that there can be.
    pub(crate) depth: u32,
    /// As many are posted, and not taken.
    pub(crate) posted: u32,
    /// Immediates that one slot may bring: one for each lane where messages are striped.
    pub(crate) per_slot: u8,
}

impl Pool {
    /// An immediate has taken a receive.
    #[inline]
    pub(crate) fn handle_taken(&mut self) {
        self.posted = self.posted.wrapping_sub(1);
    }
}
