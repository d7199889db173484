//! The queue of scheduled events, in the order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use railweave_fabric::{LaneId, WorkId};

use super::flight::CutOff;

/// A scheduled event.
#[derive(Debug)]
pub(super) enum Due<T> {
    /// A write is through a port's wire, or a turn on it ends, unless there is a later plan.
    Wire { port: usize, plan: u64 },
    /// The next write of this end's lane reaches the other end.
    Arrive { end: usize, lane: LaneId },
    /// The rest of a torn write lands, or a write that found no receive is retried.
    Rest { end: usize, lane: LaneId },
    /// The oldest write of this end's lane is acknowledged.
    Ack { end: usize, lane: LaneId },
    /// The lane sends its oldest write again because the acknowledgement was lost, and is answered.
    SecondAck { end: usize, lane: LaneId },
    /// The lane sends again what was lost in an outage.
    Retry { end: usize, lane: LaneId },
    /// The next of a dead lane's writes lands.
    CutOff(Box<CutOff>),
    /// The lane's retries are exhausted.
    GiveUp { end: usize, lane: LaneId },
    /// A flush completes.
    Flushed { end: usize, id: WorkId, landed: u64 },
    /// A task of the observer is due.
    Task(T),
}

#[derive(Debug)]
struct Scheduled<T> {
    at_ns: u64,
    sequence: u64,
    due: Due<T>,
}

impl<T> PartialEq for Scheduled<T> {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}

impl<T> Eq for Scheduled<T> {}

impl<T> PartialOrd for Scheduled<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Scheduled<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_ns, self.sequence).cmp(&(other.at_ns, other.sequence))
    }
}

/// The scheduled events. Those for the same time come in the order in which they were scheduled.
#[derive(Debug)]
pub(super) struct Queue<T> {
    sequence: u64,
    heap: BinaryHeap<Reverse<Scheduled<T>>>,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        Self { sequence: 0, heap: BinaryHeap::new() }
    }

    pub(super) fn push(&mut self, at_ns: u64, due: Due<T>) {
        self.sequence += 1;
        self.heap.push(Reverse(Scheduled { at_ns, sequence: self.sequence, due }));
    }

    pub(super) fn next_at(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(next)| next.at_ns)
    }

    pub(super) fn pop(&mut self) -> Option<(u64, Due<T>)> {
        self.heap.pop().map(|Reverse(next)| (next.at_ns, next.due))
    }
}
