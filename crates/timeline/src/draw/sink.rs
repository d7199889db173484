//! The places that a drawing goes to: the formats of viewers.

use std::io;

/// The value of a fact about a slice.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    Number(u64),
    Real(f64),
    Flag(bool),
    Text(&'a str),
}

/// A fact about a slice: its name and its value.
pub(crate) type Fact<'a> = (&'static str, Value<'a>);

/// The content of a track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Other tracks.
    Host,
    /// Those of one process.
    Rank {
        /// Its process id.
        pid: u32,
    },
    /// Other tracks.
    Group,
    /// Slices and instants.
    Slices,
    /// Numbers over time, in this unit.
    Counter(Unit),
}

/// The unit of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Millions of bits per second.
    Mbps,
    /// Hundredths.
    Percent,
    /// Bytes.
    Bytes,
}

/// A track. Tracks of one parent with the same name are lines of one track, as a viewer shows them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Track<'a> {
    /// Its number, from 1.
    pub(crate) number: u64,
    /// The track that it is part of; 0 for none.
    pub(crate) parent: u64,
    /// Its place among the parts of its parent.
    pub(crate) place: i32,
    /// Its name.
    pub(crate) name: &'a str,
    /// Its content.
    pub(crate) content: Content,
}

/// A slice: something that lasts. Times are nanoseconds since the timeline's begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice<'a> {
    /// Its track.
    pub(crate) track: u64,
    /// The time of its begin.
    pub(crate) from: u64,
    /// The time of its end, not before its begin.
    pub(crate) to: u64,
    /// Its name.
    pub(crate) name: &'a str,
    /// Facts about it.
    pub(crate) facts: &'a [Fact<'a>],
    /// Numbers that it shares with the slices that it leads to, or that have led to it.
    pub(crate) flows: &'a [u64],
}

/// A format. Tracks come before their slices; the slices of a track come in their order, and nest.
pub(crate) trait Sink {
    /// Takes a track.
    fn track(&mut self, track: &Track<'_>) -> io::Result<()>;

    /// Takes a slice, in which others may begin until its end is told.
    fn begin(&mut self, slice: &Slice<'_>) -> io::Result<()>;

    /// Takes the end of the slice that was begun last on its track.
    fn end(&mut self, slice: &Slice<'_>) -> io::Result<()>;

    /// Takes something that happened at one time.
    fn instant(&mut self, track: u64, at: u64, name: &str, facts: &[Fact<'_>]) -> io::Result<()>;

    /// Takes the number of a counter from a time on.
    fn count(&mut self, track: u64, at: u64, value: f64) -> io::Result<()>;
}
