//! Ports for the tests of this crate.

use railweave_fabric::{LinkLayer, PointerSupport, PortFacts};

use crate::ChosenPort;

/// A port of TCP of which nothing but its name, address and MTU is known.
pub(crate) fn facts(name: &str) -> PortFacts {
    PortFacts {
        name: name.to_owned(),
        device: name.to_owned(),
        link_layer: LinkLayer::Tcp,
        address: [10, 0, 0, 1].into(),
        prefix_len: 24,
        speed_mbps: None,
        mtu: 1500,
        pci_path: None,
        bus_id: None,
        guid: 0,
        port_number: 1,
        pointers: PointerSupport::default(),
    }
}

/// A port that is used, in no group, without a rail and a plane.
pub(crate) fn chosen(facts: PortFacts) -> ChosenPort {
    ChosenPort { facts, group: None, rail_id: None, plane_id: None }
}
