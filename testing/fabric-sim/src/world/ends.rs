//! Ends of rails: opening, completions, failures, dropping.

use std::collections::VecDeque;
use std::time::Duration;

use railweave_fabric::conformance::Completion;
use railweave_fabric::{
    ClosedAt, LaneId, MAX_LANES, RailError, RailSpec, SetupError, SetupStep, WorkFailure, WorkStatus,
};

use super::end::{End, Entry, Lane};
use super::link::{Outages, Pace, Span};
use super::queue::Due;
use super::state::State;
use crate::observer::{Breach, Event, Mishap, Observer, Place};

/// The connection's number for ends that were opened without one.
const UNNAMED: usize = usize::MAX;

impl<O: Observer> State<O> {
    /// Creates an end with its queues. Returns its number.
    pub(crate) fn open_end(&mut self, port: usize, spec: &RailSpec, one_sided: bool) -> Result<usize, SetupError> {
        let (connection, sender, rail) = match &mut self.opening {
            None => (UNNAMED, true, 0),
            Some(opening) => {
                let rail = opening.next_rail;
                opening.next_rail += 1;
                (opening.connection, opening.sender, rail)
            }
        };
        if self.ports[port].is_gone || self.chance.permille(self.faults.open_fails_permille) {
            self.see(Place { connection, sender, rail, lane: LaneId::FIRST }, &Event::NotOpened);
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
            pace: Pace::new(self.chance.between(low, high)),
            outages: Outages::default(),
            unread: Vec::new(),
            lag_ns: self.chance.below(self.faults.lag_ns + 1),
            wire_free_ns: 0,
            cut_from_ns: u64::MAX,
            polled_ns: 0,
            is_blind: false,
            refuses: false,
            refusal: Span::default(),
        };
        self.ends.push(Some(Box::new(end)));
        Ok(self.ends.len() - 1)
    }

    /// Drops an end, with all its unsent writes.
    pub(crate) fn drop_end(&mut self, id: usize) {
        let lanes = self.ends[id].as_ref().map_or(0, |end| end.lanes.len());
        (0..lanes).for_each(|lane| self.cut_off(id, LaneId::at(lane)));
        let Some(end) = self.ends[id].take() else { return };
        if !end.completions.is_empty() {
            self.suffer(Mishap::CompletionsDropped);
        }
        // The peer of a socket notices that the other end is gone; the peer of a queue pair does not.
        if let Some(peer) = end.peer.filter(|_| !end.one_sided) {
            self.notice_closed(peer);
        }
    }

    /// Lets an end notice soon that its peer's sockets are closed: in each, after the acknowledgements that were sent.
    pub(super) fn notice_closed(&mut self, id: usize) {
        let soon_ns = self.now_ns + self.faults.delay_ns;
        let Some(end) = self.ends[id].as_ref().filter(|end| !end.lingering) else { return };
        let times: Vec<u64> = end.lanes.iter().map(|lane| lane.last_ack_ns.max(soon_ns)).collect();
        for (lane, at_ns) in times.into_iter().enumerate() {
            self.schedule(at_ns, Due::GiveUp { end: id, lane: LaneId::at(lane) });
        }
    }

    /// Queues a completion, which becomes visible to polls at once or later.
    pub(super) fn complete(&mut self, id: usize, completion: Completion, lane: LaneId, retires: u32) {
        let faults = &self.faults;
        let mut visible_at_ns = self.now_ns + self.chance.below(faults.completion_late_ns + 1);
        if let Some(rest) = visible_at_ns.checked_rem(faults.completion_burst_ns) {
            visible_at_ns += faults.completion_burst_ns - rest;
        }
        if visible_at_ns > self.now_ns {
            self.suffer(Mishap::LateCompletion);
        }
        let end = self.ends[id].as_mut().expect("work completes only at an end that exists");
        if self.ports[end.port].is_gone {
            return;
        }
        self.woken = Some((end.connection, end.sender));
        visible_at_ns = visible_at_ns.max(end.last_visible_ns);
        end.last_visible_ns = visible_at_ns;
        let receive = matches!(completion, Completion::Received { .. });
        end.completions.push_back(Entry { completion, visible_at_ns, lane, retires, receive, forged: false });
        if end.completions.len() > end.completion_depth() {
            let (place, depth) = (end.place(lane), end.completion_depth());
            self.breach(place, Breach::CompletionQueue { depth });
        }
    }

    /// Kills a lane. The failure is reported once, and never while its end lingers.
    pub(super) fn fail_lane(&mut self, id: usize, lane: LaneId, error: RailError) {
        let Some(end) = self.ends[id].as_mut() else { return };
        let state = &mut end.lanes[lane.index()];
        if state.dead || self.ports[end.port].is_gone {
            return;
        }
        // An adapter names the work that failed first; a socket fails as a whole. The answer that refuses a write
        // acknowledges those before it.
        let is_refused = matches!(
            &error,
            RailError::Work(failure)
                if matches!(failure.status, WorkStatus::RemoteAccess | WorkStatus::LocalProtection)
        );
        let landed = state.unacknowledged.front().map(|(work, _)| *work).filter(|_| !is_refused);
        let work = landed.or(state.flights.front().map(|flight| flight.write.id)).filter(|_| end.one_sided);
        state.end(self.now_ns);
        if end.lingering {
            return;
        }
        let place = end.place(lane);
        self.see(place, &Event::Died { error: &error });
        self.complete(id, Completion::Failed { lane, id: work, error: Box::new(error) }, lane, 0);
    }

    /// Kills a lane that gets no answer. Its writes may still land.
    pub(super) fn give_up(&mut self, id: usize, lane: LaneId) {
        let Some(end) = self.ends[id].as_ref() else { return };
        let error = match end.peer.and_then(|peer| self.ends[peer].as_ref()) {
            _ if end.one_sided => self.work_failed(id, lane, WorkStatus::RetriesExceeded, "in the simulated world"),
            Some(_) => RailError::Silence(Duration::from_nanos(self.faults.retry_ns)),
            None => {
                let state = &end.lanes[lane.index()];
                let rest = state.flights.len() + state.unacknowledged.len();
                if rest == 0 && !state.closed {
                    return self.set_closed(id, lane);
                }
                RailError::PeerClosed(ClosedAt::Rest(rest as u64))
            }
        };
        self.cut_off(id, lane);
        self.fail_lane(id, lane, error);
    }

    /// Notes that the peer has closed a socket while nothing was outstanding.
    fn set_closed(&mut self, id: usize, lane: LaneId) {
        if let Some(end) = self.ends[id].as_mut() {
            end.lanes[lane.index()].closed = true;
        }
    }

    /// Kills a lane because its work was refused, and reports this status.
    pub(super) fn refuse(&mut self, id: usize, lane: LaneId, status: WorkStatus, why: &str) {
        let error = self.work_failed(id, lane, status, why);
        self.fail_lane(id, lane, error);
    }

    /// Returns the error of failed work on a lane, as an adapter would report it; `why` becomes part of the path.
    pub(super) fn work_failed(&self, id: usize, lane: LaneId, status: WorkStatus, why: &str) -> RailError {
        let number = |end: usize| (end * MAX_LANES + lane.index()) as u32;
        let end = self.ends[id].as_ref();
        let peer = end.and_then(|end| end.peer).map_or(0, number);
        let path = format!("port {} ({why})", end.map_or(usize::MAX, |end| end.port));
        RailError::Work(WorkFailure { status, code: status as i32, vendor: 0, number: number(id), peer, path })
    }

    pub(crate) fn is_drained(&self, id: usize) -> bool {
        let Some(end) = self.ends[id].as_ref() else { return true };
        let own = end.flushes == 0
            && end.lanes.iter().all(|lane| lane.dead || (lane.flights.is_empty() && lane.unacknowledged.is_empty()));
        // On a two-sided fabric, this side must also have placed and acknowledged the peer's writes.
        let theirs = end.one_sided
            || end
                .peer
                .and_then(|peer| self.ends[peer].as_ref())
                .is_none_or(|peer| peer.lanes.iter().all(|lane| lane.arrived == 0 && lane.put_off == 0));
        own && theirs
    }

    /// Kills all lanes of an end, and reports each.
    pub fn fail(&mut self, id: usize) {
        self.end_lanes(id, WorkStatus::Flushed, "the port went down");
    }

    /// Kills all lanes of an end, and reports each with this status; `why` becomes part of the path.
    pub(super) fn end_lanes(&mut self, id: usize, status: WorkStatus, why: &str) {
        let lanes = self.ends[id].as_ref().map_or(0, |end| end.lanes.len());
        for lane in (0..lanes).map(LaneId::at) {
            let error = self.work_failed(id, lane, status, why);
            self.cut_off(id, lane);
            self.fail_lane(id, lane, error);
        }
    }

    /// Kills a process: its memory, its rails and their unsent writes are gone.
    pub fn kill_process(&mut self, process: usize) {
        self.keys.remove_process(process);
        for end in 0..self.ends.len() {
            if self.ends[end].as_ref().is_some_and(|found| found.process == process) {
                self.drop_end(end);
            }
        }
    }
}
