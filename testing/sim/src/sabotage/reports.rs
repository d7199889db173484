//! Sabotage of what rails report.

use std::sync::Mutex;

use railweave_fabric::{LaneId, RailError, RailId, Reports, Role, WorkId, WorkStatus};
use railweave_transport::{Immediate, ImmediateLayout};

use super::kind::Sabotage;
use super::plot::{End, lock};

/// Passes reports on, sabotaged.
pub(super) struct Spoiled<'a, R> {
    pub(super) reports: &'a mut R,
    pub(super) sabotage: Sabotage,
    pub(super) role: Role,
    pub(super) end: &'a Mutex<End>,
    /// The rail's number in its connection.
    pub(super) rail: usize,
    /// Work that was reported before it was done.
    pub(super) claimed: &'a mut Vec<WorkId>,
}

/// Forgets all reports.
pub(super) struct Unheard;

impl Reports for Unheard {
    fn handle_sent(&mut self, _id: WorkId) {}
    fn handle_received(&mut self, _lane: LaneId, _immediate: u32, _bytes: u32) {}
    fn handle_failed(&mut self, _lane: LaneId, _id: Option<WorkId>, _error: Box<RailError>) {}
}

impl<R> Spoiled<'_, R> {
    /// Returns the id of the last work for the slot whose number is that of this work's slot modulo 128.
    fn wrapped(&self, id: WorkId) -> WorkId {
        let works = &lock(self.end).works;
        let slot = works.iter().find_map(|(slot, work)| (*work == id).then_some(slot % 128));
        slot.and_then(|slot| works.get(&slot)).copied().unwrap_or(id)
    }

    fn said(&self, immediate: u32) -> Immediate {
        ImmediateLayout::new(lock(self.end).rails).decode(immediate)
    }

    /// With the immediate of the leader of several rails, reports that of the last of them, if sizes come in a record.
    /// Returns true if the immediate itself was reported in this way before.
    fn foretells(&self, lane: LaneId, immediate: u32) -> bool {
        let said = self.said(immediate);
        let mut end = lock(self.end);
        if let Some(known) = end.foretold.iter().position(|known| *known == (self.rail, immediate)) {
            end.foretold.swap_remove(known);
            return true;
        }
        let in_record = said.size_q == ImmediateLayout::new(end.rails).all_ones();
        let [Some(first), Some(last)] = [said.mask.first(), said.mask.last()].map(|rail| rail.map(RailId::index))
        else {
            return false;
        };
        if in_record && first == self.rail && last != first {
            end.foretold.push((last, immediate));
            end.strays.push((last, lane, immediate, 0));
        }
        false
    }
}

impl<R: Reports> Reports for Spoiled<'_, R> {
    fn handle_sent(&mut self, id: WorkId) {
        if let Some(claimed) = self.claimed.iter().position(|claimed| *claimed == id) {
            self.claimed.swap_remove(claimed);
            return;
        }
        let is_wrapped = self.sabotage == Sabotage::SequenceWrapped && self.role == Role::Sender;
        self.reports.handle_sent(if is_wrapped { self.wrapped(id) } else { id });
    }

    fn handle_received(&mut self, lane: LaneId, immediate: u32, bytes: u32) {
        match self.sabotage {
            Sabotage::ImmediateWrongRail if self.rail != 0 => {
                lock(self.end).strays.push((0, lane, immediate, bytes));
            }
            Sabotage::ImmediateEarly if self.foretells(lane, immediate) => {}
            Sabotage::ViolationIgnored if self.said(immediate).mask.is_empty() => {}
            // At a multiple of 128, a byte more would be one more unit of 128, which the protocol itself notices.
            Sabotage::SizeOffByOne if !bytes.is_multiple_of(128) => {
                self.reports.handle_received(lane, immediate, bytes + 1);
            }
            _ => self.reports.handle_received(lane, immediate, bytes),
        }
    }

    fn handle_failed(&mut self, lane: LaneId, id: Option<WorkId>, mut error: Box<RailError>) {
        lock(self.end).has_failed = true;
        if let (Sabotage::ReasonGarbled, RailError::Work(failure)) = (self.sabotage, &mut *error) {
            failure.status = WorkStatus::RemoteOperation;
        }
        self.reports.handle_failed(lane, id, error);
    }
}
