//! Jobs, peers and rails in words.

use super::rows::Row;
use crate::host::{Job, JobRail, Peer};
use crate::size::Size;
use crate::words::{ago, duration, rate};
use railweave_telemetry::Direction;
use std::collections::BTreeMap;

/// Returns a number with its thing in the singular or plural.
pub(super) fn counted(count: usize, thing: &str) -> String {
    match (count, thing) {
        (1, thing) => format!("1 {thing}"),
        (count, "process") => format!("{count} processes"),
        (count, thing) => format!("{count} {thing}s"),
    }
}

/// Returns the name of a job, with its user if there are several.
pub(super) fn job_name(job: &Job, has_users: bool) -> String {
    let name = job.job.as_ref().map_or("job without an id".to_owned(), |job| format!("job {job}"));
    if has_users { format!("{name} of user {}", job.user) } else { name }
}

/// Returns the name of a peer.
pub(super) fn peer_name(peer: &Peer) -> String {
    let host = if peer.host.is_empty() { "unknown host" } else { &peer.host };
    format!("{host} by {}", if peer.device.is_empty() { "unknown device" } else { &peer.device })
}

/// Returns the facts of a job.
pub(super) fn job_detail(job: &Job) -> String {
    let variable = job.job_variable.as_ref().map_or(String::new(), |variable| format!(" ({variable})"));
    let processes = job.processes.iter().map(|process| {
        let rank = process.rank.map_or(String::new(), |rank| format!("rank {rank} "));
        format!("{rank}pid {} on {}: {}", process.pid, process.host, process.presence)
    });
    format!("{}{variable}: {}", job_name(job, false), processes.collect::<Vec<_>>().join(", "))
}

/// Returns the facts of a peer.
pub(super) fn peer_detail(peer: &Peer) -> String {
    let directions = [("sends", Direction::Send), ("receives", Direction::Receive)];
    let states = directions.map(|(word, direction)| {
        let states = peer.by_state(direction);
        let states: Vec<String> = states.iter().map(|(state, count)| format!("{count} {state}")).collect();
        let states = if states.is_empty() { "none".to_owned() } else { states.join(", ") };
        format!("{word} by {states}")
    });
    let ranks: Vec<String> = peer.ranks.iter().take(16).map(u32::to_string).collect();
    let more = if peer.ranks.len() > ranks.len() { ", …" } else { "" };
    let ranks = if ranks.is_empty() { String::new() } else { format!(", ranks {}{more}", ranks.join(", ")) };
    format!(
        "{}{ranks}: {}; {} receives posted, {} messages waited for CTS",
        peer_name(peer),
        states.join(", "),
        peer.messages.unwrap_or(0),
        peer.waited_for_cts
    )
}

/// Returns the facts of a rail, at a time in nanoseconds since 1970.
pub(super) fn rail_detail(rail: &JobRail, row: &Row<'_>, now_ns: u64) -> String {
    let JobRail { number, port, ends, sum, .. } = rail;
    let ends: Vec<String> = ends.iter().map(|(local, remote)| format!("{local} → {remote}")).collect();
    let [states, policies] = sum.words();
    let words = |words: &BTreeMap<&str, u32>| {
        let each = words
            .iter()
            .map(|(word, count)| if words.len() == 1 { (*word).to_owned() } else { format!("{count} {word}") });
        each.collect::<Vec<_>>().join(", ")
    };
    let since =
        sum.since_ns.map_or(String::new(), |since| format!(" for {}", ago(now_ns.saturating_sub(since) as f64 / 1e9)));
    let speed = sum.speed_mbps.map_or(String::new(), |mbps| format!(", reports {}", rate(mbps.into())));
    let in_flight = sum.in_flight.map_or("unknown".to_owned(), |bytes| Size(bytes as usize).to_string());
    let latency = |latency: Option<f64>| latency.map_or("-".to_owned(), duration);
    format!(
        "rail {number} {}{speed}: {}{since}, {}; in flight {in_flight}; p50 {}, p99 {}; {} sent again, {}; {}",
        port.as_deref().unwrap_or(""),
        words(&states),
        words(&policies),
        latency(row.p50),
        latency(row.p99),
        counted(usize::try_from(sum.retransmitted).unwrap_or(usize::MAX), "part"),
        counted(usize::try_from(sum.failovers).unwrap_or(usize::MAX), "failover"),
        ends.join(", "),
    )
}
