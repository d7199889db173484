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
            let (end, name) = ending(request.end, self.of_rank.last(), what.to_owned(), &mut facts);
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
        let mut bins = Bins { bin, sums: BTreeMap::new() };
        for (begin, request, index) in pieces {
            let piece = &request.pieces[index];
            let collective = self.collective(request);
            let mut facts = vec![("bytes", Value::Number(piece.bytes)), ("request", Value::Number(request.number))];
            facts.extend(collective.as_deref().map(|name| ("collective", Value::Text(name))));
            let (end, name) = ending(piece.end, self.of_rank.last(), "piece".to_owned(), &mut facts);
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

    /// Draws the times in which a rail is down.
    fn downs(&self, canvas: &mut Canvas<'_>, group: u64, rail: u8) -> io::Result<()> {
        let is_its = |it: &&railweave_trace::Happened| {
            it.connection == Some(self.number)
                && it.rail == Some(rail.into())
                && [RAIL_DOWN, RAIL_UP].contains(&it.kind)
        };
        let mut states = self.of_rank.happened.iter().filter(is_its).peekable();
        if states.peek().is_none() {
            return Ok(());
        }
        let name = format!("rail {rail}: down");
        let track = canvas.track(group, &name, Content::Slices)?;
        // If the rail comes up first, it went down before the trace began.
        let begin = self.of_rank.span.map_or(0, |(first, _)| first);
        let mut down = states.peek().filter(|it| it.kind == RAIL_UP).map(|_| (begin, String::new()));
        for state in states {
            match (state.kind, &down) {
                (RAIL_DOWN, None) => down = Some((state.at_ns, state.text.clone())),
                (RAIL_UP, Some(_)) => {
                    if let Some((from, text)) = down.take() {
                        let facts = [("text", Value::Text(&text))];
                        let to = state.at_ns.max(from);
                        let name = "down";
                        canvas.slice(&Slice { track, from, to, name, facts: &facts, flows: &[] })?;
                    }
                }
                _ => {}
            }
        }
        if let Some((from, text)) = down {
            let mut facts = vec![("text", Value::Text(&text))];
            let (to, name) = ending(None, self.of_rank.last().max(from), "down".to_owned(), &mut facts);
            canvas.slice(&Slice { track, from, to, name: &name, facts: &facts, flows: &[] })?;
        }
        Ok(())
    }
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

/// Bytes per bin of time: only of bins with bytes in them.
struct Bins {
    bin: u64,
    sums: BTreeMap<u64, f64>,
}

impl Bins {
    /// Adds bytes that went evenly from a time to another.
    fn add(&mut self, from: u64, to: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let span = to.saturating_sub(from);
        let (first, last) = (from / self.bin, (from + span.saturating_sub(1)) / self.bin);
        for number in first..=last {
            let begin = (number * self.bin).max(from);
            let end = (number.saturating_add(1).saturating_mul(self.bin)).min(from + span);
            let part = if span == 0 { 1.0 } else { (end - begin) as f64 / span as f64 };
            *self.sums.entry(number).or_default() += bytes as f64 * part;
        }
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
        if self.sums.is_empty() {
            return Ok(());
        }
        let track = canvas.track(group, name, Content::Counter(Unit::Mbps))?;
        for (number, bytes) in &self.sums {
            canvas.sink.count(track, number * self.bin, bytes * 8000.0 / self.bin as f64)?;
            if !self.sums.contains_key(&(number + 1)) {
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
        let mut bins = Bins { bin: 100, sums: BTreeMap::new() };
        bins.add(50, 250, 200);
        bins.add(120, 120, 7);
        bins.add(300, 400, 10);
        let sums: Vec<_> = bins.sums.into_iter().collect();
        assert_eq!(sums, [(0, 50.0), (1, 107.0), (2, 50.0), (3, 10.0)]);
    }
}
