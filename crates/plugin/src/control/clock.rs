//! How the control thread counts time.

use std::time::Duration;

/// A duration as the control thread counts time.
pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
