//! The canvas: numbers tracks, and finds lines for slices that overlap.

use super::sink::{Content, Fact, Sink, Slice, Track, Value};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::io;

/// A drawing in progress.
pub(crate) struct Canvas<'a> {
    pub(crate) sink: &'a mut dyn Sink,
    tracks: u64,
    place: i32,
}

/// The lines of one track. Slices that overlap lie on different ones: a viewer takes slices of one line for nested.
pub(crate) struct Lines<'a> {
    parent: u64,
    name: &'a str,
    place: i32,
    /// The tracks of the lines.
    tracks: Vec<u64>,
    free: BTreeSet<usize>,
    /// The lines in use, by the ends of their slices.
    used: BinaryHeap<Reverse<(u64, usize)>>,
}

impl<'a> Canvas<'a> {
    pub(crate) fn new(sink: &'a mut dyn Sink) -> Self {
        Self { sink, tracks: 0, place: 0 }
    }

    /// Adds a track behind all others of its parent, and returns its number.
    pub(crate) fn track(&mut self, parent: u64, name: &str, content: Content) -> io::Result<u64> {
        let place = self.next_place();
        self.add(parent, name, content, place)
    }

    /// Adds a track of lines, which are made when they are needed.
    pub(crate) fn lines<'n>(&mut self, parent: u64, name: &'n str) -> Lines<'n> {
        let (free, used) = (BTreeSet::new(), BinaryHeap::new());
        Lines { parent, name, place: self.next_place(), tracks: Vec::new(), free, used }
    }

    fn next_place(&mut self) -> i32 {
        self.place = self.place.saturating_add(1);
        self.place
    }

    fn add(&mut self, parent: u64, name: &str, content: Content, place: i32) -> io::Result<u64> {
        self.tracks += 1;
        self.sink.track(&Track { number: self.tracks, parent, place, name, content })?;
        Ok(self.tracks)
    }

    /// Draws a slice without others in it.
    pub(crate) fn slice(&mut self, slice: &Slice<'_>) -> io::Result<()> {
        self.sink.begin(slice)?;
        self.sink.end(slice)
    }
}

impl Lines<'_> {
    /// Returns the track of the first line that is free from a time until another. Times come in the order of begins.
    pub(crate) fn line(&mut self, canvas: &mut Canvas<'_>, from: u64, to: u64) -> io::Result<u64> {
        while let Some(Reverse((end, line))) = self.used.peek().copied().filter(|Reverse((end, _))| *end <= from) {
            debug_assert!(end <= from);
            self.used.pop();
            self.free.insert(line);
        }
        let line = match self.free.pop_first() {
            Some(line) => line,
            None => {
                self.tracks.push(canvas.add(self.parent, self.name, Content::Slices, self.place)?);
                self.tracks.len() - 1
            }
        };
        self.used.push(Reverse((to, line)));
        Ok(self.tracks[line])
    }

    /// Draws a slice without others in it, on a line that is free.
    pub(crate) fn slice(
        &mut self,
        canvas: &mut Canvas<'_>,
        (from, to): (u64, u64),
        name: &str,
        facts: &[Fact<'_>],
        flows: &[u64],
    ) -> io::Result<()> {
        let to = to.max(from);
        let track = self.line(canvas, from, to)?;
        canvas.slice(&Slice { track, from, to, name, facts, flows })
    }
}

/// Returns the end of something that the trace may not have seen end; it lasts until `last` then, and its name and
/// facts say so in these words.
pub(crate) fn ending<'a>(
    end: Option<u64>,
    (last, words): (u64, &'static str),
    name: String,
    facts: &mut Vec<Fact<'a>>,
) -> (u64, String) {
    match end {
        Some(end) => (end, name),
        None => {
            facts.push((words, Value::Flag(true)));
            (last, format!("{name} ({words})"))
        }
    }
}

/// Returns the number of a flow: the same for the same things, and hardly ever that of others.
pub(crate) fn flow(of: &[u64]) -> u64 {
    // SplitMix64's steps.
    let mixed = of.iter().fold(0, |sum: u64, number| {
        let mut mixed = (sum ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    });
    mixed.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tracks and slices that were drawn.
    #[derive(Default)]
    struct Seen {
        tracks: Vec<(u64, u64, String)>,
        slices: Vec<(u64, u64, u64)>,
    }

    impl Sink for Seen {
        fn track(&mut self, track: &Track<'_>) -> io::Result<()> {
            self.tracks.push((track.number, track.parent, track.name.to_owned()));
            Ok(())
        }

        fn begin(&mut self, slice: &Slice<'_>) -> io::Result<()> {
            self.slices.push((slice.track, slice.from, slice.to));
            Ok(())
        }

        fn end(&mut self, _: &Slice<'_>) -> io::Result<()> {
            Ok(())
        }

        fn instant(&mut self, _: u64, _: u64, _: &str, _: &[Fact<'_>]) -> io::Result<()> {
            Ok(())
        }

        fn count(&mut self, _: u64, _: u64, _: f64) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn slices_that_overlap_lie_on_different_lines_of_the_same_name() {
        let mut seen = Seen::default();
        let mut canvas = Canvas::new(&mut seen);
        let mut lines = canvas.lines(7, "rail 0");
        for span in [(0, 10), (5, 8), (8, 9), (9, 20), (10, 12), (10, 10), (12, 12)] {
            lines.slice(&mut canvas, span, "", &[], &[]).unwrap();
        }
        assert_eq!(seen.tracks, [(1, 7, "rail 0".into()), (2, 7, "rail 0".into()), (3, 7, "rail 0".into())]);
        let lines: Vec<u64> = seen.slices.iter().map(|slice| slice.0).collect();
        assert_eq!(lines, [1, 2, 2, 2, 1, 3, 1]);
    }

    #[test]
    fn flows_of_other_things_have_other_numbers() {
        assert_eq!(flow(&[1, 2]), flow(&[1, 2]));
        assert_ne!(flow(&[1, 2]), flow(&[2, 1]));
        assert_ne!(flow(&[0, 0]), flow(&[0]));
    }
}
