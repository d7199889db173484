//! The drawing of connections: their requests, and what each rail carries when and how fast.

use super::canvas::{Canvas, ending, flow};
use super::events::of_event;
use super::sink::{Content, Fact, Slice, Unit, Value};
use crate::rank::{Asked, Connection, Facts, Rail, Rank, Request};
use crate::timeline::Timeline;
use std::collections::BTreeMap;
use std::io;

/// The kinds of events that say that a rail is down, and up again (docs/telemetry.md).
const RAIL_DOWN: u32 = 11;
const RAIL_UP: u32 = 12;

/// The time after an event of a rail in which samples may still show the state before it, in nanoseconds.
const SETTLED: u64 = 1_000_000_000;

/// The number of bins of a counter over the whole timeline, about.
const BINS: u64 = 1000;

/// The shortest bin, in nanoseconds: shorter ones would show single packets.
const SHORTEST_BIN: u64 = 100_000;

/// Draws the connections of a rank.
pub(super) fn draw(canvas: &mut Canvas<'_>, parent: u64, timeline: &Timeline, rank: usize) -> io::Result<()> {
    let bin = bin(timeline.span_ns);
    for (number, connection) in &timeline.ranks[rank].connections {
        let way = if connection.facts.sends { "sends to" } else { "receives from" };
        let device = match connection.facts.device.as_str() {
            "" => String::new(),
            device => format!(", device {device}"),
        };
        let name = format!("{way} {} (connection {number}{device})", connection.peer_name());
        let group = canvas.track(parent, &name, Content::Group)?;
        let drawn = Drawn { timeline, rank, of_rank: &timeline.ranks[rank], number: *number, connection };
        drawn.waits(canvas, group)?;
        drawn.requests(canvas, group)?;
        // Pieces may be of rails that the trace does not define.
        let mut rails: BTreeMap<u8, Vec<usize>> = connection.rails.keys().map(|rail| (*rail, Vec::new())).collect();
        for (index, request) in connection.requests.iter().enumerate() {
            for piece in &request.pieces {
                let of_rail = rails.entry(piece.rail).or_default();
                if of_rail.last() != Some(&index) {
                    of_rail.push(index);
                }
            }
        }
        for (rail, requests) in rails {
            drawn.rail(canvas, group, rail, &requests, bin)?;
        }
    }
    Ok(())
}

/// Returns the length of a counter's bins, for a timeline of this length: 1, 2 or 5 times a power of 10.
fn bin(span_ns: u64) -> u64 {
    let least = (span_ns / BINS).max(SHORTEST_BIN);
    let mut unit = SHORTEST_BIN;
    loop {
        for factor in [1, 2, 5] {
            if unit.saturating_mul(factor) >= least {
                return unit.saturating_mul(factor);
            }
        }
        unit = unit.saturating_mul(10);
    }
}

/// A connection that is drawn.
struct Drawn<'a> {
    timeline: &'a Timeline,
    rank: usize,
    of_rank: &'a Rank,
    number: u32,
    connection: &'a Connection,
}

impl Drawn<'_> {
    /// Returns the time until which something without an end lasts, and the words for it.
    fn last(&self) -> (u64, &'static str) {
        (self.connection.last(self.of_rank.last()), self.of_rank.without_end())
    }

    /// Draws the waits for a CTS.
    fn waits(&self, canvas: &mut Canvas<'_>, group: u64) -> io::Result<()> {
        let mut waits: Vec<_> = self.connection.requests.iter().filter_map(|it| Some((wait_of(it)?, it))).collect();
        waits.sort_by_key(|(from, it)| (*from, it.number));
        let mut lines = canvas.lines(group, "waits for CTS");
        for (from, request) in waits {
            let facts = [("request", Value::Number(request.number)), ("bytes", Value::Number(request.bytes))];
            lines.slice(canvas, (from, request.begin), "waits for CTS", &facts, &[])?;
        }
        Ok(())
    }

    /// Draws the requests.
    fn requests(&self, canvas: &mut Canvas<'_>, group: u64) -> io::Result<()> {
        let mut lines = canvas.lines(group, "requests");
        for request in &self.connection.requests {
            let collective = self.collective(request);
            let mut facts = self.facts(request, collective.as_deref());
            let what = match request.asked {
                Asked::Send => "send",
                Asked::Receive => "receive",
                Asked::Flush => "flush",
            };
            let (end, name) = ending(request.end, self.last(), what.to_owned(), &mut facts);
            let mut flows: Vec<u64> = (0..request.pieces.len()).map(|index| self.flow(request, index)).collect();
            if request.event != 0 {
                flows.push(of_event(self.rank, request.event));
            }
            lines.slice(canvas, (request.begin, end), &name, &facts, &flows)?;
        }
        Ok(())
    }

    /// Returns the name of a request's collective.
    fn collective(&self, request: &Request) -> Option<String> {
        let (rank, event) = self.timeline.collective(self.rank, request.event)?;
        let rank = self.timeline.ranks.get(rank)?;
        Some(rank.event_name(rank.events.get(&event)?))
    }

    fn facts<'a>(&self, request: &Request, collective: Option<&'a str>) -> Vec<Fact<'a>> {
        let mut facts = vec![("request", Value::Number(request.number)), ("bytes", Value::Number(request.bytes))];
        if let Some(ns) = request.cts_wait {
            facts.push(("waited for CTS (us)", Value::Real(ns as f64 / 1000.0)));
        }
        if let Some(step) = self.of_rank.events.get(&request.event) {
            facts.push(("step", Value::Number(step.number.into())));
            if let Some(Facts::Op(op)) = self.of_rank.events.get(&step.parent).map(|it| it.facts) {
                facts.push(("channel", Value::Number(op.channel.into())));
            }
        }
        facts.extend(collective.map(|name| ("collective", Value::Text(name))));
        facts
    }

    /// Returns the flow from a request to one of its pieces.
    fn flow(&self, request: &Request, piece: usize) -> u64 {
        flow(&[self.rank as u64, self.number.into(), request.number, piece as u64])
    }

    /// Draws a rail, which carries pieces of these requests.
    fn rail(&self, canvas: &mut Canvas<'_>, group: u64, rail: u8, requests: &[usize], bin: u64) -> io::Result<()> {
        let name = self.connection.rail_name(rail);
        let requests = requests.iter().map(|index| &self.connection.requests[*index]);
        let pieces = requests.flat_map(|request| {
            let of_rail = request.pieces.iter().enumerate().filter(|(_, piece)| piece.rail == rail);
            of_rail.map(move |(index, piece)| (piece.begin, request, index))
        });
        let mut pieces: Vec<_> = pieces.collect();
        pieces.sort_by_key(|(begin, request, index)| (*begin, request.number, *index));
        let mut lines = canvas.lines(group, &name);
        let mut bins = Bins::new(bin, self.timeline.span_ns);
        for (begin, request, index) in pieces {
            let piece = &request.pieces[index];
            let collective = self.collective(request);
            let mut facts = vec![("bytes", Value::Number(piece.bytes)), ("request", Value::Number(request.number))];
            facts.extend(collective.as_deref().map(|name| ("collective", Value::Text(name))));
            let (end, name) = ending(piece.end, self.last(), "piece".to_owned(), &mut facts);
            lines.slice(canvas, (begin, end), &name, &facts, &[self.flow(request, index)])?;
            bins.add(begin, end, piece.bytes);
        }
        self.downs(canvas, group, rail)?;
        let samples = self.connection.rails.get(&rail);
        if !self.connection.facts.sends {
            samples.into_iter().for_each(|rail| bins.add_received(rail));
        }
        bins.draw(canvas, group, &format!("rail {rail}: rate"))?;
        samples.map_or(Ok(()), |samples| counters(canvas, group, rail, samples))
    }

    /// Draws the times in which a rail is down, and what went again over other rails meanwhile.
    fn downs(&self, canvas: &mut Canvas<'_>, group: u64, rail: u8) -> io::Result<()> {
        let changes = self.changes(rail);
        if !changes.iter().any(|it| it.is_down || it.has_come_up) {
            return Ok(());
        }
        let track = canvas.track(group, &format!("rail {rail}: down"), Content::Slices)?;
        // If the rail comes up first, it went down before the trace began.
        let begin = self.of_rank.span.map_or(0, |(first, _)| first);
        let mut down = changes.first().filter(|it| it.has_come_up).map(|_| (begin, ""));
        for change in &changes {
            if let (Some((from, text)), false) = (down, change.is_down) {
                let facts = [("text", Value::Text(text))];
                let (to, name) = (change.at_ns.max(from), "down");
                canvas.slice(&Slice { track, from, to, name, facts: &facts, flows: &[] })?;
            }
            down = match (down, change.is_down) {
                (None, true) => Some((change.at_ns, change.text)),
                (Some((from, "")), true) => Some((from, change.text)),
                (down, true) => down,
                (_, false) => None,
            };
            if let Some(bytes) = sent_again(change.text).filter(|bytes| *bytes > 0) {
                let facts = [("bytes", Value::Number(bytes))];
                let name = format!("{bytes} bytes were sent again over other rails");
                canvas.sink.instant(track, change.at_ns, &name, &facts)?;
            }
        }
        if let Some((from, text)) = down {
            let mut facts = vec![("text", Value::Text(text))];
            let (last, words) = self.last();
            let (to, name) = ending(None, (last.max(from), words), "down".to_owned(), &mut facts);
            canvas.slice(&Slice { track, from, to, name: &name, facts: &facts, flows: &[] })?;
        }
        Ok(())
    }

    /// Returns what is known of a rail's state, in its order: the events that tell it, and the samples that no event
    /// explains, because the file with it is gone.
    fn changes(&self, rail: u8) -> Vec<Change<'_>> {
        let is_its = |it: &&railweave_trace::Happened| {
            it.connection == Some(self.number)
                && it.rail == Some(rail.into())
                && [RAIL_DOWN, RAIL_UP].contains(&it.kind)
        };
        let told = self.of_rank.happened.iter().filter(is_its).map(|it| {
            let (is_down, has_come_up) = (it.kind == RAIL_DOWN, it.kind == RAIL_UP);
            Change { at_ns: it.at_ns, is_down, has_come_up, is_told: true, text: &it.text }
        });
        let samples = self.connection.rails.get(&rail).into_iter().flat_map(|rail| &rail.samples);
        let sampled = samples.map(|(at_ns, it)| Change {
            at_ns: *at_ns,
            is_down: !it.is_up,
            has_come_up: false,
            is_told: false,
            text: "",
        });
        let mut all: Vec<_> = told.chain(sampled).collect();
        all.sort_by_key(|it| it.at_ns);
        let mut last_told = None;
        all.retain(|it| {
            if it.is_told {
                last_told = Some(it.at_ns);
            }
            it.is_told || last_told.is_none_or(|at| it.at_ns.saturating_sub(at) > SETTLED)
        });
        all
    }
}

/// Something that is known of a rail's state at a time.
struct Change<'a> {
    at_ns: u64,
    is_down: bool,
    /// True if an event tells that the rail has just come up.
    has_come_up: bool,
    /// True if it is an event.
    is_told: bool,
    /// The text of the event; empty for a sample.
    text: &'a str,
}

/// Returns the bytes that a rail's event tells to have gone again over other rails. The transport's event has the
/// number in its text only.
fn sent_again(text: &str) -> Option<u64> {
    let (before, _) = text.split_once(" bytes were sent again")?;
    before.rsplit(' ').next()?.parse().ok()
}

/// Returns the time at which a request's wait for its CTS began, if it had waited.
fn wait_of(request: &Request) -> Option<u64> {
    request.cts_wait.filter(|ns| *ns > 0).map(|ns| request.begin.saturating_sub(ns))
}

/// Draws the counters that come from samples.
fn counters(canvas: &mut Canvas<'_>, group: u64, number: u8, rail: &Rail) -> io::Result<()> {
    if rail.samples.iter().any(|(_, it)| it.share.is_some()) {
        let track = canvas.track(group, &format!("rail {number}: share"), Content::Counter(Unit::Percent))?;
        for (at, share) in rail.samples.iter().filter_map(|(at, it)| Some((at, it.share?))) {
            canvas.sink.count(track, *at, f64::from(share) / 10_000.0)?;
        }
    }
    if rail.samples.iter().any(|(_, it)| it.in_flight.is_some()) {
        let track = canvas.track(group, &format!("rail {number}: in flight"), Content::Counter(Unit::Bytes))?;
        for (at, bytes) in rail.samples.iter().filter_map(|(at, it)| Some((at, it.in_flight?))) {
            canvas.sink.count(track, *at, bytes as f64)?;
        }
    }
    Ok(())
}

/// Bytes per bin of time.
struct Bins {
    bin: u64,
    /// Bytes of what begins or ends in a bin.
    parts: Vec<f64>,
    /// From this bin on, the bytes of each bin by which what covers whole bins has become more or less, and the number
    /// of such things. So one that covers many bins costs no more than another.
    changes: Vec<(f64, i64)>,
}

impl Bins {
    /// Returns bins without bytes, for a timeline of this length.
    fn new(bin: u64, span_ns: u64) -> Self {
        // An end at the very last time is the begin of one more.
        let count = usize::try_from(span_ns / bin).unwrap_or(0) + 2;
        Self { bin, parts: vec![0.0; count], changes: vec![(0.0, 0); count] }
    }

    /// Adds bytes that went evenly from a time to another.
    fn add(&mut self, from: u64, to: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let end = self.bin * (self.parts.len() as u64 - 1);
        let (from, to) = (from.min(end), to.min(end));
        let span = to.saturating_sub(from);
        let (first, last) = (from / self.bin, (from + span.saturating_sub(1)) / self.bin);
        if first == last {
            self.parts[first as usize] += bytes as f64;
            return;
        }
        let of = |time: u64| bytes as f64 * time as f64 / span as f64;
        self.parts[first as usize] += of((first + 1) * self.bin - from);
        self.parts[last as usize] += of(to - last * self.bin);
        let whole = of(self.bin);
        for (number, sign) in [(first + 1, 1), (last, -1)] {
            let (rate, count) = &mut self.changes[number as usize];
            (*rate, *count) = (*rate + whole * sign as f64, *count + sign);
        }
    }

    /// Returns the bins with bytes in them, by their numbers.
    fn sums(&self) -> Vec<(u64, f64)> {
        let (mut rate, mut count) = (0.0, 0);
        let sum = |(part, (more, things)): (&f64, &(f64, i64))| {
            (rate, count) = (rate + more, count + things);
            // Sums of fractions leave a rest that is not quite 0.
            if count == 0 {
                rate = 0.0;
            }
            part + rate
        };
        let sums = self.parts.iter().zip(&self.changes).map(sum);
        (0..).zip(sums).filter(|(_, bytes)| *bytes > 0.0).collect()
    }

    /// Adds the bytes that came between samples: the receiving end does not know them for each piece.
    fn add_received(&mut self, rail: &Rail) {
        for pair in rail.samples.windows(2) {
            if let [(from, before), (to, after)] = pair {
                self.add(*from, *to, after.received.saturating_sub(before.received));
            }
        }
    }

    /// Draws the rates.
    fn draw(&self, canvas: &mut Canvas<'_>, group: u64, name: &str) -> io::Result<()> {
        let sums = self.sums();
        if sums.is_empty() {
            return Ok(());
        }
        let track = canvas.track(group, name, Content::Counter(Unit::Mbps))?;
        for (index, (number, bytes)) in sums.iter().enumerate() {
            canvas.sink.count(track, number * self.bin, bytes * 8000.0 / self.bin as f64)?;
            if sums.get(index + 1).is_none_or(|(next, _)| *next > number + 1) {
                canvas.sink.count(track, (number + 1) * self.bin, 0.0)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_have_round_lengths_and_are_about_a_thousand() {
        for (span, length) in [(0, 100_000), (10_000_000_000, 10_000_000), (10_000_000_001, 10_000_000)] {
            assert_eq!(bin(span), length, "{span}");
        }
        assert_eq!(bin(11_000_000_000), 20_000_000);
        assert_eq!(bin(21_000_000_000), 50_000_000);
        assert!(bin(u64::MAX) >= u64::MAX / 1000);
    }

    #[test]
    fn bytes_are_spread_over_the_time_that_they_took() {
        let mut bins = Bins::new(100, 1000);
        bins.add(50, 250, 200);
        bins.add(120, 120, 7);
        bins.add(300, 400, 10);
        assert_eq!(bins.sums(), [(0, 50.0), (1, 107.0), (2, 50.0), (3, 10.0)]);
        // Nothing is left of what covers many bins, and times beyond the last bin are its end.
        let mut bins = Bins::new(100, 1000);
        bins.add(10, 710, 7);
        bins.add(130, 580, 11);
        bins.add(u64::MAX - 1, u64::MAX, 1);
        let numbers: Vec<_> = bins.sums().iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7, 11]);
        let sum: f64 = bins.sums().iter().map(|(_, bytes)| bytes).sum();
        assert!((sum - 19.0).abs() < 1e-9, "{sum}");
    }

    #[test]
    fn a_million_pieces_without_an_end_cost_no_more_than_others() {
        let span = 1_000_000_000;
        let mut bins = Bins::new(bin(span), span);
        let began = std::time::Instant::now();
        (0..1_000_000).for_each(|at| bins.add(at, span, 1000));
        assert_eq!(bins.sums().len(), 1000);
        // Each of a thousand bins for each piece would take minutes.
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
    }
}
