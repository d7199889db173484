//! The parts of the fabric, put together.

use std::sync::Arc;

use railweave_fabric::{Access, Domain, Fabric, Joining, Memory, ProcessorClock, RailSpec, RegisterError, SetupError};

use crate::domain::{Verbs, VerbsDomain};
use crate::memory::{VerbsRegistration, register};
use crate::pending::VerbsPendingRail;
use crate::rail::VerbsRail;
use crate::sys;

impl Fabric for Verbs {
    const NAME: &'static str = "verbs";
    const ONE_SIDED: bool = true;
    const JOINING: Joining<VerbsPendingRail> =
        Joining::ByExchange { endpoints: VerbsPendingRail::endpoints, connect: VerbsPendingRail::connect };
    type Domain = VerbsDomain;
    type PendingRail = VerbsPendingRail;
    type Rail = VerbsRail;
    type Registration = VerbsRegistration;
    type Clock = ProcessorClock;
}

impl Domain for VerbsDomain {
    type Fabric = Verbs;

    fn register(&self, memory: Memory, access: Access) -> Result<VerbsRegistration, RegisterError> {
        register(self, memory, access, self.config.relaxed_ordering)
    }

    fn max_write(&self) -> u32 {
        self.max_write
    }

    fn byte_counts(&self) -> bool {
        self.config.byte_counts
    }

    fn is_link_up(&self) -> bool {
        // A device that does not answer may be gone; its events say so.
        self.device().port_attributes(self.port).map_or(true, |attributes| attributes.state == sys::PORT_ACTIVE)
    }

    fn clock(&self) -> ProcessorClock {
        ProcessorClock
    }

    fn open_rail(self: &Arc<Self>, spec: &RailSpec) -> Result<VerbsPendingRail, SetupError> {
        VerbsPendingRail::open(self, spec)
    }
}
