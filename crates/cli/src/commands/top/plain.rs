//! The jobs as lines, for pipes and logs.

use super::board::{Board, Found};
use super::events::{Shown, TOP};
use super::key::Key;
use super::looks::Looks;
use super::rows::{About, Row};
use crate::output::{print, printable};
use crate::words::{duration, rate};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::error::Error;
use std::thread::sleep;
use std::time::Duration;

/// Writes the rails and the new events after each look.
pub(super) fn run(mut looks: Looks, every: Duration, count: Option<u64>) -> Result<(), Box<dyn Error>> {
    let mut board = Board::of_lines();
    let mut lines = Lines::default();
    // Rates come from two looks.
    board.take(looks.look());
    lines.past = board.events.ever;
    let mut looks_so_far = 0;
    while count.is_none_or(|count| looks_so_far < count) {
        sleep(every);
        if is_output_closed() {
            return Ok(());
        }
        looks_so_far += 1;
        for line in lines.look(&mut board, looks.look()) {
            print(line)?;
        }
    }
    Ok(())
}

/// Returns true if standard output is a pipe that nobody reads any more: while there is nothing to write, no write says
/// so.
fn is_output_closed() -> bool {
    let stdout = std::io::stdout();
    let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
    let is_known = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok();
    is_known && fds[0].revents().contains(PollFlags::ERR)
}

/// The lines so far.
#[derive(Default)]
pub(super) struct Lines {
    /// The events of the first look: of these, only what `top` itself has seen is written, because others are old.
    past: u64,
    /// The events that were written.
    events: u64,
    /// True if it was written that nothing runs.
    is_empty_said: bool,
}

impl Lines {
    /// Takes in a look. Returns its lines.
    pub(super) fn look(&mut self, board: &mut Board, found: Found) -> Vec<String> {
        board.take(found);
        let clock = clock(board.now_ns);
        let mut lines = Vec::new();
        let is_new = |event: &&Shown| event.number >= self.past || event.from == TOP;
        for event in board.events.after(self.events).filter(is_new) {
            lines.push(format!("{} {}", self::clock(event.time_ns), printable(&event_line(event))));
        }
        self.events = board.events.ever;
        let rows = board.rows();
        let rails = rows.iter().filter_map(|row| rail_line(row, board.has_users));
        let rails: Vec<String> = rails.map(|line| format!("{clock} {}", printable(&line))).collect();
        let is_empty = rails.is_empty();
        if is_empty && !self.is_empty_said {
            lines.push(format!("{clock} no connections in {}", printable(&board.shown_dirs())));
        }
        self.is_empty_said = is_empty;
        lines.extend(rails);
        lines
    }
}

/// Returns the time of day in UTC.
fn clock(now_ns: u64) -> String {
    let seconds = now_ns / 1_000_000_000 % 86_400;
    format!("{:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

fn event_line(event: &Shown) -> String {
    let job = if event.job.is_empty() { String::new() } else { format!(" of job {}", event.job) };
    format!("event {} of {}{job}: {}", event.kind, event.from, event.text)
}

fn rail_line(row: &Row<'_>, has_users: bool) -> Option<String> {
    let About::Rail(rail) = row.about else { return None };
    let Key { job, peer, .. } = &row.key;
    let (host, device) = peer.clone().unwrap_or_default();
    let known = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let bits = |bytes: Option<f64>| bytes.map_or("-".to_owned(), |bytes| rate(bytes * 8.0 / 1e6));
    let latency = |latency: Option<f64>| latency.map_or("-".to_owned(), duration);
    let [states, _] = rail.sum.words();
    let states = match states.iter().next() {
        Some((state, _)) if states.len() == 1 => (*state).to_owned(),
        _ => states.iter().map(|(state, count)| format!("{count} {state}")).collect::<Vec<_>>().join(" "),
    };
    let user = if has_users { format!("user {} ", row.key.user) } else { String::new() };
    Some(format!(
        "{user}job {} peer {} device {} rail {} port {}: {states}, sent {}, received {}, share {}, p50 {}, p99 {}",
        known(job),
        known(&host),
        known(&device),
        rail.number,
        rail.port.as_deref().unwrap_or("-"),
        bits(row.sent),
        bits(row.received),
        row.share.map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0)),
        latency(row.p50),
        latency(row.p99),
    ))
}
