//! The use of rails: how much each carries, and in how much of the time nothing.

use super::rank_name::RankName;
use super::waits::lateness;
use crate::rank::{Asked, Connection, Rank};
use crate::timeline::Timeline;
use railweave_trace::RailSample;
use serde::Serialize;
use std::collections::BTreeMap;

/// The use of a rail.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RailUse {
    /// The host.
    pub host: String,
    /// The rank; `None` for a sum over ranks.
    pub rank: Option<RankName>,
    /// The peer's host.
    pub peer_host: String,
    /// The peer; the host alone for a sum.
    pub peer: String,
    /// The connection; `None` for a sum.
    pub connection: Option<u32>,
    /// The number of connections.
    pub connections: usize,
    /// True if the rail sends.
    pub sends: bool,
    /// The rail's name.
    pub rail: String,
    /// Bytes that it carried. At the receiving end, those of the last sample of its state: no piece tells its bytes
    /// there. 0 if there is no sample.
    pub bytes: u64,
    /// Its part of the bytes of its connection's rails, or of all those in the sum. `None` if nothing was carried.
    pub share: Option<f64>,
    /// The number of its pieces.
    pub pieces: u64,
    /// The time in which it carried a piece, in nanoseconds.
    pub busy_ns: u64,
    /// The time between the first and the last piece of its connection, in nanoseconds.
    pub span_ns: u64,
    /// The part of that time in which it carried no piece. `None` if the connection has no pieces.
    pub idle: Option<f64>,
    /// The number of requests that it shared with other rails and ended last.
    pub ended_last: u64,
}

/// Returns the use of each rail of each connection.
pub(super) fn find(timeline: &Timeline) -> Vec<RailUse> {
    let mut found = Vec::new();
    for rank in &timeline.ranks {
        for (number, connection) in &rank.connections {
            let tallies = tallies(rank, connection);
            let all: u64 = tallies.values().fold(0, |sum, it| sum.saturating_add(it.bytes));
            let span_ns = span(connection, connection.last(rank.last()));
            for (rail, tally) in tallies {
                found.push(RailUse {
                    host: timeline.host_of(rank).to_owned(),
                    rank: Some(RankName::of(timeline, rank)),
                    peer_host: connection.facts.host.clone(),
                    peer: connection.peer_name(),
                    connection: Some(*number),
                    connections: 1,
                    sends: connection.facts.sends,
                    rail: connection.rail_name(rail),
                    bytes: tally.bytes,
                    share: part(tally.bytes, all),
                    pieces: tally.pieces,
                    busy_ns: tally.busy_ns,
                    span_ns,
                    idle: part(span_ns.saturating_sub(tally.busy_ns), span_ns),
                    ended_last: tally.ended_last,
                });
            }
        }
    }
    found
}

/// Returns the use of rails summed over connections of the same hosts and direction with the same ends.
pub(super) fn sum(rails: &[RailUse]) -> Vec<RailUse> {
    let pair = |it: &RailUse| (it.host.clone(), it.peer_host.clone(), it.sends);
    let mut sums: BTreeMap<_, BTreeMap<String, RailUse>> = BTreeMap::new();
    for rail in rails {
        let of_pair = sums.entry(pair(rail)).or_default();
        // The number of a rail differs between connections; its ends do not.
        let ends = rail.rail.splitn(3, ' ').nth(2).unwrap_or(&rail.rail).to_owned();
        let sum = of_pair.entry(ends.clone()).or_insert_with(|| RailUse {
            rank: None,
            peer: rail.peer_host.clone(),
            connection: None,
            connections: 0,
            rail: ends,
            bytes: 0,
            pieces: 0,
            busy_ns: 0,
            span_ns: 0,
            ended_last: 0,
            ..rail.clone()
        });
        sum.connections += 1;
        sum.bytes = sum.bytes.saturating_add(rail.bytes);
        sum.pieces = sum.pieces.saturating_add(rail.pieces);
        sum.busy_ns = sum.busy_ns.saturating_add(rail.busy_ns);
        sum.span_ns = sum.span_ns.saturating_add(rail.span_ns);
        sum.ended_last = sum.ended_last.saturating_add(rail.ended_last);
    }
    let mut all = Vec::new();
    for mut of_pair in sums.into_values() {
        let bytes = of_pair.values().fold(0_u64, |sum, it| sum.saturating_add(it.bytes));
        for it in of_pair.values_mut() {
            it.share = part(it.bytes, bytes);
            it.idle = part(it.span_ns.saturating_sub(it.busy_ns), it.span_ns);
        }
        all.extend(of_pair.into_values());
    }
    all
}

/// The sums of one rail.
#[derive(Default)]
struct Tally {
    bytes: u64,
    pieces: u64,
    busy_ns: u64,
    busy_until: u64,
    ended_last: u64,
}

/// Sums up the pieces of each rail of a connection. A piece without an end lasts until the connection or the trace
/// ends.
fn tallies(rank: &Rank, connection: &Connection) -> BTreeMap<u8, Tally> {
    let last = connection.last(rank.last());
    let mut tallies: BTreeMap<u8, Tally> = connection.rails.keys().map(|rail| (*rail, Tally::default())).collect();
    let mut pieces: Vec<_> = connection.requests.iter().flat_map(|request| &request.pieces).collect();
    pieces.sort_by_key(|piece| piece.begin);
    for piece in pieces {
        let tally = tallies.entry(piece.rail).or_default();
        tally.pieces += 1;
        tally.bytes = tally.bytes.saturating_add(piece.bytes);
        let end = piece.end.unwrap_or(last);
        // Pieces overlap; the time in which two are carried counts once.
        let from = piece.begin.max(tally.busy_until);
        tally.busy_ns = tally.busy_ns.saturating_add(end.saturating_sub(from));
        tally.busy_until = tally.busy_until.max(end);
    }
    for request in connection.requests.iter().filter(|request| request.asked != Asked::Flush) {
        if let Some((rail, _, _)) = lateness(request)
            && let Some(tally) = tallies.get_mut(&rail)
        {
            tally.ended_last += 1;
        }
    }
    if !connection.facts.sends {
        for (number, rail) in &connection.rails {
            let received = |sample: Option<&(u64, RailSample)>| sample.map_or(0, |(_, it)| it.received);
            // Samples count from the connection's set-up, and so do pieces, unless the first files are gone.
            let before = if rank.missing.files > 0 { received(rail.samples.first()) } else { 0 };
            let bytes = received(rail.samples.last()).saturating_sub(before);
            if let Some(tally) = tallies.get_mut(number) {
                tally.bytes = tally.bytes.max(bytes);
            }
        }
    }
    tallies
}

/// Returns the time between the first and the last piece of a connection.
fn span(connection: &Connection, last: u64) -> u64 {
    let pieces = || connection.requests.iter().flat_map(|request| &request.pieces);
    let begin = pieces().map(|piece| piece.begin).min().unwrap_or(0);
    let end = pieces().map(|piece| piece.end.unwrap_or(last)).max().unwrap_or(0);
    end.saturating_sub(begin)
}

/// Returns a number's part of a whole.
fn part(number: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| number as f64 / whole as f64)
}
