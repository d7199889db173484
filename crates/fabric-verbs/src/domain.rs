//! One port: its registered memory and its rails.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use railweave_fabric::{LinkLayer, SetupError, SetupStep};

use crate::config::VerbsConfig;
use crate::data_direct::Engine;
use crate::device::{Device, port_state};
use crate::gid::PortGid;
use crate::gid_table::GidTable;
use crate::port::OpenPort;
use crate::queues::ProtectionDomain;
use crate::sys;
use crate::unfound::Unfound;

/// Rails over RDMA.
#[derive(Debug)]
pub struct Verbs;

/// The longest single write of the protocol.
const MAX_WRITE: u32 = 1 << 30;

/// One port with its protection domain.
pub struct VerbsDomain {
    pub(crate) pd: Arc<ProtectionDomain>,
    pub(crate) config: VerbsConfig,
    /// The port's name in messages.
    pub(crate) name: String,
    /// Its number on its device, from 1.
    pub(crate) port: u8,
    pub(crate) link_layer: LinkLayer,
    table: GidTable,
    /// The best entry when the port was found.
    first_gid: PortGid,
    /// The usable entries when the table was last read, best first; never empty.
    gids: Mutex<Vec<PortGid>>,
    /// The peers' ports that the kernel has not found.
    pub(crate) unfound: Arc<Unfound>,
    pub(crate) max_write: u32,
    /// The engine through which dma-bufs are registered, if the port has one.
    pub(crate) engine: Option<Engine>,
    /// Takes messages that are worth logging but are not errors.
    inform: fn(&str),
    /// True once the log says that the device makes no shared receive queue.
    told_of_queues: AtomicBool,
    /// True once the driver has refused relaxed ordering; later registrations do not ask for it.
    pub(crate) refuses_relaxed: AtomicBool,
    /// The end of the last fence that waited in vain for memory to be read back here, if none has read any since.
    pub(crate) last_vain: Mutex<Option<Instant>>,
}

impl VerbsDomain {
    /// Returns the domain of a port. `inform` takes messages that are worth logging but are not errors, one sentence
    /// each.
    pub fn new(port: OpenPort, config: VerbsConfig, inform: fn(&str)) -> Arc<Self> {
        let (port, pd) = port.into_parts();
        Arc::new(Self {
            pd: Arc::new(pd),
            config,
            name: port.facts.name,
            port: port.number,
            link_layer: port.facts.link_layer,
            table: port.table,
            first_gid: port.gids[0].clone(),
            gids: Mutex::new(port.gids),
            unfound: Arc::default(),
            max_write: match port.attributes.max_msg_sz {
                0 => MAX_WRITE,
                most => most.min(MAX_WRITE),
            },
            engine: port.engine,
            inform,
            told_of_queues: AtomicBool::new(false),
            refuses_relaxed: AtomicBool::new(false),
            last_vain: Mutex::default(),
        })
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        self.pd.device()
    }

    /// Returns the port's current attributes if it can carry traffic.
    pub(crate) fn active_port(&self) -> Result<sys::PortAttributes, SetupError> {
        let queried = self.device().port_attributes(self.port);
        let attributes = queried.map_err(|error| self.refused(SetupStep::PortQuery, &error))?;
        if attributes.state != sys::PORT_ACTIVE {
            let (port, state) = (self.name.clone(), port_state(attributes.state));
            return Err(SetupError::PortDown { port, state });
        }
        Ok(attributes)
    }

    /// Reads the port's GID table again and returns the GIDs that a new connection may use, best first: an address that
    /// is added or removed moves the others' indices. If the table has no entry at the moment, or only entries that
    /// were excluded before, the previous GIDs stay in use. The result is never empty.
    pub(crate) fn gids(&self, attributes: &sys::PortAttributes) -> Vec<PortGid> {
        let mut gids = self.gids.lock().unwrap_or_else(PoisonError::into_inner);
        *gids = self.table.renewed(attributes.gid_tbl_len, &self.first_gid, &gids);
        gids.clone()
    }

    /// Logs once that the device makes no shared receive queue, and why.
    pub(crate) fn tell_of_queues(&self, error: &io::Error) {
        if !self.told_of_queues.swap(true, Ordering::Relaxed) {
            (self.inform)(&format!(
                "{}: the device cannot create a shared receive queue ({error}), so each lane has receives of its own",
                self.name
            ));
        }
    }

    /// Returns the error of a set-up step that the kernel or the library refused.
    pub(crate) fn refused(&self, what: SetupStep, error: &io::Error) -> SetupError {
        SetupError::Refused { port: self.name.clone(), what, error: error.into() }
    }
}
