//! Fences: the lanes of an end are put into error, and destroyed, before the end itself is dropped.

use railweave_fabric::{LaneId, WorkStatus};

use super::state::State;
use crate::observer::{Mishap, Observer};

impl<O: Observer> State<O> {
    /// Puts all lanes of an end into error, as its owner may do: each reports that its work was flushed. Writes that
    /// have left it may still land at the peer, and for a moment its adapter may still place bytes of the peer's.
    pub fn put_into_error(&mut self, id: usize) {
        self.end_lanes(id, WorkStatus::Flushed, "its lanes were put into error");
    }

    /// Destroys the lanes of an end: from this call on nothing lands at it. Its completion queue stays, and can still
    /// be polled. If `destroy_purges` is set, completions that no poll has reported vanish from it; returns their
    /// number.
    pub fn destroy_lanes(&mut self, id: usize) -> usize {
        let lanes = self.ends[id].as_ref().map_or(0, |end| end.lanes.len());
        (0..lanes).for_each(|lane| self.cut_off(id, LaneId::at(lane)));
        let (now_ns, purges) = (self.now_ns, self.faults.destroy_purges);
        let Some(end) = self.ends[id].as_mut() else { return 0 };
        for lane in &mut end.lanes {
            lane.end(now_ns);
            lane.destroyed = true;
        }
        end.unread.clear();
        let socket_of = end.peer.filter(|_| !end.one_sided);
        let purged = if purges { std::mem::take(&mut end.completions).len() } else { 0 };
        if purged > 0 {
            self.suffer(Mishap::CompletionsPurged);
        }
        if let Some(peer) = socket_of {
            self.notice_closed(peer);
        }
        purged
    }
}
