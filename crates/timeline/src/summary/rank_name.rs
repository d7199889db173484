//! The names of ranks in a summary.

use crate::rank::Rank;
use crate::timeline::Timeline;
use serde::Serialize;

/// A rank, as the summary names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct RankName {
    /// Its number, if known.
    pub rank: Option<u32>,
    /// Its host.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
}

impl std::fmt::Display for RankName {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.rank {
            Some(rank) => write!(out, "{}, rank {rank}", self.host),
            None => write!(out, "{}, pid {}", self.host, self.pid),
        }
    }
}

impl RankName {
    pub(super) fn of(timeline: &Timeline, rank: &Rank) -> Self {
        Self { rank: rank.number(), host: timeline.host_of(rank).to_owned(), pid: rank.process.pid }
    }
}
