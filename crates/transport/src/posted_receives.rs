//! The generic receives of one rail.

/// The generic receives of one rail.
#[derive(Clone, Copy, Default)]
pub(crate) struct PostedReceives {
    /// The most receives that can be posted.
    pub(crate) depth: u32,
    /// The number of receives that are posted and not taken.
    pub(crate) posted: u32,
    /// The number of immediates that one slot may bring: one for each lane if messages are striped, otherwise 1.
    pub(crate) per_slot: u8,
}

impl PostedReceives {
    /// Notes that an immediate has taken a receive.
    #[inline]
    pub(crate) fn handle_taken(&mut self) {
        self.posted = self.posted.wrapping_sub(1);
    }
}
