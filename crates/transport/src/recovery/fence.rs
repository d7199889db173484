//! The fence of a rail: the work that ends its lanes, and what they still had to report.

use std::any::Any;
use std::time::Duration;

use railweave_fabric::{Ended, Fabric, LaneId, Rail, RailError, RailId, RemoteSlice, Reports, WorkId};

use super::RailWork;
use crate::rails::TakenRail;

/// The end of a rail's lanes.
pub(crate) struct Fence<F: Fabric> {
    rail: RailId,
    taken: Option<TakenRail<F>>,
    flushes: Vec<RemoteSlice>,
    /// True if the lanes have carried at most their first packet, whose report is nobody's.
    are_unused: bool,
    fenced: Fenced,
}

/// The reports of lanes that have ended.
#[derive(Default)]
pub(crate) struct Fenced {
    reports: Kept,
    /// True if nothing of the lanes can land or leave any more.
    pub(crate) is_over: bool,
    /// True if everything that the lanes had placed in GPU memory is visible there.
    pub(crate) is_visible: bool,
    /// The remains of the lanes.
    pub(crate) remains: Option<Box<dyn Send>>,
}

/// Reports in their order.
#[derive(Default)]
struct Kept(Vec<Report>);

/// One report.
enum Report {
    Sent(WorkId),
    Received { lane: LaneId, immediate: u32, bytes: u32 },
}

impl<F: Fabric> Fence<F> {
    /// Returns the work that ends the lanes of a rail, and makes what they have placed in these pieces of GPU memory
    /// visible.
    pub(crate) fn new(rail: RailId, taken: TakenRail<F>, flushes: Vec<RemoteSlice>) -> Self {
        Self { rail, taken: Some(taken), flushes, are_unused: false, fenced: Fenced::default() }
    }

    /// Returns the work that ends new lanes of a rail, which the connection has not used.
    pub(crate) fn of_unused(rail: RailId, taken: TakenRail<F>) -> Self {
        Self { are_unused: true, ..Self::new(rail, taken, Vec::new()) }
    }

    /// Returns the rail and its last reports, once the work is done.
    pub(crate) fn into_fenced(self) -> (RailId, Fenced) {
        (self.rail, self.fenced)
    }
}

impl<F: Fabric> RailWork for Fence<F> {
    fn run(&mut self, _now_ns: u64) -> Option<Duration> {
        if let Some(TakenRail { rail, registrations }) = self.taken.take() {
            let Ended { is_over, is_visible, remains } = rail.end(&self.flushes, &mut self.fenced.reports);
            (self.fenced.is_over, self.fenced.is_visible, self.fenced.remains) = (is_over, is_visible, remains);
            if self.are_unused {
                self.fenced.reports = Kept::default();
            }
            drop(registrations);
        }
        None
    }

    fn may_block(&self) -> bool {
        F::JOINING.may_block()
    }

    fn may_wait(&self) -> bool {
        false
    }

    fn seeks_peer(&self) -> bool {
        false
    }

    fn rail(&self) -> RailId {
        self.rail
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl Fenced {
    /// Passes the reports on, in their order.
    pub(crate) fn replay(&mut self, to: &mut impl Reports) {
        for report in self.reports.0.drain(..) {
            match report {
                Report::Sent(id) => to.handle_sent(id),
                Report::Received { lane, immediate, bytes } => to.handle_received(lane, immediate, bytes),
            }
        }
    }
}

impl Reports for Kept {
    fn handle_sent(&mut self, id: WorkId) {
        self.0.push(Report::Sent(id));
    }

    fn handle_received(&mut self, lane: LaneId, immediate: u32, bytes: u32) {
        self.0.push(Report::Received { lane, immediate, bytes });
    }

    // The rail is given up already.
    fn handle_failed(&mut self, _lane: LaneId, _id: Option<WorkId>, _error: Box<RailError>) {}
}
