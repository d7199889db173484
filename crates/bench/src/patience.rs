//! How long to poll: until something moves, the time allowed is over, or somebody says stop.

use crate::error::CommunicatorError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The patience of one polling loop.
#[derive(Debug)]
pub struct Patience<'a> {
    rank: usize,
    stall: Duration,
    abort: &'a AtomicBool,
    /// When the loop last began to find nothing to do; no clock is read while things move.
    idle_since: Option<Instant>,
    /// Rounds that found nothing to do, since something moved.
    idle_rounds: u32,
    /// What to do with the processor after a round that found nothing to do.
    idle: Idle,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Idle {
    /// Keep it.
    Spin,
    /// Give it to whoever waits for one.
    Yield,
    /// Leave it for this long.
    Rest(Duration),
}

/// The clock is read in every this many idle rounds.
const CLOCK_EVERY: u32 = 64;

impl<'a> Patience<'a> {
    /// For a loop of `rank` that may find nothing to do for `stall`, and ends when `abort` becomes true.
    #[must_use]
    pub fn new(rank: usize, stall: Duration, abort: &'a AtomicBool) -> Self {
        Self { rank, stall, abort, idle_since: None, idle_rounds: 0, idle: Idle::Yield }
    }

    /// The same for a measurement: it spins and never gives its processor away.
    #[must_use]
    pub fn spinning(self) -> Self {
        Self { idle: Idle::Spin, ..self }
    }

    /// The same for a loop beside many others, which leaves its processor for `time` when it finds nothing to do.
    #[must_use]
    pub fn resting(self, time: Duration) -> Self {
        Self { idle: Idle::Rest(time), ..self }
    }

    /// To be called after each round of the loop: `moved` tells whether it did anything, `stuck` says what it waits
    /// for.
    ///
    /// # Errors
    /// The time is over, or somebody says stop.
    pub fn after_round(&mut self, moved: bool, stuck: impl FnOnce() -> String) -> Result<(), CommunicatorError> {
        if self.abort.load(Ordering::Relaxed) {
            return Err(CommunicatorError::Aborted { rank: self.rank });
        }
        if moved {
            self.idle_since = None;
            self.idle_rounds = 0;
            return Ok(());
        }
        self.idle_rounds = self.idle_rounds.wrapping_add(1);
        if self.idle == Idle::Spin && !self.idle_rounds.is_multiple_of(CLOCK_EVERY) {
            return Ok(());
        }
        if self.idle_since.get_or_insert_with(Instant::now).elapsed() > self.stall {
            let seconds = self.stall.as_secs_f64();
            return Err(CommunicatorError::Stalled { rank: self.rank, seconds, stuck: stuck() });
        }
        match self.idle {
            Idle::Spin => {}
            // As NCCL's threads do when they find nothing to do.
            Idle::Yield => thread::yield_now(),
            Idle::Rest(time) => thread::sleep(time),
        }
        Ok(())
    }
}
