//! The topology of two hosts: the exchange of their halves, the pairing as the plugin would make it, its drawings, and
//! the routes that hosts without a switch need.

pub(crate) mod about;
pub(crate) mod exchange;
pub(crate) mod half;
pub(crate) mod link;
pub(crate) mod pairing;
pub(crate) mod plan;
pub(crate) mod received;
pub(crate) mod svg;
pub(crate) mod table;
pub(crate) mod text;
pub(crate) mod view;

#[cfg(test)]
pub(crate) mod examples {
    //! Halves for tests.

    use super::half::{Half, HalfDevice, HalfPort};
    use railweave_fabric::{LinkLayer, Route};
    use railweave_transport::PortOffer;
    use std::net::{IpAddr, Ipv6Addr};

    /// Returns a RoCE port with this address, as `address/length`.
    pub(crate) fn port(network: &str) -> HalfPort {
        let (address, length) = network.split_once('/').unwrap();
        let address: Ipv6Addr = match address.parse().unwrap() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let offer = PortOffer {
            link_layer: LinkLayer::Roce,
            prefix_len: length.parse().unwrap(),
            lanes: 1,
            speed_mbps: 10_000,
            mtu: 4096,
            rail_id: -1,
            plane_id: -1,
            address,
        };
        HalfPort { offer, name: network.to_owned(), interface: None, weight: None, routes: Vec::new() }
    }

    /// Returns a host with these devices, each a list of ports.
    pub(crate) fn half(host: &str, devices: &[&[&str]]) -> Half {
        let device = |(number, ports): (usize, &&[&str])| HalfDevice {
            name: format!("mlx5_{number}"),
            ports: ports.iter().map(|network| port(network)).collect(),
            others: 0,
        };
        let network = host.bytes().map(u64::from).sum();
        let devices = devices.iter().enumerate().map(device).collect();
        Half { host: host.to_owned(), network, forwards: Some(false), devices, fallback: None }
    }

    /// Returns the half with this answer of the kernel about every way from its ports to 10.0.0.0/24 and 10.1.0.0/24.
    pub(crate) fn with_routes(mut half: Half, route: Route) -> Half {
        for port in half.devices.iter_mut().flat_map(|device| &mut device.ports) {
            let to = |net: u8, host: u8| (std::net::Ipv4Addr::new(10, net, 0, host).to_ipv6_mapped(), route);
            port.routes = (0..10).flat_map(|net| (0..10).map(move |host| to(net, host))).collect();
        }
        half
    }
}
