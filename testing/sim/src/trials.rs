//! Tests the checkers: sabotages one thing after another, and counts the seeds until a checker finds it.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{Checker, Sabotage, Workload, run_sabotaged};

/// One sabotage, and the checker that found it.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The sabotage.
    pub sabotage: Sabotage,
    /// The number of seeds up to and including the one that found it, and the checker; `None` if none found it.
    pub caught: Option<(u64, Checker)>,
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
    let found = |seed| {
        let workload = only.unwrap_or_else(|| Workload::of_seed(seed));
        let violation = run_sabotaged(seed, workload, false, Some(sabotage)).violation?;
        Some((seed - from + 1, violation.checker))
    };
    Trial { sabotage, caught: (from..from + limit).find_map(found) }
}

impl fmt::Display for Trial {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "| {:?} | {} |", self.sabotage, self.sabotage.words())?;
        match &self.caught {
            Some((seeds, checker)) => write!(out, " {seeds} | {} |", checker.name()),
            None => write!(out, " - | NOBODY |"),
        }
    }
}
