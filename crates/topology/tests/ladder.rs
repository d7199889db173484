//! Each step of the ladder, with a near miss that must fail; then properties of any two hosts.

mod common;

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;
use railweave_fabric::{LinkLayer, MAX_RAILS, Route, Step};
use railweave_topology::{Between, Endpoint, Pair, Pairing, Ports, Side, pair};

use common::{any_endpoint, endpoint, network};

/// The ports of a host: those of the device that NCCL chose, then the others.
struct Host {
    ports: Vec<Endpoint>,
    others: usize,
}

impl Host {
    fn new(device: &[&str], others: &[&str]) -> Self {
        let ports = device.iter().chain(others).map(|text| endpoint(text)).collect();
        Self { ports, others: others.len() }
    }

    fn ports(&self) -> Ports<'_> {
        Ports { all: &self.ports, others: self.others }
    }
}

fn climb(connector: &Host, acceptor: &Host, first_step: Step, route: impl Fn(Pair) -> Route) -> Pairing {
    let has_failed = |pair: Pair| route(pair) == Route::Failed;
    let between = Between { same_network: false, first_step, route: &route, has_failed: &has_failed };
    pair(connector.ports(), acceptor.ports(), &between)
}

#[track_caller]
fn gives(found: &Pairing, step: Step, expected: &[(usize, usize)]) {
    let pairs: Vec<_> = found.pairs.iter().map(|pair| (pair.connector, pair.acceptor)).collect();
    assert_eq!((found.step, pairs), (Some(step), expected.to_vec()), "{found:?}");
}

#[track_caller]
fn gives_nothing(found: &Pairing) {
    assert_eq!((found.step, found.pairs.len()), (None, 0), "{found:?}");
}

#[test]
fn a_subnet_goes_before_everything_else() {
    let here = Host::new(&["10.0.1.1/24", "10.0.2.1/24"], &["10.0.3.1/24"]);
    let there = Host::new(&["10.0.2.2/24", "10.0.9.2/24"], &["10.0.3.2/24"]);
    gives(&climb(&here, &there, Step::Subnet, |_| Route::Leaves), Step::Subnet, &[(1, 0)]);
    // The next step does without them.
    gives(&climb(&here, &there, Step::Routed, |_| Route::Leaves), Step::Routed, &[(0, 0), (1, 1)]);
    gives(&climb(&here, &there, Step::OtherPort, |_| Route::Leaves), Step::OtherPort, &[(2, 2)]);
}

#[test]
fn a_route_counts_unless_it_leaves_by_another_port() {
    let (here, there) = (Host::new(&["10.0.1.1/24 roce"], &[]), Host::new(&["10.0.2.2/24 roce"], &[]));
    for (route, step) in
        [(Route::Leaves, Some(Step::Routed)), (Route::Unknown, Some(Step::Routed)), (Route::Elsewhere, None)]
    {
        assert_eq!(climb(&here, &there, Step::Subnet, |_| route).step, step, "{route:?}");
    }
    // Nobody can ask for routes between subnets of InfiniBand, so they are tried after everything else.
    let (here, there) = (Host::new(&["fe80:0:0:1::1/64 ib"], &[]), Host::new(&["fe80:0:0:2::2/64 ib"], &[]));
    gives(&climb(&here, &there, Step::Subnet, |_| Route::Unknown), Step::Forwarded, &[(0, 0)]);
    gives_nothing(&climb(&here, &there, Step::Tcp, |_| Route::Unknown));
}

#[test]
fn packets_of_tcp_may_leave_by_another_port_where_nothing_else_is_left() {
    let (here, there) = (Host::new(&["10.0.1.1/24"], &[]), Host::new(&["10.0.2.2/24"], &[]));
    gives(&climb(&here, &there, Step::Subnet, |_| Route::Elsewhere), Step::Forwarded, &[(0, 0)]);
    gives_nothing(&climb(&here, &there, Step::Subnet, |_| Route::Failed));
    // Other ports do not help: the kernel chooses among all of them anyway.
    let (here, there) = (Host::new(&["10.0.1.1/24"], &["10.0.3.1/24"]), Host::new(&["10.0.2.2/24"], &["10.0.4.2/24"]));
    let not_own = |pair: Pair| if pair.connector + pair.acceptor == 0 { Route::Failed } else { Route::Elsewhere };
    gives_nothing(&climb(&here, &there, Step::Subnet, not_own));
    let (here, there) = (Host::new(&["10.0.1.1/24 roce"], &[]), Host::new(&["10.0.2.2/24 roce"], &[]));
    gives_nothing(&climb(&here, &there, Step::Subnet, |_| Route::Elsewhere));
}

#[test]
fn ports_whose_rail_has_failed_do_not_pair_again() {
    let here = Host::new(&["10.0.1.1/24 roce", "10.0.2.1/24 roce"], &["10.0.3.1/24 roce"]);
    let there = Host::new(&["10.0.1.2/24 roce", "10.0.2.2/24 roce"], &["10.0.3.2/24 roce"]);
    let failed = |which: &'static [usize]| {
        move |pair: Pair| if which.contains(&pair.connector) { Route::Failed } else { Route::Elsewhere }
    };
    gives(&climb(&here, &there, Step::Subnet, failed(&[])), Step::Subnet, &[(0, 0), (1, 1)]);
    gives(&climb(&here, &there, Step::Subnet, failed(&[1])), Step::Subnet, &[(0, 0)]);
    gives(&climb(&here, &there, Step::Subnet, failed(&[0, 1])), Step::OtherPort, &[(2, 2)]);
    let none = climb(&here, &there, Step::Subnet, failed(&[0, 1, 2]));
    gives_nothing(&none);
    let text = none.refusal().unwrap();
    assert!(text.contains("was left out a moment ago") && text.contains("UDP port 4791"), "{text}");
}

#[test]
fn the_port_of_the_device_is_kept_when_there_are_more_pairs_than_rails() {
    // The second port of here reaches only the first one there, which would be the device's partner otherwise.
    let here = Host::new(&["10.0.0.9/24"], &["10.0.0.10/24 p1", "10.2.0.9/24"]);
    let there = Host::new(&["10.9.9.1/32"], &["10.0.0.1/24", "10.0.0.2/24 p2", "10.2.0.1/24"]);
    let found = climb(&here, &there, Step::OtherPort, |_| Route::Elsewhere);
    assert_eq!(found.step, Some(Step::OtherPort));
    assert_eq!(found.pairs.iter().map(|pair| pair.connector).collect::<Vec<_>>(), [0], "NCCL's own port");
}

#[test]
fn what_one_kernel_does_not_know_is_not_a_way_through_a_host_in_between() {
    assert_eq!(Route::Unknown.and(Route::Leaves), Route::Unknown);
    assert_eq!(Route::Elsewhere.and(Route::Unknown), Route::Elsewhere);
    assert_eq!(Route::Failed.and(Route::Elsewhere), Route::Failed);
    assert_eq!(Route::Leaves.and(Route::Leaves), Route::Leaves);
    let (here, there) = (Host::new(&["fe80:0:0:1::1/64 ib"], &[]), Host::new(&["fe80:0:0:2::2/64 ib"], &[]));
    for route in [Route::Elsewhere, Route::Unknown] {
        assert_eq!(climb(&here, &there, Step::Subnet, |_| route).step, Some(Step::Forwarded), "not step 2");
    }
}

#[test]
fn a_connection_has_at_most_eight_rails_however_they_were_found() {
    let same = (0..5).map(|port| format!("10.0.{port}.1/24"));
    let ends: [Vec<String>; 2] =
        [1, 2].map(|host| same.clone().chain((5..13).map(|port| format!("10.0.{port}.{host}/24"))).collect());
    let [here, there] = ends.map(|end| Host::new(&end.iter().map(String::as_str).collect::<Vec<_>>(), &[]));
    let between =
        Between { same_network: true, first_step: Step::Subnet, route: &|_| Route::Unknown, has_failed: &|_| false };
    assert_eq!(pair(here.ports(), there.ports(), &between).pairs.len(), MAX_RAILS);
}

#[test]
fn other_ports_take_no_part_in_the_step_of_the_devices_own() {
    // The second port of the device shares a partner of the device's; the other port gets none.
    let here = Host::new(&["10.0.0.1/24", "10.0.0.2/24"], &["10.0.0.3/24"]);
    let there = Host::new(&["10.0.0.4/24"], &["10.0.0.5/24"]);
    gives(&climb(&here, &there, Step::Subnet, |_| Route::Unknown), Step::Subnet, &[(0, 0), (1, 0)]);
    // Nor where it has the same address on one host.
    let same = Host::new(&["10.0.0.1/24"], &["10.0.1.1/24"]);
    let between =
        Between { same_network: true, first_step: Step::Subnet, route: &|_| Route::Unknown, has_failed: &|_| false };
    gives(&pair(same.ports(), same.ports(), &between), Step::Subnet, &[(0, 0)]);
    let between = Between { first_step: Step::OtherPort, ..between };
    gives(&pair(same.ports(), same.ports(), &between), Step::OtherPort, &[(1, 1)]);
}

/// Two hosts with two cables between other ports, which have opposite orders on them. A device has one port, so a
/// connection uses one cable. The host with the lower number has the lowest address, but the higher one at its device.
fn crossed_cables(low: u8, high: u8, more: &[&str]) -> [Host; 2] {
    let host = |number: u8, cables: [u8; 2]| {
        let device = format!("203.0.113.{}/32 roce", 200 - number);
        let others = cables.map(|cable| format!("192.168.{cable}.{number}/24 roce"));
        Host::new(&[&device], &[&[others[0].as_str(), others[1].as_str()], more].concat())
    };
    [host(low, [2, 1]), host(high, [1, 2])]
}

#[test]
fn the_end_with_the_lowest_address_of_its_own_chooses_in_both_directions() {
    // docker0 has one address on all hosts, and a lower one than the others here.
    for more in [&[][..], &["10.0.0.1/24 roce"]] {
        let [low, high] = crossed_cables(1, 2, more);
        gives(&climb(&low, &high, Step::Subnet, |_| Route::Elsewhere), Step::OtherPort, &[(1, 2)]);
        gives(&climb(&high, &low, Step::Subnet, |_| Route::Elsewhere), Step::OtherPort, &[(2, 1)]);
    }
}

#[test]
fn devices_of_one_host_do_not_pair_by_the_addresses_of_each_others_ports() {
    let (here, there) = (Host::new(&["10.0.0.1/24"], &["10.0.1.1/24"]), Host::new(&["10.0.1.1/24"], &["10.0.0.1/24"]));
    let between =
        Between { same_network: true, first_step: Step::Subnet, route: &|_| Route::Leaves, has_failed: &|_| false };
    gives(&pair(here.ports(), there.ports(), &between), Step::Routed, &[(0, 0)]);
}

#[test]
fn beside_a_way_that_both_kernels_know_tcp_tries_no_other() {
    let (here, there) =
        (Host::new(&["10.0.1.1/24", "10.0.2.1/24"], &[]), Host::new(&["10.0.3.2/24", "10.0.4.2/24"], &[]));
    let known = |pair: Pair| if pair.connector == pair.acceptor { Route::Leaves } else { Route::Elsewhere };
    let one = |pair: Pair| if pair.connector == 0 { known(pair) } else { Route::Elsewhere };
    gives(&climb(&here, &there, Step::Forwarded, known), Step::Forwarded, &[(0, 0), (1, 1)]);
    gives(&climb(&here, &there, Step::Forwarded, one), Step::Forwarded, &[(0, 0)]);
}

#[test]
fn a_way_between_the_devices_goes_before_equal_rails_of_other_ports() {
    let here = Host::new(&["10.0.1.1/24 r0 roce"], &["10.0.2.1/24 r1 roce"]);
    let there = Host::new(&["10.0.3.2/24 r1 roce"], &["10.0.4.2/24 r0 roce"]);
    gives(&climb(&here, &there, Step::OtherPort, |_| Route::Leaves), Step::Forwarded, &[(0, 0)]);
    // One port of a device goes before two others.
    let failed = |pair: Pair| if (pair.connector, pair.acceptor) == (0, 0) { Route::Failed } else { Route::Leaves };
    let there = Host::new(&["10.0.3.2/24 r2 roce"], &["10.0.4.2/24 r1 roce"]);
    gives(&climb(&here, &there, Step::OtherPort, failed), Step::Forwarded, &[(0, 1)]);
}

#[test]
fn other_ports_give_at_most_eight_rails_even_to_a_device_of_nine_ports() {
    let ports = |host: u8| (0..9).map(|port| format!("10.0.{port}.{host}/24")).collect::<Vec<_>>();
    let [ours, theirs] = [1, 2].map(ports);
    let [ours, theirs] = [&ours, &theirs].map(|ports| ports.iter().map(String::as_str).collect::<Vec<_>>());
    let (here, there) = (Host::new(&ours, &[]), Host::new(&["10.1.0.2/24"], &theirs));
    let found = climb(&here, &there, Step::OtherPort, |_| Route::Unknown);
    assert_eq!((found.step, found.pairs.len()), (Some(Step::OtherPort), MAX_RAILS));
}

#[test]
fn ports_without_a_route_are_refused_with_the_remedies_for_routes() {
    let (here, there) = (Host::new(&["10.0.1.1/24 roce"], &[]), Host::new(&["10.0.2.2/24 roce"], &[]));
    let text = climb(&here, &there, Step::Subnet, |_| Route::Elsewhere).refusal().unwrap();
    for part in
        ["the connector's 10.0.1.1/24: ", "packets to none of them leave by this port", "`railweave topo --routes`"]
    {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_port_of_equal_rail_goes_before_one_without() {
    let here = Host::new(&["10.0.0.1/24 r1"], &[]);
    let there = Host::new(&["10.0.0.2/24", "10.0.0.3/24 r1"], &[]);
    let found = climb(&here, &there, Step::Subnet, |_| Route::Unknown);
    assert!(found.pairs.contains(&Pair { connector: 0, acceptor: 1 }), "{found:?}");
    let (one, many) = (Host::new(&["10.0.1.1/24 r1"], &[]), Host::new(&["10.0.2.2/24", "10.0.2.3/24 r1"], &[]));
    gives(&climb(&one, &many, Step::Routed, |_| Route::Unknown), Step::Routed, &[(0, 1)]);
    // Rail 0 is a rail as any other.
    let (one, many) = (Host::new(&["10.0.1.1/24 r0"], &[]), Host::new(&["10.0.2.2/24", "10.0.2.3/24 r0"], &[]));
    gives(&climb(&one, &many, Step::Routed, |_| Route::Unknown), Step::Routed, &[(0, 1)]);
    gives(&climb(&many, &one, Step::Routed, |_| Route::Unknown), Step::Routed, &[(1, 0)]);
}

#[test]
fn a_port_without_a_rail_goes_before_one_of_another_rail() {
    for rails in [["r0", "r1"], ["r1", "r0"]] {
        let one = Host::new(&[&format!("10.0.1.1/24 {}", rails[0])], &[]);
        let many = Host::new(&[&format!("10.0.2.2/24 {}", rails[1]), "10.0.2.3/24"], &[]);
        gives(&climb(&one, &many, Step::Routed, |_| Route::Unknown), Step::Routed, &[(0, 1)]);
        gives(&climb(&many, &one, Step::Routed, |_| Route::Unknown), Step::Routed, &[(1, 0)]);
    }
}

#[test]
fn ports_on_one_subnet_are_not_retried_across_routers() {
    for layer in ["", " roce"] {
        let [here, there] = [1, 2].map(|host| Host::new(&[&format!("10.0.1.{host}/24{layer}")], &[]));
        for first_step in [Step::Routed, Step::OtherPort, Step::Forwarded] {
            gives_nothing(&climb(&here, &there, first_step, |_| Route::Leaves));
            gives_nothing(&climb(&here, &there, first_step, |_| Route::Elsewhere));
        }
    }
}

#[test]
fn as_many_other_ports_take_part_as_the_larger_device_has_ports() {
    let one = Host::new(&["10.1.0.1/24"], &["10.0.1.1/24", "10.0.2.1/24", "10.0.3.1/24"]);
    let two = Host::new(&["10.2.0.2/24", "10.3.0.2/24"], &["10.0.1.2/24", "10.0.2.2/24", "10.0.3.2/24"]);
    gives(&climb(&one, &two, Step::OtherPort, |_| Route::Elsewhere), Step::OtherPort, &[(1, 2), (2, 3)]);
    gives(&climb(&two, &one, Step::OtherPort, |_| Route::Elsewhere), Step::OtherPort, &[(2, 1), (3, 2)]);
}

#[test]
fn another_port_takes_the_place_where_it_shares_a_subnet() {
    // Three hosts, a cable between each two; NCCL chose the port to the third host.
    let (here, there) = (Host::new(&["10.0.1.1/24"], &["10.0.3.1/24"]), Host::new(&["10.0.3.2/24"], &["10.0.2.2/24"]));
    gives(&climb(&here, &there, Step::Subnet, |_| Route::Elsewhere), Step::OtherPort, &[(1, 0)]);
    let (here, there) = (Host::new(&["10.0.1.1/24"], &["10.0.3.1/24"]), Host::new(&["10.0.2.2/24"], &["10.0.3.2/24"]));
    gives(&climb(&here, &there, Step::Subnet, |_| Route::Elsewhere), Step::OtherPort, &[(1, 1)]);
    // As many take part as the device has ports, and those go first whose partner belongs to its device.
    let here = Host::new(&["10.0.1.1/24"], &["10.0.3.1/24", "10.0.4.1/24"]);
    let there = Host::new(&["10.0.4.2/24"], &["10.0.3.2/24"]);
    gives(&climb(&here, &there, Step::Subnet, |_| Route::Elsewhere), Step::OtherPort, &[(2, 0)]);
    let here = Host::new(&["10.0.1.1/24 roce"], &["10.0.3.1/24 roce", "10.0.4.1/24 roce"]);
    let there = Host::new(&["10.0.9.2/24 roce"], &["10.0.8.2/24 roce"]);
    gives_nothing(&climb(&here, &there, Step::Subnet, |_| Route::Elsewhere));
}

#[test]
fn a_host_that_forwards_is_taken_only_where_both_ends_have_a_route() {
    // The diagonal of a ring of four: host 1 has cables to 2 and 4, host 3 too.
    let here = Host::new(&["10.12.0.1/24 roce", "10.14.0.1/24 roce"], &[]);
    let there = Host::new(&["10.23.0.3/24 roce", "10.34.0.3/24 roce"], &[]);
    let through = |pair: Pair| match (pair.connector, pair.acceptor) {
        (0, 0) | (1, 1) => Route::Leaves,
        _ => Route::Elsewhere,
    };
    gives(&climb(&here, &there, Step::Subnet, through), Step::Routed, &[(0, 0), (1, 1)]);
    gives(&climb(&here, &there, Step::OtherPort, through), Step::Forwarded, &[(0, 0), (1, 1)]);
    gives_nothing(&climb(&here, &there, Step::OtherPort, |_| Route::Unknown));
    gives_nothing(&climb(&here, &there, Step::Tcp, through));
    // Each port a device: NCCL chose two between which there is no way.
    let here = Host::new(&["10.12.0.1/24 roce"], &["10.14.0.1/24 roce"]);
    let there = Host::new(&["10.34.0.3/24 roce"], &["10.23.0.3/24 roce"]);
    let through =
        |pair: Pair| if pair == (Pair { connector: 1, acceptor: 0 }) { Route::Leaves } else { Route::Elsewhere };
    gives(&climb(&here, &there, Step::Subnet, through), Step::Forwarded, &[(1, 0)]);
}

/// Eight ports, each on a link network of its own with its switch, and a network interface on one subnet with all
/// hosts.
fn rails_and_front_end(host: u8, device: usize) -> Host {
    let rail = |rail: usize| format!("10.{rail}.{host}.1/31 roce 400g");
    let others = (0..8).filter(|other| *other != device).map(rail);
    let others: Vec<String> = others.chain([format!("192.168.0.{host}/24 roce 100g")]).collect();
    Host::new(&[&rail(device)], &others.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn each_rail_of_a_routed_fabric_stays_on_its_port() {
    for (ours, theirs) in (0..8).flat_map(|ours| (0..8).map(move |theirs| (ours, theirs))) {
        let (here, there) = (rails_and_front_end(1, ours), rails_and_front_end(2, theirs));
        for route in [Route::Leaves, Route::Unknown] {
            gives(&climb(&here, &there, Step::Subnet, |_| route), Step::Routed, &[(0, 0)]);
        }
    }
    // A port without a route of its own is none of these fabrics: the interface that all share takes its place.
    let (here, there) = (rails_and_front_end(1, 0), rails_and_front_end(2, 0));
    gives(&climb(&here, &there, Step::Subnet, |_| Route::Elsewhere), Step::OtherPort, &[(8, 8)]);
}

prop_compose! {
    fn any_host()(
        ports in vec(any_endpoint(), 1..7),
        others in vec(any_endpoint(), 0..5),
    ) -> Host {
        Host { others: others.len(), ports: [ports, others].concat() }
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let others = self.ports.len() - self.others;
        write!(out, "{:#?} and others {:#?}", &self.ports[..others], &self.ports[others..])
    }
}

/// Ways that both hosts know, by the places of the ports in their lists.
fn any_ways() -> impl Strategy<Value = Vec<Route>> {
    let routes = vec![Route::Unknown, Route::Leaves, Route::Elsewhere, Route::Failed];
    vec(prop::sample::select(routes), 12 * 12)
}

fn way(ways: &[Route], connector: usize, acceptor: usize) -> Route {
    ways[connector * 12 + acceptor]
}

/// Returns the size of a maximum matching, by trying all.
fn most(edges: &[(usize, usize)]) -> usize {
    let Some(((left, right), rest)) = edges.split_first() else { return 0 };
    let without = most(rest);
    let others: Vec<_> = rest.iter().copied().filter(|edge| edge.0 != *left && edge.1 != *right).collect();
    without.max(1 + most(&others))
}

/// True if two ports, alone, pair at this step.
fn may_pair((here, ours): (&Host, usize), (there, theirs): (&Host, usize), step: Step, route: Route) -> bool {
    let alone = |host: &Host, place: usize| {
        if place < host.ports.len() - host.others {
            return Host { ports: vec![host.ports[place]], others: 0 };
        }
        // The device's own port pairs with nothing.
        Host { ports: vec![endpoint("0.0.0.0/32"), host.ports[place]], others: 1 }
    };
    climb(&alone(here, ours), &alone(there, theirs), step, |_| route).step == Some(step)
}

prop_compose! {
    /// A host with few ports, on few subnets.
    fn small_host(number: u8)(
        subnets in vec(0_u8..4, 1..6),
        others in 0_usize..3,
    ) -> Host {
        let ports = subnets.iter().zip(0_u8..);
        let ports = ports.map(|(subnet, place)| endpoint(&format!("10.0.{subnet}.{number}{place}/24 roce")));
        let ports: Vec<_> = ports.collect();
        Host { others: others.min(ports.len() - 1), ports }
    }
}

/// The step and the pairs of connections from `here` to `there` and back, each pair with the port of `here` first.
fn both_directions(
    here: &Host,
    there: &Host,
    first_step: Step,
    ways: &[Route],
) -> [(Option<Step>, Vec<[usize; 2]>); 2] {
    let out = climb(here, there, first_step, |pair| way(ways, pair.connector, pair.acceptor));
    let back = climb(there, here, first_step, |pair| way(ways, pair.acceptor, pair.connector));
    [(out, Side::Connector), (back, Side::Acceptor)].map(|(found, side)| {
        let mut pairs: Vec<_> = found.pairs.iter().map(|pair| [pair.port(side), pair.port(side.other())]).collect();
        pairs.sort_unstable();
        (found.step, pairs)
    })
}

proptest! {
    #[test]
    fn any_two_hosts_pair_soundly(
        here in any_host(),
        there in any_host(),
        ways in any_ways(),
        first_step in prop::sample::select(Step::ALL),
    ) {
        let route = |pair: Pair| way(&ways, pair.connector, pair.acceptor);
        let found = climb(&here, &there, first_step, route);
        prop_assert!(found.step.is_none_or(|step| step >= first_step));
        prop_assert_eq!(found.step.is_none(), found.pairs.is_empty());
        prop_assert_eq!(found.refusal().is_some(), found.pairs.is_empty());
        prop_assert!(found.pairs.len() <= MAX_RAILS);
        let of_device = |host: &Host, place: usize| place < host.ports.len() - host.others;
        for pair in &found.pairs {
            let (ours, theirs) = (&here.ports[pair.connector], &there.ports[pair.acceptor]);
            prop_assert_eq!(ours.link_layer, theirs.link_layer);
            prop_assert!(ours.plane_id < 0 || theirs.plane_id < 0 || ours.plane_id == theirs.plane_id);
            let is_own = of_device(&here, pair.connector) && of_device(&there, pair.acceptor);
            let is_near = network(ours).shares_subnet(&network(theirs));
            prop_assert!(route(*pair) != Route::Failed);
            match found.step {
                Some(Step::Subnet) => prop_assert!(is_own && is_near),
                Some(Step::Routed) => prop_assert!(is_own && !is_near && route(*pair) != Route::Elsewhere),
                Some(Step::OtherPort) => prop_assert!(!is_own && is_near),
                Some(Step::Forwarded) => {
                    let is_own_tcp = is_own && ours.link_layer == LinkLayer::Tcp;
                    prop_assert!(!is_near && (route(*pair) == Route::Leaves || is_own_tcp));
                }
                Some(Step::Tcp) | None => prop_assert!(false, "{:?}", found),
            }
        }
        if found.step > Some(Step::Subnet) {
            for side in [Side::Connector, Side::Acceptor] {
                let mut used: Vec<_> = found.pairs.iter().map(|pair| pair.port(side)).collect();
                used.sort_unstable();
                used.dedup();
                prop_assert_eq!(used.len(), found.pairs.len(), "beyond a subnet, ports pair one to one");
            }
        }
    }

    #[test]
    fn as_many_ports_pair_as_can(here in small_host(1), there in small_host(2), ways in any_ways()) {
        let route = |connector: usize, acceptor: usize| way(&ways, connector, acceptor);
        for first_step in Step::ALL {
            let found = climb(&here, &there, *first_step, |pair| route(pair.connector, pair.acceptor));
            let Some(step) = found.step else { continue };
            let all = (0..here.ports.len()).flat_map(|ours| (0..there.ports.len()).map(move |theirs| (ours, theirs)));
            let edges: Vec<_> = all
                .filter(|(ours, theirs)| may_pair((&here, *ours), (&there, *theirs), step, route(*ours, *theirs)))
                .collect();
            let devices = [&here, &there].map(|host| host.ports.len() - host.others);
            let limit = if step >= Step::OtherPort { devices[0].max(devices[1]) } else { MAX_RAILS };
            let most = most(&edges).min(limit);
            match step {
                // Ports that are left over share a partner.
                Step::Subnet => for (ours, theirs) in &edges {
                    prop_assert!(found.pairs.len() >= most);
                    prop_assert!(found.pairs.iter().any(|pair| pair.connector == *ours));
                    prop_assert!(found.pairs.iter().any(|pair| pair.acceptor == *theirs));
                },
                _ => prop_assert_eq!(found.pairs.len(), most),
            }
        }
    }

    #[test]
    fn the_order_of_the_ports_does_not_matter_where_each_has_one_partner(
        here in Just(0_usize..6).prop_flat_map(|range| Just(range.collect::<Vec<_>>()).prop_shuffle()),
        there in Just(0_usize..6).prop_flat_map(|range| Just(range.collect::<Vec<_>>()).prop_shuffle()),
    ) {
        let host = |number: u8, order: &[usize]| {
            let ports = order.iter().map(|subnet| endpoint(&format!("10.0.{subnet}.{number}/24"))).collect();
            Host { ports, others: 0 }
        };
        let found = climb(&host(1, &here), &host(2, &there), Step::Subnet, |_| Route::Unknown);
        prop_assert_eq!(found.pairs.len(), 6);
        prop_assert!(found.pairs.iter().all(|pair| here[pair.connector] == there[pair.acceptor]));
    }

    #[test]
    fn both_directions_take_the_same_ports(
        here in any_host(),
        there in any_host(),
        ways in any_ways(),
        first_step in prop::sample::select(Step::ALL),
    ) {
        let addresses = |host: &Host| host.ports.iter().map(|port| port.address).collect::<BTreeSet<_>>();
        if addresses(&here) == addresses(&there) {
            // No two hosts have all addresses in common, and the ends are told apart by the others.
            return Ok(());
        }
        let [out, back] = both_directions(&here, &there, first_step, &ways);
        prop_assert_eq!(out, back);
    }

    #[test]
    fn both_directions_take_the_same_ports_of_few_subnets_and_one_common_address(
        mut here in small_host(1),
        mut there in small_host(2),
        ways in any_ways(),
        first_step in prop::sample::select(Step::ALL),
    ) {
        for host in [&mut here, &mut there] {
            host.ports.push(endpoint("10.0.0.1/24 roce"));
            host.others += 1;
        }
        let [out, back] = both_directions(&here, &there, first_step, &ways);
        prop_assert_eq!(out, back);
    }
}
