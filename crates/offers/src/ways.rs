//! The addresses of a handle, and the ways to them.

use std::net::IpAddr;

use railweave_fabric::{AddressPurpose, LinkLayer, Route, Step};
use railweave_topology::NetworkAddress;
use railweave_transport::{HandleAddress, MAX_TARGETS, PortOffer, Ways};

use crate::OwnPorts;

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

/// Returns what this host knows of the ways from the ports of an offer to the addresses of a handle. The kernel is
/// asked only if no port of the device is on a subnet of the peer's, or those that are were tried: `kernel` returns a
/// function from a port's place in the offer and an address, or `None` if it says nothing. `failed`: an address of this
/// host and one of the peer's, between which a rail was left out a moment ago.
pub fn ways<K: Fn(usize, IpAddr) -> Route>(
    offered: OwnPorts<'_>,
    to: &[HandleAddress],
    first_step: Step,
    failed: &[[IpAddr; 2]],
    kernel: impl FnOnce() -> Option<K>,
) -> Ways {
    let OwnPorts { all: ports, others } = offered;
    let mut of_device = ports[..ports.len() - others].iter();
    let is_near = of_device.any(|port| {
        let ours = NetworkAddress::new(port.address.into(), port.prefix_len);
        let mut theirs = to.iter().filter(|entry| entry.is_of_device());
        theirs.any(|entry| {
            ours.shares_subnet(&NetworkAddress::new(entry.address, entry.prefix_len))
                && !failed.contains(&[port.address.to_canonical(), entry.address])
        })
    });
    let kernel = if is_near && first_step == Step::Subnet { None } else { kernel() };
    // The ways that have failed are known in any case, and must be said.
    let mut targets: Vec<IpAddr> = failed.iter().map(|[_, theirs]| *theirs).collect();
    if kernel.is_some() {
        let is_of_port =
            |entry: &&HandleAddress| matches!(entry.purpose(), AddressPurpose::Port | AddressPurpose::OtherPort);
        targets.extend(to.iter().filter(is_of_port).map(|entry| entry.address));
    }
    let mut seen = Vec::new();
    targets.retain(|target| {
        !seen.contains(target) && {
            seen.push(*target);
            true
        }
    });
    targets.truncate(MAX_TARGETS);
    let route = |place: usize, target: IpAddr| {
        let own = ports[place].address.to_canonical();
        if failed.contains(&[own, target]) {
            return Route::Failed;
        }
        kernel.as_ref().map_or(Route::Unknown, |route| route(place, target))
    };
    let routes = (0..ports.len()).flat_map(|place| targets.iter().map(move |target| (place, *target)));
    let routes = routes.map(|(place, target)| route(place, target)).collect();
    Ways { first_step, others: others as u8, targets: targets.into_iter().map(mapped).collect(), routes }
}

/// Returns an address as a port's is on the wire: IPv4 as an IPv4-mapped address.
pub fn mapped(address: IpAddr) -> std::net::Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_ports::port;

    #[test]
    fn the_kernel_is_asked_only_where_no_subnet_is_shared() {
        let ours = [port("10.0.0.1"), port("10.1.0.1")];
        let to = |address: &str| handle_addresses(&[port(address)], 0, |_| true);
        let ask = |others: usize, to: &[HandleAddress], step: Step| {
            ways(OwnPorts { all: &ours, others }, to, step, &[], || {
                Some(|place: usize, _: IpAddr| [Route::Leaves, Route::Elsewhere][place])
            })
        };
        assert!(ask(0, &to("10.1.0.9"), Step::Subnet).targets.is_empty());
        let far = ask(0, &to("10.2.0.9"), Step::Subnet);
        assert_eq!((far.targets.len(), &far.routes[..]), (1, &[Route::Leaves, Route::Elsewhere][..]));
        // A port of another device on the subnet does not make the device near.
        assert_eq!(ask(1, &to("10.1.0.9"), Step::Subnet).targets.len(), 1);
        // Nor does one that was tried.
        assert_eq!(ask(0, &to("10.1.0.9"), Step::Routed).targets.len(), 1);
        let silent = ways(OwnPorts { all: &ours, others: 0 }, &to("10.2.0.9"), Step::Subnet, &[], || {
            None::<fn(usize, IpAddr) -> Route>
        });
        assert_eq!((silent.targets.len(), silent.routes.len()), (0, 0));
    }

    #[test]
    fn only_the_ports_of_the_peers_device_make_it_near() {
        let ours = [port("10.0.0.1")];
        let entry = |address: &str, port: u8| HandleAddress { address: address.parse().unwrap(), prefix_len: 24, port };
        for place in [HandleAddress::OTHER_PORT, HandleAddress::OUT_OF_BAND, HandleAddress::NAMED_OUT_OF_BAND] {
            let to = [entry("10.9.0.9", 0), entry("10.0.0.9", place)];
            let far = ways(OwnPorts { all: &ours, others: 0 }, &to, Step::Subnet, &[], || {
                Some(|_: usize, _: IpAddr| Route::Leaves)
            });
            // An address for control sessions alone is not one for a rail.
            let targets = if place == HandleAddress::OTHER_PORT { 2 } else { 1 };
            assert_eq!(far.targets.len(), targets, "{place}");
        }
    }

    #[test]
    fn the_routes_are_those_of_each_port_to_each_target_in_turn() {
        let ours = [port("10.0.0.1"), port("10.1.0.1")];
        let [far, farther] = [port("10.2.0.9"), port("10.3.0.9")];
        let to = handle_addresses(&[far, farther, far], 0, |_| true);
        let own = OwnPorts { all: &ours, others: 0 };
        let found = ways(own, &to, Step::Routed, &[], || {
            Some(
                |place: usize, to: IpAddr| {
                    if (place, mapped(to)) == (0, farther.address) { Route::Leaves } else { Route::Elsewhere }
                },
            )
        });
        assert_eq!((found.first_step, &found.targets[..]), (Step::Routed, &[far.address, farther.address][..]));
        assert_eq!(found.routes, [Route::Elsewhere, Route::Leaves, Route::Elsewhere, Route::Elsewhere]);
    }

    #[test]
    fn among_more_addresses_than_an_offer_has_room_for_those_that_failed_come_first() {
        let ours = [port("10.0.0.1")];
        let many: Vec<_> = (0..20).map(|last| port(&format!("10.2.0.{last}"))).collect();
        let to = handle_addresses(&many, 0, |_| true);
        let failed = [[ours[0].address, many[19].address].map(|address| address.to_canonical())];
        let own = OwnPorts { all: &ours, others: 0 };
        let full = ways(own, &to, Step::Subnet, &failed, || Some(|_: usize, _: IpAddr| Route::Leaves));
        let expected: Vec<_> = many[19..].iter().chain(&many[..MAX_TARGETS - 1]).map(|port| port.address).collect();
        assert_eq!(full.targets, expected);
        assert_eq!(full.routes, [&[Route::Failed][..], &[Route::Leaves; MAX_TARGETS - 1]].concat());
    }

    #[test]
    fn a_handle_has_no_address_that_no_socket_reaches() {
        let infiniband = PortOffer { link_layer: LinkLayer::InfiniBand, ..port("10.0.0.1") };
        let tcp = PortOffer { link_layer: LinkLayer::Tcp, ..port("10.0.0.2") };
        let ports = [infiniband, tcp, port("10.0.0.3")];
        let not_3 = |address: IpAddr| address != IpAddr::from([10, 0, 0, 3]);
        let entries: Vec<_> =
            handle_addresses(&ports, 0, not_3).iter().map(|it| (it.address.to_string(), it.port)).collect();
        assert_eq!(entries, [("10.0.0.2".to_owned(), 1)]);
        let with_others = handle_addresses(&ports, 1, |_| true);
        assert_eq!(with_others.iter().map(HandleAddress::is_of_device).collect::<Vec<_>>(), [true, false]);
        // The ways lead to all of them, however near the others are.
        let ours = [port("10.0.0.3")];
        let far = ways(OwnPorts { all: &ours, others: 0 }, &with_others, Step::Routed, &[], || {
            Some(|_: usize, _: IpAddr| Route::Leaves)
        });
        assert_eq!(far.targets, [port("10.0.0.2").address, port("10.0.0.3").address]);
    }

    #[test]
    fn what_has_failed_is_said_even_where_the_kernel_is_not_asked() {
        let ours = [port("10.0.0.1"), port("10.1.0.1")];
        let to = handle_addresses(&[port("10.0.0.9"), port("10.1.0.9")], 0, |_| true);
        let failed = [["10.1.0.1", "10.1.0.9"].map(|address| address.parse().unwrap())];
        let near = ways(OwnPorts { all: &ours, others: 0 }, &to, Step::Subnet, &failed, || {
            Some(|_: usize, _: IpAddr| panic!("the subnet is shared"))
        });
        assert_eq!((near.targets.len(), &near.routes[..]), (1, &[Route::Unknown, Route::Failed][..]));
        assert_eq!(near.route(1, port("10.1.0.9").address), Route::Failed);
        // Once every way on a subnet has failed, the kernel has others.
        let both = [["10.0.0.1", "10.0.0.9"].map(|address| address.parse().unwrap()), failed[0]];
        let far = ways(OwnPorts { all: &ours, others: 0 }, &to, Step::Subnet, &both, || {
            Some(|place: usize, _: IpAddr| [Route::Leaves, Route::Elsewhere][place])
        });
        let [leaves, elsewhere, failed] = [Route::Leaves, Route::Elsewhere, Route::Failed];
        assert_eq!(far.routes, [failed, leaves, elsewhere, failed]);
        let many: Vec<_> = (0..40).map(|last| [IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 1, last])]).collect();
        let full = ways(OwnPorts { all: &ours, others: 1 }, &to, Step::Routed, &many, || {
            Some(|_: usize, _: IpAddr| Route::Leaves)
        });
        assert_eq!((full.targets.len(), full.others, full.routes.len()), (MAX_TARGETS, 1, 2 * MAX_TARGETS));
    }
}
