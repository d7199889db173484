//! Exhaustive runs: a small scenario with every fault at every event (docs/simulation.md).

use std::collections::BTreeMap;
use std::fmt;

use crate::campaign::share_out;
use crate::play::{Injection, Plan, Variant, run_plan};
use crate::{Outcome, Sabotage, Seen};

/// The seed that decides what the scenario leaves open: the pauses between turns, and the order of calls.
const SEED: u64 = 1;

/// The number of failing runs on one thread after which the rest is left out.
const MOST_FAILURES: usize = 8;

/// Runs that differ only in the event at which their fault strikes.
#[derive(Clone, Copy, Debug)]
struct Series {
    variant: Variant,
    one_sided: bool,
    /// The fault; `None` for the one run without a fault.
    injection: Option<Injection>,
    /// The number of its first run.
    first: u64,
    /// The number of its runs.
    count: u64,
}

/// All exhaustive runs, numbered from 0. The same tree has the same runs under the same numbers.
#[derive(Debug)]
pub struct Exhaustive {
    series: Vec<Series>,
    /// The runs without a fault that fail, by their numbers.
    unsound: Vec<(u64, Outcome)>,
}

/// The runs with one fault.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Their number.
    pub runs: u64,
    /// The number of those in which the thing that the fault strikes existed at that event.
    pub struck: u64,
    /// The number of those in which a call returned an error.
    pub errors: u64,
}

/// The result of exhaustive runs.
#[derive(Debug, Default)]
pub struct Report {
    /// The number of runs played.
    pub played: u64,
    /// The failing runs by their numbers, in ascending order.
    pub failures: Vec<(u64, Outcome)>,
    /// The runs by their faults, in words.
    pub tallies: BTreeMap<&'static str, Tally>,
    events: u64,
}

impl Series {
    fn plan(&self, at: u64) -> Plan {
        Plan::scenario(self.variant, self.one_sided, self.injection.map(|injection| (at, injection)))
    }

    /// Returns the fault in words.
    fn words(&self) -> &'static str {
        self.injection.map_or("no fault", Injection::words)
    }
}

impl Default for Exhaustive {
    fn default() -> Self {
        Self::new()
    }
}

impl Exhaustive {
    /// Plays each variant of the scenario over each kind of fabric without a fault, to count its events, and numbers
    /// the runs.
    pub fn new() -> Self {
        let (mut series, mut unsound, mut first) = (Vec::new(), Vec::new(), 0);
        for variant in Variant::ALL {
            for one_sided in [true, false] {
                let whole = run_plan(SEED, Plan::scenario(variant, one_sided, None), false, None);
                let is_sound = whole.violation.is_none();
                let (steps, calls) = (whole.steps, whole.calls);
                if !is_sound {
                    unsound.push((first, whole));
                }
                // Nothing is learnt from faults if the scenario fails without any.
                let faults = Plan::scenario(variant, one_sided, None).injections();
                let faults = faults.into_iter().filter(|_| is_sound).map(Some);
                for injection in std::iter::once(None).chain(faults) {
                    let count = match injection {
                        None => 1,
                        Some(Injection::Killed) => calls,
                        Some(_) => steps,
                    };
                    series.push(Series { variant, one_sided, injection, first, count });
                    first += count;
                }
            }
        }
        Self { series, unsound }
    }

    /// Returns the number of runs.
    pub fn runs(&self) -> u64 {
        self.series.last().map_or(0, |last| last.first + last.count)
    }

    /// Returns the series of a run, and the number of the event at which its fault strikes, from 1 on; `None` if there
    /// is no such run.
    fn find(&self, number: u64) -> Option<(&Series, u64)> {
        let after = self.series.partition_point(|series| series.first <= number);
        let found = self.series.get(after.checked_sub(1)?)?;
        (number < found.first + found.count).then_some((found, number - found.first + 1))
    }

    /// Describes a run in one line; `None` if there is no such run.
    pub fn describe(&self, number: u64) -> Option<String> {
        let (series, at) = self.find(number)?;
        let fabric = if series.one_sided { "one-sided" } else { "two-sided" };
        let fault = match series.injection {
            None => "no fault".to_owned(),
            Some(Injection::Killed) => format!("{:?} after call {at}", Injection::Killed),
            Some(injection) => format!("{injection:?} before event {at}"),
        };
        Some(format!("run {number} ({:?}, {fabric}, {fault})", series.variant))
    }

    /// Plays one run; `None` if there is no such run. If `history` is true, the outcome has the history in words.
    pub fn run(&self, number: u64, history: bool, sabotage: Option<Sabotage>) -> Option<Outcome> {
        let (series, at) = self.find(number)?;
        Some(run_plan(SEED, series.plan(at), history, sabotage))
    }

    /// Plays every `every`-th run, 0 counting as 1, on this many threads; stops early once eight have failed on one
    /// thread. Runs without a fault that fail are reported in any case. `played` is called after each run, on the
    /// thread that played it.
    pub fn play(&self, every: u64, threads: usize, played: impl Fn() + Sync) -> Report {
        let every = every.max(1);
        let reports = share_out(threads, self.runs().div_ceil(every), |index, own: &mut Report| {
            let number = index * every;
            let Some((series, at)) = self.find(number) else { return false };
            own.add(number, series.words(), run_plan(SEED, series.plan(at), false, None));
            played();
            own.failures.len() < MOST_FAILURES
        });
        let mut report = Report::default();
        reports.into_iter().for_each(|own| report.merge(own));
        report.failures.retain(|(number, _)| self.unsound.iter().all(|(known, _)| known != number));
        report.failures.extend(self.unsound.iter().cloned());
        report.failures.sort_by_key(|(number, _)| *number);
        report
    }
}

impl Report {
    fn add(&mut self, number: u64, words: &'static str, outcome: Outcome) {
        self.played += 1;
        self.events += outcome.events;
        let tally = self.tallies.entry(words).or_default();
        tally.runs += 1;
        tally.struck += u64::from(outcome.has_struck);
        tally.errors += u64::from(outcome.counts.of(Seen::Failed) > 0);
        if outcome.violation.is_some() {
            self.failures.push((number, outcome));
        }
    }

    fn merge(&mut self, other: Self) {
        self.played += other.played;
        self.events += other.events;
        for (words, more) in other.tallies {
            let tally = self.tallies.entry(words).or_default();
            tally.runs += more.runs;
            tally.struck += more.struck;
            tally.errors += more.errors;
        }
        self.failures.extend(other.failures);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{:>8} {:>8} {:>8}", "runs", "struck", "errors")?;
        for (words, tally) in &self.tallies {
            writeln!(out, "{:>8} {:>8} {:>8}  {words}", tally.runs, tally.struck, tally.errors)?;
        }
        write!(out, "{} runs, {} events", self.played, self.events)
    }
}
