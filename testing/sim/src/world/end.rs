//! One end of a rail: its lanes with their send queues, its pool of receives, its completion queue.

use std::collections::VecDeque;

use railweave_fabric::conformance::Completion;
use railweave_fabric::{
    LaneId, MAX_LANES, RailError, RailSpec, Reports, SetupError, SetupStep, WorkFailure, WorkId, WorkStatus, Write,
};

use super::{Event, State};
use crate::history::{Kind, Who};
use crate::{Checker, Seen};

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
    completion: Completion,
    visible_at_ns: u64,
    lane: LaneId,
    /// Work requests whose room it gives back.
    retires: u32,
    /// It is a consumed receive.
    receive: bool,
    /// No sender sent it.
    hostile: bool,
}

#[derive(Debug)]
pub(crate) struct End {
    pub(crate) process: usize,
    pub(crate) port: usize,
    pub(crate) one_sided: bool,
    /// Connection and rail, for history and checkers; none in a world without players.
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
    /// A hostile immediate took a receive, which is then missing for one that was promised it.
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

/// The connection of ends in a world without players.
pub(crate) const NOBODY: usize = usize::MAX;

impl End {
    pub(crate) fn who(&self, lane: LaneId) -> Who {
        Who::Rail { connection: self.connection, sender: self.sender, rail: self.rail, lane: lane.0 }
    }

    /// Posts receives, of which each lane gets what it may need: any of them may bring any of the immediates.
    pub(crate) fn add_receives(&mut self, count: u32) {
        self.posted += count;
        let wanted = (self.posted + self.unreported_receives).min(self.lane_receives);
        for lane in &mut self.lanes {
            lane.receives = lane.receives.max(wanted.saturating_sub(lane.unreported_receives));
        }
    }

    /// Whether a lane's next immediate finds a receive.
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
    fn completion_depth(&self) -> usize {
        self.lanes.len() * (self.send_depth as usize + 1) + self.receive_depth as usize + 64
    }
}

impl State {
    /// Creates an end with its queues.
    pub(crate) fn open_end(&mut self, port: usize, spec: &RailSpec, one_sided: bool) -> Result<usize, SetupError> {
        let (connection, sender, rail) = match &mut self.opening {
            None => (NOBODY, true, 0),
            Some(opening) => {
                let rail = opening.next_rail;
                opening.next_rail += 1;
                (opening.connection, opening.sender, rail)
            }
        };
        if self.chance.permille(self.faults.open_fails_permille) {
            self.saw(Seen::RailNotOpened);
            let what = SetupStep::QueuePair { sends: spec.send_depth, receives: spec.receive_depth };
            let error = (&std::io::Error::from(std::io::ErrorKind::OutOfMemory)).into();
            return Err(SetupError::Refused { port: format!("port {port}"), what, error });
        }
        let (low, high) = self.faults.rate_mbps;
        let end = End {
            process: self.ports[port].process,
            port,
            one_sided,
            connection,
            sender,
            rail,
            lanes: (0..spec.lanes).map(|_| Lane::default()).collect(),
            peer: None,
            send_depth: spec.send_depth,
            receive_depth: spec.receive_depth,
            lane_receives: spec.lane_receives,
            posted: 0,
            unreported_receives: 0,
            robbed: false,
            completions: VecDeque::new(),
            last_visible_ns: 0,
            flushes: 0,
            lingering: false,
            rate_mbps: self.chance.between(low, high),
            lag_ns: self.chance.below(self.faults.lag_ns + 1),
            wire_free_ns: 0,
            cut: false,
            refuses_until_ns: 0,
        };
        self.ends.push(Some(Box::new(end)));
        Ok(self.ends.len() - 1)
    }

    /// The end goes, with all that it has not sent.
    pub(crate) fn drop_end(&mut self, id: usize) {
        let Some(end) = self.ends[id].take() else { return };
        // A socket's other end is told; a queue pair's is not.
        let Some(peer) = end.peer.filter(|_| !end.one_sided) else { return };
        let delay_ns = self.faults.delay_ns;
        let lanes = self.ends[peer].as_ref().filter(|peer| !peer.lingering).map_or(0, |peer| peer.lanes.len());
        for lane in 0..lanes {
            self.schedule(self.now_ns + delay_ns, Event::GiveUp { end: peer, lane: LaneId::at(lane) });
        }
    }

    /// A completion is there; when it is seen is another matter.
    pub(super) fn complete(&mut self, id: usize, completion: Completion, lane: LaneId, retires: u32) {
        let faults = &self.faults;
        let mut visible_at_ns = self.now_ns + self.chance.below(faults.completion_late_ns + 1);
        if let Some(rest) = visible_at_ns.checked_rem(faults.completion_burst_ns) {
            visible_at_ns += faults.completion_burst_ns - rest;
        }
        if visible_at_ns > self.now_ns {
            self.saw(Seen::LateCompletion);
        }
        let end = self.ends[id].as_mut().expect("whoever completes is there");
        visible_at_ns = visible_at_ns.max(end.last_visible_ns);
        end.last_visible_ns = visible_at_ns;
        let receive = matches!(completion, Completion::Received { .. });
        end.completions.push_back(Entry { completion, visible_at_ns, lane, retires, receive, hostile: false });
        if end.completions.len() > end.completion_depth() {
            let message = format!("a completion queue of {} entries was overrun", end.completion_depth());
            self.watch.violate(self.now_ns, Checker::Queues, message);
        }
    }

    /// A lane dies. It says so once, and never while its end lingers.
    pub(crate) fn fail_lane(&mut self, id: usize, lane: LaneId, error: RailError) {
        let Some(end) = self.ends[id].as_mut() else { return };
        let state = &mut end.lanes[lane.index()];
        if state.dead {
            return;
        }
        state.dead = true;
        state.flights.clear();
        state.unacknowledged.clear();
        (state.arrived, state.held) = (0, false);
        if end.lingering {
            return;
        }
        let (who, now_ns) = (end.who(lane), self.now_ns);
        self.history.record(crate::history::Event { at_ns: now_ns, kind: Kind::Failed, who, numbers: [0; 4] });
        self.history.remark(&error.to_string());
        self.complete(id, Completion::Failed { lane, id: None, error: Box::new(error) }, lane, 0);
    }

    /// A lane dies because of what its own work asked for.
    pub(super) fn refuse(&mut self, id: usize, lane: LaneId, why: &str) {
        let error = self.work_failed(id, lane, WorkStatus::RemoteAccess, why);
        self.fail_lane(id, lane, error);
    }

    /// Work on a lane failed, as an adapter would say it; `why` stands with the path.
    pub(crate) fn work_failed(&self, id: usize, lane: LaneId, status: WorkStatus, why: &str) -> RailError {
        let number = |end: usize| (end * MAX_LANES + lane.index()) as u32;
        let end = self.ends[id].as_ref();
        let peer = end.and_then(|end| end.peer).map_or(0, number);
        let path = format!("port {} ({why})", end.map_or(usize::MAX, |end| end.port));
        RailError::Work(WorkFailure { status, code: status as i32, vendor: 0, number: number(id), peer, path })
    }

    pub(crate) fn poll_end(&mut self, id: usize, room: usize, reports: &mut impl Reports) -> usize {
        let faults = &self.faults;
        if self.chance.permille(faults.room_withheld_permille) {
            let until_ns = self.now_ns + self.chance.below(self.faults.room_withheld_ns + 1);
            if let Some(end) = self.ends[id].as_mut() {
                let lane = self.chance.index(end.lanes.len());
                end.lanes[lane].withheld_until_ns = until_ns;
            }
        }
        let Some(end) = self.ends[id].as_ref() else { return 0 };
        if !end.one_sided
            && let Some(peer) = end.peer
        {
            self.acknowledge(id);
            let Some(end) = self.ends[id].as_ref() else { return 0 };
            for lane in 0..end.lanes.len() {
                self.land_arrived(peer, LaneId::at(lane));
            }
        }
        let mut most = room;
        if most > 1 && self.chance.permille(self.faults.poll_short_permille) {
            most = 1;
        }
        let now_ns = self.now_ns;
        let mut count = 0;
        while count < most {
            let Some(end) = self.ends[id].as_mut() else { break };
            if end.completions.front().is_none_or(|entry| entry.visible_at_ns > now_ns) {
                break;
            }
            let Some(entry) = end.completions.pop_front() else { break };
            end.unreported_receives -= u32::from(entry.receive);
            let lane = &mut end.lanes[entry.lane.index()];
            lane.unreported_receives -= u32::from(entry.receive);
            lane.outstanding = lane.outstanding.saturating_sub(entry.retires);
            if end.lingering {
                continue;
            }
            if entry.hostile {
                self.watch.connections[end.connection].condemned = true;
            }
            let who = end.who(entry.lane);
            let (kind, numbers) = match &entry.completion {
                Completion::Sent { id } => (Kind::Sent, [id.0, 0, 0, 0]),
                Completion::Received { immediate, bytes, .. } => {
                    (Kind::Received, [u64::from(*immediate), u64::from(*bytes), 0, 0])
                }
                Completion::Failed { .. } => (Kind::Failed, [1, 0, 0, 0]),
            };
            self.record(kind, who, numbers);
            entry.completion.report(reports);
            count += 1;
        }
        if count == most && most < room {
            self.saw(Seen::ShortPoll);
        }
        count
    }

    /// An immediate that no sender sent reaches the receiver of a connection: for this slot, with a mask of its own rail
    /// or of none.
    pub(crate) fn inject(&mut self, connection: usize, slot: u8, own_mask: bool) {
        let is_receiver = |end: &End| end.connection == connection && !end.sender && !end.lanes[0].dead;
        let Some(id) = self.ends.iter().position(|end| end.as_deref().is_some_and(is_receiver)) else { return };
        let Some(end) = self.ends[id].as_mut() else { return };
        if end.posted == 0 || end.lingering {
            return;
        }
        end.robbed = true;
        end.take_receive(LaneId::FIRST);
        let mask = if own_mask { 1u32 << end.rail } else { 0 };
        self.saw(Seen::HostileImmediate);
        let lane = LaneId::FIRST;
        self.complete(id, Completion::Received { lane, immediate: u32::from(slot) | mask << 8, bytes: 0 }, lane, 0);
        if let Some(entry) = self.ends[id].as_mut().and_then(|end| end.completions.back_mut()) {
            entry.hostile = true;
        }
    }

    pub(crate) fn is_drained(&self, id: usize) -> bool {
        let Some(end) = self.ends[id].as_ref() else { return true };
        let own = end.flushes == 0
            && end.lanes.iter().all(|lane| lane.dead || (lane.flights.is_empty() && lane.unacknowledged.is_empty()));
        // Where this side's processor places what arrives, the peer waits for it.
        let theirs = end.one_sided
            || end
                .peer
                .and_then(|peer| self.ends[peer].as_ref())
                .is_none_or(|peer| peer.lanes.iter().all(|lane| lane.arrived == 0 && lane.put_off == 0));
        own && theirs
    }
}
