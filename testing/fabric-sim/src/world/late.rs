//! Retries after an outage, and writes that land after the end of their lane.

use railweave_fabric::LaneId;

use super::flight::CutOff;
use super::land::{Landed, Route};
use super::state::State;
use crate::observer::{Breach, Event, Landing, Mishap, Observer};

/// The time for which a lane in error may still place the bytes of a write that its adapter was working on.
const ERROR_PLACES_NS: u64 = 100_000;

impl<O: Observer> State<O> {
    /// Handles a retry of a lane that has lost something.
    pub(super) fn handle_retry(&mut self, id: usize, lane: LaneId) {
        let now_ns = self.now_ns;
        let Some(end) = self.ends[id].as_mut() else { return };
        let (outages, one_sided) = (end.outages, end.one_sided);
        let state = &mut end.lanes[lane.index()];
        state.retries = false;
        if state.dead || state.lost || state.retries_end_ns == 0 {
            return;
        }
        let has_acks = !outages.stop_acknowledgements(now_ns);
        if !outages.stop_writes(now_ns) {
            if !self.reaches(id, lane) {
                return self.lose(id, lane);
            }
            if let Some(end) = self.ends[id].as_mut() {
                end.lanes[lane.index()].deliver_lost();
            }
            if one_sided {
                self.land_arrived(id, lane);
            }
            if has_acks {
                self.recover_acks(id, lane);
            }
        }
        let Some(state) = self.ends[id].as_mut().map(|end| &mut end.lanes[lane.index()]) else { return };
        if state.dead || state.lost {
            return;
        }
        if state.lost_writes == 0 && state.lost_acks == 0 {
            state.retries_end_ns = 0;
            self.suffer(Mishap::Recovered);
        } else if now_ns >= state.retries_end_ns {
            self.suffer(Mishap::RetriesEnded);
            self.give_up(id, lane);
        } else {
            self.retry(id, lane);
        }
    }

    /// Handles the landing of the next write that was cut off. Whatever fences its target stops those behind it too.
    pub(super) fn handle_cut_off(&mut self, mut cut_off: Box<CutOff>) {
        let lane = cut_off.place.lane;
        let Some(to) = self.ends[cut_off.to].as_mut() else { return self.suffer(Mishap::Fenced) };
        let state = &to.lanes[lane.index()];
        let is_dead = state.dead;
        if self.ports[to.port].dead_from_ns <= self.now_ns {
            return;
        }
        if state.destroyed {
            return self.suffer(Mishap::Fenced);
        }
        if is_dead && (self.now_ns - state.died_ns > ERROR_PLACES_NS || self.weather.permille(500)) {
            return self.suffer(Mishap::Fenced);
        }
        if !to.one_sided && !is_dead {
            // The bytes are in the socket, and are placed by the receiver's polls.
            to.unread.push(*cut_off);
            return;
        }
        let is_last = cut_off.flights.len() == 1;
        if is_dead || (is_last && cut_off.ends_in_part) {
            self.place_part(&cut_off);
            cut_off.flights.pop_front();
            return self.schedule_cut_off(cut_off);
        }
        if self.land_cut_off(&mut cut_off) {
            self.schedule_cut_off(cut_off);
        }
    }

    /// Places the writes that were cut off and wait in the sockets of an end of a two-sided fabric.
    pub(super) fn land_unread(&mut self, id: usize) {
        let Some(end) = self.ends[id].as_mut() else { return };
        if end.unread.is_empty() {
            return;
        }
        for mut cut_off in std::mem::take(&mut end.unread) {
            let is_dead = self.ends[id].as_ref().is_none_or(|end| end.lanes[cut_off.place.lane.index()].dead);
            if is_dead {
                self.suffer(Mishap::Fenced);
            } else if cut_off.flights.len() == 1 && cut_off.ends_in_part {
                self.place_part(&cut_off);
            } else if self.land_cut_off(&mut cut_off) {
                self.schedule_cut_off(Box::new(cut_off));
            }
        }
    }

    /// Lands the first of these writes, or a part of it. Returns false if none behind it can land.
    fn land_cut_off(&mut self, cut_off: &mut CutOff) -> bool {
        let Some(mut flight) = cut_off.flights.pop_front() else { return false };
        let route = Route { place: cut_off.place, port: usize::MAX, to: cut_off.to };
        match self.land(route, &mut flight) {
            Landed::Whole => {
                self.suffer(Mishap::LandedLate);
                true
            }
            Landed::Torn => {
                cut_off.flights.push_front(flight);
                true
            }
            Landed::NoReceive => {
                if self.ends[cut_off.to].as_ref().is_some_and(|to| !to.robbed) {
                    self.breach(cut_off.place, Breach::NoReceive);
                }
                false
            }
            Landed::Refused(_) | Landed::SourceGone => {
                self.suffer(Mishap::Fenced);
                false
            }
        }
    }

    /// Places a part of the first of these writes, or all of its bytes without its completion.
    fn place_part(&mut self, cut_off: &CutOff) {
        let Some(flight) = cut_off.flights.front() else { return };
        let (write, number) = (flight.write, self.landed);
        let (Some(bytes), Some(to)) = (&flight.bytes, self.ends[cut_off.to].as_ref()) else { return };
        let port = to.port;
        let length = u64::from(write.local.length);
        let Ok((target, offset)) = self.keys.target(port, write.remote.key, write.remote.address, length) else {
            return self.suffer(Mishap::Fenced);
        };
        if !target.access.remote_write {
            return;
        }
        let (region, kind) = (target.region.clone(), target.kind);
        let control = target.access == railweave_fabric::Access::CONTROL;
        let all = self.weather.permille(500) || length <= 64;
        let part = if all { length } else { 64 * self.weather.between(1, (length - 1) / 64) } as usize;
        region.iter().for_each(|region| region.write(offset, &bytes[..part]));
        let start = if control { offset as u64 } else { write.remote.address };
        let landing = Landing { write: &write, start, bytes: &bytes[..part], control, kind, port, number };
        self.see(cut_off.place, &Event::Torn(landing));
        self.suffer(Mishap::PlacedInPart);
    }
}
