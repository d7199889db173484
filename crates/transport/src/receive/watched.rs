//! The receives in progress, as a profiler or a trace sees them. Nothing here takes part in receiving.

use railweave_fabric::{Fabric, Rail, RailId};

use super::{RecvConnection, RecvRequest};
use crate::Carriers;

impl<F: Fabric> RecvConnection<F> {
    /// Returns the rails that carry the data of a receive, as far as it has come. A flush has none.
    pub fn carriers(&self, request: RecvRequest) -> Carriers {
        let Some(slot) = request.slot() else { return Carriers::default() };
        let (active, missing) = self.inbox.slots.parts(slot);
        Carriers { active, missing }
    }

    /// Returns the number of a rail's first lane: see [`Rail::number`]. 0 while the rail has none.
    pub fn lane_number(&self, rail: RailId) -> u32 {
        self.core.rails.find(rail).map_or(0, |connected| connected.rail.number())
    }
}
