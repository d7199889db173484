//! The sends in progress, as a profiler or a trace sees them. Nothing here takes part in sending.

use railweave_fabric::{Fabric, Rail, RailId};

use super::{SendConnection, SendRequest};
use crate::Carriers;
use crate::sequence::Sequence;

/// The slot in which a message was sent, until it is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostedSlot(Sequence);

impl<F: Fabric> SendConnection<F> {
    /// Returns the slot that was posted last, if it carries the message of this request. Messages of a group are posted
    /// together, by the [`isend`](Self::isend) of the last of them; until then there is none.
    pub fn posted_slot(&self, request: SendRequest) -> Option<PostedSlot> {
        let last = self.head.before(1);
        self.progress.requests.buffer_of(last, request.0).map(|_| PostedSlot(last))
    }

    /// Returns the rails that carry the messages of a slot. A slot that is used again has none.
    pub fn carriers(&self, slot: PostedSlot) -> Carriers {
        let (active, missing) = self.progress.requests.parts(slot.0);
        Carriers { active, missing }
    }

    /// Returns the bytes of a request's message that a rail was given, if this slot carries it.
    pub fn bytes_on(&self, slot: PostedSlot, request: SendRequest, rail: RailId) -> u64 {
        let requests = &self.progress.requests;
        let Some(buffer) = requests.buffer_of(slot.0, request.0) else { return 0 };
        let (mask, _) = requests.parts(slot.0);
        let (source, is_given) = requests.source(slot.0, request.0);
        let given = |rail| is_given.then(|| self.progress.meter.given_to(slot.0, rail));
        if mask.contains(rail) { self.shares.part(slot.0, buffer, &source, mask, rail, given).1 } else { 0 }
    }

    /// Returns true if the next message would wait for a CTS: the peer has no receive for it yet.
    pub fn waits_for_cts(&self) -> bool {
        self.filling.count == 0 && !self.cts.has_next()
    }

    /// Returns the number of a rail's first lane: see [`Rail::number`]. 0 while the rail has none.
    pub fn lane_number(&self, rail: RailId) -> u32 {
        self.core.rails.find(rail).map_or(0, |connected| connected.rail.number())
    }
}
