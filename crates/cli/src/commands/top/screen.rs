//! The drawing of the screen.

use super::board::{Board, Prompt};
use super::columns::{Column, Placed, columns};
use super::describe::{counted, job_detail, job_name, peer_detail, peer_name, rail_detail};
use super::events::Shown;
use super::hands::Drained;
use super::keys::HELP;
use super::rows::{About, Row, counts, failed, worst};
use super::sheet::Sheet;
use super::style::Look;
use crate::output::printable;
use crate::words::{ago, duration, rate};
use railweave_telemetry::RailState;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Span;
use std::borrow::Cow;

/// The smallest screen that shows anything.
const LEAST: (u16, u16) = (30, 8);

/// The most drained ports that the second line names.
const MOST_NAMED: usize = 8;

/// The most lines of an event.
const MOST_LINES: u16 = 2;

/// The rows of the screen's parts.
struct Parts {
    table: Rect,
    detail: Rect,
    events: Rect,
}

/// Draws the screen.
pub(super) fn draw(sheet: &mut Sheet, board: &Board, look: Look) {
    let area = sheet.area();
    let mut canvas = Canvas { sheet, look };
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let text = format!("too small; try {} x {}", LEAST.0, LEAST.1);
        return canvas.text(area.x, area.y, area.width, &text, Style::new());
    }
    if board.shows_help {
        return canvas.help(area);
    }
    let rows = board.rows();
    let parts = parts(area, board, rows.len());
    canvas.header(area, board);
    canvas.table(parts.table, board, &rows);
    canvas.detail(parts.detail, board, &rows);
    canvas.events(parts.events, board);
    let bottom = Rect { y: area.bottom() - 1, height: 1, ..area };
    canvas.footer(bottom, board);
}

/// Divides the screen: two lines of header, one of footer, and the rest. Events get what the table leaves.
fn parts(area: Rect, board: &Board, rows: usize) -> Parts {
    let inner = Rect { y: area.y + 2, height: area.height - 3, ..area };
    let detail = if inner.height >= 12 { 2 } else { 0 };
    let rows = u16::try_from(rows).unwrap_or(u16::MAX).max(4);
    let events = match inner.height {
        _ if board.hides_events => 0,
        ..10 => 0,
        10..16 => 4,
        16..30 => 6,
        _ => inner.height / 3,
    };
    let events =
        if events > 0 { events.max((inner.height - detail).saturating_sub(rows.saturating_add(2))) } else { 0 };
    let table = inner.height - detail - events;
    Parts {
        table: Rect { height: table, ..inner },
        detail: Rect { y: inner.y + table, height: detail, ..inner },
        events: Rect { y: inner.y + table + detail, height: events, ..inner },
    }
}

/// The cells of the screen, and how it looks.
struct Canvas<'a> {
    sheet: &'a mut Sheet,
    look: Look,
}

impl Canvas<'_> {
    /// Writes a text that may come from a file; one that is too long ends in a sign that says so.
    fn text(&mut self, x: u16, y: u16, width: u16, text: &str, style: Style) {
        if width == 0 {
            return;
        }
        let text = self.shown(text);
        let is_long = columns_of(&text) > width.into();
        let shown = if is_long { width - 1 } else { width };
        let end = if is_plain(&text) {
            self.signs(x, y, shown, text.chars(), style);
            x + shown
        } else {
            self.sheet.text(x, y, shown, &text, style)
        };
        if is_long {
            self.sheet.text(end, y, 1, self.look.either("…", "~"), style);
        }
    }

    /// Returns a text that may come from a file as the terminal can show it.
    fn shown<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if is_plain(text) {
            return Cow::Borrowed(text);
        }
        let text = printable(text);
        if !self.look.is_ascii {
            return Cow::Owned(text);
        }
        let shown = text.replace('→', "->").replace('←', "<-").replace('µ', "u").replace('▾', "-").replace('▸', "+");
        let shown = shown.chars().map(|letter| if letter.is_ascii() { letter } else { '?' });
        Cow::Owned(shown.collect())
    }

    fn right(&mut self, x: u16, y: u16, width: u16, text: &str, style: Style) {
        let text = self.shown(text);
        let room = usize::from(width).saturating_sub(columns_of(&text));
        self.text(x + room as u16, y, width - room as u16, &text, style);
    }

    /// Writes signs that take a column each, as many as there is room for: without a search for their widths, which is
    /// most of the cost of other texts.
    fn signs(&mut self, x: u16, y: u16, width: u16, signs: impl Iterator<Item = char>, style: Style) {
        for (cell, sign) in self.sheet.cells(x, y).iter_mut().take(width.into()).zip(signs) {
            cell.set_char(sign).set_style(style);
        }
    }

    fn rule(&mut self, area: Rect, title: &str) {
        let sign = self.look.either('─', '-');
        let style = self.look.faint();
        self.signs(area.x, area.y, area.width, std::iter::repeat(sign), style);
        self.text(area.x + 2, area.y, area.width.saturating_sub(2), &format!(" {title} "), self.look.heading());
    }

    fn header(&mut self, area: Rect, board: &Board) {
        let mut sums = [0.0; 2];
        let (mut processes, mut connections) = (0, 0);
        for job in &board.jobs {
            processes += job.processes.iter().filter(|process| process.presence != "gone").count();
            for peer in &job.peers {
                connections += counts(peer).iter().sum::<u32>();
                for rate in peer.rails.iter().filter_map(|rail| rail.sum.rate) {
                    sums = [sums[0] + rate.sent, sums[1] + rate.received];
                }
            }
        }
        let paused = if board.is_paused { "PAUSED  " } else { "" };
        let [sent, received] = sums.map(|sum| rate(sum * 8.0 / 1e6));
        let text = format!(
            "{paused}{}: {}, {}, {}; sent {sent}, received {received}",
            board.host,
            counted(board.jobs.len(), "job"),
            counted(processes, "process"),
            counted(connections as usize, "connection"),
        );
        self.text(area.x, area.y, area.width, &text, self.look.heading());
        let (text, style) = self.orders(board);
        let troubles = match board.troubles.len() {
            0 => String::new(),
            1 => "; 1 file or folder cannot be used".to_owned(),
            count => format!("; {count} files or folders cannot be used"),
        };
        self.text(area.x, area.y + 1, area.width, &(text + &troubles), style);
    }

    /// Returns the line about those who take orders, and their orders.
    fn orders(&self, board: &Board) -> (String, Style) {
        let (mut is_any, mut is_wrong) = (false, false);
        let mut texts: Vec<String> = Vec::new();
        for standing in board.standing.values() {
            let text = match standing {
                Err(error) => {
                    is_wrong = true;
                    format!("orders: {error}")
                }
                Ok(standing) => {
                    let drained = standing.drained.iter().map(|Drained { port, phase, .. }| {
                        if phase.is_empty() { format!("{port} drained") } else { format!("{port} {phase}") }
                    });
                    let rules = standing.rules.len();
                    let rules = (rules > 0).then(|| counted(rules, "rule"));
                    let more = standing.drained.len().saturating_sub(MOST_NAMED);
                    let more = (more > 0).then(|| format!("{more} more drained"));
                    let all: Vec<String> = drained.take(MOST_NAMED).chain(more).chain(rules).collect();
                    is_any |= !all.is_empty();
                    let all = if all.is_empty() { "no orders".to_owned() } else { all.join(", ") };
                    format!("{}: {all}", standing.who)
                }
            };
            // One agent may steer all of them.
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        match (texts.is_empty(), is_wrong, is_any) {
            (true, ..) => ("orders: not known yet".to_owned(), self.look.faint()),
            (_, true, _) => (texts.join("; "), self.look.warning()),
            (_, _, true) => (texts.join("; "), self.look.ordered()),
            _ => (texts.join("; "), self.look.faint()),
        }
    }

    fn table(&mut self, area: Rect, board: &Board, rows: &[Row<'_>]) {
        let columns = columns(area.width);
        let head = Style::new().add_modifier(self.look.selected());
        self.sheet.style(area.x, area.y, area.width, head);
        for placed in &columns {
            let Placed { column, x, width } = *placed;
            let is_sorted = column.is_sorted(board.sort);
            let sign =
                if is_sorted { self.look.either(["▾", "▴"][usize::from(board.is_reversed)], "*") } else { "" };
            let title = format!("{}{sign}", column.title());
            if column.is_number() {
                self.right(area.x + x, area.y, width, &title, head);
            } else {
                self.text(area.x + x, area.y, width, &title, head);
            }
        }
        let body = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
        let height = usize::from(body.height);
        let selected = board.place(rows);
        let first = match (board.first.get(), selected) {
            (first, Some(place)) if place < first => place,
            (first, Some(place)) if place >= first + height => place + 1 - height,
            (first, _) => first,
        };
        let first = first.min(rows.len().saturating_sub(height));
        board.first.set(first);
        if rows.is_empty() {
            self.nothing(body, board);
            return;
        }
        let past = columns.iter().find(|placed| placed.column == Column::Past).map_or(1, |placed| placed.width);
        let scale = Scale { bar: largest(rows), past: board.histories.largest(past.into()) };
        for (index, row) in rows.iter().enumerate().skip(first).take(height) {
            let y = body.y + (index - first) as u16;
            for placed in &columns {
                self.cell(*placed, body.x, y, row, board, &scale);
            }
            if selected == Some(index) {
                self.mark(Rect { y, height: 1, ..body }, &columns);
            }
        }
    }

    /// Marks a row as selected, but for its bars, which would be seen the wrong way round.
    fn mark(&mut self, row: Rect, columns: &[Placed]) {
        let is_text = |placed: &&Placed| !matches!(placed.column, Column::Bar | Column::Past);
        for (place, Placed { x, width, .. }) in columns.iter().enumerate().filter(|(_, placed)| is_text(placed)) {
            let gap = u16::from(columns.get(place + 1).as_ref().is_some_and(is_text));
            let style = Style::new().add_modifier(self.look.selected());
            self.sheet.style(row.x + x, row.y, width + gap, style);
        }
    }

    /// Says why the table is empty.
    fn nothing(&mut self, area: Rect, board: &Board) {
        let text = if let ([], [first, more @ ..]) = (&board.jobs[..], &board.troubles[..]) {
            let more = if more.is_empty() { String::new() } else { format!(" (and {} more)", more.len()) };
            format!("{first}{more}")
        } else if board.jobs.is_empty() {
            format!(
                "no process of Railweave has a file in {}; start a job with telemetry, or name another folder with \
                 --run-dir or RAILWEAVE_RUN_DIR; a container shows its jobs outside only in a mounted folder",
                board.shown_dirs()
            )
        } else {
            format!("nothing here has \"{}\"; Esc shows everything", board.filter)
        };
        self.lines(area, &text, Style::new());
    }

    /// Writes a text of several lines, broken between words; the last ends in a sign if there is no room for the rest.
    /// Returns the row below.
    fn lines(&mut self, area: Rect, text: &str, style: Style) -> u16 {
        let text = self.shown(text);
        let mut rest = &*text;
        for y in area.top()..area.bottom() {
            let end = if y + 1 == area.bottom() { rest.len() } else { line_end(rest, area.width.into()) };
            self.text(area.x, y, area.width, &rest[..end], style);
            rest = rest[end..].trim_start();
            if rest.is_empty() {
                return y + 1;
            }
        }
        area.bottom()
    }

    fn cell(&mut self, placed: Placed, left: u16, y: u16, row: &Row<'_>, board: &Board, scale: &Scale) {
        let Placed { column, x, width } = placed;
        let x = left + x;
        let rail = match row.about {
            About::Rail(rail) => Some(rail),
            _ => None,
        };
        let plain = if rail.is_some() { Style::new() } else { self.look.heading() };
        match column {
            Column::Name => self.name(x, y, width, row, board),
            Column::State => {
                let (text, style) = self.state(row, board);
                self.text(x, y, width, &text, style);
            }
            Column::Bar => {
                let sum = row.sent.unwrap_or(0.0) + row.received.unwrap_or(0.0);
                if rail.is_some() && scale.bar > 0.0 {
                    let bar = self.look.bar(sum / scale.bar, width.into());
                    self.signs(x, y, width, bar.chars(), self.look.traffic());
                }
            }
            Column::Sent | Column::Received => {
                let value = if column == Column::Sent { row.sent } else { row.received };
                let text = value.map_or("-".to_owned(), |bytes| short(bytes * 8.0));
                let style = if value.is_some_and(|bytes| bytes > 0.0) { plain } else { self.look.faint() };
                self.right(x, y, width, &text, style);
            }
            Column::Share => {
                let share = row.share.map(|share| format!("{:.0} %", share * 100.0));
                self.right(x, y, width, &share.unwrap_or_default(), plain);
            }
            Column::P50 | Column::P99 => {
                let value = if column == Column::P50 { row.p50 } else { row.p99 };
                let text = value.map_or(String::new(), |latency| duration(latency).replace(' ', ""));
                self.right(x, y, width, &text, plain);
            }
            Column::InFlight => {
                let text = rail.and_then(|rail| rail.sum.in_flight).map(short_size);
                self.right(x, y, width, &text.unwrap_or_default(), plain);
            }
            Column::Again => {
                let again = rail.map(|rail| rail.sum.retransmitted).filter(|again| *again > 0);
                let text = again.map(|again| short(again as f64));
                self.right(x, y, width, &text.unwrap_or_default(), self.look.warning());
            }
            Column::Past => {
                let history = board.histories.of(&row.key).filter(|_| scale.past > 0.0);
                if let Some(history) = history {
                    let values = history.last(width.into()).map(|rate| rate / scale.past);
                    let line = self.look.sparkline(values, width.into());
                    self.signs(x, y, width, line.chars(), self.look.traffic());
                }
            }
        }
    }

    fn name(&mut self, x: u16, y: u16, width: u16, row: &Row<'_>, board: &Board) {
        let fold = if row.is_folded { "▸" } else { "▾" };
        let (depth, text) = match row.about {
            About::Job(job) => (0, format!("{fold} {}", job_name(job, board.has_users))),
            About::Peer(peer) => (2, format!("{fold} {}", peer_name(peer))),
            About::Rail(rail) => {
                let ends = rail.ends.first().map(|(local, remote)| format!("{local} → {remote}"));
                let port = rail.port.clone();
                let text = match (port, ends) {
                    (Some(port), Some(ends)) => {
                        let long = format!("{} {port}  {ends}", rail.number);
                        if columns_of(&long) + 4 <= width.into() { long } else { format!("{} {port}", rail.number) }
                    }
                    (port, ends) => format!("{} {}", rail.number, port.or(ends).unwrap_or_default()),
                };
                (4, text)
            }
        };
        let style = if matches!(row.about, About::Rail(_)) { Style::new() } else { self.look.heading() };
        self.text(x + depth, y, width.saturating_sub(depth), &text, style);
    }

    fn state(&self, row: &Row<'_>, board: &Board) -> (String, Style) {
        match row.about {
            About::Job(job) => {
                let count = |word| job.processes.iter().filter(|process| process.presence == word).count();
                let (silent, gone) = (count("silent"), count("gone"));
                match (silent, gone, job.processes.len() - gone) {
                    (0, 0, all) => (counted(all, "process"), self.look.heading()),
                    (0, _, 0) => ("all gone".to_owned(), self.look.faint()),
                    (0, gone, all) => (format!("{all} ({gone} gone)"), self.look.heading()),
                    (silent, ..) => (format!("{silent} silent"), self.look.wrong()),
                }
            }
            About::Peer(peer) => match (failed(peer), counts(peer)) {
                (0, [send, receive, 0]) => (format!("{send}→ {receive}←"), self.look.heading()),
                (0, all) => (counted(all.iter().sum::<u32>() as usize, "conn"), self.look.heading()),
                (failed, _) => (format!("{failed} failed"), self.look.wrong()),
            },
            About::Rail(rail) => {
                let state = worst(&rail.sum);
                let all: u32 = rail.sum.states.iter().sum();
                let count = rail.sum.in_state(state);
                let drain = rail.port.as_deref().and_then(|port| board.drain_of(&row.key.run_dir, port));
                let (word, style) = match drain {
                    Some(Drained { phase, .. }) if state == RailState::Up => {
                        (if phase.is_empty() { "emptying" } else { &**phase }, self.look.ordered())
                    }
                    _ => (state.word(), self.look.of_state(state)),
                };
                let text = if count == all { word.to_owned() } else { format!("{count}/{all} {word}") };
                (text, style)
            }
        }
    }

    /// Writes the facts of the selected row.
    fn detail(&mut self, area: Rect, board: &Board, rows: &[Row<'_>]) {
        let Some(row) = board.place(rows).and_then(|place| rows.get(place)).filter(|_| area.height > 0) else {
            return;
        };
        let text = match row.about {
            About::Job(job) => job_detail(job),
            About::Peer(peer) => peer_detail(peer),
            About::Rail(rail) => rail_detail(rail, row, board.now_ns),
        };
        self.lines(area, &text, Style::new());
    }

    fn events(&mut self, area: Rect, board: &Board) {
        if area.height == 0 {
            return;
        }
        self.rule(area, "events");
        let height = usize::from(area.height) - 1;
        let newest: Vec<&Shown> = board.events.newest().take(height).collect();
        let mut y = area.y + 1;
        for event in newest {
            if y >= area.bottom() {
                break;
            }
            let age = ago(board.now_ns.saturating_sub(event.time_ns) as f64 / 1e9);
            let others = match event.others {
                0 => String::new(),
                others => format!(" (and {others} more)"),
            };
            let style = self.look.of_weight(event.weight);
            self.right(area.x, y, 7, &age, self.look.faint());
            self.text(area.x + 8, y, 9, &event.from, Style::new());
            self.text(area.x + 18, y, 13, &event.kind, style);
            let job = if board.jobs.len() > 1 && !event.job.is_empty() {
                format!("job {}: ", event.job)
            } else {
                String::new()
            };
            let text = format!("{job}{}{others}", event.text);
            let lines = MOST_LINES.min(area.bottom() - y);
            let room = Rect { x: area.x + 32, y, width: area.width.saturating_sub(32), height: lines };
            y = self.lines(room, &text, Style::new()).max(y + 1);
        }
    }

    fn footer(&mut self, area: Rect, board: &Board) {
        let (text, style) = match (&board.prompt, &board.answer) {
            (Some(Prompt::Filter(text)), _) => {
                let line = format!("filter: {text}_");
                (self.prompt(&line, "  (Enter keeps it, Esc ends it)", area.width), Style::new())
            }
            (Some(Prompt::Weights { text, matchers, .. }), _) => {
                let line = format!("weights for {matchers}: {text}_");
                (self.prompt(&line, "  (Enter orders, Esc does not)", area.width), Style::new())
            }
            (None, Some(answer)) if answer.is_done => (answer.text.clone(), self.look.ordered()),
            (None, Some(answer)) => (answer.text.clone(), self.look.wrong()),
            (None, None) => {
                let filter = match &*board.filter {
                    "" => "/ filter".to_owned(),
                    filter => format!("/ filter: {filter}"),
                };
                let sort = board.sort.word();
                let text = format!("q quit  ? help  d drain  w weights  s sort: {sort}  {filter}  f fold  e events");
                (text, self.look.faint())
            }
        };
        self.text(area.x, area.y, area.width, &text, style);
    }

    /// Returns a line that is being written and a hint; of a line that is too long its end, where its writer is.
    fn prompt(&self, line: &str, hint: &str, width: u16) -> String {
        let line = self.shown(line);
        let width = usize::from(width);
        if columns_of(&line) < width {
            return line.into_owned() + hint;
        }
        let mut ends = line.char_indices().map(|(place, _)| &line[place..]);
        let end = ends.find(|end| columns_of(end) < width).unwrap_or_default();
        format!("{}{end}", self.look.either("…", "~"))
    }

    fn help(&mut self, area: Rect) {
        self.text(area.x, area.y, area.width, "railweave top: keys and columns", self.look.heading());
        for (index, (keys, text)) in HELP.iter().enumerate() {
            let y = area.y + 2 + index as u16;
            if y + 1 < area.bottom() {
                self.text(area.x + 1, y, 13, keys, self.look.heading());
                self.text(area.x + 15, y, area.width.saturating_sub(15), text, Style::new());
            }
        }
        let last = "any key goes back; docs/top.md says more";
        self.text(area.x, area.bottom() - 1, area.width, last, self.look.faint());
    }
}

/// The values that fill a bar and a sparkline, in bytes per second.
struct Scale {
    bar: f64,
    past: f64,
}

/// Returns true if a text has letters alone that every terminal shows in a column each. Most have; the others cost a
/// search in tables for each letter.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|letter| (b' '..=b'~').contains(&letter))
}

/// Returns the columns of the screen that a text takes.
fn columns_of(text: &str) -> usize {
    if is_plain(text) { text.len() } else { Span::raw(text).width() }
}

/// Returns the place in a text after which a line of this width ends: between words, if a word is no longer than it.
fn line_end(text: &str, width: usize) -> usize {
    if columns_of(text) <= width {
        return text.len();
    }
    let spaces = text.match_indices(' ').map(|(place, _)| place);
    spaces.take_while(|place| columns_of(&text[..*place]) <= width).last().unwrap_or(text.len())
}

/// Returns the largest rate of a rail.
fn largest(rows: &[Row<'_>]) -> f64 {
    let rails = rows.iter().filter(|row| matches!(row.about, About::Rail(_)));
    rails.map(|row| row.sent.unwrap_or(0.0) + row.received.unwrap_or(0.0)).fold(0.0, f64::max)
}

/// Returns a size in bytes with three digits and a letter for its powers of 1024.
fn short_size(bytes: u64) -> String {
    let mut number = bytes as f64;
    for unit in ["", "Ki", "Mi", "Gi"] {
        if number < 999.5 {
            let digits = usize::from(!unit.is_empty() && number < 99.95);
            return format!("{number:.digits$}{unit}");
        }
        number /= 1024.0;
    }
    format!("{number:.0}Ti")
}

/// Returns a number with three digits and a letter for its thousands.
fn short(number: f64) -> String {
    let mut number = number;
    for unit in ["", "k", "M", "G", "T"] {
        if number < 999.5 {
            return if unit.is_empty() || number >= 99.95 {
                format!("{number:.0}{unit}")
            } else {
                format!("{number:.1}{unit}")
            };
        }
        number /= 1000.0;
    }
    format!("{number:.0}P")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_text_has_a_column_for_each_letter_and_obeys_nothing() {
        assert!(is_plain(" mlx5_0 ~") && is_plain(""));
        for other in ["\u{1b}[31m", "a\u{7f}", "\t", "\n", "\u{e4}", "数", "\u{9b}31m"] {
            assert!(!is_plain(other), "{other:?}");
        }
        assert_eq!(["", "ab", "数b", "e\u{301}"].map(columns_of), [0, 2, 3, 1]);
    }
}
