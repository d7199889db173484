//! Plays many seeds on several threads, and counts what they exercised.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::counts::Counts;
use crate::{Outcome, Seen, Workload, run};

/// The number of failing seeds on one thread after which a campaign stops.
const MOST_FAILURES: usize = 8;

/// The seeds to play, and how.
#[derive(Clone, Copy, Debug)]
pub struct Campaign {
    /// The first seed.
    pub from: u64,
    /// The number of seeds.
    pub seeds: u64,
    /// The workload of all seeds; `None` mixes all workloads.
    pub only: Option<Workload>,
    /// The number of threads, each of which plays one seed at a time; 0 counts as 1.
    pub threads: usize,
}

/// A seed that was played, and failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// Its workload.
    pub workload: Workload,
    /// Its outcome.
    pub outcome: Outcome,
}

/// The result of a campaign.
#[derive(Debug, Default)]
pub struct Report {
    /// The number of seeds played.
    pub played: u64,
    /// The failing seeds, in ascending order.
    pub failures: Vec<Failure>,
    /// The counts of what the seeds exercised, added up.
    pub counts: Counts,
    /// The number of events in the histories of all seeds.
    pub events: u64,
    /// Virtual time of all seeds, in nanoseconds.
    pub virtual_ns: u64,
}

impl Campaign {
    /// Returns the workload of a seed.
    pub fn workload(&self, seed: u64) -> Workload {
        self.only.unwrap_or_else(|| Workload::of_seed(seed))
    }

    /// Plays all seeds, but stops early once eight have failed on one thread. `played` is called after each seed, on
    /// the thread that played it.
    pub fn play(&self, played: impl Fn() + Sync) -> Report {
        let reports = share_out(self.threads, self.seeds, |index, own: &mut Report| {
            // Seeds end at 2^64.
            let Some(seed) = self.from.checked_add(index) else { return false };
            let workload = self.workload(seed);
            own.add(Failure { seed, workload, outcome: run(seed, workload, false) });
            played();
            own.failures.len() < MOST_FAILURES
        });
        let mut report = Report::default();
        reports.into_iter().for_each(|own| report.merge(own));
        report.failures.sort_by_key(|failure| failure.seed);
        report
    }
}

/// Shares the numbers below `count` out to this many threads (0 counts as 1). Each thread calls `work` with one number
/// after another and with a sum of its own. All threads stop once `work` has returned false. Returns the sums.
pub(crate) fn share_out<S: Default + Send>(
    threads: usize,
    count: u64,
    work: impl Fn(u64, &mut S) -> bool + Sync,
) -> Vec<S> {
    let next = AtomicU64::new(0);
    let sums = Mutex::new(Vec::new());
    let thread = || {
        let mut sum = S::default();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                break;
            }
            if !work(number, &mut sum) {
                next.store(count, Ordering::Relaxed);
            }
        }
        sums.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(sum);
    };
    std::thread::scope(|scope| {
        (0..threads.max(1)).for_each(|_| {
            scope.spawn(thread);
        });
    });
    sums.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Report {
    fn add(&mut self, played: Failure) {
        let outcome = &played.outcome;
        self.played += 1;
        self.events += outcome.events;
        self.virtual_ns += outcome.virtual_ns;
        self.counts.merge(&outcome.counts);
        if outcome.violation.is_some() {
            self.failures.push(played);
        }
    }

    fn merge(&mut self, other: Self) {
        self.played += other.played;
        self.events += other.events;
        self.virtual_ns += other.virtual_ns;
        self.counts.merge(&other.counts);
        self.failures.extend(other.failures);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut group = "";
        for seen in Seen::ALL {
            let (of, words) = seen.words();
            if of != group {
                writeln!(out, "{of}")?;
                group = of;
            }
            let count = self.counts.of(*seen);
            let mark = if count == 0 { "   <- NEVER" } else { "" };
            writeln!(out, "  {count:>12}  {words}{mark}")?;
        }
        writeln!(out, "{}", self.counts.blows())?;
        let seconds = self.virtual_ns as f64 / 1e9;
        write!(out, "{} seeds, {} events, {seconds:.1} s of virtual time", self.played, self.events)
    }
}

/// Returns the command that replays a failing seed.
pub fn replay_command(failure: &Failure) -> String {
    format!("cargo xtask sim --from {} --only {} --history", failure.seed, failure.workload)
}
