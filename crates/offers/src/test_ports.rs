//! Ports for the tests of this crate.

use railweave_fabric::{LinkLayer, PointerSupport, PortFacts};
use railweave_topology::ChosenPort;
use railweave_transport::PortOffer;

/// A RoCE port of 100 Gbit/s, whose name is its IPv4 address, in a subnet of 24 bits.
pub(crate) fn chosen(address: &str) -> ChosenPort {
    let facts = PortFacts {
        name: address.to_owned(),
        device: address.to_owned(),
        link_layer: LinkLayer::Roce,
        address: address.parse().unwrap(),
        prefix_len: 24,
        speed_mbps: Some(100_000),
        mtu: 4096,
        pci_path: None,
        bus_id: None,
        guid: 0,
        port_number: 1,
        pointers: PointerSupport::default(),
    };
    ChosenPort { facts, group: None, rail_id: None, plane_id: None }
}

/// The same port in an offer.
pub(crate) fn port(address: &str) -> PortOffer {
    crate::port_offer(&chosen(address), 1)
}
