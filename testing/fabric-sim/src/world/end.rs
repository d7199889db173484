//! One end of a rail: its lanes with their send queues, its pool of receives, its completion queue.

use std::collections::VecDeque;

use railweave_fabric::conformance::Completion;
use railweave_fabric::{LaneId, WorkId};

use super::flight::{CutOff, Flight};
use super::link::{Outages, Pace, Span};
use crate::observer::Place;

#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// The number of work requests that still take up room in the send queue.
    pub(crate) outstanding: u32,
    /// The number of these that are unsignalled and come after the last signalled one.
    pub(crate) unsignalled: u32,
    pub(crate) flights: VecDeque<Flight>,
    /// The number of flights that have reached the other end but not landed.
    pub(crate) arrived: u32,
    /// True while the first flight cannot land: there is no receive for it, or only a part of it has landed so far.
    pub(crate) held: bool,
    pub(crate) last_arrival_ns: u64,
    /// The writes that have landed but are not acknowledged: the id of each, and true if it is signalled.
    pub(crate) unacknowledged: VecDeque<(WorkId, bool)>,
    pub(crate) last_ack_ns: u64,
    /// The number of landed writes whose acknowledgements the receiver has put off.
    pub(crate) put_off: u32,
    /// The time since which the oldest of these is put off.
    pub(crate) put_off_since_ns: u64,
    /// The number of acknowledged unsignalled writes, whose room becomes free with the next signalled one.
    pub(crate) acked_unsignalled: u32,
    /// True once the peer has acknowledged a write.
    pub(crate) is_answered: bool,
    /// The time since which the peer's host has acknowledged nothing of what it would have, had nothing been lost.
    pub(crate) silent_since_ns: Option<u64>,
    /// True once a write was lost; no later write lands.
    pub(crate) lost: bool,
    pub(crate) dead: bool,
    /// True once the peer has closed its socket while nothing was outstanding: work that is posted later fails.
    pub(crate) closed: bool,
    /// The time at which it died.
    pub(crate) died_ns: u64,
    /// True once it was destroyed: nothing is placed any more.
    pub(crate) destroyed: bool,
    /// The number of writes that were lost, or wait behind one that was; they are sent again.
    pub(crate) lost_writes: u32,
    /// The number of acknowledgements that were lost.
    pub(crate) lost_acks: u32,
    /// True while a retry is scheduled.
    pub(crate) retries: bool,
    /// The time at which its retries end; 0 if there are none.
    pub(crate) retries_end_ns: u64,
    pub(crate) withheld_until_ns: u64,
    /// The number of this lane's own receives that are left, as if it had no shared receive queue.
    pub(crate) receives: u32,
    /// The number of receives that this lane has taken and whose completions were not polled yet.
    pub(crate) unreported_receives: u32,
}

impl Lane {
    /// Delivers the writes that were lost, which have been sent again.
    pub(crate) fn deliver_lost(&mut self) {
        self.arrived += std::mem::take(&mut self.lost_writes);
        if self.lost_acks == 0 && !self.lost {
            self.silent_since_ns = None;
        }
    }

    /// Notes that something of it, or an acknowledgement, is lost.
    pub(crate) fn fall_silent(&mut self, now_ns: u64) {
        self.silent_since_ns.get_or_insert(now_ns);
    }

    /// Ends the lane: its work is gone.
    pub(crate) fn end(&mut self, now_ns: u64) {
        if !std::mem::replace(&mut self.dead, true) {
            self.died_ns = now_ns;
        }
        self.flights.clear();
        self.unacknowledged.clear();
        // Nobody waits for its acknowledgements any more.
        (self.arrived, self.held, self.put_off, self.silent_since_ns) = (0, false, 0, None);
    }
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) completion: Completion,
    pub(crate) visible_at_ns: u64,
    pub(crate) lane: LaneId,
    /// The number of work requests whose room it frees.
    pub(crate) retires: u32,
    /// True if it reports a consumed receive.
    pub(crate) receive: bool,
    /// True if no sender sent it.
    pub(crate) forged: bool,
}

#[derive(Debug)]
pub(crate) struct End {
    pub(crate) process: usize,
    pub(crate) port: usize,
    pub(crate) one_sided: bool,
    /// The connection's number; it, `sender` and `rail` are those of the end's [`Place`].
    pub(crate) connection: usize,
    pub(crate) sender: bool,
    pub(crate) rail: u8,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) peer: Option<usize>,
    pub(crate) send_depth: u32,
    pub(crate) receive_depth: u32,
    /// The maximum number of receives of each lane.
    pub(crate) lane_receives: u32,
    pub(crate) posted: u32,
    pub(crate) unreported_receives: u32,
    /// True once a forged immediate has taken a receive that was meant for another immediate.
    pub(crate) robbed: bool,
    pub(crate) completions: VecDeque<Entry>,
    pub(crate) last_visible_ns: u64,
    pub(crate) flushes: u32,
    pub(crate) lingering: bool,
    pub(crate) pace: Pace,
    pub(crate) outages: Outages,
    /// Writes of the peer's that were cut off, in the sockets of a two-sided fabric.
    pub(crate) unread: Vec<CutOff>,
    pub(crate) lag_ns: u64,
    pub(crate) wire_free_ns: u64,
    /// The time from which nothing that leaves it gets through; `u64::MAX` while everything does.
    pub(crate) cut_from_ns: u64,
    /// The time of the last poll, and true if it came just before a completion.
    pub(crate) polled_ns: u64,
    pub(crate) is_blind: bool,
    /// True while calls that only send acknowledgements send none.
    pub(crate) refuses: bool,
    /// The time in which they sent none, last.
    pub(crate) refusal: Span,
}

impl End {
    pub(crate) fn place(&self, lane: LaneId) -> Place {
        Place { connection: self.connection, sender: self.sender, rail: self.rail, lane }
    }

    /// Posts receives, and gives each lane as many as it may need, because any lane may bring any of the immediates.
    pub(crate) fn add_receives(&mut self, count: u32) {
        self.posted += count;
        let wanted = (self.posted + self.unreported_receives).min(self.lane_receives);
        for lane in &mut self.lanes {
            lane.receives = lane.receives.max(wanted.saturating_sub(lane.unreported_receives));
        }
    }

    /// Returns true if there is a receive for a lane's next immediate.
    pub(crate) fn has_receive(&self, lane: LaneId) -> bool {
        self.posted > 0 && self.lanes[lane.index()].receives > 0
    }

    /// Takes a receive for an immediate.
    pub(crate) fn take_receive(&mut self, lane: LaneId) {
        self.posted -= 1;
        self.unreported_receives += 1;
        let lane = &mut self.lanes[lane.index()];
        lane.receives = lane.receives.saturating_sub(1);
        lane.unreported_receives += 1;
    }

    /// Returns the capacity of the completion queue: enough for all signalled work, all receives, the lanes' failures
    /// and 64 flushes.
    pub(crate) fn completion_depth(&self) -> usize {
        self.lanes.len() * (self.send_depth as usize + 1) + self.receive_depth as usize + 64
    }
}
