//! The limit of a polling loop in which nothing moves: it ends once the allowed time has passed or the parent says
//! stop.

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
    /// The time when the loop last became idle; no clock is read while things move.
    idle_since: Option<Instant>,
    /// The number of idle rounds since something moved.
    idle_rounds: u32,
    /// The use of the processor after an idle round.
    idle: Idle,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Idle {
    /// Keep the processor.
    Spin,
    /// Yield the processor to a waiting thread.
    Yield,
    /// Sleep for this long.
    Rest(Duration),
}

/// A spinning loop reads the clock once in this many idle rounds.
const CLOCK_EVERY: u32 = 64;

impl<'a> Patience<'a> {
    /// Returns the patience of a loop of `rank` that may be idle for `stall`, and ends when `abort` becomes true.
    #[must_use]
    pub fn new(rank: usize, stall: Duration, abort: &'a AtomicBool) -> Self {
        Self { rank, stall, abort, idle_since: None, idle_rounds: 0, idle: Idle::Yield }
    }

    /// Returns the same patience for a measurement: the loop spins and never yields the processor.
    #[must_use]
    pub fn spinning(self) -> Self {
        Self { idle: Idle::Spin, ..self }
    }

    /// Returns the same patience for a loop that shares the processor: it sleeps for `time` after each idle round.
    #[must_use]
    pub fn resting(self, time: Duration) -> Self {
        Self { idle: Idle::Rest(time), ..self }
    }

    /// Ends a round of the loop: `moved` is true if it did anything, `stuck` describes what it waits for.
    ///
    /// # Errors
    /// If the time has passed, or the parent says stop.
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
            // NCCL's threads do the same when idle.
            Idle::Yield => thread::yield_now(),
            Idle::Rest(time) => thread::sleep(time),
        }
        Ok(())
    }
}
