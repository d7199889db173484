//! The addresses of a handle, and the ways to them.

use std::net::IpAddr;

use railweave_fabric::{LinkLayer, Route, Step};
use railweave_topology::NetworkAddress;
use railweave_transport::{HandleAddress, MAX_TARGETS, PortOffer, Ways};

/// Returns the entries of a handle for the ports of an offer, in their order; the last `others` do not belong to the
/// device. `is_heard` returns true for an address that the control port listens on.
pub fn handle_addresses(ports: &[PortOffer], others: usize, is_heard: impl Fn(IpAddr) -> bool) -> Vec<HandleAddress> {
    let of_device = ports.len() - others;
    let ports = ports.iter().enumerate();
    // An InfiniBand GID identifies a port of an adapter; it is not an address that a socket can reach.
    let ports = ports.filter(|(_, port)| port.link_layer != LinkLayer::InfiniBand);
    ports
        .map(|(place, port)| HandleAddress {
            address: port.address.to_canonical(),
            prefix_len: port.prefix_len,
            port: if place < of_device { place as u8 } else { HandleAddress::OTHER_PORT },
        })
        .filter(|entry| is_heard(entry.address))
        .collect()
}

/// Returns what this host knows of the ways from the ports of an offer, the last `others` of which do not belong to the
/// device, to the addresses of a handle. The kernel is asked only if no port of the device is on a subnet of the
/// peer's, or these were tried: `kernel` returns a function from a port's place in the offer and an address, or `None`
/// if it says nothing.
pub fn ways<K: Fn(usize, IpAddr) -> Route>(
    offered: &[PortOffer],
    others: usize,
    to: &[HandleAddress],
    first_step: Step,
    kernel: impl FnOnce() -> Option<K>,
) -> Ways {
    let entries = || to.iter().filter(|entry| entry.is_of_device());
    let mut of_device = offered[..offered.len() - others].iter();
    let is_near = of_device.any(|port| {
        let ours = NetworkAddress::new(port.address.into(), port.prefix_len);
        entries().any(|entry| ours.shares_subnet(&NetworkAddress::new(entry.address, entry.prefix_len)))
    });
    let mut ways = Ways { first_step, others: others as u8, ..Ways::default() };
    if is_near && first_step == Step::Subnet {
        return ways;
    }
    let Some(route) = kernel() else { return ways };
    let targets: Vec<IpAddr> = entries().map(|entry| entry.address).take(MAX_TARGETS).collect();
    ways.targets = targets.iter().map(|target| mapped(*target)).collect();
    ways.routes = (0..offered.len())
        .flat_map(|port| targets.iter().map(move |target| (port, *target)))
        .map(|(port, target)| route(port, target))
        .collect();
    ways
}

/// Returns an address as a port's is on the wire.
fn mapped(address: IpAddr) -> std::net::Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(address: &str) -> PortOffer {
        PortOffer {
            link_layer: LinkLayer::Roce,
            prefix_len: 24,
            lanes: 1,
            speed_mbps: 1,
            mtu: 1500,
            rail_id: -1,
            plane_id: -1,
            address: mapped(address.parse().unwrap()),
        }
    }

    #[test]
    fn the_kernel_is_asked_only_where_no_subnet_is_shared() {
        let ours = [port("10.0.0.1"), port("10.1.0.1")];
        let to = |address: &str| handle_addresses(&[port(address)], 0, |_| true);
        let ask = |others: usize, to: &[HandleAddress], step: Step| {
            ways(&ours, others, to, step, || Some(|place: usize, _: IpAddr| [Route::Leaves, Route::Elsewhere][place]))
        };
        assert!(ask(0, &to("10.1.0.9"), Step::Subnet).targets.is_empty());
        let far = ask(0, &to("10.2.0.9"), Step::Subnet);
        assert_eq!((far.targets.len(), &far.routes[..]), (1, &[Route::Leaves, Route::Elsewhere][..]));
        // A port of another device on the subnet does not make the device near.
        assert_eq!(ask(1, &to("10.1.0.9"), Step::Subnet).targets.len(), 1);
        // Nor does one that was tried.
        assert_eq!(ask(0, &to("10.1.0.9"), Step::Routed).targets.len(), 1);
        let silent = ways(&ours, 0, &to("10.2.0.9"), Step::Subnet, || None::<fn(usize, IpAddr) -> Route>);
        assert_eq!((silent.targets.len(), silent.routes.len()), (0, 0));
    }

    #[test]
    fn a_handle_has_no_address_that_no_socket_reaches() {
        let infiniband = PortOffer { link_layer: LinkLayer::InfiniBand, ..port("10.0.0.1") };
        let ports = [infiniband, port("10.0.0.2"), port("10.0.0.3")];
        let not_3 = |address: IpAddr| address != IpAddr::from([10, 0, 0, 3]);
        let entries: Vec<_> =
            handle_addresses(&ports, 0, not_3).iter().map(|it| (it.address.to_string(), it.port)).collect();
        assert_eq!(entries, [("10.0.0.2".to_owned(), 1)]);
        let with_others = handle_addresses(&ports, 1, |_| true);
        assert_eq!(with_others.iter().map(HandleAddress::is_of_device).collect::<Vec<_>>(), [true, false]);
        // The ways lead to the device's ports.
        let far =
            ways(&[port("10.9.0.1")], 0, &with_others, Step::Subnet, || Some(|_: usize, _: IpAddr| Route::Leaves));
        assert_eq!(far.targets, [port("10.0.0.2").address]);
    }
}
