//! A port that discovery found: what a domain is opened on.

use std::fmt;
use std::sync::Arc;

use railweave_fabric::PortFacts;

use crate::data_direct::Engine;
use crate::device::Device;
use crate::gid::PortGid;
use crate::gid_table::{GidFilter, GidTable};
use crate::sys;

/// A port that can be a rail.
#[derive(Clone)]
pub struct VerbsPort {
    /// What topology needs to know. The address is that of the first GID; the number is the port's on its device.
    pub facts: PortFacts,
    /// The device, open.
    pub device: Arc<Device>,
    /// The port's number on its device, from 1.
    pub number: u8,
    /// What the port said of itself when it was found.
    pub attributes: sys::PortAttributes,
    /// The GIDs that its lanes may use, best first; at least one. Each connection looks for them again.
    pub gids: Vec<PortGid>,
    /// How they are looked for.
    pub table: GidTable,
    /// By which dma-bufs are registered, where this is the port with its Data Direct engine.
    pub engine: Option<Engine>,
}

impl VerbsPort {
    /// From now on, lanes use those GIDs that `filter` lets in, where any of them is there. The address is then that of
    /// the first of these.
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
