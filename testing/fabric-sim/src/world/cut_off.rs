//! Writes that the end of their lane has cut off: they leave the lane, and some are still in the network.

use railweave_fabric::LaneId;

use super::flight::{CutOff, Flight};
use super::queue::Due;
use super::state::State;
use crate::observer::Observer;

impl<O: Observer> State<O> {
    /// Takes the writes of a lane that ends. Some have left this end and land later: a network delivers them in order,
    /// and stops somewhere.
    pub(super) fn cut_off(&mut self, id: usize, lane: LaneId) {
        if self.faults.late_landing_ns == 0 {
            return;
        }
        let Some(end) = self.ends[id].as_mut() else { return };
        let (place, port) = (end.place(lane), end.port);
        let Some(to) = end.peer else { return };
        let state = &mut end.lanes[lane.index()];
        if state.dead || state.flights.is_empty() {
            return;
        }
        let mut flights = std::mem::take(&mut state.flights);
        let arrived = state.arrived as usize;
        let cut_from_ns = self.cut_from_ns(id);
        let lost = flights.iter().skip(arrived).position(|flight| flight.left_ns >= cut_from_ns);
        flights.truncate(lost.map_or(flights.len(), |lost| arrived + lost));
        let most = self.weather.between(0, flights.len() as u64) as usize;
        flights.truncate(most);
        let gone = flights.iter_mut().position(|flight| !self.read_source(flight, port));
        flights.truncate(gone.unwrap_or(flights.len()));
        if flights.is_empty() {
            return;
        }
        let at_once = self.weather.index(flights.len() + 1);
        let ends_in_part = self.weather.permille(700);
        let until_ns = self.now_ns + self.faults.late_landing_ns;
        let cut_off = Box::new(CutOff { place, to, flights, at_once, until_ns, ends_in_part });
        self.schedule_cut_off(cut_off);
    }

    /// Reads the bytes of a flight that has none yet. Returns false if its source, at this port, is gone.
    fn read_source(&self, flight: &mut Flight, port: usize) -> bool {
        let local = flight.write.local;
        if flight.bytes.is_some() || local.length == 0 {
            return true;
        }
        let Ok((source, at)) = self.keys.source(port, local.key, local.address, u64::from(local.length)) else {
            return false;
        };
        flight.bytes = source.bytes(at, u64::from(local.length));
        true
    }

    /// Schedules the landing of the next of these writes, if there is one.
    pub(super) fn schedule_cut_off(&mut self, mut cut_off: Box<CutOff>) {
        if cut_off.flights.is_empty() {
            return;
        }
        let at_ns = if cut_off.at_once > 0 {
            cut_off.at_once -= 1;
            self.now_ns
        } else {
            self.now_ns + 1 + self.weather.below(cut_off.until_ns.saturating_sub(self.now_ns))
        };
        self.schedule(at_ns, Due::CutOff(cut_off));
    }
}
