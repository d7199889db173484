//! Those that keep others waiting: ranks, and rails.

use super::rank_name::RankName;
use super::waits::lateness;
use crate::rank::{Asked, Facts};
use crate::timeline::Timeline;
use railweave_trace::Kind;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

/// Those that keep others waiting, each list with the worst first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stragglers {
    /// Peers by the time for which they kept ranks waiting.
    pub peers: Vec<PeerDelays>,
    /// Rails that ended last most often.
    pub rails: Vec<LateRail>,
    /// Ranks by the number of collectives in which they were the last.
    pub collectives: Vec<CollectiveDelays>,
}

/// The times for which a peer kept ranks waiting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerDelays {
    /// The peer: "node1, rank 0".
    pub peer: String,
    /// The number of sends to it that waited for a CTS: it had posted no receive.
    pub cts_waits: u64,
    /// The time for which these waited, in nanoseconds.
    pub cts_ns: u64,
    /// The number of messages from it whose rails ended at different times.
    pub late_messages: u64,
    /// The time between the last rail of these and the one before it, in nanoseconds.
    pub late_ns: u64,
}

/// A rail that ended last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LateRail {
    /// The rank.
    pub rank: RankName,
    /// The peer.
    pub peer: String,
    /// The connection.
    pub connection: u32,
    /// True if the rail sends.
    pub sends: bool,
    /// The rail's name.
    pub rail: String,
    /// The number of requests that it ended last.
    pub last: u64,
    /// The number of its connection's requests that had more than one rail.
    pub of: u64,
    /// The time after the rail before it, on average, in nanoseconds.
    pub average_ns: u64,
}

/// The collectives in which a rank was the last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CollectiveDelays {
    /// The rank.
    pub rank: RankName,
    /// The number of collectives that are known of more than one rank.
    pub of: u64,
    /// The number of those that it began last, by more than the clocks may be wrong.
    pub began_last: u64,
    /// The time after the first rank, on average, in nanoseconds.
    pub began_after_ns: u64,
    /// The number of those that it ended last, by more than the clocks may be wrong.
    pub ended_last: u64,
    /// The time after the first rank, on average, in nanoseconds.
    pub ended_after_ns: u64,
}

/// Finds those that keep others waiting.
pub(super) fn find(timeline: &Timeline) -> Stragglers {
    let mut rails = rails(timeline);
    rails.sort_by_key(|it| (Reverse(it.last), Reverse(it.average_ns)));
    let mut peers = peers(timeline);
    peers.sort_by_key(|it| Reverse(it.cts_ns.saturating_add(it.late_ns)));
    let mut collectives = collectives(timeline);
    collectives.sort_by_key(|it| (Reverse(it.began_last), Reverse(it.ended_last)));
    Stragglers { peers, rails, collectives }
}

fn peers(timeline: &Timeline) -> Vec<PeerDelays> {
    let mut peers: BTreeMap<String, PeerDelays> = BTreeMap::new();
    let connections = timeline.ranks.iter().flat_map(|rank| rank.connections.values());
    for connection in connections {
        let peer = connection.peer_name();
        let delays = peers.entry(peer.clone()).or_insert_with(|| PeerDelays {
            peer,
            cts_waits: 0,
            cts_ns: 0,
            late_messages: 0,
            late_ns: 0,
        });
        for request in &connection.requests {
            if let Some(ns) = request.cts_wait.filter(|ns| *ns > 0) {
                delays.cts_waits += 1;
                delays.cts_ns = delays.cts_ns.saturating_add(ns);
            }
            if request.asked != Asked::Receive {
                continue;
            }
            if let Some((_, _, late)) = lateness(request).filter(|(_, _, late)| *late > 0) {
                delays.late_messages += 1;
                delays.late_ns = delays.late_ns.saturating_add(late);
            }
        }
    }
    peers.into_values().filter(|it| it.cts_waits > 0 || it.late_messages > 0).collect()
}

fn rails(timeline: &Timeline) -> Vec<LateRail> {
    let mut found = Vec::new();
    for rank in &timeline.ranks {
        for (number, connection) in &rank.connections {
            let mut late: BTreeMap<u8, (u64, u64)> = BTreeMap::new();
            let mut of = 0;
            for (rail, _, ns) in connection.requests.iter().filter_map(lateness) {
                of += 1;
                let (count, sum) = late.entry(rail).or_default();
                *count += 1;
                *sum = sum.saturating_add(ns);
            }
            found.extend(late.into_iter().map(|(rail, (last, sum))| LateRail {
                rank: RankName::of(timeline, rank),
                peer: connection.peer_name(),
                connection: *number,
                sends: connection.facts.sends,
                rail: connection.rail_name(rail),
                last,
                of,
                average_ns: sum / last.max(1),
            }));
        }
    }
    found
}

/// The counts of one rank's collectives.
#[derive(Clone, Copy, Default)]
struct Counts {
    of: u64,
    began: (u64, u64),
    ended: (u64, u64),
}

/// A collective that several ranks take part in: the communicator's id, the function and the number. A rank may have
/// several communicators of unknown ids, so these are left out.
fn collectives(timeline: &Timeline) -> Vec<CollectiveDelays> {
    // Rank, begin and end, by communicator, function and number.
    type Times = Vec<(usize, u64, u64)>;
    let mut found: HashMap<(u64, &str, u64), Times> = HashMap::new();
    for (number, rank) in timeline.ranks.iter().enumerate() {
        for event in rank.events.values().filter(|event| event.kind == Kind::Coll) {
            let id = rank.communicators.get(&event.number).map_or(0, |it| it.id);
            if let (Facts::Coll(coll), true) = (event.facts, id != 0) {
                let of = (id, rank.name(coll.function), coll.sequence);
                // One that has not ended is no last one to end.
                let until = if event.is_unfinished { event.begin } else { event.until };
                found.entry(of).or_default().push((number, event.begin, until));
            }
        }
    }
    let mut counts = vec![Counts::default(); timeline.ranks.len()];
    for times in found.values().filter(|times| times.len() > 1) {
        times.iter().for_each(|(rank, ..)| counts[*rank].of += 1);
        if let Some((rank, after)) = last(timeline, times.iter().map(|(rank, begin, _)| (*rank, *begin))) {
            let (count, sum) = &mut counts[rank].began;
            (*count, *sum) = (*count + 1, sum.saturating_add(after));
        }
        if let Some((rank, after)) = last(timeline, times.iter().map(|(rank, _, until)| (*rank, *until))) {
            let (count, sum) = &mut counts[rank].ended;
            (*count, *sum) = (*count + 1, sum.saturating_add(after));
        }
    }
    let ranks = timeline.ranks.iter().zip(counts).filter(|(_, it)| it.began.0 > 0 || it.ended.0 > 0);
    let delays = ranks.map(|(rank, Counts { of, began, ended })| CollectiveDelays {
        rank: RankName::of(timeline, rank),
        of,
        began_last: began.0,
        began_after_ns: began.1 / began.0.max(1),
        ended_last: ended.0,
        ended_after_ns: ended.1 / ended.0.max(1),
    });
    delays.collect()
}

/// Returns the rank with the last time, and the time since the first one: `None` if the clocks cannot tell which rank
/// is the last.
fn last(timeline: &Timeline, times: impl Iterator<Item = (usize, u64)>) -> Option<(usize, u64)> {
    let mut times: Vec<_> = times.map(|(rank, at)| (at, rank)).collect();
    times.sort_unstable();
    let [(first, _), .., (last, rank)] = times[..] else { return None };
    let (before, other) = times[times.len() - 2];
    let host = |rank: usize| timeline.ranks[rank].host;
    let is_one_clock = host(rank) == host(other);
    let error = match is_one_clock {
        true => 0,
        false => timeline.within_ns(rank, last)?.saturating_add(timeline.within_ns(other, before)?),
    };
    (last - before > error).then_some((rank, last - first))
}
