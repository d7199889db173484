//! The ladder in a simulated world: each step, with a neighbour that must fail, and the ways that are avoided; then
//! properties of any two hosts.

mod hosts;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use railweave_fabric::{Route, Step};

use hosts::{Connect, Host, Hosts, PROBE_NS, QUICK_NS, Way};

const MINUTE_NS: u64 = 60_000_000_000;

fn way(here: [u8; 4], there: [u8; 4]) -> Way {
    [IpAddr::from(here), IpAddr::from(there)]
}

/// The way of a cable between hosts 1 and 2; its number is that of its subnet.
fn cable(number: u8) -> Way {
    way([10, 0, number, 1], [10, 0, number, 2])
}

#[track_caller]
fn reaches(connect: &Connect, step: Step, rails: &[Way]) {
    let reached = connect.reached();
    assert_eq!((reached.step, &reached.rails), (step, &rails.iter().copied().collect::<BTreeSet<_>>()), "{connect:?}");
}

/// Returns two hosts with two cables between them. The first is that of the device, or both are.
fn two_cables(fused: bool) -> Hosts {
    let host = |last, peer| {
        let [first, second] = [[10, 0, 0, last], [10, 0, 1, last]];
        let mut host = if fused { Host::new(&[first, second], &[]) } else { Host::new(&[first], &[second]) };
        for port in 0..2 {
            host.routes.insert((port, IpAddr::from([10, 0, 1 - port as u8, peer])), Route::Elsewhere);
        }
        host
    };
    Hosts::new(host(1, 2), host(2, 1), None)
}

/// Returns two hosts whose networks have nothing in common, but the kernel's routes. `tcp`: they have a third network
/// for TCP in common.
fn far(route: Route, tcp: bool) -> Hosts {
    let mut here = Host::new(&[[10, 0, 0, 1]], &[]);
    here.routes.insert((0, IpAddr::from([10, 0, 1, 2])), route);
    let tcp = tcp.then(|| [1, 2].map(|last| Host::new(&[[192, 168, 0, last]], &[])));
    Hosts::new(here, Host::new(&[[10, 0, 1, 2]], &[]), tcp)
}

#[test]
fn a_subnet_that_carries_is_the_first_step_and_the_only_attempt() {
    let connect = two_cables(true).connect();
    reaches(&connect, Step::Subnet, &[cable(0), cable(1)]);
    assert_eq!((connect.attempts.len(), connect.left_out.len(), connect.took_ns < QUICK_NS), (1, 0, true));
}

#[test]
fn routes_carry_where_no_subnet_is_shared_and_other_routes_do_not() {
    reaches(&far(Route::Leaves, false).connect(), Step::Routed, &[way([10, 0, 0, 1], [10, 0, 1, 2])]);
    let error = far(Route::Elsewhere, false).connect().result.unwrap_err().to_string();
    assert!(error.contains("No local NIC found"), "{error}");
}

#[test]
fn tcp_carries_where_both_hosts_have_it_and_nothing_else_does() {
    let tcp = way([192, 168, 0, 1], [192, 168, 0, 2]);
    reaches(&far(Route::Elsewhere, true).connect(), Step::Tcp, &[tcp]);
    let mut silent = far(Route::Leaves, true);
    silent.silent.insert(way([10, 0, 0, 1], [10, 0, 1, 2]));
    reaches(&silent.connect(), Step::Tcp, &[tcp]);
}

#[test]
fn a_silent_cable_costs_one_connection_time_and_then_none_for_a_minute() {
    let mut hosts = two_cables(true);
    hosts.silent.insert(cable(0));
    let first = hosts.connect();
    reaches(&first, Step::Subnet, &[cable(1)]);
    assert_eq!((first.slow(), first.took_ns >= PROBE_NS), (vec![cable(0)], true));
    for _ in 0..3 {
        let later = hosts.connect();
        reaches(&later, Step::Subnet, &[cable(1)]);
        assert_eq!((later.left_out.len(), later.took_ns < QUICK_NS), (0, true), "{later:?}");
    }
    // The cable is plugged in again.
    hosts.silent.clear();
    hosts.advance(MINUTE_NS);
    reaches(&hosts.connect(), Step::Subnet, &[cable(0), cable(1)]);
}

#[test]
fn without_a_memory_each_connection_would_pay() {
    let mut hosts = two_cables(true);
    hosts.remembers = false;
    hosts.silent.insert(cable(0));
    assert_eq!([(); 3].map(|()| hosts.connect().slow()), [(); 3].map(|()| vec![cable(0)]));
}

#[test]
fn a_port_that_fails_at_once_is_tried_by_each_connection() {
    let mut here = Host::new(&[[10, 0, 0, 1], [10, 0, 1, 1]], &[]);
    here.broken.insert(0);
    let mut hosts = Hosts::new(here, Host::new(&[[10, 0, 0, 2], [10, 0, 1, 2]], &[]), None);
    for _ in 0..2 {
        let connect = hosts.connect();
        reaches(&connect, Step::Subnet, &[cable(1)]);
        assert_eq!(connect.left_out.iter().map(|(way, _)| *way).collect::<Vec<_>>(), [cable(0)]);
        assert!(connect.took_ns < QUICK_NS, "{connect:?}");
    }
}

#[test]
fn another_port_takes_the_place_of_one_that_brings_nothing_through() {
    let mut hosts = two_cables(false);
    reaches(&hosts.connect(), Step::Subnet, &[cable(0)]);
    hosts.silent.insert(cable(0));
    let connect = hosts.connect();
    reaches(&connect, Step::OtherPort, &[cable(1)]);
    assert_eq!((&connect.attempts[..], connect.slow()), (&[Step::Subnet, Step::Subnet][..], vec![cable(0)]));
    let later = hosts.connect();
    reaches(&later, Step::OtherPort, &[cable(1)]);
    assert_eq!((later.attempts.len(), later.left_out.len()), (1, 0), "{later:?}");
}

#[test]
fn a_way_that_was_avoided_is_tried_before_a_connect_fails() {
    let mut hosts = two_cables(false);
    hosts.silent.insert(cable(0));
    reaches(&hosts.connect(), Step::OtherPort, &[cable(1)]);
    hosts.silent = BTreeSet::from([cable(1)]);
    let connect = hosts.connect();
    reaches(&connect, Step::Subnet, &[cable(0)]);
    assert!(connect.has_begun_again(), "{connect:?}");
    // Neither carries: both are tried once more, and the error is that of the device's own port.
    hosts.silent.insert(cable(0));
    let connect = hosts.connect();
    let error = connect.result.as_ref().unwrap_err().to_string();
    assert!(error.starts_with("no rail to there"), "{error}");
    assert_eq!(connect.slow(), [cable(0), cable(1)]);
    assert!(connect.took_ns < 4 * PROBE_NS, "{connect:?}");
}

/// Returns two hosts on one subnet whose ports are joined by cables, each with the peer's port at this place.
fn joined(device: &[u8], others: &[u8], peer_device: &[u8], peer_others: &[u8], to: &[usize]) -> Hosts {
    let addresses = |ports: &[u8], host| ports.iter().map(|port| [10, 0, host, *port]).collect::<Vec<_>>();
    let host =
        |ports, others, host| Host { prefix_len: 16, ..Host::new(&addresses(ports, host), &addresses(others, host)) };
    let mut hosts = Hosts::new(host(device, others, 1), host(peer_device, peer_others, 2), None);
    for ours in 0..to.len() {
        for theirs in (0..to.len()).filter(|theirs| *theirs != to[ours]) {
            hosts.silent.insert(way([10, 0, 1, ours as u8], [10, 0, 2, theirs as u8]));
        }
    }
    hosts
}

#[test]
fn crossed_cables_on_one_subnet_carry_from_the_second_attempt_on() {
    let crossed = || joined(&[0, 1], &[], &[0, 1], &[], &[1, 0]);
    let mut hosts = crossed();
    let first = hosts.connect();
    let rails = [way([10, 0, 1, 0], [10, 0, 2, 1]), way([10, 0, 1, 1], [10, 0, 2, 0])];
    reaches(&first, Step::Subnet, &rails);
    assert_eq!(first.attempts, [Step::Subnet; 2]);
    let later = hosts.connect();
    reaches(&later, Step::Subnet, &rails);
    assert_eq!((later.attempts.len(), later.left_out.len()), (1, 0), "{later:?}");
    // Without a memory, each connection would pay.
    let mut forgetful = crossed();
    forgetful.remembers = false;
    assert_eq!([(); 3].map(|()| forgetful.connect().attempts.len()), [2; 3]);
}

/// As on hosts with eight adapters whose rails are switches of their own, though all have one subnet.
#[test]
fn isolated_rails_on_one_subnet_connect_every_pair_of_devices() {
    for (ours, theirs) in (0..8u8).flat_map(|ours| (0..8).map(move |theirs| (ours, theirs))) {
        let others = |device: u8| (0..8u8).filter(|port| *port != device).collect::<Vec<_>>();
        let mut hosts = joined(&[ours], &others(ours), &[theirs], &others(theirs), &(0..8).collect::<Vec<usize>>());
        let connect = hosts.connect();
        let step = if ours == theirs { Step::Subnet } else { Step::OtherPort };
        assert_eq!(connect.reached().step, step);
        assert!(connect.attempts.len() <= 2, "{ours} to {theirs}: {connect:?}");
    }
}

#[test]
fn a_host_that_forwards_still_counts_while_the_cable_is_avoided() {
    let mut hosts = two_cables(false);
    let forwarded = way([10, 0, 0, 1], [10, 0, 1, 2]);
    hosts.here_mut().routes.clear();
    hosts.there_mut().routes.clear();
    hosts.silent.extend([cable(0), cable(1), way([10, 0, 1, 1], [10, 0, 0, 2])]);
    reaches(&hosts.connect(), Step::Forwarded, &[forwarded]);
    let later = hosts.connect();
    reaches(&later, Step::Forwarded, &[forwarded]);
    assert_eq!((later.attempts.len(), later.left_out.len()), (1, 0), "{later:?}");
}

#[test]
fn ways_that_were_avoided_get_their_turn_before_tcp() {
    let mut hosts = far(Route::Leaves, true);
    let rdma = way([10, 0, 0, 1], [10, 0, 1, 2]);
    hosts.silent.insert(rdma);
    let first = hosts.connect();
    assert_eq!((first.reached().step, first.slow(), first.has_begun_again()), (Step::Tcp, vec![rdma], false));
    // A hiccup is no reason to use TCP for the life of a job.
    hosts.silent.clear();
    reaches(&hosts.connect(), Step::Routed, &[rdma]);
}

/// RoCE that a firewall stops: its ports' addresses are those of the interfaces that TCP uses.
#[test]
fn tcp_passes_between_addresses_where_rdma_does_not() {
    let host = |last| Host::new(&[[10, 0, 0, last]], &[]);
    let mut hosts = Hosts::new(host(1), host(2), Some([host(1), host(2)]));
    hosts.silent.insert(cable(0));
    reaches(&hosts.connect(), Step::Tcp, &[cable(0)]);
}

#[test]
fn tcp_tries_other_pairs_too() {
    let host = |last: u8, broken| {
        let mut host = Host::new(&[[192, 168, 0, last], [192, 168, 0, last + 10]], &[]);
        host.broken.extend(broken);
        host
    };
    let hosts = |there_broken| {
        let tcp = [host(1, Some(0)), host(2, there_broken)];
        let mut hosts = Hosts::new(Host::new(&[[10, 0, 0, 1]], &[]), Host::new(&[[10, 0, 1, 2]], &[]), Some(tcp));
        hosts.here_mut().routes.insert((0, IpAddr::from([10, 0, 1, 2])), Route::Elsewhere);
        hosts
    };
    // One rail of two is enough for the first attempt; if both fail, the second has the others.
    let one = hosts(None).connect();
    reaches(&one, Step::Tcp, &[way([192, 168, 0, 11], [192, 168, 0, 12])]);
    assert_eq!(one.attempts, [Step::Subnet, Step::Tcp]);
    let both = hosts(Some(1)).connect();
    reaches(&both, Step::Tcp, &[way([192, 168, 0, 11], [192, 168, 0, 2])]);
    assert_eq!(both.attempts, [Step::Subnet, Step::Tcp, Step::Tcp]);
}

fn address() -> impl Strategy<Value = (u8, u8)> {
    (0..4u8, 0..3u8)
}

/// A host: its ports are on up to four subnets, whose addresses end in this number and two more.
fn any_host(last: u8) -> impl Strategy<Value = Host> {
    let routes =
        vec(proptest::sample::select(&[Route::Leaves, Route::Leaves, Route::Unknown, Route::Elsewhere][..]), 48);
    let broken = btree_set(0..6usize, 0..2);
    (vec(address(), 1..6), 0..3usize, broken, routes).prop_map(move |(ports, others, broken, routes)| {
        let mut addresses: Vec<[u8; 4]> = Vec::new();
        for (subnet, place) in ports {
            let address = [10, 0, subnet, last + place];
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        let of_device = addresses.len() - others.min(addresses.len() - 1);
        let mut host = Host::new(&addresses[..of_device], &addresses[of_device..]);
        host.broken = broken.into_iter().filter(|place| *place < addresses.len()).collect();
        let targets = (0..4u8).flat_map(|subnet| (0..3).map(move |place| (subnet, place)));
        let peer = if last == 1 { 11 } else { 1 };
        for (index, (subnet, place)) in targets.enumerate() {
            let to = IpAddr::from([10, 0, subnet, peer + place]);
            for port in 0..addresses.len() {
                // A port on the subnet reaches it.
                if addresses[port][2] != subnet {
                    host.routes.insert((port, to), routes[(index + port * 7) % routes.len()]);
                }
            }
        }
        host
    })
}

fn ways_between(here: &Host, there: &Host) -> Vec<Way> {
    let pair =
        |ours: &Ipv4Addr| there.addresses.iter().map(|theirs| [(*ours).into(), (*theirs).into()]).collect::<Vec<_>>();
    here.addresses.iter().flat_map(pair).collect()
}

/// Two hosts, the ways between them that carry nothing, and true if both have TCP in place of RDMA.
fn any_hosts() -> impl Strategy<Value = (Host, Host, BTreeSet<Way>, bool)> {
    (any_host(1), any_host(11)).prop_flat_map(|(here, there)| {
        let ways = ways_between(&here, &there);
        let silent = vec(any::<bool>(), ways.len()).prop_map(move |silent| {
            ways.iter().zip(silent).filter(|(_, is_silent)| *is_silent).map(|(way, _)| *way).collect()
        });
        (Just(here), Just(there), silent, any::<bool>())
    })
}

/// Returns the ways by which the two hosts could be connected: nothing stops their packets, and they are on one subnet
/// or both kernels send them by these ports.
fn good_ways(here: &Host, there: &Host, silent: &BTreeSet<Way>) -> BTreeSet<Way> {
    let place = |host: &Host, address: IpAddr| host.addresses.iter().position(|own| IpAddr::from(*own) == address);
    let is_good = |way: &Way| {
        let [Some(ours), Some(theirs)] = [place(here, way[0]), place(there, way[1])] else { return false };
        let is_near = here.addresses[ours].octets()[..3] == there.addresses[theirs].octets()[..3];
        let route = here.route(ours, way[1]).and(there.route(theirs, way[0]));
        !silent.contains(way)
            && !here.broken.contains(&ours)
            && !there.broken.contains(&theirs)
            && (is_near || route == Route::Leaves)
    };
    ways_between(here, there).into_iter().filter(is_good).collect()
}

proptest! {
    #[test]
    fn hosts_connect_if_a_way_carries_and_each_bad_way_costs_time_once((here, there, silent, tcp) in any_hosts()) {
        let good = good_ways(&here, &there, &silent);
        let is_broken = |[ours, theirs]: &Way| {
            let is = |host: &Host, address: &IpAddr| {
                host.broken.iter().any(|place| IpAddr::from(host.addresses[*place]) == *address)
            };
            is(&here, ours) || is(&there, theirs)
        };
        let tcp_hosts = tcp.then(|| [1, 2].map(|last| Host::new(&[[192, 168, 0, last]], &[])));
        let mut hosts = Hosts::new(here.clone(), there.clone(), tcp_hosts);
        hosts.silent = silent.clone();
        let mut known_slow: BTreeSet<Way> = BTreeSet::new();
        for _ in 0..6 {
            let connect = hosts.connect();
            prop_assert!(connect.took_ns < connect.attempts.len() as u64 * (PROBE_NS + QUICK_NS), "{:?}", connect);
            match &connect.result {
                Ok(reached) => {
                    prop_assert!(!reached.rails.is_empty());
                    prop_assert!(reached.step != Step::Tcp || good.is_empty(), "{:?}; {:?}", good, connect);
                    let is_bad = |way: &Way| silent.contains(way) || is_broken(way);
                    prop_assert!(!reached.rails.iter().any(is_bad), "{:?}", connect);
                }
                Err(_) => prop_assert!(!tcp && good.is_empty(), "{:?}; {:?}", good, connect),
            }
            let slow: BTreeSet<Way> = connect.slow().into_iter().collect();
            prop_assert_eq!(slow.len(), connect.slow().len(), "no attempt repeats a way of its connect: {:?}", connect);
            // Each way costs time once in a minute, unless nothing else was left.
            if connect.has_begun_again() {
                known_slow.clear();
            }
            for way in slow {
                prop_assert!(known_slow.insert(way) || connect.has_begun_again(), "{:?} again: {:?}", way, connect);
            }
        }
    }
}
