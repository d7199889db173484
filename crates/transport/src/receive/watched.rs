//! The receives in progress, as a profiler or a trace sees them. Nothing here takes part in receiving.

use railweave_fabric::{Fabric, Rail, RailId};

use super::{RecvConnection, RecvRequest};
use crate::Parts;

impl<F: Fabric> RecvConnection<F> {
    /// Returns the rails that carry the data of a receive, as far as it has come. A flush has none.
    pub fn parts(&self, request: RecvRequest) -> Parts {
        let Some(slot) = request.slot() else { return Parts::default() };
        let (active, missing) = self.inbox.slots.parts(slot);
        Parts { active, missing }
    }

    /// Returns the number of a rail's first lane: see [`Rail::number`]. 0 while the rail has none.
    pub fn lane_number(&self, rail: RailId) -> u32 {
        self.core.rails.find(rail).map_or(0, |connected| connected.rail.number())
    }
}
