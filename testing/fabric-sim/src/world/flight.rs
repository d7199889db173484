//! Writes in flight, and those that the end of their lane has cut off.

use std::collections::VecDeque;

use railweave_fabric::Write;

use crate::observer::Place;

/// A write in flight.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) write: Write,
    /// The bytes; `None` if the source is read only when the write lands.
    pub(crate) bytes: Option<Box<[u8]>>,
    /// The time at which its last byte has left this end; `u64::MAX` while it waits for the wire of its port.
    pub(crate) left_ns: u64,
    /// True once a part of it has landed.
    pub(crate) torn: bool,
}

/// The writes of a lane that has ended, in their order. None of them will be acknowledged.
#[derive(Debug)]
pub(crate) struct CutOff {
    /// The lane.
    pub(super) place: Place,
    /// The end to which the writes go. A number is never given to another end, so it names one incarnation of a rail.
    pub(super) to: usize,
    pub(super) flights: VecDeque<Flight>,
    /// The number of these that land at once, as if they had landed before the lane's end.
    pub(super) at_once: usize,
    /// The time by which the last of them lands.
    pub(super) until_ns: u64,
    /// True if the last of them lands only in part, or without its completion.
    pub(super) ends_in_part: bool,
}
