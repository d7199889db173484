//! Tests the checkers: sabotages one thing after another, and counts the seeds until its rules have found it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{Checker, Rule, Sabotage, Violation, Workload, run_sabotaged};

/// One sabotage, and its findings.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The sabotage.
    pub sabotage: Sabotage,
    /// The number of seeds up to and including the one by which each of its rules had found it; `None` if one has not.
    pub seeds: Option<u64>,
    /// Its rules that have not found it. If they find nothing else either, they may as well be switched off.
    pub missed: Vec<Rule>,
    /// The first finding of another rule, which proves nothing: a panic of the saboteur, for instance.
    pub other: Option<Violation>,
}

impl Trial {
    /// Returns true if a rule of this checker found the sabotage.
    pub fn is_found_by(&self, checker: Checker) -> bool {
        self.sabotage.found_by().iter().any(|rule| rule.0 == checker && !self.missed.contains(rule))
    }
}

/// Returns true if the finding is one of this rule.
fn is_of(rule: &Rule, found: &Violation) -> bool {
    rule.0 == found.checker && found.message.contains(rule.1)
}

/// Tries every sabotage, each with the seeds from `from` on, at most `limit` of them, on this many threads (0 counts as
/// 1). `only` is the workload of all seeds; `None` mixes all workloads. Returns the trials in the order of
/// [`Sabotage::ALL`].
pub fn try_all(from: u64, limit: u64, threads: usize, only: Option<Workload>) -> Vec<Trial> {
    let next = AtomicUsize::new(0);
    let trials = Mutex::new(Vec::new());
    let work = || {
        while let Some(sabotage) = Sabotage::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
            let trial = try_one(*sabotage, from, limit, only);
            trials.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(trial);
        }
    };
    std::thread::scope(|scope| {
        (0..threads.max(1)).for_each(|_| {
            scope.spawn(work);
        });
    });
    let mut trials = trials.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    trials.sort_by_key(|trial| trial.sabotage as usize);
    trials
}

/// Tries one sabotage on this thread, as [`try_all`] does.
pub fn try_one(sabotage: Sabotage, from: u64, limit: u64, only: Option<Workload>) -> Trial {
    let mut trial = Trial { sabotage, seeds: None, missed: sabotage.found_by().to_vec(), other: None };
    for seed in from..from.saturating_add(limit) {
        let workload = only.unwrap_or_else(|| Workload::of_seed(seed));
        let Some(found) = run_sabotaged(seed, workload, false, Some(sabotage)).violation else { continue };
        if !sabotage.found_by().iter().any(|rule| is_of(rule, &found)) {
            trial.other.get_or_insert(found);
            continue;
        }
        trial.missed.retain(|rule| !is_of(rule, &found));
        if trial.missed.is_empty() {
            trial.seeds = Some(seed - from + 1);
            break;
        }
    }
    trial
}

impl fmt::Display for Trial {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "| {:?} | {} |", self.sabotage, self.sabotage.words())?;
        match self.seeds {
            Some(seeds) => write!(out, " {seeds} |")?,
            None => return write!(out, " - | NOBODY |"),
        }
        let checkers: BTreeSet<Checker> = self.sabotage.found_by().iter().map(|rule| rule.0).collect();
        let names: Vec<&str> = checkers.into_iter().map(Checker::name).collect();
        write!(out, " {} |", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_of_a_rule_if_it_has_its_checker_and_its_words() {
        let is_found = |sabotage: Sabotage, checker, says: &str| {
            let found = Violation { checker, message: says.to_owned(), at_ns: 0 };
            sabotage.found_by().iter().any(|rule| is_of(rule, &found))
        };
        assert!(is_found(Sabotage::DataTwice, Checker::Window, "bytes 0..128 of message 3 were written twice"));
        assert!(!is_found(Sabotage::DataTwice, Checker::Window, "128 bytes at 0x80 landed outside any open buffer"));
        assert!(!is_found(Sabotage::DataTwice, Checker::Panic, "index out of bounds"));
        assert!(is_found(Sabotage::WrongSource, Checker::Bytes, "byte 0 is wrong"));
    }

    #[test]
    fn a_sabotage_that_one_of_its_rules_does_not_find_is_not_caught() {
        let found = try_one(Sabotage::WrongPlace, 1, 200, None);
        assert!(found.seeds.is_some() && found.missed.is_empty() && found.is_found_by(Checker::Window), "{found:?}");
        let soon = try_one(Sabotage::WrongPlace, 1, 2, None);
        assert!(soon.seeds.is_none() && !soon.missed.is_empty(), "the second seed cannot show all of it: {soon:?}");
    }
}
