//! The ways of a host's ports, as its kernel knows them, in a network of two cables.

mod common;

use common::{alone, in_namespace, ip, until_carrier};
use railweave_discovery::Routes;
use railweave_fabric::Route::{self, Elsewhere, Leaves};
use railweave_fabric::{LinkLayer, PointerSupport, PortFacts};
use std::net::IpAddr;

/// Two cables, `rw0` with 10.0.1.1 and fd77:1::1, `rw1` with 10.0.2.1 and fd77:2::1. Returns false if this machine
/// cannot make them.
fn two_cables() -> bool {
    let mut all = ip("link set lo up");
    for (cable, number) in [("rw0", 1), ("rw1", 2)] {
        all &= ip(&format!("link add {cable} type veth peer name {cable}far"));
        all &= ip(&format!("addr add 10.0.{number}.1/24 dev {cable}"));
        all &= ip(&format!("addr add fd77:{number}::1/64 dev {cable} nodad"));
        all &= ip(&format!("link set {cable} up")) && ip(&format!("link set {cable}far up"));
    }
    if all {
        ["rw0", "rw1"].into_iter().for_each(until_carrier);
    } else {
        eprintln!("skipped: this machine cannot make cables (ip link add type veth)");
    }
    all
}

fn port(link_layer: LinkLayer, address: &str) -> PortFacts {
    PortFacts {
        name: "p0".to_owned(),
        device: "p0".to_owned(),
        link_layer,
        address: address.parse().unwrap(),
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

/// Asserts what the kernel says about the ways from both cables to an address.
fn says(link_layer: LinkLayer, to: &str, expected: [Route; 2]) {
    let routes = Routes::open().expect("this kernel shows its routes");
    let to: IpAddr = to.parse().unwrap();
    let own = if to.is_ipv4() { ["10.0.1.1", "10.0.2.1"] } else { ["fd77:1::1", "fd77:2::1"] };
    assert_eq!(own.map(|from| routes.route(&port(link_layer, from), to)), expected, "{link_layer:?} to {to}");
}

#[test]
fn a_port_has_the_ways_by_which_its_own_packets_would_leave() {
    alone(&[], || {
        in_namespace("--net", || {
            if !two_cables() {
                return;
            }
            for layer in [LinkLayer::Roce, LinkLayer::Tcp] {
                says(layer, "10.0.1.9", [Leaves, Elsewhere]);
                says(layer, "10.0.2.9", [Elsewhere, Leaves]);
                // Without any route the kernel would ask for a neighbour, on whatever cable.
                says(layer, "10.0.3.9", [Elsewhere, Elsewhere]);
            }
            assert!(ip("route add 10.0.3.0/24 via 10.0.1.9"));
            assert!(ip("route add 10.0.4.0/24 nexthop via 10.0.1.9 dev rw0 nexthop via 10.0.2.9 dev rw1"));
            assert!(ip("route add unreachable 10.0.5.0/24"));
            assert!(ip("route add 10.0.6.0/24 via inet6 fd77:1::9 dev rw0"));
            for layer in [LinkLayer::Roce, LinkLayer::Tcp] {
                says(layer, "10.0.3.9", [Leaves, Elsewhere]);
                says(layer, "10.0.5.9", [Elsewhere, Elsewhere]);
                says(layer, "10.0.6.9", [Leaves, Elsewhere]);
            }
            says(LinkLayer::Roce, "10.0.4.9", [Leaves, Leaves]);
            let gateway = |to: &str| Routes::open().unwrap().gateway([10, 0, 1, 1].into(), to.parse().unwrap());
            assert_eq!(gateway("10.0.3.9"), Some([10, 0, 1, 9].into()));
            assert_eq!(gateway("10.0.6.9"), Some("fd77:1::9".parse().unwrap()));
            assert_eq!((gateway("10.0.1.9"), gateway("10.0.2.9"), gateway("10.0.5.9")), (None, None, None));
            // A rule by source is followed.
            assert!(ip("route add default via 10.0.2.9 dev rw1 table 7") && ip("rule add from 10.0.2.1 table 7"));
            for layer in [LinkLayer::Roce, LinkLayer::Tcp] {
                says(layer, "10.0.3.9", [Leaves, Leaves]);
            }
        });
    });
}

#[test]
fn of_two_ways_of_ipv6_the_one_that_the_kernel_would_take_counts() {
    alone(&[], || {
        in_namespace("--net", || {
            if !two_cables() {
                return;
            }
            // With a source address, the port only is a wish.
            assert!(ip("-6 route add fd77:9::/64 via fd77:2::9 dev rw1 metric 100"));
            assert!(ip("-6 route add fd77:9::/64 via fd77:1::9 dev rw0 metric 200"));
            says(LinkLayer::Roce, "fd77:9::5", [Elsewhere, Leaves]);
            says(LinkLayer::Roce, "fd77:1::5", [Leaves, Elsewhere]);
            says(LinkLayer::Roce, "fd77:8::5", [Elsewhere, Elsewhere]);
        });
    });
}
