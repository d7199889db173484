//! Tries the checkers: plants one bug at a time, and counts the seeds until a checker finds it.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use railweave_transport::{Plant, set_plant};

use crate::{Checker, Workload, run};

/// One planted bug, and who found it.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The bug.
    pub plant: Plant,
    /// Seeds until it was found, the finding one included, and the checker; None when nobody did.
    pub caught: Option<(u64, Checker, String)>,
}

/// Tries every plant with the seeds from `from` on, at most `limit` of them, on so many threads. `only` is the workload
/// of all of them; None mixes all.
pub fn try_all(from: u64, limit: u64, threads: usize, only: Option<Workload>) -> Vec<Trial> {
    let next = AtomicUsize::new(0);
    let trials = Mutex::new(Vec::new());
    let work = || {
        while let Some(plant) = Plant::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
            let trial = try_one(*plant, from, limit, only);
            trials.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(trial);
        }
    };
    std::thread::scope(|scope| {
        (0..threads.max(1)).for_each(|_| {
            scope.spawn(work);
        });
    });
    let mut trials = trials.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    trials.sort_by_key(|trial| trial.plant as usize);
    trials
}

/// The workload that a seed has in a trial. Breakers is for the protocol's own checks, which are off.
fn workload(seed: u64) -> Workload {
    match Workload::of_seed(seed) {
        Workload::Breakers => Workload::Random,
        workload => workload,
    }
}

/// Tries one plant on this thread.
pub fn try_one(plant: Plant, from: u64, limit: u64, only: Option<Workload>) -> Trial {
    let mut caught = None;
    for seed in from..from + limit {
        set_plant(Some(plant));
        let outcome = run(seed, only.unwrap_or_else(|| workload(seed)), false);
        set_plant(None);
        if let Some(found) = outcome.violation {
            caught = Some((seed - from + 1, found.checker, found.message));
            break;
        }
    }
    Trial { plant, caught }
}

impl Trial {
    /// Whether it ended as it should: a bug is found, and where there is none nothing is.
    pub fn is_right(&self) -> bool {
        (self.plant == Plant::Nothing) == self.caught.is_none()
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = format!("{:?}", self.plant);
        match &self.caught {
            Some((seeds, checker, _)) => {
                write!(out, "| {name} | {} | {seeds} | {} |", self.plant.words(), checker.name())
            }
            None if self.is_right() => write!(out, "| {name} | {} | - | rightly nobody |", self.plant.words()),
            None => write!(out, "| {name} | {} | - | NOBODY |", self.plant.words()),
        }
    }
}
