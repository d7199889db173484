//! The path of writes from an end to its peer: the things that get through, and are answered.

use railweave_fabric::LaneId;

use super::state::State;
use crate::observer::Observer;

impl<O: Observer> State<O> {
    /// Returns true if the other end of a lane exists and is not dead.
    pub(super) fn is_answered(&self, id: usize, lane: LaneId) -> bool {
        let peer = self.ends[id].as_ref().and_then(|end| self.ends[end.peer?].as_ref());
        peer.is_some_and(|peer| !peer.lanes[lane.index()].dead)
    }

    /// Returns the time before which writes must have left an end to get through to its peer; `u64::MAX` if nothing is
    /// cut, 0 if the peer's port is dead.
    pub(super) fn cut_from_ns(&self, id: usize) -> u64 {
        let Some(end) = self.ends[id].as_ref() else { return 0 };
        let peer = end.peer.and_then(|peer| self.ends[peer].as_ref());
        let there_ns = peer.map_or(u64::MAX, |peer| match self.ports[peer.port].dead_from_ns <= self.now_ns {
            true => 0,
            false => peer.cut_from_ns,
        });
        end.cut_from_ns.min(self.ports[end.port].dead_from_ns).min(there_ns)
    }

    /// Returns true if a write that has left an end at this time gets through to the peer's port.
    pub(super) fn carries(&self, id: usize, left_ns: u64) -> bool {
        left_ns < self.cut_from_ns(id)
    }

    /// Returns true if a write that leaves now gets through, and is answered.
    pub(super) fn reaches(&self, id: usize, lane: LaneId) -> bool {
        self.carries(id, self.now_ns) && self.is_answered(id, lane)
    }
}
