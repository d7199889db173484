//! Fences: the lanes of an end are put into error, and destroyed, before the end itself is dropped.

use railweave_fabric::conformance::Completion;
use railweave_fabric::{LaneId, RemoteSlice, Reports, WorkId, WorkStatus};

use super::state::State;
use crate::observer::{Event, Mishap, Observer};

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

    /// Ends a rail at one end: [`railweave_fabric::Rail::end`].
    pub(crate) fn end_rail(&mut self, id: usize, flushes: &[RemoteSlice], reports: &mut impl Reports) -> bool {
        let Some(end) = self.ends[id].as_ref() else { return false };
        let (lanes, peer) = (end.lanes.len(), end.peer.filter(|_| !end.one_sided));
        if let Some(peer) = peer {
            // A socket places everything that has arrived before it is closed.
            self.acknowledge(id);
            self.land_unread(id);
            (0..lanes).for_each(|lane| self.land_arrived(peer, LaneId::at(lane)));
        }
        let now_ns = self.now_ns;
        for lane in 0..lanes {
            self.cut_off(id, LaneId::at(lane));
            if let Some(end) = self.ends[id].as_mut() {
                end.lanes[lane].end(now_ns);
            }
        }
        self.report_left(id, reports);
        self.destroy_lanes(id);
        self.report_left(id, reports);
        let Some(end) = self.ends[id].as_ref() else { return false };
        let (port, place) = (end.port, end.place(LaneId::FIRST));
        if flushes.is_empty() {
            return true;
        }
        if !flushes.iter().all(|target| self.can_flush(port, *target)) {
            return false;
        }
        let landed = self.landed;
        self.see(place, &Event::Flushed { id: WorkId(0), port, landed });
        true
    }

    /// Returns true if a port can read a byte of this place back.
    fn can_flush(&self, port: usize, target: RemoteSlice) -> bool {
        let found = self.keys.target(port, target.key, target.address, 1);
        let works = !self.ports[port].is_gone && !self.ports[port].loops_nothing;
        works && found.is_ok_and(|(registered, _)| registered.access.remote_read)
    }

    /// Reports everything in the completion queue of an end whose lanes end, but no failures.
    fn report_left(&mut self, id: usize, reports: &mut impl Reports) {
        while let Some(entry) = self.ends[id].as_mut().and_then(|end| end.completions.pop_front()) {
            let Some(place) = self.ends[id].as_ref().map(|end| end.place(entry.lane)) else { return };
            match &entry.completion {
                Completion::Sent { id } => self.see(place, &Event::Sent { id: *id }),
                Completion::Received { immediate, bytes, .. } => {
                    let (immediate, bytes) = (*immediate, *bytes);
                    self.see(place, &Event::Received { immediate, bytes, forged: entry.forged });
                }
                Completion::Failed { .. } => continue,
            }
            entry.completion.report(reports);
        }
    }
}
