//! The reported figures, times and bandwidth, and the parts that all measurements of them share, so that plain sockets
//! are measured in the same way as a plugin.

use crate::bootstrap::{BootstrapError, Link};
use std::time::{Duration, Instant};

/// The bytes of a message for latency.
pub(crate) const LATENCY_BYTES: usize = 8;
/// The largest buffer memory of one side, in bytes.
pub(crate) const MAX_BUFFER_BYTES: usize = 256 << 20;
/// The rounds of the warm-up.
pub(crate) const WARM_UP_ROUNDS: usize = 200;
/// The largest number of round trips that one measurement times.
const MAX_ROUNDS: usize = 200_000;
/// The number of round trips between two checks whether the time has passed.
const PORTION_ROUNDS: usize = 1000;

/// The median and the 99th percentile of many times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// The number of times.
    pub count: usize,
    /// The median: half of the times were at most this long.
    pub median: Duration,
    /// The 99th percentile: 99 of 100 times were at most this long.
    pub p99: Duration,
}

/// The bandwidth at one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bandwidth {
    /// The size of a message in bytes.
    pub bytes: usize,
    /// Messages in flight.
    pub in_flight: usize,
    /// The median rate in gigabits (10^9) of messages per second, in one direction.
    pub gigabits_per_second: f64,
}

impl Times {
    /// Returns rank 0's figures on both ranks; rank 1 has measured no times.
    pub(crate) fn shared(link: &mut Link, mine: Self) -> Result<Self, BootstrapError> {
        let nanos = |time: Duration| time.as_nanos() as u64;
        let [median, p99, count] = [nanos(mine.median), nanos(mine.p99), mine.count as u64];
        let mut of_rank_0 = |number: u64| Ok::<_, BootstrapError>(link.gather_numbers(number)?[0]);
        let (median, p99) = (Duration::from_nanos(of_rank_0(median)?), Duration::from_nanos(of_rank_0(p99)?));
        Ok(Self { count: of_rank_0(count)? as usize, median, p99 })
    }

    /// Returns the figures of times in any order; all zero if there are none.
    pub(crate) fn of(mut times: Vec<Duration>) -> Self {
        times.sort();
        let at = |percent: usize| times.get((times.len() * percent / 100).min(times.len().saturating_sub(1)));
        let at = |percent| at(percent).copied().unwrap_or_default();
        Self { count: times.len(), median: at(50), p99: at(99) }
    }
}

/// Times round trips for about `time`, in portions of [`PORTION_ROUNDS`] rounds. The time of one portion does not
/// predict the next: if two spinning ranks share a processor, it may be a thousand times as long.
pub(crate) fn for_a_time<E: From<BootstrapError>>(
    link: &mut Link,
    time: Duration,
    mut portion: impl FnMut(usize) -> Result<Vec<Duration>, E>,
) -> Result<Vec<Duration>, E> {
    let mut trips = Vec::new();
    let begin = Instant::now();
    loop {
        trips.extend(portion(PORTION_ROUNDS)?);
        // Rank 0 decides if that is enough, so that both do the same.
        let is_enough = begin.elapsed() >= time || trips.len() >= MAX_ROUNDS;
        if link.gather_numbers(u64::from(is_enough))?[0] != 0 {
            return Ok(trips);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_and_the_percentile_are_of_the_times_in_order() {
        let times = Times::of((1..=1000).rev().map(Duration::from_micros).collect());
        assert_eq!(
            (times.count, times.median, times.p99),
            (1000, Duration::from_micros(501), Duration::from_micros(991))
        );
        assert_eq!(Times::of(Vec::new()), Times { count: 0, median: Duration::ZERO, p99: Duration::ZERO });
    }
}
