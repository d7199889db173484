//! Work that the data path posts to a rail.

use railweave_fabric::conformance::Completion;
use railweave_fabric::{LaneId, PostError, RemoteSlice, WorkId, WorkStatus, Write};

use super::flight::Flight;
use super::queue::Due;
use super::state::State;
use crate::observer::{Breach, Event, Mishap, Observer};

/// The time that a write takes on the wire in addition to that of its bytes, in nanoseconds.
const PER_WRITE_NS: u64 = 60;

impl<O: Observer> State<O> {
    pub(crate) fn send_room(&mut self, id: usize, lane: LaneId) -> u32 {
        let Some(end) = self.ends[id].as_ref() else { return 0 };
        let state = &end.lanes[lane.index()];
        let place = end.place(lane);
        let room = end.send_depth.saturating_sub(state.outstanding);
        let (now_ns, withheld) = (self.now_ns, state.withheld_until_ns);
        if withheld > now_ns {
            self.see(place, &Event::RoomWithheld);
            return 0;
        }
        if room == 0 {
            self.see(place, &Event::QueueFull);
        }
        room
    }

    pub(crate) fn is_broken(&self, id: usize, lane: LaneId) -> bool {
        self.ends[id].as_ref().is_none_or(|end| end.lanes.get(lane.index()).is_some_and(|lane| lane.dead))
    }

    pub(crate) fn post(&mut self, id: usize, lane: LaneId, chain: &[Write]) -> Result<(), PostError> {
        let posted = self.try_post(id, lane, chain);
        self.see_refusal(id, lane, &posted);
        posted
    }

    /// Tells of a post that was refused for another reason than a lack of room.
    fn see_refusal(&mut self, id: usize, lane: LaneId, posted: &Result<(), PostError>) {
        if let (Err(PostError::Broken | PostError::Invalid(_)), Some(end)) = (posted, self.ends[id].as_ref()) {
            let place = end.place(lane);
            self.see(place, &Event::Broke);
        }
    }

    fn try_post(&mut self, id: usize, lane: LaneId, chain: &[Write]) -> Result<(), PostError> {
        let Some(end) = self.ends[id].as_ref() else { return Err(PostError::Broken) };
        let Some(state) = end.lanes.get(lane.index()) else {
            return Err(PostError::Invalid(format!("the rail has {} lanes, and no lane {lane}", end.lanes.len())));
        };
        let (port, place) = (end.port, end.place(lane));
        if state.closed || state.dead {
            if state.closed {
                self.give_up(id, lane);
            }
            return Err(PostError::Broken);
        }
        let max_write = self.ports[port].max_write;
        for write in chain {
            let length = write.local.length;
            if length > max_write {
                return Err(PostError::Invalid(format!(
                    "a write of {length} bytes; this port carries at most {max_write}"
                )));
            }
            if length > 0
                && let Err(why) = self.keys.source(port, write.local.key, write.local.address, u64::from(length))
            {
                return Err(PostError::Invalid(format!("the source of a write of {length} bytes: {why}")));
            }
        }
        let withheld = state.withheld_until_ns > self.now_ns;
        let room = if withheld { 0 } else { end.send_depth.saturating_sub(state.outstanding) };
        if chain.len() > room as usize {
            self.breach(place, Breach::SendQueue { chain: chain.len(), room });
            return Err(PostError::Full);
        }
        self.see(place, &Event::Taken { chain });
        // Acknowledgements that were put off travel with posted writes.
        self.acknowledge(id);
        for write in chain {
            self.send(id, lane, write);
        }
        Ok(())
    }

    /// Puts one write on the wire.
    fn send(&mut self, id: usize, lane: LaneId, write: &Write) {
        let length = u64::from(write.local.length);
        let port = self.ends[id].as_ref().map_or(0, |end| end.port);
        let late = self.chance.permille(self.faults.late_read_permille);
        let bytes = if late || length == 0 {
            if length > 0 {
                self.suffer(Mishap::LateRead);
            }
            None
        } else {
            let source = self.keys.source(port, write.local.key, write.local.address, length).ok();
            source.and_then(|(source, offset)| source.bytes(offset, length))
        };
        if self.ports[port].line.is_some() {
            self.fly(id, lane, Flight { write: *write, bytes, left_ns: u64::MAX, torn: false }, u64::MAX);
            return self.wait_for_wire(port, id, lane, length);
        }
        let mut extra_ns = self.faults.delay_ns + self.chance.below(self.faults.jitter_ns + 1);
        if self.chance.permille(self.faults.stall_permille) {
            self.suffer(Mishap::Stall);
            extra_ns += self.chance.below(self.faults.stall_ns + 1);
        }
        let Some(end) = self.ends[id].as_ref() else { return };
        let start_ns = end.wire_free_ns.max(self.now_ns);
        let wire_free_ns = PER_WRITE_NS + self.wire_time(id, start_ns, length);
        let Some(end) = self.ends[id].as_mut() else { return };
        end.wire_free_ns = wire_free_ns;
        let state = &mut end.lanes[lane.index()];
        let arrival_ns = (end.wire_free_ns + extra_ns + end.lag_ns).max(state.last_arrival_ns);
        state.last_arrival_ns = arrival_ns;
        self.arrives_ns = self.arrives_ns.max(arrival_ns);
        self.fly(id, lane, Flight { write: *write, bytes, left_ns: wire_free_ns, torn: false }, arrival_ns);
        self.schedule(arrival_ns, Due::Arrive { end: id, lane });
        self.may_begin_outage(id);
    }

    /// Notes a write that is posted and arrives at this time.
    fn fly(&mut self, id: usize, lane: LaneId, flight: Flight, arrival_ns: u64) {
        let Some(end) = self.ends[id].as_mut() else { return };
        let (place, depth, write) = (end.place(lane), end.send_depth, flight.write);
        let state = &mut end.lanes[lane.index()];
        state.outstanding += 1;
        state.unsignalled = if write.signalled { 0 } else { state.unsignalled + 1 };
        let unsignalled = state.unsignalled;
        state.flights.push_back(flight);
        self.see(place, &Event::Posted { write: &write, arrival_ns });
        if unsignalled * 2 > depth {
            self.breach(place, Breach::Unsignalled { waiting: unsignalled, depth });
        }
    }

    pub(crate) fn post_receives(&mut self, id: usize, count: u32) -> Result<u32, PostError> {
        let Some(end) = self.ends[id].as_ref() else { return Err(PostError::Broken) };
        if end.lanes.iter().all(|lane| lane.dead) {
            return Err(PostError::Broken);
        }
        let place = end.place(LaneId::FIRST);
        if self.refuses_receives {
            self.see(place, &Event::ReceivesRefused);
            return Err(PostError::Full);
        }
        let Some(end) = self.ends[id].as_ref() else { return Err(PostError::Broken) };
        let room = end.receive_depth.saturating_sub(end.posted + end.unreported_receives);
        let mut taken = count.min(room);
        if taken > 0 && self.chance.permille(self.faults.receives_short_permille) {
            self.see(place, &Event::ReceivesRefused);
            if self.chance.permille(300) {
                return Err(PostError::Full);
            }
            taken = self.chance.below(u64::from(taken).min(6)) as u32;
        }
        if let Some(end) = self.ends[id].as_mut() {
            end.add_receives(taken);
        }
        self.see(place, &Event::Receives { asked: count, taken });
        if taken > 0 {
            self.release_held(id);
        }
        Ok(taken)
    }

    /// Releases immediates that were held back because there was no receive.
    fn release_held(&mut self, id: usize) {
        let Some((peer, one_sided)) = self.ends[id].as_ref().and_then(|end| Some((end.peer?, end.one_sided))) else {
            return;
        };
        let Some(sender) = self.ends[peer].as_mut() else { return };
        let mut held = Vec::new();
        for (number, lane) in sender.lanes.iter_mut().enumerate() {
            if lane.held && lane.flights.front().is_some_and(|flight| !flight.torn) {
                lane.held = false;
                held.push(LaneId::at(number));
            }
        }
        if one_sided {
            held.into_iter().for_each(|lane| self.land_arrived(peer, lane));
        }
    }

    pub(crate) fn post_flush(&mut self, id: usize, target: RemoteSlice, work: WorkId) -> Result<(), PostError> {
        let posted = self.try_flush(id, target, work);
        self.see_refusal(id, LaneId::FIRST, &posted);
        posted
    }

    fn try_flush(&mut self, id: usize, target: RemoteSlice, work: WorkId) -> Result<(), PostError> {
        let Some(end) = self.ends[id].as_ref() else { return Err(PostError::Broken) };
        let (port, place) = (end.port, end.place(LaneId::FIRST));
        // A flush stays inside this side's adapter, so a rail that is cut still flushes.
        if end.lanes.iter().all(|lane| lane.dead) {
            return Err(PostError::Broken);
        }
        match self.keys.target(port, target.key, target.address, 1) {
            Err(why) => return Err(PostError::Invalid(format!("the target of a flush: {why}"))),
            Ok((registered, _)) if !registered.access.remote_read => {
                return Err(PostError::Invalid("the target of a flush may not be read".into()));
            }
            Ok(_) => {}
        }
        if self.chance.permille(self.faults.flush_full_permille) {
            self.see(place, &Event::FlushRefused);
            return Err(PostError::Full);
        }
        self.see(place, &Event::Flush { id: work });
        if let Some(end) = self.ends[id].as_mut() {
            end.flushes += 1;
        }
        let retries_ns = if self.ports[port].loops_nothing { self.faults.retry_ns } else { 0 };
        let delay_ns = 500 + self.chance.below(self.faults.jitter_ns + 1) + retries_ns;
        let landed = self.landed;
        self.schedule(self.now_ns + delay_ns, Due::Flushed { end: id, id: work, landed });
        Ok(())
    }

    pub(super) fn handle_flushed(&mut self, id: usize, work: WorkId, landed: u64) {
        let Some(end) = self.ends[id].as_mut() else { return };
        end.flushes -= 1;
        let (port, place) = (end.port, end.place(LaneId::FIRST));
        if self.ports[port].is_gone {
            return;
        }
        if self.ports[port].loops_nothing {
            let lane = LaneId::FIRST;
            let error = self.work_failed(id, lane, WorkStatus::RetriesExceeded, "its loop-back");
            self.cut_off(id, lane);
            return self.fail_lane(id, lane, error);
        }
        self.see(place, &Event::Flushed { id: work, port, landed });
        self.complete(id, Completion::Sent { id: work }, LaneId::FIRST, 0);
    }
}
