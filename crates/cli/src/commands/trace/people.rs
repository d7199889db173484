//! The summary as people read it.

use crate::output::{print, printable, table};
use crate::size::Size;
use comfy_table::Table;
use railweave_timeline::{RailUse, RankName, Summary, Timeline, Wait, Why};
use std::io;

/// The most rails that are shown one by one, unless `--rails` asks for more.
const MOST_RAILS: usize = 24;

/// Returns the extent of a timeline: ranks, hosts and time.
pub(super) fn extent(timeline: &Timeline) -> String {
    of(timeline.ranks.len(), timeline.hosts.len(), timeline.span_ns)
}

fn of(ranks: usize, hosts: usize, span_ns: u64) -> String {
    format!("{} on {}, {}", count(ranks, "rank"), count(hosts, "host"), time(span_ns))
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Returns a time of nanoseconds.
fn time(ns: u64) -> String {
    let us = ns as f64 / 1e3;
    match ns {
        ..10_000 => format!("{us:.1} µs"),
        10_000..1_000_000 => format!("{us:.0} µs"),
        1_000_000..1_000_000_000 => format!("{:.1} ms", us / 1e3),
        _ => format!("{:.2} s", us / 1e6),
    }
}

fn percent(part: Option<f64>) -> String {
    part.map_or_else(String::new, |part| format!("{:.1} %", part * 100.0))
}

fn bytes(number: u64) -> String {
    Size(usize::try_from(number).unwrap_or(usize::MAX)).to_string()
}

/// Prints the summary, with `most` lines for each kind of stragglers. With `all_rails`, each connection's rails.
pub(super) fn show(summary: &Summary, most: usize, all_rails: bool) -> io::Result<()> {
    print(format_args!(
        "{}; collectives: {}, requests: {}",
        of(summary.ranks, summary.hosts.len(), summary.span_ns),
        summary.collectives,
        summary.requests
    ))?;
    for host in summary.hosts.iter().skip(1) {
        let within = match host.clock_within_ns {
            Some(0) => continue,
            Some(ns) => format!("right to {}", time(ns)),
            None => "only as right as the wall clocks".to_owned(),
        };
        print(printable(&format!(
            "  times of {} are {within}, next to those of {}",
            host.name, summary.hosts[0].name
        )))?;
    }
    if summary.requests == 0 {
        return print("no request is in the traces: no message was sent, or received, while they were written");
    }
    waits(&summary.waits)?;
    rails(summary, all_rails)?;
    stragglers(summary, most)
}

/// Adds a row of texts, which files may have filled with anything.
fn add<const N: usize>(table: &mut Table, cells: [String; N]) {
    table.add_row(cells.map(|cell| printable(&cell)));
}

fn waits(waits: &[Wait]) -> io::Result<()> {
    if waits.is_empty() {
        return Ok(());
    }
    print("\nthe longest waits")?;
    let header = ["of", "rank", "peer", "why", "rail", "since", "waited", "bytes"];
    let mut shown = table(&header, 5);
    for wait in waits {
        let of = wait.of.as_ref().map_or_else(
            || format!("{} {}", if wait.sends { "send" } else { "receive" }, wait.request),
            |of| format!("{}, {}", of.communicator, of.name),
        );
        let why = match wait.why {
            Why::Cts => "no receive posted",
            Why::Rail => "last rail late",
            Why::Request if wait.may_have_ended => "end not seen",
            Why::Request if wait.is_unfinished => "not ended",
            Why::Request => "whole request",
        };
        let peer = format!("{} {}", if wait.sends { "to" } else { "from" }, wait.peer);
        let rail = wait.rail.clone().unwrap_or_default();
        let [since, waited] = [wait.since_ns, wait.for_ns].map(time);
        add(&mut shown, [of, name(&wait.rank), peer, why.to_owned(), rail, since, waited, bytes(wait.bytes)]);
    }
    print(shown)
}

fn name(rank: &RankName) -> String {
    rank.to_string()
}

fn rails(summary: &Summary, all_rails: bool) -> io::Result<()> {
    let is_sum = summary.rails.len() > MOST_RAILS && !all_rails;
    let rails: &[RailUse] = if is_sum { &summary.host_pairs } else { &summary.rails };
    if rails.is_empty() {
        return Ok(());
    }
    let sums =
        format!(", summed over the connections of each pair of hosts ({} in all; see --rails)", summary.rails.len());
    print(format_args!("\nthe use of rails{}", if is_sum { &sums } else { "" }))?;
    let header = ["from", "peer", "connection", "rail", "bytes", "share", "idle", "ended last"];
    let mut shown = table(&header, 4);
    for rail in rails {
        let from = rail.rank.as_ref().map_or_else(|| rail.host.clone(), name);
        let peer = format!("{} {}", if rail.sends { "to" } else { "from" }, rail.peer);
        let connection = rail.connection.map_or_else(|| count(rail.connections, "rail"), |number| number.to_string());
        let ended_last = rail.ended_last.to_string();
        let [share, idle] = [rail.share, rail.idle].map(percent);
        // A receiving rail that no sample tells of: its bytes are unknown.
        let is_unknown = !rail.sends && rail.bytes == 0 && rail.pieces > 0;
        let carried = if is_unknown { String::new() } else { bytes(rail.bytes) };
        add(&mut shown, [from, peer, connection, rail.rail.clone(), carried, share, idle, ended_last]);
    }
    print(shown)
}

fn stragglers(summary: &Summary, most: usize) -> io::Result<()> {
    let stragglers = &summary.stragglers;
    if !stragglers.peers.is_empty() {
        print("\npeers that kept ranks waiting")?;
        let mut shown = table(&["peer", "waits for CTS", "time", "late pieces", "time"], 1);
        for it in stragglers.peers.iter().take(most) {
            let [waits, late] = [it.cts_waits, it.late_messages].map(|number| number.to_string());
            add(&mut shown, [it.peer.clone(), waits, time(it.cts_ns), late, time(it.late_ns)]);
        }
        print(shown)?;
    }
    if !stragglers.rails.is_empty() {
        print("\nrails that ended last")?;
        let mut shown = table(&["rank", "peer", "rail", "last", "of", "late by, on average"], 3);
        for it in stragglers.rails.iter().take(most) {
            let peer = format!("{} {}", if it.sends { "to" } else { "from" }, it.peer);
            let [last, of] = [it.last, it.of].map(|number| number.to_string());
            add(&mut shown, [name(&it.rank), peer, it.rail.clone(), last, of, time(it.average_ns)]);
        }
        print(shown)?;
    }
    if !stragglers.collectives.is_empty() {
        print("\nranks that were the last in a collective")?;
        let mut shown = table(&["rank", "of", "began last", "after the first, on average", "ended last", "after"], 1);
        for it in stragglers.collectives.iter().take(most) {
            let [of, began, ended] = [it.of, it.began_last, it.ended_last].map(|number| number.to_string());
            let [began_after, ended_after] = [it.began_after_ns, it.ended_after_ns].map(time);
            add(&mut shown, [name(&it.rank), of, began, began_after, ended, ended_after]);
        }
        print(shown)?;
    }
    Ok(())
}
