//! The drawing of a timeline: hosts, their ranks, and in each rank its communicators, connections and rails.

mod canvas;
mod events;
mod rails;
pub(crate) mod sink;

use self::canvas::Canvas;
use self::sink::{Content, Fact, Sink, Value};
use crate::rank::{Connection, Rank};
use crate::timeline::Timeline;
use std::io;

/// Draws a timeline.
pub(crate) fn draw(timeline: &Timeline, sink: &mut dyn Sink) -> io::Result<()> {
    let canvas = &mut Canvas::new(sink);
    let flows = events::Flows::find(timeline);
    for (number, host) in timeline.hosts.iter().enumerate() {
        let host = canvas.track(0, &host.name, Content::Host)?;
        for (index, rank) in timeline.ranks.iter().enumerate().filter(|(_, rank)| rank.host == number) {
            let track = canvas.track(host, &rank.label(), Content::Rank { pid: rank.process.pid })?;
            happened(canvas, track, rank)?;
            set_ups(canvas, track, rank)?;
            events::draw(canvas, track, timeline, index, &flows)?;
            rails::draw(canvas, track, timeline, index)?;
        }
    }
    Ok(())
}

/// Draws the events of a rank that are worth a line in a log.
fn happened(canvas: &mut Canvas<'_>, parent: u64, rank: &Rank) -> io::Result<()> {
    if rank.happened.is_empty() {
        return Ok(());
    }
    let track = canvas.track(parent, "events", Content::Slices)?;
    for event in &rank.happened {
        let mut facts: Vec<Fact<'_>> = vec![("text", Value::Text(&event.text))];
        let peer = event.connection.and_then(|number| rank.connections.get(&number)).map(Connection::peer_name);
        facts.extend(peer.as_deref().map(|peer| ("peer", Value::Text(peer))));
        facts.extend(event.connection.map(|number| ("connection", Value::Number(number.into()))));
        facts.extend(event.rail.map(|number| ("rail", Value::Number(number.into()))));
        let name = if event.text.is_empty() { event.name.clone() } else { format!("{}: {}", event.name, event.text) };
        canvas.sink.instant(track, event.at_ns, &name, &facts)?;
    }
    Ok(())
}

/// Draws the set-ups of a rank's connections.
fn set_ups(canvas: &mut Canvas<'_>, parent: u64, rank: &Rank) -> io::Result<()> {
    let mut order: Vec<_> = rank.setups.iter().collect();
    order.sort_by_key(|it| it.from_ns);
    let mut lines = canvas.lines(parent, "set-ups of connections");
    for it in order {
        let way = if it.connects { "connects to" } else { "accepts" };
        let failed = if it.failure.is_empty() { "" } else { " (failed)" };
        let mut facts: Vec<Fact<'_>> = vec![("peer", Value::Text(&it.peer))];
        facts.extend(it.connection.map(|number| ("connection", Value::Number(number.into()))));
        if !it.failure.is_empty() {
            facts.push(("failure", Value::Text(&it.failure)));
        }
        lines.slice(canvas, (it.from_ns, it.to_ns), &format!("{way} {}{failed}", it.peer), &facts, &[])?;
    }
    Ok(())
}
