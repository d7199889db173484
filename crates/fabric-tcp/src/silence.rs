//! The time for which the peer's host has been silent although bytes are in flight to it. TCP_USER_TIMEOUT is
//! unsuitable: it also ends a lane if the peer reads nothing for that long while its host keeps answering.

use std::time::{Duration, Instant};

/// Polls of a lane with outstanding work between two queries of the kernel. A query costs as much as a poll.
const POLLS_BETWEEN_LOOKS: u32 = 256;

/// Allowance for the error of the kernel's times: the kernel counts in ticks of at most 10 ms.
const GRAIN: Duration = Duration::from_millis(20);

/// The watch over one lane.
pub(crate) struct Silence {
    timeout: Option<Duration>,
    polls: u32,
    /// Time of the first look that found bytes in flight; no look since then has found an answer.
    since: Option<Instant>,
}

impl Silence {
    /// Creates a watch that reports silence after `timeout`, or never.
    pub(crate) fn new(timeout: Option<Duration>) -> Self {
        Self { timeout, polls: 0, since: None }
    }

    /// Counts a poll with outstanding work. Returns true if it is time for a look.
    #[inline]
    pub(crate) fn is_due(&mut self) -> bool {
        self.polls += 1;
        if self.polls < POLLS_BETWEEN_LOOKS {
            return false;
        }
        self.polls = 0;
        self.timeout.is_some()
    }

    /// Records a look at `now`: the time since the peer's host was heard, or `None` if no bytes are in flight to it.
    /// Returns the length of the silence once it reaches the timeout.
    pub(crate) fn look(&mut self, now: Instant, heard_ago: Option<Duration>) -> Option<Duration> {
        let silent = self.listen(now, heard_ago);
        self.timeout.is_some_and(|timeout| silent >= timeout).then_some(silent)
    }

    /// Records a look as [`Self::look`] does. Returns the length of the silence so far.
    pub(crate) fn listen(&mut self, now: Instant, heard_ago: Option<Duration>) -> Duration {
        let Some(heard_ago) = heard_ago else {
            self.since = None;
            return Duration::ZERO;
        };
        // If nothing was heard since the first look, the bytes that it found are still in flight. Otherwise the bytes
        // in flight may have just been sent.
        let since = self.since.filter(|since| heard_ago >= now.duration_since(*since) + GRAIN);
        let since = *self.since.insert(since.unwrap_or(now));
        now.duration_since(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Takes a look at each of these times, given with the time at which the peer was last heard, in milliseconds.
    /// Returns the times at which the silence had reached a second, each with the silence's length.
    fn looks(looks: &[(u32, Option<u32>)]) -> Vec<(u32, u128)> {
        let mut silence = Silence::new(Some(1000 * MS));
        let begin = Instant::now();
        let look = |(at, heard): &(u32, Option<u32>)| {
            let silent = silence.look(begin + *at * MS, heard.map(|heard| (at - heard) * MS))?;
            Some((*at, silent.as_millis()))
        };
        looks.iter().filter_map(look).collect()
    }

    #[test]
    fn bytes_that_nobody_acknowledges_show_after_the_time_and_not_before() {
        assert_eq!(looks(&[(100, Some(10)), (600, Some(10)), (1099, Some(10)), (1100, Some(10))]), [(1100, 1000)]);
    }

    #[test]
    fn a_lane_that_was_idle_starts_again() {
        assert_eq!(looks(&[(90_000, Some(10)), (90_001, Some(10)), (90_500, Some(90_499))]), []);
        // In the first case no look falls into the idle time; in the second, one does and finds nothing in flight.
        assert_eq!(looks(&[(100, Some(10)), (90_000, Some(101)), (90_002, Some(101)), (90_900, Some(101))]), []);
        assert_eq!(looks(&[(100, Some(10)), (500, None), (1200, Some(10)), (2199, Some(10))]), []);
    }

    #[test]
    fn an_answer_of_the_peers_host_ends_the_silence() {
        let trickle: Vec<_> = (1..40).map(|step| (step * 100, Some(step * 100 - 90))).collect();
        assert_eq!(looks(&trickle), []);
        assert_eq!(looks(&[(100, Some(10)), (1000, Some(900)), (1900, Some(900)), (2000, Some(900))]), [(2000, 1000)]);
    }

    #[test]
    fn without_a_limit_it_is_never_too_long_and_nobody_looks() {
        let mut silence = Silence::new(None);
        assert!((0..10_000).all(|_| !silence.is_due()));
        let mut silence = Silence::new(Some(MS));
        assert_eq!((0..2560).filter(|_| silence.is_due()).count(), 10);
    }
}
