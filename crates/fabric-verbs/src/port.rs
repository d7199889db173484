//! A port that discovery found, and the same port open, from which a domain is made.

use std::fmt;
use std::sync::Arc;

use railweave_fabric::{PortFacts, SetupError, SetupStep};

use crate::data_direct::Engine;
use crate::device::Device;
use crate::gid::PortGid;
use crate::gid_table::{GidFilter, GidTable};
use crate::queues::ProtectionDomain;
use crate::sys;

/// A port that can be a rail.
#[derive(Clone)]
pub struct VerbsPort {
    /// Input for topology. The address is that of the first GID; the number is the port's on its device.
    pub facts: PortFacts,
    /// The device, open.
    pub device: Arc<Device>,
    /// The port's number on its device, from 1.
    pub number: u8,
    /// The port's attributes when it was found.
    pub attributes: sys::PortAttributes,
    /// The GIDs that its lanes may use, best first; at least one. Each connection looks them up again.
    pub gids: Vec<PortGid>,
    /// The table in which they are looked up.
    pub table: GidTable,
    /// The engine through which dma-bufs are registered; `None` unless this is the Data Direct port.
    pub engine: Option<Engine>,
}

impl VerbsPort {
    /// Restricts lanes to the GIDs that `filter` admits, if there are any. The address is then that of the first of
    /// them.
    pub fn filter_gids(&mut self, filter: GidFilter) {
        if self.gids.iter().any(|gid| filter(gid)) {
            self.gids.retain(|gid| filter(gid));
            (self.facts.address, self.facts.prefix_len) = (self.gids[0].address(), self.gids[0].prefix_len);
        }
        self.table.filter = Some(filter);
    }
}

impl fmt::Debug for VerbsPort {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("VerbsPort").field("facts", &self.facts).field("gids", &self.gids).finish_non_exhaustive()
    }
}

/// A port with a protection domain of its own, so that memory can be registered there.
pub struct OpenPort {
    port: VerbsPort,
    pd: ProtectionDomain,
}

impl OpenPort {
    /// Opens a port.
    ///
    /// # Errors
    /// If the device has no protection domain left.
    pub fn new(port: VerbsPort) -> Result<Self, SetupError> {
        match ProtectionDomain::new(&port.device) {
            Ok(pd) => Ok(Self { port, pd }),
            Err(error) => Err(SetupError::Refused {
                port: port.facts.name,
                what: SetupStep::ProtectionDomain,
                error: (&error).into(),
            }),
        }
    }

    /// Returns the port, as it was found.
    pub fn port(&self) -> &VerbsPort {
        &self.port
    }

    pub(crate) fn into_parts(self) -> (VerbsPort, ProtectionDomain) {
        (self.port, self.pd)
    }
}

impl fmt::Debug for OpenPort {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("OpenPort").field(&self.port).finish()
    }
}
