//! A port that is used, and the ports that it shares a device or an adapter with.

use std::path::Path;

use railweave_fabric::{Mode, PortFacts};

/// A port that is used.
#[derive(Clone, Debug, PartialEq)]
pub struct ChosenPort {
    /// The facts that the fabric has read; the name is unique among all ports.
    pub facts: PortFacts,
    /// The group of the user's list that it belongs to, if the list has groups.
    pub group: Option<usize>,
    /// NCCL's rail id, never negative; `None` if undefined.
    pub rail_id: Option<i16>,
    /// NCCL's plane id, never negative; `None` if undefined.
    pub plane_id: Option<i16>,
}

impl ChosenPort {
    /// Returns true if both ports belong to one device in this mode.
    pub(crate) fn is_fused_with(&self, other: &Self, mode: Mode) -> bool {
        match mode {
            Mode::Ports => false,
            Mode::Fused | Mode::Mesh => self.group == other.group,
            Mode::Adapters => self.is_on_adapter_of(other),
        }
    }

    /// Returns true if both ports are on one adapter: those of RDMA have its identifier, the interfaces of others are
    /// functions of one PCI device. A virtual interface is on none.
    pub fn is_on_adapter_of(&self, other: &Self) -> bool {
        let (ours, theirs) = (&self.facts, &other.facts);
        if ours.link_layer != theirs.link_layer {
            return false;
        }
        if ours.guid != 0 || theirs.guid != 0 {
            return ours.guid == theirs.guid;
        }
        let pci_device =
            |path: &Path| path.to_str().map(|path| path.rsplit_once('.').map_or(path, |(it, _)| it).to_owned());
        let (ours, theirs) = (ours.pci_path.as_deref(), theirs.pci_path.as_deref());
        ours.is_some() && ours.and_then(pci_device) == theirs.and_then(pci_device)
    }
}
