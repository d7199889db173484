//! `railweave policy history`: orders, and what jobs took up.

use super::arguments::Common;
use crate::host::is_same_folder;
use crate::orders::{Orders, files};
use crate::output::{print, print_as, printable};
use railweave_telemetry::{EventKind, Folder, HistoryEntry};
use serde::Serialize;
use std::error::Error;
use std::io;

/// The most entries that are kept in memory: a folder's files may have any number of events.
const MOST: usize = 100_000;

/// The output of `--json`.
#[derive(Serialize)]
struct View {
    run_dir: String,
    /// The oldest first.
    entries: Vec<Entry>,
    /// Sentences about files that cannot be read.
    damaged: Vec<String>,
}

/// An order, or something that a job took up.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Entry {
    /// In seconds since 1970.
    time: f64,
    /// `order`, or `event` of a job.
    kind: &'static str,
    /// The one who ordered, or the process.
    who: String,
    text: String,
}

/// Shows this many of the last entries.
pub(super) fn run(count: u32, common: &Common) -> Result<(), Box<dyn Error>> {
    let run_dir = common.run_dir()?;
    // The folder that the orders are in is known only if somebody takes them.
    let (orders, mut damaged) = match Orders::look(&run_dir) {
        Ok(orders) => (orders.history_folder(), orders.trouble().map(str::to_owned).into_iter().collect()),
        Err(reason) => (run_dir.path().to_owned(), vec![reason]),
    };
    let mut entries = Vec::new();
    let is_other = !is_same_folder(&orders, run_dir.path());
    match Folder::open(&orders) {
        // That of the agent, which has its orders for all folders.
        Ok(folder) if is_other => add_orders(&folder, &mut entries, &mut damaged),
        Ok(_) => {}
        Err(error) if error.is_missing() => {}
        Err(error) => return Err(printable(&error.to_string()).into()),
    }
    match Folder::open(run_dir.path()) {
        Ok(folder) => {
            add_orders(&folder, &mut entries, &mut damaged);
            damaged.extend(events(&folder, &mut entries)?);
        }
        Err(error) if error.is_missing() => {}
        Err(error) => return Err(printable(&error.to_string()).into()),
    }
    entries.sort_by(|one, other| one.time.total_cmp(&other.time));
    entries.drain(..entries.len().saturating_sub(count as usize));
    let view = View { run_dir: run_dir.path().display().to_string(), entries, damaged };
    print_as(&view, common.json, show)
}

/// Adds the orders of a folder's history.
fn add_orders(folder: &Folder, entries: &mut Vec<Entry>, damaged: &mut Vec<String>) {
    let entry =
        |entry: HistoryEntry| Entry { time: entry.at.as_secs_f64(), kind: "order", who: entry.who, text: entry.order };
    match folder.history() {
        Ok(history) => entries.extend(history.into_iter().map(entry)),
        Err(error) => damaged.push(format!("\"{}\" {error}", folder.path().join("history").display())),
    }
}

/// Adds what jobs took up. Returns sentences about files that cannot be read.
fn events(folder: &Folder, entries: &mut Vec<Entry>) -> Result<Vec<String>, String> {
    files::read(folder, |_, snapshot| {
        let process = &snapshot.state.process;
        let rank = process.rank.map(|rank| format!(" rank {rank}")).unwrap_or_default();
        let who = format!("{} pid {}{rank}", process.host, process.pid);
        let events = snapshot.events.iter().filter(|event| event.kind == EventKind::POLICY);
        for event in events.take(MOST.saturating_sub(entries.len())) {
            let (time, text) = (event.time_ns as f64 / 1e9, event.text.clone());
            entries.push(Entry { time, kind: "event", who: who.clone(), text });
        }
    })
}

fn show(view: &View) -> io::Result<()> {
    if view.entries.is_empty() {
        print("no order was given, and no job took one up")?;
    }
    for Entry { time, kind, who, text } in &view.entries {
        let verb = if *kind == "order" { "ordered" } else { "took up" };
        print(printable(&format!("{}  {who} {verb}: {text}", utc(*time))))?;
    }
    view.damaged.iter().try_for_each(|damaged| print(format_args!("skipped: {}", printable(damaged))))
}

/// Returns a time since 1970 as date and time of UTC.
fn utc(time: f64) -> String {
    // The last one is in the year 9999.
    let seconds = (time.max(0.0) as u64).min(253_402_300_799);
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{:02} {hour:02}:{minute:02}:{second:02} UTC", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_dates() {
        for (time, text) in [
            (0.0, "1970-01-01 00:00:00 UTC"),
            (951_782_400.9, "2000-02-29 00:00:00 UTC"),
            (1_709_251_199.0, "2024-02-29 23:59:59 UTC"),
            (1_790_000_000.0, "2026-09-21 14:13:20 UTC"),
            (4_107_542_400.0, "2100-03-01 00:00:00 UTC"),
            (f64::INFINITY, "9999-12-31 23:59:59 UTC"),
            (-1.0, "1970-01-01 00:00:00 UTC"),
        ] {
            assert_eq!(utc(time), text);
        }
        assert_eq!(utc(f64::NAN), utc(0.0));
    }
}
