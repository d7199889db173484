//! Writes that reach the other end: they land, are held back, refused or lost, and are acknowledged.

use railweave_fabric::conformance::Completion;
use railweave_fabric::{Access, LaneId, MemoryKind, WorkStatus};

use super::flight::Flight;
use super::link::Span;
use super::queue::Due;
use super::state::State;
use crate::observer::{Breach, Event, Landing, Mishap, Observer, Place};

/// The time after which an acknowledgement that was put off is late.
const LONG_NS: u64 = 1_000_000;

/// The way of a write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    /// The lane that posted it.
    pub(super) place: Place,
    /// The port that it left through.
    pub(super) port: usize,
    /// The end that it goes to.
    pub(super) to: usize,
}

/// The fate of a flight.
pub(super) enum Landed {
    /// It has landed.
    Whole,
    /// Only its first part has landed.
    Torn,
    /// There is no receive for its immediate.
    NoReceive,
    /// It must not land, for this reason.
    Refused(&'static str),
    /// It cannot be read any more where it comes from.
    SourceGone,
}

impl<O: Observer> State<O> {
    pub(super) fn handle_arrival(&mut self, id: usize, lane: LaneId) {
        let Some(end) = self.ends[id].as_mut() else { return };
        let one_sided = end.one_sided;
        let state = &mut end.lanes[lane.index()];
        if state.dead || state.lost {
            return;
        }
        let next = (state.arrived + state.lost_writes) as usize;
        let left_ns = state.flights.get(next).map_or(0, |flight| flight.left_ns);
        // Writes that were lost before must get through again, and only now.
        let left_ns = if state.lost_writes > 0 { self.now_ns } else { left_ns };
        if !self.carries(id, left_ns) || !self.is_answered(id, lane) {
            return self.lose(id, lane);
        }
        let now_ns = self.now_ns;
        let Some(end) = self.ends[id].as_mut() else { return };
        if end.outages.stop_writes(now_ns) {
            return self.lose_write(id, lane);
        }
        let state = &mut end.lanes[lane.index()];
        state.arrived += 1;
        // A write behind a lost one shows the peer that one is missing, and it asks for it at once.
        state.deliver_lost();
        if one_sided {
            self.land_arrived(id, lane);
        }
    }

    /// Loses all further writes of a lane; after its retries the lane fails.
    pub(super) fn lose(&mut self, id: usize, lane: LaneId) {
        let (now_ns, retry_ns) = (self.now_ns, self.faults.retry_ns);
        let mut at_ns = now_ns + retry_ns + self.chance.below(retry_ns + 1);
        let Some(end) = self.ends[id].as_mut() else { return };
        let state = &mut end.lanes[lane.index()];
        if std::mem::replace(&mut state.lost, true) {
            return;
        }
        state.fall_silent(now_ns);
        if state.is_answered {
            at_ns += self.faults.patience_ns;
        }
        let place = end.place(lane);
        self.see(place, &Event::Lost { fails_at_ns: at_ns });
        self.schedule(at_ns, Due::GiveUp { end: id, lane });
    }

    /// Lands the writes that have arrived on a lane, until one cannot land.
    pub(super) fn land_arrived(&mut self, id: usize, lane: LaneId) {
        let Some(end) = self.ends[id].as_ref() else { return };
        let state = &end.lanes[lane.index()];
        if state.dead || state.lost || state.held || state.arrived == 0 {
            return;
        }
        let (one_sided, Some(to)) = (end.one_sided, end.peer) else { return };
        let route = Route { place: end.place(lane), port: end.port, to };
        if !self.is_answered(id, lane) {
            return self.lose(id, lane);
        }
        loop {
            let Some(state) = self.ends[id].as_mut().map(|end| &mut end.lanes[lane.index()]) else { return };
            if state.arrived == 0 {
                return;
            }
            let Some(mut flight) = state.flights.pop_front() else { return };
            let landed = self.land(route, &mut flight);
            let Some(state) = self.ends[id].as_mut().map(|end| &mut end.lanes[lane.index()]) else { return };
            match landed {
                Landed::Whole => {
                    state.arrived -= 1;
                    let (work, signalled) = (flight.write.id, flight.write.signalled);
                    state.unacknowledged.push_back((work, signalled));
                    if one_sided || !self.faults.acks_put_off {
                        self.schedule_ack(id, lane);
                    } else {
                        if state.put_off == 0 {
                            state.put_off_since_ns = self.now_ns;
                        }
                        state.put_off += 1;
                    }
                }
                Landed::Torn => {
                    state.held = true;
                    state.flights.push_front(flight);
                    let rest_ns = self.now_ns + self.chance.between(1, 3_000);
                    self.schedule(rest_ns, Due::Rest { end: id, lane });
                    return;
                }
                Landed::NoReceive => {
                    state.held = true;
                    state.flights.push_front(flight);
                    self.handle_no_receive(id, lane);
                    return;
                }
                // The bytes left the device before it failed, or did not.
                Landed::Refused(_) | Landed::SourceGone if self.ports[route.port].is_gone => {
                    state.flights.push_front(flight);
                    return self.lose(id, lane);
                }
                // An adapter names the write that is refused.
                Landed::Refused(why) => {
                    state.flights.push_front(flight);
                    return self.refuse_both(id, lane, WorkStatus::RemoteAccess, why);
                }
                Landed::SourceGone => {
                    state.flights.push_front(flight);
                    let why = "its source was deregistered while it was in flight";
                    return self.refuse_both(id, lane, WorkStatus::LocalProtection, why);
                }
            }
        }
    }

    /// Fails a lane with this status because of a write that must not land. Over sockets the other end fails too.
    fn refuse_both(&mut self, id: usize, lane: LaneId, status: WorkStatus, why: &str) {
        let peer = self.ends[id].as_ref().and_then(|end| end.peer.filter(|_| !end.one_sided));
        self.refuse(id, lane, status, why);
        if let Some(peer) = peer {
            self.refuse(peer, lane, WorkStatus::RemoteAccess, why);
        }
    }

    /// Handles an immediate for which there is no receive. This is the receiver's mistake, unless a forged immediate
    /// took the receive: then the lane retries, like a queue pair after an RNR NAK, until the receiver has noticed.
    fn handle_no_receive(&mut self, id: usize, lane: LaneId) {
        let Some(end) = self.ends[id].as_ref() else { return };
        let place = end.place(lane);
        if end.peer.and_then(|peer| self.ends[peer].as_ref()).is_some_and(|peer| peer.robbed) {
            let again_ns = self.now_ns + self.chance.between(1, 3_000);
            self.schedule(again_ns, Due::Rest { end: id, lane });
            return;
        }
        self.breach(place, Breach::NoReceive);
    }

    fn schedule_ack(&mut self, id: usize, lane: LaneId) {
        let port = self.ends[id].as_ref().map_or(0, |end| end.port);
        let mut ack_ns = self.now_ns
            + match &self.ports[port].line {
                Some(line) => line.wire.ack_delay_ns,
                None => self.faults.delay_ns + self.chance.below(self.faults.jitter_ns + 1),
            };
        if self.weather.permille(self.faults.ack_stall_permille) {
            self.suffer(Mishap::AckStalled);
            ack_ns += self.weather.below(self.faults.ack_stall_ns + 1);
        }
        let again_ns = self.faults.ack_lost_ns;
        let is_lost = self.weather.permille(self.faults.ack_lost_permille);
        if is_lost {
            ack_ns += self.weather.between(again_ns / 2, again_ns);
        }
        let Some(end) = self.ends[id].as_mut() else { return };
        let state = &mut end.lanes[lane.index()];
        state.last_ack_ns = ack_ns.max(state.last_ack_ns);
        let at_ns = state.last_ack_ns;
        if is_lost {
            let place = end.place(lane);
            self.see(place, &Event::AckLost { again_at_ns: at_ns });
            self.schedule(at_ns, Due::SecondAck { end: id, lane });
        } else {
            self.schedule(at_ns, Due::Ack { end: id, lane });
        }
    }

    /// Sends the acknowledgements that this end has put off. Always returns true, because all are sent.
    pub(crate) fn acknowledge(&mut self, id: usize) -> bool {
        let Some(peer) = self.ends[id].as_ref().filter(|end| !end.one_sided).and_then(|end| end.peer) else {
            return true;
        };
        let lanes = self.ends[peer].as_ref().map_or(0, |end| end.lanes.len());
        for lane in 0..lanes {
            let put_off = self.ends[peer].as_mut().map_or(0, |end| std::mem::take(&mut end.lanes[lane].put_off));
            if put_off > 0 {
                self.suffer(Mishap::AckPutOff);
            }
            (0..put_off).for_each(|_| self.schedule_ack(peer, LaneId::at(lane)));
        }
        true
    }

    /// Returns true if this end has put acknowledgements off.
    pub(crate) fn owes(&self, id: usize) -> bool {
        let peer = self.ends[id].as_ref().filter(|end| !end.one_sided).and_then(|end| end.peer);
        let peer = peer.and_then(|peer| self.ends[peer].as_ref());
        peer.is_some_and(|peer| peer.lanes.iter().any(|lane| lane.put_off > 0))
    }

    /// Returns the time since which this end has put its oldest acknowledgement off; the present if it owes none.
    fn owes_since(&self, id: usize) -> u64 {
        let peer = self.ends[id].as_ref().and_then(|end| self.ends[end.peer?].as_ref());
        let lanes = peer.into_iter().flat_map(|peer| &peer.lanes).filter(|lane| lane.put_off > 0);
        lanes.map(|lane| lane.put_off_since_ns).min().unwrap_or(self.now_ns)
    }

    /// Sends the acknowledgements that were put off, without a write to carry them; that may fail. Returns true if all
    /// are sent.
    pub(crate) fn acknowledge_alone(&mut self, id: usize) -> bool {
        if !self.owes(id) {
            return true;
        }
        let refused = self.chance.permille(self.faults.ack_refused_permille);
        let until_ns = self.now_ns + self.chance.below(self.faults.ack_refused_ns + 1);
        let now_ns = self.now_ns;
        let since_ns = self.owes_since(id);
        if let Some(end) = self.ends[id].as_mut() {
            if refused && !end.refuses {
                end.refusal = Span { from_ns: now_ns, until_ns };
            }
            // Once the time has passed, this call sends.
            end.refuses = if end.refuses { end.refusal.until_ns > now_ns } else { refused };
            if end.refuses {
                self.suffer(Mishap::AckRefused);
                if now_ns - since_ns > LONG_NS {
                    self.suffer(Mishap::AckRefusedLong);
                }
                return false;
            }
        }
        self.acknowledge(id)
    }

    /// Returns the time since which a connection's receiving end has put its oldest acknowledgement off; `None` if it
    /// owes none.
    pub fn owes_since_ns(&self, connection: usize) -> Option<u64> {
        let senders = self.ends.iter().flatten().filter(|end| end.connection == connection && end.sender);
        let lanes = senders.flat_map(|end| &end.lanes).filter(|lane| lane.put_off > 0);
        lanes.map(|lane| lane.put_off_since_ns).min()
    }

    /// Returns the time since `since_ns` for which a connection's receiving end sent none of what it put off, the
    /// sum over its rails.
    pub fn refused_ns(&self, connection: usize, since_ns: u64) -> u64 {
        let receivers = self.ends.iter().flatten().filter(|end| end.connection == connection && !end.sender);
        let refusals = receivers.map(|end| end.refusal);
        let overlap = |span: Span| span.until_ns.min(self.now_ns).saturating_sub(span.from_ns.max(since_ns));
        refusals.map(overlap).sum()
    }

    pub(super) fn handle_rest(&mut self, id: usize, lane: LaneId) {
        let Some(end) = self.ends[id].as_mut() else { return };
        end.lanes[lane.index()].held = false;
        // On a two-sided fabric, the receiver places the bytes in its next poll.
        if end.one_sided {
            self.land_arrived(id, lane);
        }
    }

    /// Lands a write, or a part of it, at the end that it goes to.
    pub(super) fn land(&mut self, route: Route, flight: &mut Flight) -> Landed {
        let Route { place, port: source_port, to: peer } = route;
        let lane = place.lane;
        let Some(to) = self.ends[peer].as_ref() else { return Landed::Refused("the receiver is gone") };
        if to.lingering && !to.one_sided {
            return Landed::Whole;
        }
        let write = flight.write;
        let mut length = u64::from(write.local.length);
        if write.immediate.is_some() && !to.has_receive(lane) {
            return Landed::NoReceive;
        }
        let target_port = to.port;
        let (mut control, mut start, mut kind) = (false, 0, MemoryKind::Host);
        if length > 0 {
            let (region, offset, access, of_kind) =
                match self.keys.target(target_port, write.remote.key, write.remote.address, length) {
                    Ok((target, offset)) => (target.region.clone(), offset, target.access, target.kind),
                    Err(why) => return Landed::Refused(why),
                };
            if !access.remote_write {
                return Landed::Refused("the memory may not be written");
            }
            (control, kind) = (access == Access::CONTROL, of_kind);
            // The address of control memory differs from run to run; the offset in it does not.
            start = if control { offset as u64 } else { write.remote.address };
            if region.is_none() {
                length = 0;
            }
            let mut bytes = std::mem::take(&mut self.scratch);
            bytes.resize(length as usize, 0);
            if region.is_some() && !self.load(flight, source_port, &mut bytes) {
                self.scratch = bytes;
                return Landed::SourceGone;
            }
            if !flight.torn && length > 64 && self.chance.permille(self.faults.torn_permille) {
                // Control memory is written in the order of addresses, other memory in any order.
                let cut = 64 * self.chance.between(1, (length - 1) / 64) as usize;
                let first = if control || self.chance.permille(500) { 0..cut } else { cut..length as usize };
                region.iter().for_each(|region| region.write(offset + first.start, &bytes[first.clone()]));
                flight.torn = true;
                let start = start + first.start as u64;
                let (part, port, number) = (&bytes[first], target_port, self.landed);
                self.see(
                    place,
                    &Event::Torn(Landing { write: &write, start, bytes: part, control, kind, port, number }),
                );
                self.scratch = bytes;
                return Landed::Torn;
            }
            region.iter().for_each(|region| region.write(offset, &bytes));
            self.scratch = bytes;
        }
        let scratch = std::mem::take(&mut self.scratch);
        let (bytes, port, number) = (&scratch[..length as usize], target_port, self.landed);
        self.see(place, &Event::Landed(Landing { write: &write, start, bytes, control, kind, port, number }));
        self.scratch = scratch;
        self.landed += 1;
        self.moved_ns = self.now_ns;
        self.woken = Some((place.connection, !place.sender));
        if let Some(immediate) = write.immediate {
            let bytes = if self.ports[target_port].byte_counts { write.local.length } else { 0 };
            if let Some(to) = self.ends[peer].as_mut() {
                to.take_receive(lane);
            }
            self.complete(peer, Completion::Received { lane, immediate, bytes }, lane, 0);
        }
        Landed::Whole
    }

    /// Loads the bytes that a write carries. Returns false if its source, at this port, is gone.
    fn load(&self, flight: &Flight, port: usize, bytes: &mut [u8]) -> bool {
        let local = flight.write.local;
        match &flight.bytes {
            Some(early) => bytes.copy_from_slice(early),
            None => match self.keys.source(port, local.key, local.address, u64::from(local.length)) {
                Ok((source, at)) => source.region.iter().for_each(|region| region.read(at, bytes)),
                Err(_) => return false,
            },
        }
        true
    }

    /// Handles the answer to a write that was sent again. Nobody answers if the peer's end is gone.
    pub(super) fn handle_second_ack(&mut self, id: usize, lane: LaneId) {
        let Some(end) = self.ends[id].as_ref().filter(|end| !end.lanes[lane.index()].dead) else { return };
        let place = end.place(lane);
        if self.reaches(id, lane) {
            return self.handle_ack(id, lane);
        }
        self.see(place, &Event::AckLost { again_at_ns: u64::MAX });
        self.lose(id, lane);
    }

    pub(super) fn handle_ack(&mut self, id: usize, lane: LaneId) {
        if !self.reaches_back(id) {
            return;
        }
        let Some(end) = self.ends[id].as_ref() else { return };
        if end.outages.stop_acknowledgements(self.now_ns) {
            return self.lose_ack(id, lane);
        }
        if end.lanes[lane.index()].lost_acks > 0 {
            // An acknowledgement counts for all writes before it.
            self.recover_acks(id, lane);
        }
        self.acknowledged(id, lane);
    }

    /// Brings the acknowledgements that were lost.
    pub(super) fn recover_acks(&mut self, id: usize, lane: LaneId) {
        let Some(end) = self.ends[id].as_mut() else { return };
        let state = &mut end.lanes[lane.index()];
        let lost = std::mem::take(&mut state.lost_acks);
        if state.lost_writes == 0 && !state.lost {
            state.silent_since_ns = None;
        }
        (0..lost).for_each(|_| self.acknowledged(id, lane));
    }

    /// Handles the acknowledgement of a lane's oldest write.
    fn acknowledged(&mut self, id: usize, lane: LaneId) {
        self.moved_ns = self.now_ns;
        let Some(end) = self.ends[id].as_mut() else { return };
        let state = &mut end.lanes[lane.index()];
        state.is_answered = true;
        let mut retires = 1;
        match state.unacknowledged.front() {
            None => return,
            Some((_, false)) => {
                // Its room becomes free with the next signalled one.
                state.unacknowledged.pop_front();
                state.acked_unsignalled += 1;
                return;
            }
            Some((_, true)) => retires += std::mem::take(&mut state.acked_unsignalled),
        }
        let Some((work, _)) = state.unacknowledged.pop_front() else { return };
        self.complete(id, Completion::Sent { id: work }, lane, retires);
    }

    /// Returns true if acknowledgements get back to this end; otherwise loses all further writes of its lanes.
    fn reaches_back(&mut self, id: usize) -> bool {
        let Some(end) = self.ends[id].as_ref() else { return false };
        let there = end.cut_from_ns.min(self.ports[end.port].dead_from_ns) > self.now_ns;
        if !there {
            let lanes = end.lanes.len();
            (0..lanes).for_each(|lane| self.lose(id, LaneId::at(lane)));
        }
        there
    }
}
