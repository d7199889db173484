//! Outages: times at which writes or acknowledgements are lost, and lanes that send again what was lost.

use railweave_fabric::LaneId;

use super::link::Span;
use super::queue::Due;
use super::state::State;
use crate::observer::{Event, Mishap, Observer, Outage};

/// A lane sends again this many times before its retries may end.
const RETRIES: u64 = 8;

/// The longest time from the post that an outage is drawn for to its beginning.
const BEGINS_WITHIN_NS: u64 = 10_000;

impl<O: Observer> State<O> {
    /// Draws the beginning of an outage for a write that this end has posted.
    pub(super) fn may_begin_outage(&mut self, id: usize) {
        if !self.weather.permille(self.faults.outage_permille) {
            return;
        }
        let Some((port, peer)) = self.ends[id].as_ref().and_then(|end| Some((end.port, end.peer?))) else { return };
        let is_port = self.weather.permille(150);
        let mut rails = vec![(id, peer)];
        if is_port {
            let at_port = |end: &usize| self.ends[*end].as_ref().is_some_and(|end| end.port == port);
            let peer = |end: usize| Some((end, self.ends[end].as_ref()?.peer?));
            rails = (0..self.ends.len()).filter(at_port).filter_map(peer).collect();
        }
        let now_ns = self.now_ns;
        let calm = |end: usize| self.ends[end].as_ref().is_none_or(|end| end.outages.calm_from_ns <= now_ns);
        if !rails.iter().all(|(end, peer)| calm(*end) && calm(*peer)) {
            return;
        }
        let from_ns = now_ns + self.weather.below(BEGINS_WITHIN_NS);
        let is_long = self.weather.permille(self.faults.long_outage_permille);
        let retry_ns = self.faults.retry_ns;
        let until_ns = match is_long {
            true if self.weather.permille(500) => u64::MAX,
            true => from_ns + self.weather.between(retry_ns, 4 * retry_ns),
            false => from_ns + 1 + self.weather.below(self.faults.outage_ns),
        };
        // Writes and acknowledgements of this end, and those of its peer.
        let lost = match (is_port, self.weather.below(5)) {
            (true, _) | (_, 0) => [true; 4],
            // The adapter loses writes only, or acknowledgements only.
            (_, 1) => [true, false, false, false],
            (_, 2) => [false, true, false, false],
            // One direction of the cable: this end's writes, and its acknowledgements of the peer's.
            (_, 3) => [true, false, false, true],
            _ => [false, true, true, false],
        };
        for (end, peer) in rails {
            let outage = |writes, acknowledgements| Outage { writes, acknowledgements, from_ns, until_ns, is_long };
            self.begin_outage(end, outage(lost[0], lost[1]));
            self.begin_outage(peer, outage(lost[2], lost[3]));
        }
    }

    /// Begins an outage at one end. Lanes whose retries end within it fail.
    pub fn begin_outage(&mut self, id: usize, outage: Outage) {
        let retry_ns = self.faults.retry_ns;
        let Some(end) = self.ends[id].as_mut() else { return };
        let span = Span { from_ns: outage.from_ns, until_ns: outage.until_ns };
        if outage.writes {
            end.outages.writes = span;
        }
        if outage.acknowledgements {
            end.outages.acknowledgements = span;
        }
        end.outages.is_both = outage.writes && outage.acknowledgements;
        end.outages.calm_from_ns = outage.until_ns.saturating_add(2 * retry_ns);
        let place = end.place(LaneId::FIRST);
        if outage.writes || outage.acknowledgements {
            self.see(place, &Event::Outage(outage));
        }
    }

    /// Handles a write of this lane that was lost: it waits to be sent again, and so do those behind it.
    pub(super) fn lose_write(&mut self, id: usize, lane: LaneId) {
        let now_ns = self.now_ns;
        let Some(end) = self.ends[id].as_mut() else { return };
        end.lanes[lane.index()].lost_writes += 1;
        end.lanes[lane.index()].fall_silent(now_ns);
        let is_both = end.outages.is_both;
        self.suffer(if is_both { Mishap::LostInOutage } else { Mishap::WriteLostOneWay });
        self.retry(id, lane);
    }

    /// Handles a lost acknowledgement: a later one, or one of the retries, brings it.
    pub(super) fn lose_ack(&mut self, id: usize, lane: LaneId) {
        let now_ns = self.now_ns;
        let Some(end) = self.ends[id].as_mut() else { return };
        end.lanes[lane.index()].lost_acks += 1;
        end.lanes[lane.index()].fall_silent(now_ns);
        let is_both = end.outages.is_both;
        self.suffer(if is_both { Mishap::LostInOutage } else { Mishap::AckLostOneWay });
        self.retry(id, lane);
    }

    /// Schedules the lane's next retry. The first one decides when the retries end.
    pub(super) fn retry(&mut self, id: usize, lane: LaneId) {
        let (now_ns, retry_ns) = (self.now_ns, self.faults.retry_ns);
        let more_ns = self.weather.below(retry_ns + 1);
        let Some(end) = self.ends[id].as_mut() else { return };
        let state = &mut end.lanes[lane.index()];
        if state.retries_end_ns == 0 {
            state.retries_end_ns = now_ns + retry_ns + more_ns;
        }
        let at_ns = (now_ns + retry_ns / RETRIES).clamp(now_ns + 1, state.retries_end_ns.max(now_ns + 1));
        if !std::mem::replace(&mut state.retries, true) {
            self.schedule(at_ns, Due::Retry { end: id, lane });
        }
    }
}
