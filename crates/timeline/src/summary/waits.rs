//! The longest waits, with their reasons.

use super::rank_name::RankName;
use crate::rank::{Asked, Event, Facts, Request};
use crate::timeline::Timeline;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A wait of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Wait {
    /// The rank that waited.
    pub rank: RankName,
    /// The peer.
    pub peer: String,
    /// The connection.
    pub connection: u32,
    /// True if the request sends.
    pub sends: bool,
    /// The request.
    pub request: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The reason.
    pub why: Why,
    /// The rail that was late, if that is the reason.
    pub rail: Option<String>,
    /// The time since which it waited.
    pub since_ns: u64,
    /// The time for which it waited, in nanoseconds.
    pub for_ns: u64,
    /// True if the trace has no end of it: it lasts until the connection or the trace ends.
    pub is_unfinished: bool,
    /// True if it may have ended nevertheless: the trace lacks its end, and records were lost.
    pub may_have_ended: bool,
    /// The collective that it was for, if known.
    pub of: Option<Of>,
}

/// The reason of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// A send waited for its CTS: the peer had posted no receive.
    Cts,
    /// The last rail brought its piece late, after all others had.
    Rail,
    /// The request as a whole took this time.
    Request,
}

/// A collective, or a send or receive between two ranks, as the summary names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Of {
    /// Its name, such as "AllReduce #12".
    pub name: String,
    /// Its communicator's name.
    pub communicator: String,
    /// Its number in its communicator; `None` if it is no collective.
    pub sequence: Option<u64>,
}

/// A wait that may be among the longest: its place in the timeline.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    for_ns: u64,
    since_ns: Reverse<u64>,
    rank: usize,
    connection: u32,
    request: usize,
    why: Why,
    rail: Option<u8>,
}

/// Returns the longest waits, the longest first. A request has one for its CTS at most, and one for its rails or for
/// the whole of it: the rails, if the last one alone took half of the time.
pub(super) fn longest(timeline: &Timeline, most: usize) -> Vec<Wait> {
    let mut found: BinaryHeap<Reverse<Found>> = BinaryHeap::new();
    for (number, rank) in timeline.ranks.iter().enumerate() {
        for (connection, it) in &rank.connections {
            for (index, request) in it.requests.iter().enumerate() {
                for (why, rail, since_ns, for_ns) in waits(it.last(rank.last()), request) {
                    let since_ns = Reverse(since_ns);
                    let (rank, connection, request) = (number, *connection, index);
                    found.push(Reverse(Found { for_ns, since_ns, rank, connection, request, why, rail }));
                    if found.len() > most {
                        found.pop();
                    }
                }
            }
        }
    }
    let sorted = found.into_sorted_vec().into_iter();
    sorted.filter_map(|Reverse(found)| describe(timeline, &found)).collect()
}

/// Returns the waits of a request: reason, rail, begin and length. One without an end lasts until `last`.
fn waits(last: u64, request: &Request) -> Vec<(Why, Option<u8>, u64, u64)> {
    let mut waits = Vec::new();
    if let Some(ns) = request.cts_wait.filter(|ns| *ns > 0) {
        waits.push((Why::Cts, None, request.begin.saturating_sub(ns), ns));
    }
    let begin = match request.asked {
        Asked::Send | Asked::Flush => request.begin,
        // NCCL posts receives long before; the wait begins when the message does.
        Asked::Receive => match request.pieces.first() {
            Some(piece) => piece.begin,
            None if request.end.is_some() => return waits,
            None => request.begin,
        },
    };
    let whole = request.end.unwrap_or(last).saturating_sub(begin);
    match lateness(request) {
        Some((rail, since, late)) if late.saturating_mul(2) >= whole => {
            waits.push((Why::Rail, Some(rail), since, late));
        }
        _ => waits.push((Why::Request, None, begin, whole)),
    }
    waits
}

/// Returns the rail that ended last, the time at which the one before it did, and the time between, in nanoseconds.
/// `None` if fewer than two rails carried the request, or one has not ended.
pub(super) fn lateness(request: &Request) -> Option<(u8, u64, u64)> {
    let mut ends: Vec<(u8, u64)> = Vec::new();
    for piece in &request.pieces {
        let end = piece.end?;
        match ends.iter_mut().find(|(rail, _)| *rail == piece.rail) {
            Some((_, last)) => *last = end.max(*last),
            None => ends.push((piece.rail, end)),
        }
    }
    ends.sort_unstable_by_key(|(rail, end)| (*end, *rail));
    let [.., (_, before), (rail, last)] = ends[..] else { return None };
    Some((rail, before, last - before))
}

fn describe(timeline: &Timeline, found: &Found) -> Option<Wait> {
    let rank = timeline.ranks.get(found.rank)?;
    let connection = rank.connections.get(&found.connection)?;
    let request = connection.requests.get(found.request)?;
    let is_unfinished = found.why == Why::Request && request.end.is_none();
    Some(Wait {
        rank: RankName::of(timeline, rank),
        peer: connection.peer_name(),
        connection: found.connection,
        sends: request.asked == Asked::Send,
        request: request.number,
        bytes: request.bytes,
        why: found.why,
        rail: found.rail.map(|rail| connection.rail_name(rail)),
        since_ns: found.since_ns.0,
        for_ns: found.for_ns,
        is_unfinished,
        may_have_ended: is_unfinished && rank.missing.lost > 0,
        of: of(timeline, found.rank, request),
    })
}

fn of(timeline: &Timeline, rank: usize, request: &Request) -> Option<Of> {
    let (owner, event) = timeline.collective(rank, request.event)?;
    let owner = timeline.ranks.get(owner)?;
    let event: &Event = owner.events.get(&event)?;
    let sequence = match event.facts {
        Facts::Coll(coll) => Some(coll.sequence),
        _ => None,
    };
    Some(Of { name: owner.event_name(event), communicator: owner.communicator(event.number), sequence })
}
