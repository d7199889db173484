//! The events that the pane below shows: those of processes, and those that only a look from outside sees.

use crate::host::Noted;
use railweave_telemetry::EventKind;
use std::collections::VecDeque;

/// The most events that are kept.
const MOST: usize = 1000;

/// The time within which events of one kind and topic count as one, in nanoseconds: a job opens hundreds of connections
/// at once, and they may all fail together.
const ONE_NS: u64 = 1_000_000_000;

/// The kinds of such events. Of others, each is shown.
const MANY: [&str; 6] = ["opened", "closed", "failed", "truncated", "process", "share"];

/// The one who notes what is seen from outside.
pub(super) const TOP: &str = "top";

/// The importance of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    /// The course of a job.
    Usual,
    /// A change that somebody wants to know of.
    Change,
    /// Something is wrong.
    Wrong,
    /// Something is well again.
    Well,
}

/// An event of the pane.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    pub(super) time_ns: u64,
    pub(super) weight: Weight,
    /// The process, or `top` and `agent`.
    pub(super) from: String,
    /// Its kind, as docs/telemetry.md names it.
    pub(super) kind: String,
    pub(super) text: String,
    /// Events of different topics never count as one: the file of the process, or the thing that `top` has seen.
    pub(super) topic: String,
    /// The job; empty if it is not known, or not one alone.
    pub(super) job: String,
    /// The others that it stands for.
    pub(super) others: u32,
    /// Its number among all events.
    pub(super) number: u64,
}

/// The events.
#[derive(Default)]
pub(super) struct Events {
    all: VecDeque<Shown>,
    /// The number of events so far, with those that count as one.
    pub(super) ever: u64,
    /// True if many of one kind, topic and second count as one.
    sums: bool,
}

impl Events {
    /// Returns no events yet. With `sums`, many of one kind, topic and second will count as one.
    pub(super) fn new(sums: bool) -> Self {
        Self { sums, ..Self::default() }
    }

    /// Takes in events of processes, the oldest first.
    pub(super) fn note(&mut self, noted: Vec<Noted>) {
        for Noted { process, job, file, event } in noted {
            let connection = event.connection.map(|connection| format!("connection {connection}"));
            let rail = event.rail.map(|rail| format!("rail {rail}"));
            let text = Some(event.text).filter(|text| !text.is_empty());
            let parts: Vec<String> = [connection, rail, text].into_iter().flatten().collect();
            self.add(Shown {
                time_ns: event.time_ns,
                weight: weight(event.kind),
                from: process,
                kind: event.kind.to_string(),
                text: parts.join(": "),
                topic: file,
                job,
                others: 0,
                number: 0,
            });
        }
    }

    /// Adds an event.
    pub(super) fn add(&mut self, mut event: Shown) {
        event.number = self.ever;
        self.ever += 1;
        let is_same = |other: &&mut Shown| {
            (&other.kind, &other.topic) == (&event.kind, &event.topic) && other.time_ns.abs_diff(event.time_ns) < ONE_NS
        };
        // Others may have come in between.
        let mut last = self.all.iter_mut().rev().take(8);
        if self.sums
            && MANY.contains(&&*event.kind)
            && let Some(other) = last.find(is_same)
        {
            other.others += 1;
            return;
        }
        self.all.push_back(event);
        if self.all.len() > MOST {
            self.all.pop_front();
        }
    }

    /// Returns the events that came after the first `count` ones, the oldest first, as far as they are kept; one that
    /// counts as one with an earlier event does not come again.
    pub(super) fn after(&self, count: u64) -> impl Iterator<Item = &Shown> {
        self.all.iter().filter(move |event| event.number >= count)
    }

    /// Returns the last events, the newest first.
    pub(super) fn newest(&self) -> impl Iterator<Item = &Shown> {
        self.all.iter().rev()
    }
}

fn weight(kind: EventKind) -> Weight {
    match kind {
        EventKind::RAIL_UP => Weight::Well,
        EventKind::RAIL_DOWN | EventKind::RAIL_LEFT_OUT | EventKind::FAILED | EventKind::UNWELCOME => Weight::Wrong,
        EventKind::POLICY | EventKind::PORT | EventKind::SESSION | EventKind::RAIL_STATE => Weight::Change,
        _ => Weight::Usual,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use railweave_telemetry::Event;

    fn noted(process: &str, kind: EventKind, time_ns: u64) -> Noted {
        Noted {
            process: process.into(),
            job: String::new(),
            file: process.into(),
            event: Event { time_ns, kind, connection: Some(7), ..Event::default() },
        }
    }

    #[test]
    fn events_of_one_kind_and_moment_count_as_one() {
        let mut events = Events::new(true);
        let of_both = |second: u64| {
            (0..200).flat_map(move |number| {
                ["rank 0", "rank 1"].map(|rank| noted(rank, EventKind::OPENED, second * ONE_NS + number))
            })
        };
        events.note(of_both(1).chain([noted("rank 0", EventKind::FAILED, ONE_NS + 300)]).chain(of_both(3)).collect());
        let shown: Vec<_> = events.newest().map(|it| (&*it.from, &*it.kind, it.others, &*it.text)).collect();
        assert_eq!(
            shown,
            [
                ("rank 1", "opened", 199, "connection 7"),
                ("rank 0", "opened", 199, "connection 7"),
                ("rank 0", "failed", 0, "connection 7"),
                ("rank 1", "opened", 199, "connection 7"),
                ("rank 0", "opened", 199, "connection 7"),
            ]
        );
        assert_eq!(events.ever, 801);
    }

    #[test]
    fn what_somebody_has_to_see_is_never_one_of_many() {
        let mut events = Events::new(true);
        events.note(vec![noted("rank 0", EventKind::RAIL_DOWN, 1), noted("rank 0", EventKind::RAIL_DOWN, 2)]);
        // The same rank of another job.
        let other = Noted { file: "other".into(), ..noted("rank 0", EventKind::FAILED, 3) };
        events.note(vec![noted("rank 0", EventKind::FAILED, 3), other]);
        assert_eq!(events.newest().map(|event| event.others).collect::<Vec<_>>(), [0; 4]);
        let mut events = Events::new(false);
        events.note((0..3).map(|number| noted("rank 0", EventKind::OPENED, number)).collect());
        assert_eq!(events.newest().count(), 3);
    }

    #[test]
    fn old_events_are_forgotten() {
        let mut events = Events::new(true);
        events.note((0..2000).map(|second| noted("rank 0", EventKind::PORT, second * ONE_NS)).collect());
        assert_eq!((events.newest().count(), events.newest().next().map(|it| it.time_ns / ONE_NS)), (MOST, Some(1999)));
    }
}
