//! The clock of a world.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use railweave_fabric::Clock;

/// The time of a world in nanoseconds, for connections. Unlike the world itself it takes no lock, so that the reports
/// of a rail may read it.
#[derive(Clone, Debug, Default)]
pub struct SimClock(Arc<AtomicU64>);

impl SimClock {
    /// Moves the time.
    pub(super) fn set(&self, now_ns: u64) {
        self.0.store(now_ns, Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    fn ticks(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn ticks_per_second(&self) -> u64 {
        1_000_000_000
    }
}
