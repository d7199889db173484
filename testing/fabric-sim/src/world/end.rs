//! One end of a rail: its lanes with their send queues, its pool of receives, its completion queue.

use std::collections::VecDeque;

use railweave_fabric::conformance::Completion;
use railweave_fabric::{LaneId, WorkId, Write};

use crate::observer::Place;

/// A write on its way.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) write: Write,
    /// The bytes, unless the source is read only at landing.
    pub(crate) bytes: Option<Box<[u8]>>,
    /// Part of it has landed already.
    pub(crate) torn: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// Work requests whose room is not given back.
    pub(crate) outstanding: u32,
    /// Of these, the unsignalled ones behind the last signalled one.
    pub(crate) unsignalled: u32,
    pub(crate) flights: VecDeque<Flight>,
    /// How many of the flights have reached the other end and not landed.
    pub(crate) arrived: u32,
    /// The first flight cannot land now: no receive is there, or half of it has landed.
    pub(crate) held: bool,
    pub(crate) last_arrival_ns: u64,
    /// Landed and not acknowledged: how to complete them.
    pub(crate) unacknowledged: VecDeque<(WorkId, bool)>,
    pub(crate) last_ack_ns: u64,
    /// Landed, but the receiver has put their acknowledgements off; since when.
    pub(crate) put_off: u32,
    pub(crate) put_off_since_ns: u64,
    /// Acknowledged unsignalled writes, whose room comes back with the next signalled one.
    pub(crate) acked_unsignalled: u32,
    /// A write was lost; nothing behind it lands.
    pub(crate) lost: bool,
    pub(crate) dead: bool,
    pub(crate) withheld_until_ns: u64,
    /// Receives of its own, as of a lane without a shared queue, and those taken of which no completion was polled.
    pub(crate) receives: u32,
    pub(crate) unreported_receives: u32,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) completion: Completion,
    pub(crate) visible_at_ns: u64,
    pub(crate) lane: LaneId,
    /// Work requests whose room it gives back.
    pub(crate) retires: u32,
    /// It is a consumed receive.
    pub(crate) receive: bool,
    /// No sender sent it.
    pub(crate) forged: bool,
}

#[derive(Debug)]
pub(crate) struct End {
    pub(crate) process: usize,
    pub(crate) port: usize,
    pub(crate) one_sided: bool,
    /// Connection and rail, for the observer.
    pub(crate) connection: usize,
    pub(crate) sender: bool,
    pub(crate) rail: u8,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) peer: Option<usize>,
    pub(crate) send_depth: u32,
    pub(crate) receive_depth: u32,
    /// Receives that each lane has at most.
    pub(crate) lane_receives: u32,
    pub(crate) posted: u32,
    pub(crate) unreported_receives: u32,
    /// A forged immediate took a receive, which is then missing for one that was promised it.
    pub(crate) robbed: bool,
    pub(crate) completions: VecDeque<Entry>,
    pub(crate) last_visible_ns: u64,
    pub(crate) flushes: u32,
    pub(crate) lingering: bool,
    pub(crate) rate_mbps: u64,
    pub(crate) lag_ns: u64,
    pub(crate) wire_free_ns: u64,
    /// Nothing gets through any more.
    pub(crate) cut: bool,
    /// Until then acknowledgements do not leave when they are to; 0 where they do.
    pub(crate) refuses_until_ns: u64,
}

impl End {
    pub(crate) fn place(&self, lane: LaneId) -> Place {
        Place { connection: self.connection, sender: self.sender, rail: self.rail, lane }
    }

    /// Posts receives, of which each lane gets what it may need: any of them may bring any of the immediates.
    pub(crate) fn add_receives(&mut self, count: u32) {
        self.posted += count;
        let wanted = (self.posted + self.unreported_receives).min(self.lane_receives);
        for lane in &mut self.lanes {
            lane.receives = lane.receives.max(wanted.saturating_sub(lane.unreported_receives));
        }
    }

    /// Returns true if a lane's next immediate finds a receive.
    pub(crate) fn has_receive(&self, lane: LaneId) -> bool {
        self.posted > 0 && self.lanes[lane.index()].receives > 0
    }

    /// An immediate takes a receive.
    pub(crate) fn take_receive(&mut self, lane: LaneId) {
        self.posted -= 1;
        self.unreported_receives += 1;
        let lane = &mut self.lanes[lane.index()];
        lane.receives = lane.receives.saturating_sub(1);
        lane.unreported_receives += 1;
    }

    /// Entries that the completion queue must hold at most: all signalled work, all receives, and the lanes' failures.
    pub(crate) fn completion_depth(&self) -> usize {
        self.lanes.len() * (self.send_depth as usize + 1) + self.receive_depth as usize + 64
    }
}
