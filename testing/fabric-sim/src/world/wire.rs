//! Wires: the rate of a port, which the ends of all its rails share, and which may change at any moment.

use railweave_fabric::LaneId;

use super::line::{Line, Waiting, Wire};
use super::queue::Due;
use super::state::State;
use crate::observer::Observer;

impl<O: Observer> State<O> {
    /// Gives a port a wire, or changes the one that it has, also under the writes that are on it. The wire is that of
    /// the writes that leave the port.
    ///
    /// # Panics
    /// If the rate is 0, or an end of the port has posted writes that have not landed and the port has no wire yet.
    pub fn set_wire(&mut self, port: usize, wire: Wire) {
        assert!(wire.rate_kbps > 0, "a wire has a rate");
        let now_ns = self.now_ns;
        match &mut self.ports[port].line {
            Some(line) => line.change(now_ns, wire),
            None => {
                let mut ends = self.ends.iter().flatten().filter(|end| end.port == port);
                let is_quiet = ends.all(|end| end.lanes.iter().all(|lane| lane.flights.is_empty()));
                assert!(is_quiet, "port {port} has writes in flight");
                self.ports[port].line = Some(Box::new(Line::new(wire)));
            }
        }
        self.plan_wire(port);
    }

    /// Lets a write of an end wait for the wire of its port.
    pub(super) fn wait_for_wire(&mut self, port: usize, end: usize, lane: LaneId, bytes: u64) {
        let now_ns = self.now_ns;
        let Some(line) = self.ports[port].line.as_mut() else { return };
        if line.add(now_ns, end, lane, bytes) {
            self.plan_wire(port);
        }
    }

    fn plan_wire(&mut self, port: usize) {
        let Some(line) = self.ports[port].line.as_mut() else { return };
        line.plan += 1;
        let plan = line.plan;
        if let Some(at_ns) = line.next_ns() {
            self.schedule(at_ns, Due::Wire { port, plan });
        }
    }

    /// Handles the moment at which a write is through a port's wire, or a turn has ended.
    pub(super) fn handle_wire(&mut self, port: usize, plan: u64) {
        let now_ns = self.now_ns;
        let Some(line) = self.ports[port].line.as_mut().filter(|line| line.plan == plan) else { return };
        let (through, wire) = (line.finish(now_ns), line.wire);
        debug_assert!(line.is_idle() || line.at_ns == now_ns);
        self.plan_wire(port);
        let Some(Waiting { end: id, lane, .. }) = through else { return };
        let jitter_ns = self.weather.around(wire.jitter_ns);
        // The writes of a lane that has ended are gone.
        let Some(end) = self.ends[id].as_mut() else { return };
        let state = &mut end.lanes[lane.index()];
        let Some(flight) = state.flights.iter_mut().find(|flight| flight.left_ns == u64::MAX) else { return };
        flight.left_ns = now_ns;
        state.last_arrival_ns = (now_ns + wire.delay_ns + jitter_ns).max(state.last_arrival_ns);
        let at_ns = state.last_arrival_ns;
        self.schedule(at_ns, Due::Arrive { end: id, lane });
    }
}
