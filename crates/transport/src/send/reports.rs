//! The reports of a sending connection's rails.

use railweave_fabric::{Clock, Fabric, LaneId, RailError, RailId, RailSet, Reports, WorkId};

use super::meter::Meter;
use super::repairs::Repairs;
use crate::Received;
use crate::connection::{Fatal, Outstanding};
use crate::measured::Measured;
use crate::rails::RailSide;
use crate::requests::Requests;
use crate::violation::Violation;
use crate::work::WorkKind;

/// The state that the reports of a sending connection's rails change.
pub(super) struct InProgress<C> {
    pub(super) requests: Requests,
    pub(super) meter: Meter<C>,
    pub(super) repairs: Repairs,
}

impl<C: Clock> Outstanding for InProgress<C> {
    #[inline(always)]
    fn reports<'a, F: Fabric>(&'a mut self, side: &'a mut RailSide) -> impl Reports {
        Completions { progress: self, side, now: 0 }
    }

    #[inline(always)]
    fn fatal(&mut self) -> &mut Option<Box<Fatal>> {
        &mut self.requests.fatal
    }

    fn handle_refused(&mut self) {
        self.requests.close();
    }

    fn handle_received_there(&mut self, received: &Received) -> bool {
        self.requests.end_received(received)
    }
}

/// Handles the reports of one rail in one poll.
struct Completions<'a, C> {
    progress: &'a mut InProgress<C>,
    side: &'a RailSide,
    /// The time of this poll in ticks, 0 until the clock is read.
    now: u64,
}

impl<C: Clock> Reports for Completions<'_, C> {
    #[inline(always)]
    fn handle_sent(&mut self, id: WorkId) {
        let Some(sequence) = WorkKind::data(id) else {
            return handle_other_sent(self.progress, self.side.id, &mut self.now, id);
        };
        let measured = self.progress.requests.handle_sent(sequence, self.side.alone);
        if measured != Measured::NOT {
            self.progress.meter.handle_sent(sequence, measured, self.side, &mut self.now);
        }
    }

    #[inline(always)]
    fn handle_received(&mut self, _lane: LaneId, immediate: u32, bytes: u32) {
        let violation = Violation::ToSender { bits: immediate, bytes };
        Fatal::keep(&mut self.progress.requests.fatal, || Fatal::Broke(violation));
    }

    #[inline(always)]
    fn handle_failed(&mut self, lane: LaneId, id: Option<WorkId>, error: Box<RailError>) {
        Fatal::keep(&mut self.progress.requests.fatal, || Fatal::Failed { lane, id, error });
    }
}

/// Handles the completion of work that is no data.
#[cold]
#[inline(never)]
fn handle_other_sent<C: Clock>(progress: &mut InProgress<C>, rail: RailId, now: &mut u64, id: WorkId) {
    match WorkKind::from_id(id) {
        Some(WorkKind::Ping) => progress.meter.handle_ping_sent(rail, now),
        Some(WorkKind::Probe(probe)) => progress.requests.fate.set_probe_carried(probe),
        Some(WorkKind::Repair { sequence, part }) => {
            if progress.repairs.note_placed(sequence, part, rail) {
                progress.requests.end_parts(sequence, RailSet::only(part));
            }
        }
        _ => panic!("a sender got a completion of work that it never posts: {:#x}", id.0),
    }
}
