//! The reports of a sending connection's rails.

use railweave_fabric::{Fabric, LaneId, RailError, Reports, WorkId};

use crate::connection::{Fatal, Outstanding};
use crate::rails::RailSide;
use crate::requests::Requests;
use crate::violation::Violation;
use crate::work::WorkKind;

impl Outstanding for Requests {
    #[inline(always)]
    fn reports<'a, F: Fabric>(&'a mut self, _side: &'a mut RailSide) -> impl Reports {
        Completions { requests: self }
    }

    #[inline(always)]
    fn fatal(&mut self) -> &mut Option<Box<Fatal>> {
        &mut self.fatal
    }

    fn handle_refused(&mut self) {
        self.close();
    }
}

/// Handles the reports of one rail.
struct Completions<'a> {
    requests: &'a mut Requests,
}

impl Reports for Completions<'_> {
    #[inline(always)]
    fn handle_sent(&mut self, id: WorkId) {
        match WorkKind::from_id(id) {
            Some(WorkKind::Data(sequence)) => self.requests.handle_sent(sequence),
            _ => panic!("a sender got a completion of work that it never posts: {:#x}", id.0),
        }
    }

    #[inline(always)]
    fn handle_received(&mut self, _lane: LaneId, immediate: u32, bytes: u32) {
        let violation = Violation::ToSender { bits: immediate, bytes };
        Fatal::keep(&mut self.requests.fatal, || Fatal::Broke(violation));
    }

    #[inline(always)]
    fn handle_failed(&mut self, lane: LaneId, _id: Option<WorkId>, error: Box<RailError>) {
        Fatal::keep(&mut self.requests.fatal, || Fatal::Failed { lane, error });
    }
}
