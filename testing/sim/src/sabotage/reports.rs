//! Sabotage of what rails report.

use std::sync::Mutex;

use railweave_fabric::{LaneId, RailError, Reports, Role, WorkId};

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
}

impl<R> Spoiled<'_, R> {
    /// Returns the id of the last work for the slot whose number is that of this work's slot modulo 128.
    fn wrapped(&self, id: WorkId) -> WorkId {
        let works = &lock(self.end).works;
        let slot = works.iter().find_map(|(slot, work)| (*work == id).then_some(slot % 128));
        slot.and_then(|slot| works.get(&slot)).copied().unwrap_or(id)
    }
}

impl<R: Reports> Reports for Spoiled<'_, R> {
    fn handle_sent(&mut self, id: WorkId) {
        let is_wrapped = self.sabotage == Sabotage::SequenceWrapped && self.role == Role::Sender;
        self.reports.handle_sent(if is_wrapped { self.wrapped(id) } else { id });
    }

    fn handle_received(&mut self, lane: LaneId, immediate: u32, bytes: u32) {
        match self.sabotage {
            Sabotage::ImmediateWrongRail if self.rail != 0 => {
                lock(self.end).strays.push((lane, immediate, bytes));
            }
            // At a multiple of 128, a byte more would be one more unit of 128, which the protocol itself notices.
            Sabotage::SizeOffByOne if !bytes.is_multiple_of(128) => {
                self.reports.handle_received(lane, immediate, bytes + 1);
            }
            _ => self.reports.handle_received(lane, immediate, bytes),
        }
    }

    fn handle_failed(&mut self, lane: LaneId, id: Option<WorkId>, error: Box<RailError>) {
        self.reports.handle_failed(lane, id, error);
    }
}
