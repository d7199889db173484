//! Polls, and immediates that no sender sent.

use railweave_fabric::conformance::Completion;
use railweave_fabric::{LaneId, Reports};

use super::end::End;
use super::state::State;
use crate::observer::{Event, Mishap, Observer};

/// The time that a call takes, for which the world's clock stands still: what happens in it is seen, or not yet.
const CALL_NS: u64 = 1_000;

impl<O: Observer> State<O> {
    pub(crate) fn poll_end(&mut self, id: usize, room: usize, reports: &mut impl Reports) -> usize {
        let faults = &self.faults;
        if self.chance.permille(faults.room_withheld_permille) {
            let until_ns = self.now_ns + self.chance.below(self.faults.room_withheld_ns + 1);
            if let Some(end) = self.ends[id].as_mut() {
                let lane = self.chance.index(end.lanes.len());
                end.lanes[lane].withheld_until_ns = until_ns;
            }
        }
        if self.is_blind(id) {
            return 0;
        }
        let Some(end) = self.ends[id].as_ref() else { return 0 };
        if !end.one_sided
            && let Some(peer) = end.peer
        {
            self.acknowledge(id);
            self.land_unread(id);
            let Some(end) = self.ends[id].as_ref() else { return 0 };
            for lane in 0..end.lanes.len() {
                self.land_arrived(peer, LaneId::at(lane));
            }
        }
        let mut most = room;
        if most > 1 && self.chance.permille(self.faults.poll_short_permille) {
            most = 1;
        }
        let now_ns = self.now_ns;
        let mut count = 0;
        while count < most {
            let Some(end) = self.ends[id].as_mut() else { break };
            if end.completions.front().is_none_or(|entry| entry.visible_at_ns > now_ns) {
                break;
            }
            let Some(entry) = end.completions.pop_front() else { break };
            end.unreported_receives -= u32::from(entry.receive);
            let lane = &mut end.lanes[entry.lane.index()];
            lane.unreported_receives -= u32::from(entry.receive);
            lane.outstanding = lane.outstanding.saturating_sub(entry.retires);
            if end.lingering {
                continue;
            }
            let place = end.place(entry.lane);
            let event = match &entry.completion {
                Completion::Sent { id } => Event::Sent { id: *id },
                Completion::Received { immediate, bytes, .. } => {
                    Event::Received { immediate: *immediate, bytes: *bytes, forged: entry.forged }
                }
                Completion::Failed { .. } => Event::Failed,
            };
            self.see(place, &event);
            entry.completion.report(reports);
            count += 1;
        }
        if count == most && most < room {
            self.suffer(Mishap::ShortPoll);
        }
        count
    }

    /// Returns true if this poll comes just before completions that have become visible during its call, so that it
    /// reports none. A second poll of the call finds them.
    fn is_blind(&mut self, id: usize) -> bool {
        let (now_ns, strikes) = (self.now_ns, self.weather.permille(self.faults.poll_blind_permille));
        let Some(end) = self.ends[id].as_mut().filter(|end| !end.lingering) else { return false };
        let is_new = |visible_at_ns: u64| {
            visible_at_ns > end.polled_ns && (now_ns.saturating_sub(CALL_NS)..=now_ns).contains(&visible_at_ns)
        };
        end.is_blind = strikes && end.completions.front().is_some_and(|entry| is_new(entry.visible_at_ns));
        end.polled_ns = now_ns;
        let is_blind = end.is_blind;
        if is_blind {
            self.suffer(Mishap::BlindPoll);
        }
        is_blind
    }

    /// Forges an immediate at the receiving end of a connection, over the first of `rails` (a mask) that is alive.
    /// `immediate` returns it for that rail's number. Returns false if there is no such rail, or if it lingers or has
    /// no receive left.
    pub fn forge(&mut self, connection: usize, rails: u8, immediate: impl FnOnce(u8) -> u32) -> bool {
        let is_receiver =
            |end: &End| end.connection == connection && !end.sender && !end.lanes[0].dead && rails & 1 << end.rail != 0;
        let Some(id) = self.ends.iter().position(|end| end.as_deref().is_some_and(is_receiver)) else { return false };
        let Some(end) = self.ends[id].as_mut() else { return false };
        if end.posted == 0 || end.lingering {
            return false;
        }
        end.robbed = true;
        end.take_receive(LaneId::FIRST);
        let (lane, immediate) = (LaneId::FIRST, immediate(end.rail));
        self.suffer(Mishap::Forged);
        self.complete(id, Completion::Received { lane, immediate, bytes: 0 }, lane, 0);
        if let Some(entry) = self.ends[id].as_mut().and_then(|end| end.completions.back_mut()) {
            entry.forged = true;
        }
        true
    }
}
