//! Ports for tests of pairing.

use std::net::{IpAddr, Ipv6Addr};

use proptest::prelude::*;
use railweave_fabric::LinkLayer;
use railweave_topology::{Endpoint, NetworkAddress};

/// Parses `address/length`, followed by any of: `rN` rail, `pN` plane, `Ng` speed in Gbit/s, `roce`, `ib`.
pub(crate) fn endpoint(text: &str) -> Endpoint {
    let mut words = text.split_whitespace();
    let (address, length) = words.next().unwrap().split_once('/').unwrap();
    let address = match address.parse::<IpAddr>().unwrap() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let mut port = Endpoint {
        link_layer: LinkLayer::Tcp,
        address,
        prefix_len: length.parse().unwrap(),
        speed_mbps: 10_000,
        rail_id: -1,
        plane_id: -1,
    };
    for word in words {
        match word {
            "roce" => port.link_layer = LinkLayer::Roce,
            "ib" => port.link_layer = LinkLayer::InfiniBand,
            _ if word.starts_with('r') => port.rail_id = word[1..].parse().unwrap(),
            _ if word.starts_with('p') => port.plane_id = word[1..].parse().unwrap(),
            _ => port.speed_mbps = 1000 * word.strip_suffix('g').unwrap().parse::<u32>().unwrap(),
        }
    }
    port
}

pub(crate) fn any_address() -> impl Strategy<Value = Ipv6Addr> {
    let v4 = (prop::sample::select(vec![[10, 0], [10, 1], [127, 0], [169, 254], [224, 0], [0, 0]]), 0..3_u8, 0..4_u8);
    let v6 = (prop::sample::select(vec![0xfe80_u16, 0x2001, 0]), 0..2_u16, 0..4_u16);
    prop_oneof![
        4 => v4.prop_map(|([a, b], c, d)| std::net::Ipv4Addr::new(a, b, c, d).to_ipv6_mapped()),
        1 => v6.prop_map(|(a, d, h)| Ipv6Addr::new(a, 0, 0, d, 0, 0, 0, h)),
        1 => any::<[u8; 16]>().prop_map(Ipv6Addr::from),
    ]
}

prop_compose! {
    pub(crate) fn any_endpoint()(
        link_layer in prop::sample::select(vec![LinkLayer::Tcp, LinkLayer::Tcp, LinkLayer::Roce]),
        address in any_address(),
        prefix_len in prop_oneof![3 => Just(24_u8), 1 => any::<u8>()],
        speed_mbps in prop_oneof![3 => prop::sample::select(vec![10_000_u32, 25_000, 100_000]), 1 => any::<u32>()],
        rail_id in -1_i16..3,
        plane_id in prop_oneof![3 => Just(-1_i16), 1 => -1_i16..2],
    ) -> Endpoint {
        Endpoint { link_layer, address, prefix_len, speed_mbps, rail_id, plane_id }
    }
}

pub(crate) fn network(port: &Endpoint) -> NetworkAddress {
    NetworkAddress::new(port.address.into(), port.prefix_len)
}
