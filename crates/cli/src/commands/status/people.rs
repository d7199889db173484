//! The status as people read it.

use super::view::{EventView, GroupView, ProcessView, RailView, View};
use crate::output::{print, printable, table};
use crate::size::Size;
use crate::words::{ago, duration, rate};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

const HEADER: [&str; 11] =
    ["peer", "connections", "rail", "state", "policy", "share", "rate", "in flight", "p50", "p99", "CTS waits"];

/// The most processes that are gone and shown without `--gone`.
const MOST_GONE: usize = 4;

/// Returns the folders of other users next to this one.
fn others(run_dir: &Path) -> Vec<String> {
    let siblings = run_dir.parent().and_then(|parent| fs::read_dir(parent).ok());
    let is_one = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("railweave-") && path != run_dir && path.is_dir()
    };
    let paths = siblings.into_iter().flatten().flatten().map(|entry| entry.path()).filter(is_one);
    let mut others: Vec<String> = paths.map(|path| path.display().to_string()).collect();
    others.sort();
    others
}

/// Prints the status: the processes that run first, and then those that are gone, the latest first. With `gone`, all of
/// these, and their connections.
pub(super) fn show(view: &View, gone: bool) -> io::Result<()> {
    for damaged in &view.damaged {
        print(format_args!("skipped: {}", damaged.reason))?;
    }
    if view.processes.is_empty() && view.damaged.is_empty() {
        let others = others(Path::new(&view.run_dir));
        let others = if others.is_empty() { String::new() } else { format!(" (there are {})", others.join(", ")) };
        return print(printable(&format!(
            "no process of Railweave has a file in {}; start a job with telemetry, or name another folder with \
             --run-dir or RAILWEAVE_RUN_DIR{others}; a container shows its jobs outside only in a mounted folder",
            view.run_dir
        )));
    }
    let (mut over, mut shown): (Vec<_>, Vec<_>) =
        view.processes.iter().partition(|process: &&ProcessView| process.presence == "gone");
    over.sort_by(|one, other| one.written_s_ago.total_cmp(&other.written_s_ago));
    let most = if gone { over.len() } else { MOST_GONE };
    shown.extend(over.iter().take(most));
    for (index, process) in shown.iter().enumerate() {
        if index > 0 {
            print("")?;
        }
        print(printable(&heading(process)))?;
        if process.presence != "gone" || gone {
            connections(process)?;
        }
        for event in &process.events {
            print(format_args!("  {}", printable(&event_line(event))))?;
        }
    }
    match over.len().saturating_sub(most) {
        0 => Ok(()),
        more => {
            print(format_args!("\n{more} more are gone; --gone shows all, with the last state of their connections"))
        }
    }
}

/// Returns a process's line.
fn heading(process: &ProcessView) -> String {
    let mut line = format!("{} pid {}", process.host, process.pid);
    match (process.rank, process.world) {
        (Some(rank), Some(world)) => line += &format!(", rank {rank} of {world}"),
        (Some(rank), None) => line += &format!(", rank {rank}"),
        (None, _) => {}
    }
    if let (Some(job), Some(variable)) = (&process.job, &process.job_variable) {
        line += &format!(", job {job} ({variable})");
    }
    line += &format!(", railweave {}", process.version);
    let age = ago(process.written_s_ago);
    line += &match (process.presence, process.silent) {
        ("gone", _) => format!(": GONE, its last write was {age} ago"),
        ("running", true) => format!(": SILENT, it runs, but its last write was {age} ago"),
        (_, true) => format!(": SILENT, its last write was {age} ago, and whether it runs cannot be seen from here"),
        _ => String::new(),
    };
    let left_out = &process.left_out;
    if [left_out.devices, left_out.connections, left_out.rails].iter().any(|count| *count > 0) {
        line += &format!(
            " (its file has no room for {} devices, {} connections and {} rails)",
            left_out.devices, left_out.connections, left_out.rails
        );
    }
    line
}

/// Prints the table of a process's connections.
fn connections(process: &ProcessView) -> io::Result<()> {
    if process.groups.is_empty() {
        let devices = process.devices.len();
        return print(format_args!("  no connections; devices: {devices}"));
    }
    let mut shown = table(&HEADER, 5);
    for group in &process.groups {
        let [peer, kind, waits] = [peer(group), kind(group), group.waited_for_cts.to_string()];
        for (index, rail) in group.rails.iter().enumerate() {
            let is_first = index == 0;
            let of_group = |text: &str| if is_first { text.to_owned() } else { String::new() };
            let waits = rail.waited_for_cts.map_or_else(|| of_group(&waits), |count| count.to_string());
            let cells = [of_group(&peer), of_group(&kind)].into_iter().chain(cells(rail)).chain([waits]);
            shown.add_row(cells.map(|cell| printable(&cell)));
        }
        if group.rails.is_empty() {
            shown.add_row([printable(&peer), printable(&kind)]);
        }
    }
    print(shown)
}

fn peer(group: &GroupView) -> String {
    let host = if group.peer_host.is_empty() { "unknown" } else { &group.peer_host };
    group.peer_rank.map_or_else(|| host.to_owned(), |rank| format!("{host} rank {rank}"))
}

/// Returns the direction, number, device and states of a group's connections.
fn kind(group: &GroupView) -> String {
    let device = group.device.as_deref().unwrap_or("unknown device");
    let states = match group.states.iter().next() {
        Some((&"open", count)) if group.states.len() == 1 => count.to_string(),
        _ => words(&group.states),
    };
    format!("{states} {} by {device}", group.direction)
}

fn cells(rail: &RailView) -> [String; 8] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let microseconds = |latency: Option<f64>| or_dash(latency.map(duration));
    [
        format!("{}: {} → {}", rail.number, rail.local, rail.remote),
        rail.since_s_ago.map_or_else(|| words(&rail.states), |age| format!("{} for {}", words(&rail.states), ago(age))),
        words(&rail.policies),
        or_dash(rail.share.map(|share| format!("{:.0} %", share * 100.0))),
        or_dash(rail.rate_mbps.map(rate)),
        or_dash(rail.in_flight.map(|bytes| Size(bytes as usize).to_string())),
        microseconds(rail.latency_p50_us),
        microseconds(rail.latency_p99_us),
    ]
}

/// Returns the words with their numbers, or a single one alone.
fn words(counts: &BTreeMap<&str, u32>) -> String {
    match counts.iter().next() {
        Some((word, _)) if counts.len() == 1 => (*word).to_owned(),
        _ => counts.iter().map(|(word, count)| format!("{count} {word}")).collect::<Vec<_>>().join(", "),
    }
}

fn event_line(event: &EventView) -> String {
    let place = match (event.connection, event.rail) {
        (Some(connection), Some(rail)) => format!("connection {connection} rail {rail}: "),
        (Some(connection), None) => format!("connection {connection}: "),
        _ => String::new(),
    };
    format!("{} ago, {}: {place}{}", ago(event.s_ago), event.kind, event.text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Reading, Readings};
    use railweave_telemetry::{Presence, RunDir, Snapshot};
    use std::time::UNIX_EPOCH;

    fn heading_of(left_out: [u32; 3]) -> String {
        let reading = Reading { snapshot: Snapshot { left_out, ..Snapshot::default() }, presence: Presence::Unknown };
        let readings = Readings { processes: [("/run/a".into(), reading)].into(), damaged: Vec::new() };
        let dir = RunDir::named(Some(Path::new("/run")));
        heading(&View::new(&dir, &readings, &readings, UNIX_EPOCH, 0).processes[0])
    }

    /// A file may say any numbers, also some whose sum does not fit.
    #[test]
    fn records_without_room_are_named_whatever_their_number() {
        let most = heading_of([u32::MAX; 3]);
        assert!(most.contains("no room for 4294967295 devices, 4294967295 connections and 4294967295 rails"), "{most}");
        assert!(heading_of([0, 0, 1]).contains("and 1 rails"));
        assert!(!heading_of([0; 3]).contains("no room"));
        assert!(heading_of([1 << 31, 1 << 31, 0]).contains("no room"));
    }
}
