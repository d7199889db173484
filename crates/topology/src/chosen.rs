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
        let ours = pci_device(ours.pci_path.as_deref());
        ours.is_some() && ours == pci_device(theirs.pci_path.as_deref())
    }

    /// Returns true if both ports are halves of one link: functions of one RDMA adapter on different PCI buses, with
    /// the same function number and the same port number. Functions on one bus are ports of their own, each with a
    /// cable; the port number does not tell them apart, because it is often 1 on each.
    pub fn shares_link_with(&self, other: &Self) -> bool {
        let (ours, theirs) = (&self.facts, &other.facts);
        let places = (pci_place(ours.pci_path.as_deref()), pci_place(theirs.pci_path.as_deref()));
        ours.guid != 0
            && self.is_on_adapter_of(other)
            && ours.port_number == theirs.port_number
            && matches!(places, (Some(ours), Some(theirs)) if ours.0 != theirs.0 && ours.1 == theirs.1)
    }
}

/// Returns a PCI path without the function.
pub(crate) fn pci_device(path: Option<&Path>) -> Option<&str> {
    pci_place(path).map(|(device, _)| device)
}

/// Returns a PCI path without the function, and the function; `None` if there is no path.
fn pci_place(path: Option<&Path>) -> Option<(&str, Option<&str>)> {
    let path = path?.to_str()?;
    Some(path.rsplit_once('.').map_or((path, None), |(device, function)| (device, Some(function))))
}
