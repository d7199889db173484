//! Memory registered on every rail of a connection.

use std::sync::Arc;

use railweave_fabric::{Domain, Fabric, Memory, MemoryKind, RegisterError};
use railweave_transport::MemoryKeys;

use super::registrations::Registrations;
use crate::forks::ProcessMark;

/// Memory registered on every rail of a connection: NCCL's `mhandle`.
pub(crate) struct MemoryHandle {
    pub(crate) keys: MemoryKeys,
    /// The process that registered it: a forked child must not end its parent's registrations.
    process: ProcessMark,
    /// This handle's share of each registration, given back when dropped.
    _registrations: Box<dyn Send + Sync>,
}

impl MemoryHandle {
    /// Ends this handle's registrations. Does nothing in a forked child, which has only a copy.
    pub(crate) fn end(self: Box<Self>) {
        if self.process == ProcessMark::own() {
            drop(self);
        } else {
            std::mem::forget(self);
        }
    }
}

/// Registers memory for a connection. Service threads call it while a progress thread uses the connection.
pub(crate) trait Registrar: Send + Sync {
    fn register(&self, memory: &Memory) -> Result<MemoryHandle, RegisterError>;

    /// Returns true if the link of each rail's port is known to be down on this host. May block like
    /// [`Domain::is_link_up`].
    fn are_links_down(&self) -> bool;
}

/// Registers memory on the rails of one connection.
pub(crate) struct RegistrarOf<F: Fabric> {
    /// Each rail's number, and the registrations of its port.
    pub(crate) rails: Vec<(usize, Arc<Registrations<F>>)>,
}

impl<F: Fabric> Registrar for RegistrarOf<F> {
    fn register(&self, memory: &Memory) -> Result<MemoryHandle, RegisterError> {
        let host = memory.kind() == MemoryKind::Host;
        let mut keys = MemoryKeys { host, ..MemoryKeys::default() };
        let mut shared = Vec::with_capacity(self.rails.len());
        for (rail, registrations) in &self.rails {
            let registration = registrations.register(memory)?;
            keys.local[*rail] = registration.local_key();
            keys.remote[*rail] = registration.remote_key();
            shared.push(registration);
        }
        Ok(MemoryHandle { keys, process: ProcessMark::own(), _registrations: Box::new(shared) })
    }

    fn are_links_down(&self) -> bool {
        self.rails.iter().all(|(_, registrations)| !registrations.domain().is_link_up())
    }
}
