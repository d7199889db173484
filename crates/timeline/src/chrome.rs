//! The Trace Event Format, which chrome://tracing and other viewers read: JSON, with times in microseconds.

use crate::draw::draw;
use crate::draw::sink::{Content, Fact, Sink, Slice, Track, Value};
use crate::timeline::Timeline;
use serde_json::{Map, json};
use std::collections::HashMap;
use std::io::{self, Write};

/// Writes a timeline in the Trace Event Format: a process for each rank, a thread for each line of its tracks. The
/// format has no tracks within tracks, so the threads' names have those of the groups that they are part of.
///
/// # Errors
/// Those of `out`.
pub fn write_chrome(timeline: &Timeline, out: &mut dyn Write) -> io::Result<()> {
    let mut sink = Chrome { out, places: HashMap::new(), is_first: true, ranks: 0 };
    sink.out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    draw(timeline, &mut sink)?;
    sink.out.write_all(b"\n]}\n")
}

/// The place of a track: its process, its own number there, and its name with those of the groups around it.
struct Place {
    process: u64,
    thread: u64,
    name: String,
}

struct Chrome<'a> {
    out: &'a mut dyn Write,
    places: HashMap<u64, Place>,
    is_first: bool,
    ranks: u64,
}

impl Chrome<'_> {
    fn event(&mut self, event: &serde_json::Value) -> io::Result<()> {
        self.out.write_all(if self.is_first { b"\n" } else { b",\n" })?;
        self.is_first = false;
        serde_json::to_writer(&mut self.out, event).map_err(io::Error::from)
    }

    /// Names a process or a thread, and sets its place among the others.
    fn name(&mut self, what: &str, process: u64, thread: u64, name: &str, place: u64) -> io::Result<()> {
        let event = json!({"ph": "M", "name": format!("{what}_name"), "pid": process, "tid": thread,
            "args": {"name": name}});
        self.event(&event)?;
        let event = json!({"ph": "M", "name": format!("{what}_sort_index"), "pid": process, "tid": thread,
            "args": {"sort_index": place}});
        self.event(&event)
    }

    fn ids(&self, track: u64) -> (u64, u64) {
        self.places.get(&track).map_or((0, 0), |place| (place.process, place.thread))
    }
}

fn microseconds(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

fn values(facts: &[Fact<'_>]) -> Map<String, serde_json::Value> {
    let value = |value: &Value<'_>| match value {
        Value::Number(number) => json!(number),
        Value::Real(number) => json!(number),
        Value::Flag(flag) => json!(flag),
        Value::Text(text) => json!(text),
    };
    facts.iter().map(|(name, it)| ((*name).to_owned(), value(it))).collect()
}

impl Sink for Chrome<'_> {
    fn track(&mut self, track: &Track<'_>) -> io::Result<()> {
        let parent = self.places.get(&track.parent);
        let around = parent.map_or("", |place| place.name.as_str());
        let mut place = Place {
            process: parent.map_or(0, |place| place.process),
            thread: track.number,
            name: if around.is_empty() { track.name.to_owned() } else { format!("{around}, {}", track.name) },
        };
        match track.content {
            Content::Rank { .. } => {
                self.ranks += 1;
                place.process = self.ranks;
                self.name("process", place.process, 0, &place.name, self.ranks)?;
                place.name.clear();
            }
            Content::Slices => {
                self.name("thread", place.process, place.thread, &place.name, track.place.unsigned_abs().into())?;
            }
            // A counter has its name in each of its events.
            Content::Host | Content::Group | Content::Counter(_) => {}
        }
        self.places.insert(track.number, place);
        Ok(())
    }

    fn begin(&mut self, slice: &Slice<'_>) -> io::Result<()> {
        let (process, thread) = self.ids(slice.track);
        self.event(&json!({"ph": "X", "name": slice.name, "pid": process, "tid": thread,
            "ts": microseconds(slice.from), "dur": microseconds(slice.to.saturating_sub(slice.from)),
            "args": values(slice.facts)}))
    }

    fn end(&mut self, _: &Slice<'_>) -> io::Result<()> {
        Ok(())
    }

    fn instant(&mut self, track: u64, at: u64, name: &str, facts: &[Fact<'_>]) -> io::Result<()> {
        let (process, thread) = self.ids(track);
        self.event(&json!({"ph": "i", "s": "t", "name": name, "pid": process, "tid": thread,
            "ts": microseconds(at), "args": values(facts)}))
    }

    fn count(&mut self, track: u64, at: u64, value: f64) -> io::Result<()> {
        let (process, _) = self.ids(track);
        let name = self.places.get(&track).map_or("", |place| place.name.as_str());
        let event = json!({"ph": "C", "name": name, "pid": process, "ts": microseconds(at), "args": {"value": value}});
        self.event(&event)
    }
}
