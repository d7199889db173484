//! Tests the checkers: sabotages one thing after another, and counts the seeds until a checker finds it.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{Sabotage, Violation, Workload, run_sabotaged};

/// One sabotage, and its finding.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The sabotage.
    pub sabotage: Sabotage,
    /// The number of seeds up to and including the one that found it, and the finding; `None` if none found it.
    pub caught: Option<(u64, Violation)>,
}

impl Trial {
    /// Returns true if one of its checkers found the sabotage, in the right words: a panic of the saboteur proves
    /// nothing.
    pub fn is_right(&self) -> bool {
        let expected = self.sabotage.found_by();
        self.caught.as_ref().is_some_and(|(_, found)| {
            expected.iter().any(|(checker, says)| *checker == found.checker && found.message.contains(says))
        })
    }
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
        Some((seed - from + 1, violation))
    };
    Trial { sabotage, caught: (from..from.saturating_add(limit)).find_map(found) }
}

impl fmt::Display for Trial {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "| {:?} | {} |", self.sabotage, self.sabotage.words())?;
        match &self.caught {
            Some((seeds, found)) => write!(out, " {seeds} | {} |", found.checker.name()),
            None => write!(out, " - | NOBODY |"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Checker;

    #[test]
    fn a_sabotage_must_be_found_by_its_checker() {
        let is_right = |sabotage, caught: Option<(Checker, &str)>| {
            let violation = |(checker, says): (_, &str)| Violation { checker, message: says.to_owned(), at_ns: 0 };
            Trial { sabotage, caught: caught.map(|found| (1, violation(found))) }.is_right()
        };
        assert!(is_right(Sabotage::WrongPlace, Some((Checker::Window, "128 bytes are outside"))));
        assert!(!is_right(Sabotage::WrongPlace, Some((Checker::Panic, "index out of bounds"))));
        assert!(is_right(Sabotage::SequenceWrapped, Some((Checker::Panic, "a completion came for slot 0x0, which"))));
        assert!(!is_right(Sabotage::SequenceWrapped, Some((Checker::Panic, "index out of bounds"))));
        assert!(!is_right(Sabotage::SequenceWrapped, None));
    }
}
