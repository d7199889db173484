//! The jobs of this host now, as their telemetry files show them: `status` and `top` show the same sums.
//!
//! [`Readings`] are all files of a run dir, read once, with the reason for each that cannot be used; [`Live`] follows
//! the files of several at the cost of their changes. [`jobs()`] sums what either found by job, peer and rail.

mod followed;
mod jobs;
mod live;
mod rates;
mod readings;
mod sum;
mod users;

pub(crate) use followed::{Followed, Seen};
pub(crate) use jobs::{Job, JobRail, Peer, Source, jobs};
pub(crate) use live::{Live, Noted};
#[cfg(test)]
pub(crate) use rates::{ByRail, RailId};
pub(crate) use rates::{Counts, Rates, seconds_since};
pub(crate) use readings::{Reading, Readings};
pub(crate) use sum::{RailSum, counted};
pub(crate) use users::{USERS, Users};

use std::path::Path;

/// Returns true if both paths lead to one folder.
pub(crate) fn is_same_folder(one: &Path, other: &Path) -> bool {
    let canonical = |path: &Path| std::fs::canonicalize(path).ok();
    one == other || canonical(one).is_some_and(|one| Some(one) == canonical(other))
}
