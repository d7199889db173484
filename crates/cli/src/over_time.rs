//! The traffic of each rail over time: the reports of a rank to its parent, and their lines and JSON.

use crate::output::print;
use railweave_bench::bootstrap::Link;
use railweave_bench::samples::{Sample, Sampler, Traffic, traffic};
use railweave_nccl_host::{Plugin, RailCount};
use serde::{Deserialize, Serialize};
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant, SystemTime};

/// A report of a rank to its parent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Seen {
    /// The rank begins to look.
    Begin {
        /// True if the plugin has counters.
        counted: bool,
    },
    /// The traffic of one period.
    Period(Vec<RailRate>),
}

/// The traffic of one rail in one period.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RailRate {
    /// The address of the rank's end.
    local: String,
    /// The address of the peer's end.
    remote: String,
    /// The rate at which message bytes were handed to the rail.
    mbit_per_second: f64,
    /// The part of all bytes, 0 to 1.
    share: f64,
}

/// The part of all bytes that one rail carried.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RailShare {
    /// The address of the rank's end.
    pub(crate) local: String,
    /// The address of the peer's end.
    pub(crate) remote: String,
    /// Bytes sent.
    pub(crate) bytes: u64,
    /// The part of all bytes, 0 to 1.
    pub(crate) share: f64,
}

/// Starts to look at the rails of this rank, if a period is given. `wrap` makes a report for the parent.
pub(crate) fn look<R: Serialize + 'static>(
    every: Option<Duration>,
    link: &Link,
    plugin: &Plugin,
    wrap: fn(Seen) -> R,
) -> io::Result<Option<Sampler>> {
    let Some(every) = every else { return Ok(None) };
    let (plugin, reporter) = (plugin.clone(), link.reporter());
    let send = move |sample| {
        let seen = match sample {
            Sample::Begin { counted } => Seen::Begin { counted },
            Sample::Period(rails) => Seen::Period(rails.into_iter().map(RailRate::from).collect()),
        };
        // If the parent is gone, the rank's next exchange fails.
        let _ = serde_json::to_vec(&wrap(seen)).map(|body| reporter.report(&body));
    };
    Sampler::start(every, move || plugin.rail_counters(), send).map(Some)
}

/// The output of `--json`: the traffic of one rank in one period.
#[derive(Debug, Serialize)]
pub(crate) struct Period {
    /// The end of the period, in seconds since the first rank began to look.
    seconds: f64,
    /// The same in seconds since 1970, by this host's clock.
    unix_seconds: f64,
    rank: usize,
    rails: Vec<RailRate>,
}

/// Collects the traffic of all ranks, and prints each period as it comes.
#[derive(Debug)]
pub(crate) struct OverTime {
    /// The time when the first rank began to look.
    begin: Option<Instant>,
    /// True if standard output is for JSON.
    json: bool,
    /// True once it was said that there is nothing to see.
    uncounted: bool,
    periods: Vec<Period>,
}

impl OverTime {
    /// Returns a collection without periods.
    pub(crate) fn new(json: bool) -> Self {
        Self { begin: None, json, uncounted: false, periods: Vec::new() }
    }

    /// Returns the time when the first rank began to look; `None` before.
    pub(crate) fn begin(&self) -> Option<Instant> {
        self.begin
    }

    /// Takes in a rank's report. Returns the time of the beginning if this is the first one.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub(crate) fn take(&mut self, rank: usize, seen: Seen) -> io::Result<Option<Instant>> {
        match seen {
            Seen::Begin { counted } => {
                if !counted && !self.uncounted {
                    self.uncounted = true;
                    eprintln!(
                        "railweave: --every shows nothing, because the plugin has no counters for rails; Railweave's \
                         plugin exports them as railweaveRailCounters_v1"
                    );
                }
                let is_first = self.begin.is_none();
                let begin = *self.begin.get_or_insert_with(Instant::now);
                Ok(is_first.then_some(begin))
            }
            Seen::Period(rails) => {
                let seconds = self.begin.map_or(0.0, |begin| begin.elapsed().as_secs_f64());
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                let period = Period { seconds, unix_seconds: now.as_secs_f64(), rank, rails };
                say(self.json, period.line())?;
                self.periods.push(period);
                Ok(None)
            }
        }
    }

    /// Returns all periods in order of time.
    pub(crate) fn into_periods(self) -> Vec<Period> {
        self.periods
    }
}

/// Prints a line for people, who read standard error if standard output is for JSON.
pub(crate) fn say(json: bool, line: String) -> io::Result<()> {
    if json {
        eprintln!("{line}");
        return Ok(());
    }
    print(line)
}

/// Returns the share of a rank's rail in the data of all periods that end in this time, 0 to 1; `None` if there is
/// none.
pub(crate) fn share(periods: &[Period], rank: usize, rail: usize, seconds: Range<f64>) -> Option<f64> {
    let (mut part, mut all) = (0.0, 0.0);
    for period in periods.iter().filter(|period| period.rank == rank && seconds.contains(&period.seconds)) {
        part += period.rails.get(rail).map_or(0.0, |rail| rail.mbit_per_second);
        all += period.rails.iter().map(|rail| rail.mbit_per_second).sum::<f64>();
    }
    (all > 0.0).then(|| part / all)
}

impl Period {
    fn line(&self) -> String {
        let mut line = format!("{:6.2} s  rank {}", self.seconds, self.rank);
        for RailRate { local, remote, mbit_per_second, share } in &self.rails {
            line += &format!("   {local} - {remote} {mbit_per_second:7.1} Mbit/s {:5.1} %", share * 100.0);
        }
        line
    }
}

impl From<Traffic> for RailRate {
    fn from(traffic: Traffic) -> Self {
        let Traffic { local, remote, megabits_per_second, share, .. } = traffic;
        Self { local, remote, mbit_per_second: megabits_per_second, share }
    }
}

/// Returns the bytes and the share of each rail between two readings of its counters.
pub(crate) fn shares(before: &[RailCount], after: &[RailCount]) -> Vec<RailShare> {
    let of = |Traffic { local, remote, bytes, share, .. }| RailShare { local, remote, bytes, share };
    traffic(before, after, Duration::ZERO).into_iter().map(of).collect()
}

impl RailShare {
    /// Returns the bytes and shares of several senders together, by the addresses of rails, in their first order.
    pub(crate) fn together<'a>(all: impl Iterator<Item = &'a Self>) -> Vec<Self> {
        let mut rails: Vec<Self> = Vec::new();
        for rail in all {
            match rails.iter_mut().find(|other| (&other.local, &other.remote) == (&rail.local, &rail.remote)) {
                Some(other) => other.bytes += rail.bytes,
                None => rails.push(rail.clone()),
            }
        }
        let sum: u64 = rails.iter().map(|rail| rail.bytes).sum();
        for rail in &mut rails {
            rail.share = rail.bytes as f64 / sum.max(1) as f64;
        }
        rails
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(rail: usize, mbit_per_second: f64, share: f64) -> RailRate {
        let (local, remote) = (format!("10.0.{rail}.1"), format!("10.0.{rail}.2"));
        RailRate { local, remote, mbit_per_second, share }
    }

    #[test]
    fn a_period_is_one_line_with_the_rate_and_share_of_each_rail() {
        let rails = vec![rate(0, 79.84, 0.8009), rate(1, 19.84, 0.1991)];
        assert_eq!(
            Period { seconds: 1.304, unix_seconds: 0.0, rank: 0, rails }.line(),
            "  1.30 s  rank 0   10.0.0.1 - 10.0.0.2    79.8 Mbit/s  80.1 %   10.0.1.1 - 10.0.1.2    19.8 Mbit/s  19.9 %"
        );
    }

    #[test]
    fn time_counts_from_the_first_rank_that_looks() {
        let mut all = OverTime::new(true);
        assert!(all.take(1, Seen::Begin { counted: true }).unwrap().is_some());
        assert!(all.take(0, Seen::Begin { counted: true }).unwrap().is_none());
        all.take(0, Seen::Period(vec![rate(0, 1.0, 1.0)])).unwrap();
        let periods = all.into_periods();
        assert_eq!((periods.len(), periods[0].rank), (1, 0));
    }
}
