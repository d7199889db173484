//! The time, as the caller tells it.

use std::time::Duration;

/// The time of a look. Decisions use [`Self::up`] only, so that a clock that is set back changes none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// The time since 1970 by the host's clock.
    pub clock: Duration,
    /// The time since some moment in the past: it never goes back.
    pub up: Duration,
}
