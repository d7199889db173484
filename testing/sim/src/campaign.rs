//! Many seeds on all processors, and what they exercised.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::counts::Counts;
use crate::{Outcome, Seen, Workload, run};

/// After so many failing seeds a campaign stops.
const MOST_FAILURES: usize = 8;

/// Which seeds to play, and how.
#[derive(Clone, Copy, Debug)]
pub struct Campaign {
    /// The first seed.
    pub from: u64,
    /// How many.
    pub seeds: u64,
    /// The workload of all of them; None mixes all.
    pub only: Option<Workload>,
    /// Threads; each plays one seed at a time.
    pub threads: usize,
}

/// What came of a campaign.
#[derive(Debug, Default)]
pub struct Report {
    /// Seeds that were played.
    pub played: u64,
    /// Failing seeds, in the order of their numbers.
    pub failures: Vec<Outcome>,
    /// What was exercised.
    pub counts: Counts,
    /// Events in all histories.
    pub events: u64,
    /// Virtual time of all seeds, in nanoseconds.
    pub virtual_ns: u64,
}

impl Campaign {
    /// The workload of a seed.
    pub fn workload(&self, seed: u64) -> Workload {
        self.only.unwrap_or_else(|| Workload::of_seed(seed))
    }

    /// Plays all seeds. `played` is called after each, from any thread.
    pub fn play(&self, played: impl Fn() + Sync) -> Report {
        let next = AtomicU64::new(self.from);
        let end = self.from.saturating_add(self.seeds);
        let report = Mutex::new(Report::default());
        let work = || {
            let mut own = Report::default();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= end {
                    break;
                }
                let outcome = run(seed, self.workload(seed), false);
                own.add(outcome);
                played();
                if own.failures.len() >= MOST_FAILURES {
                    next.store(end, Ordering::Relaxed);
                }
            }
            report.lock().unwrap_or_else(std::sync::PoisonError::into_inner).merge(own);
        };
        std::thread::scope(|scope| {
            (0..self.threads.max(1)).for_each(|_| {
                scope.spawn(work);
            });
        });
        let mut report = report.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        report.failures.sort_by_key(|failure| failure.seed);
        report
    }
}

impl Report {
    fn add(&mut self, outcome: Outcome) {
        self.played += 1;
        self.events += outcome.events;
        self.virtual_ns += outcome.virtual_ns;
        self.counts.merge(&outcome.counts);
        if outcome.violation.is_some() {
            self.failures.push(outcome);
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
        let seconds = self.virtual_ns as f64 / 1e9;
        write!(out, "{} seeds, {} events, {seconds:.1} s of virtual time", self.played, self.events)
    }
}

/// The command that plays a failing seed again.
pub fn replay_command(outcome: &Outcome) -> String {
    format!("cargo xtask sim --from {} --seeds 1 --only {} --history", outcome.seed, outcome.workload.name())
}
