//! What the rails of a sending connection report.

use railweave_fabric::{LaneId, RailError, Reports, WorkId};

use crate::connection::Work;
use crate::requests::Requests;

/// Takes what one rail reports.
pub(super) struct Completions<'a> {
    pub(super) requests: &'a mut Requests,
    pub(super) wrong: &'a mut Option<Box<Wrong>>,
}

/// A report that ends the connection.
pub(super) enum Wrong {
    Failed { lane: LaneId, error: Box<RailError> },
    Received { immediate: u32, bytes: u32 },
}

impl Reports for Completions<'_> {
    #[inline(always)]
    fn handle_sent(&mut self, id: WorkId) {
        match Work::from_id(id) {
            Some(Work::Data(sequence)) => self.requests.handle_sent(sequence),
            _ => panic!("a sender got a completion of work that it never posts: {:#x}", id.0),
        }
    }

    #[inline(always)]
    fn handle_received(&mut self, _lane: LaneId, immediate: u32, bytes: u32) {
        keep(self.wrong, || Wrong::Received { immediate, bytes });
    }

    #[inline(always)]
    fn handle_failed(&mut self, lane: LaneId, _id: Option<WorkId>, error: Box<RailError>) {
        keep(self.wrong, || Wrong::Failed { lane, error });
    }
}

/// Keeps the first report that ends the connection.
#[cold]
fn keep(place: &mut Option<Box<Wrong>>, wrong: impl FnOnce() -> Wrong) {
    place.get_or_insert_with(|| Box::new(wrong()));
}
