//! The summary of a timeline: the longest waits, the use of each rail, and who keeps others waiting.

mod rank_name;
mod stragglers;
mod usage;
mod waits;

pub use self::rank_name::RankName;
pub use self::stragglers::{CollectiveDelays, LateRail, PeerDelays, Stragglers};
pub use self::usage::RailUse;
pub use self::waits::{Of, Wait, Why};

use crate::timeline::Timeline;
use serde::Serialize;

/// The summary of a timeline. Times are nanoseconds since its begin.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The time of the first event, in nanoseconds since 1970.
    pub wall_ns: u64,
    /// The time between the first event and the last one, in nanoseconds.
    pub span_ns: u64,
    /// The hosts.
    pub hosts: Vec<HostSummary>,
    /// The number of ranks.
    pub ranks: usize,
    /// The number of collectives, and of sends and receives between two ranks, summed over ranks.
    pub collectives: usize,
    /// The number of requests.
    pub requests: usize,
    /// The longest waits, the longest first.
    pub waits: Vec<Wait>,
    /// The use of each rail: by rank, connection and rail.
    pub rails: Vec<RailUse>,
    /// The use of rails, summed over all connections of the same hosts, direction and ends.
    pub host_pairs: Vec<RailUse>,
    /// Those that keep others waiting.
    pub stragglers: Stragglers,
    /// Sentences about everything that the timeline lacks or may have wrong.
    pub warnings: Vec<String>,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostSummary {
    /// Its name.
    pub name: String,
    /// The number of its ranks.
    pub ranks: usize,
    /// The most that its times may be wrong, in nanoseconds, next to those of the first rank's host; `None` if unknown.
    pub clock_within_ns: Option<u64>,
}

impl Summary {
    /// Sums up a timeline, with at most this many waits.
    #[must_use]
    pub fn of(timeline: &Timeline, most_waits: usize) -> Self {
        let ranks_on = |number| timeline.ranks.iter().filter(|rank| rank.host == number).count();
        let host = |(number, host): (usize, &crate::Host)| HostSummary {
            name: host.name.clone(),
            ranks: ranks_on(number),
            clock_within_ns: host.within_ns,
        };
        let is_collective =
            |event: &&crate::Event| matches!(event.kind, railweave_trace::Kind::Coll | railweave_trace::Kind::P2p);
        let connections = || timeline.ranks.iter().flat_map(|rank| rank.connections.values());
        let rails = usage::find(timeline);
        Self {
            wall_ns: timeline.wall_ns,
            span_ns: timeline.span_ns,
            hosts: timeline.hosts.iter().enumerate().map(host).collect(),
            ranks: timeline.ranks.len(),
            collectives: timeline.ranks.iter().map(|rank| rank.events.values().filter(is_collective).count()).sum(),
            requests: connections().map(|it| it.requests.len()).sum(),
            waits: waits::longest(timeline, most_waits),
            host_pairs: usage::sum(&rails),
            rails,
            stragglers: stragglers::find(timeline),
            warnings: timeline.warnings.clone(),
        }
    }
}
