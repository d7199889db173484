//! The routes by which hosts without a switch reach each other: rings and meshes of cables. Pure.
//!
//! A port of RDMA takes only packets that arrive by its own cable, whatever other way leads to its host. So each
//! address has one last hop, the host at the other end of its cable, and every other host sends towards that one, never
//! through the address's own host. In a ring, one port of each host is thus reached by packets that go round one way,
//! and the other port by those that go round the other way, so both cables carry. A way is chosen by the destination
//! alone, and the ways to one address are a tree, so there are no loops, and the main table of each host is enough.

use railweave_topology::NetworkAddress;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

/// A host to plan for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlanHost {
    pub(crate) name: String,
    pub(crate) ports: Vec<PlanPort>,
}

/// A port of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlanPort {
    pub(crate) network: NetworkAddress,
    pub(crate) prefix_len: u8,
    /// The network interface, if known.
    pub(crate) interface: Option<String>,
}

/// A planned route of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedRoute {
    /// The destination.
    pub(crate) to: NetworkAddress,
    /// The length of the destination's prefix in bits.
    pub(crate) prefix_len: u8,
    /// The next hop.
    pub(crate) via: IpAddr,
    /// The port by which packets leave.
    pub(crate) port: usize,
    /// The addresses of other hosts that the route is for.
    pub(crate) reaches: Vec<IpAddr>,
}

/// The plan for a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostPlan {
    pub(crate) routes: Vec<PlannedRoute>,
    /// The pairs of ports between which it forwards packets of others: in by the first, out by the second.
    pub(crate) passes: BTreeSet<(usize, usize)>,
}

/// A plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// One for each host.
    pub(crate) hosts: Vec<HostPlan>,
    /// The pairs of hosts between which no cables lead, not even through others.
    pub(crate) apart: Vec<[usize; 2]>,
    /// True if every two hosts share a subnet, so that they connect without any of this.
    pub(crate) is_complete: bool,
}

/// The shortest prefixes, in bits, of a cable's subnet. A route to a shorter one, which a peer may claim to have, would
/// take this host's other traffic.
const SHORTEST_V4: u8 = 8;
const SHORTEST_V6: u8 = 32;

/// A port, by its host and its place there.
type At = (usize, usize);

/// A cable, from one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cable {
    port: usize,
    far: At,
}

/// The next hop towards an address: the cable, by its place among those of the host.
type Ways = BTreeMap<usize, Cable>;

/// The hosts and their cables.
struct Graph<'a> {
    hosts: &'a [PlanHost],
    /// The cables of each host.
    cables: Vec<Vec<Cable>>,
}

/// Plans the routes by which any two hosts reach each other.
pub(crate) fn plan(hosts: &[PlanHost]) -> Plan {
    let graph = Graph { hosts, cables: (0..hosts.len()).map(|host| cables(hosts, host)).collect() };
    let targets: Vec<At> =
        (0..hosts.len()).flat_map(|host| graph.cables[host].iter().map(move |cable| (host, cable.port))).collect();
    let ways: BTreeMap<At, Ways> = targets.iter().map(|target| (*target, graph.ways(*target))).collect();
    let mut hosts_plans: Vec<HostPlan> =
        (0..hosts.len()).map(|host| HostPlan { routes: graph.routes(host, &ways), ..HostPlan::default() }).collect();
    for target in &targets {
        graph.note_passes(*target, &mut hosts_plans);
    }
    let pairs = || (0..hosts.len()).flat_map(|one| (one + 1..hosts.len()).map(move |other| [one, other]));
    let is_near = |[one, other]: [usize; 2]| {
        let shares = |ours: &PlanPort| hosts[other].ports.iter().any(|theirs| is_cable(ours, theirs));
        hosts[one].ports.iter().any(shares)
    };
    let leads = |[one, other]: &[usize; 2]| is_near([*one, *other]) || graph.distances(*other, None)[*one].is_some();
    Plan { hosts: hosts_plans, apart: pairs().filter(|pair| !leads(pair)).collect(), is_complete: pairs().all(is_near) }
}

fn is_cable(ours: &PlanPort, theirs: &PlanPort) -> bool {
    ours.network.address() != theirs.network.address() && ours.network.shares_subnet(&theirs.network)
}

/// Returns the cables of a host: subnets that it shares with one other host only. Where there are more, a switch joins
/// them, and nobody needs to forward.
fn cables(hosts: &[PlanHost], host: usize) -> Vec<Cable> {
    let far_ends = |port: usize| -> Vec<At> {
        let others = (0..hosts.len()).filter(|other| *other != host);
        let all = others.flat_map(|other| (0..hosts[other].ports.len()).map(move |place| (other, place)));
        all.filter(|(other, place)| is_cable(&hosts[host].ports[port], &hosts[*other].ports[*place])).collect()
    };
    let cable = |port: usize| match far_ends(port)[..] {
        [far] => Some(Cable { port, far }),
        _ => None,
    };
    (0..hosts[host].ports.len()).filter(|port| is_routable(&hosts[host].ports[*port])).filter_map(cable).collect()
}

fn is_routable(port: &PlanPort) -> bool {
    let address = port.network.address();
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let is_cable_sized = port.prefix_len >= if address.is_ipv4() { SHORTEST_V4 } else { SHORTEST_V6 };
    is_cable_sized && !address.is_loopback() && !address.is_unspecified() && !address.is_multicast() && !is_link_local
}

impl Graph<'_> {
    fn address(&self, (host, port): At) -> IpAddr {
        self.hosts[host].ports[port].network.address()
    }

    /// Returns the cables from a host to another of one address family, in an order that both ends agree on.
    fn between(&self, host: usize, other: usize, is_v4: bool) -> Vec<Cable> {
        let fits = |cable: &&Cable| cable.far.0 == other && self.address(cable.far).is_ipv4() == is_v4;
        let mut all: Vec<Cable> = self.cables[host].iter().filter(fits).copied().collect();
        all.sort_by_key(|cable| self.address((host, cable.port)).min(self.address(cable.far)));
        all
    }

    /// Returns the number of cables from each host to this one, without passing through `avoided`.
    fn distances(&self, to: usize, avoided: Option<usize>) -> Vec<Option<usize>> {
        let mut distances = vec![None; self.hosts.len()];
        distances[to] = Some(0);
        let mut next = VecDeque::from([to]);
        while let Some(host) = next.pop_front() {
            for cable in &self.cables[host] {
                let other = cable.far.0;
                if Some(other) != avoided && distances[other].is_none() {
                    distances[other] = distances[host].map(|distance: usize| distance + 1);
                    next.push_back(other);
                }
            }
        }
        distances
    }

    /// Returns the next hop of each host towards an address, except of those on its subnet.
    fn ways(&self, (owner, port): At) -> Ways {
        let Some(cable) = self.cables[owner].iter().find(|cable| cable.port == port) else { return Ways::new() };
        let last_hop = cable.far.0;
        let is_v4 = self.address((owner, port)).is_ipv4();
        // Parallel cables take the ways to their counterparts elsewhere.
        let lane = self.between(owner, last_hop, is_v4).iter().position(|other| other.port == port).unwrap_or(0);
        let to_last = self.distances(last_hop, Some(owner));
        let to_owner = self.distances(owner, None);
        let hosts = (0..self.hosts.len()).filter(|host| ![owner, last_hop].contains(host));
        let way = |host: usize| {
            // A host that only the owner joins to the others sends to the owner, which is reached by another port.
            let distances = if to_last[host].is_some() { &to_last } else { &to_owner };
            let nearer = |other: &usize| distances[*other].is_some_and(|it| Some(it + 1) == distances[host]);
            let next = self.cables[host].iter().map(|cable| cable.far.0).filter(nearer).min()?;
            let parallel = self.between(host, next, is_v4);
            parallel.get(lane % parallel.len().max(1)).map(|cable| (host, *cable))
        };
        hosts.filter_map(way).collect()
    }

    /// Returns the routes of a host, one for a subnet if that is enough.
    fn routes(&self, host: usize, ways: &BTreeMap<At, Ways>) -> Vec<PlannedRoute> {
        let mut routes = Vec::new();
        for (target, to_target) in ways {
            let cable = self.cables[target.0].iter().find(|cable| cable.port == target.1);
            let (Some(way), Some(far)) = (to_target.get(&host), cable.map(|cable| cable.far)) else { continue };
            let far_way = ways.get(&far).and_then(|ways| ways.get(&host));
            let port = &self.hosts[target.0].ports[target.1];
            let (network, length) = (port.network, port.prefix_len);
            // The far end is next to this host, and nobody reaches it through this host: any way to it will do, and the
            // way to this target passes it.
            let passes_far = way.far.0 == far.0;
            let is_leaf = |target: &At| ways[target].values().all(|way| way.far.0 != host);
            let takes_both = far_way == Some(way) || (far_way.is_some() && passes_far && is_leaf(&far));
            let is_second = |far_way: Option<&Cable>| {
                // The other end's route covers this one as well; of two that could, that of the first host is taken.
                let other_takes_both =
                    far_way == Some(way) || far_way.is_some_and(|far| far.far.0 == target.0) && is_leaf(target);
                other_takes_both && (!takes_both || far < *target)
            };
            if is_second(far_way) {
                continue;
            }
            let (to, prefix_len) =
                if takes_both { (subnet(&network, length), length) } else { (network, bits(&network)) };
            let mut reaches = vec![network.address()];
            if takes_both {
                reaches.push(self.address(far));
            }
            routes.push(PlannedRoute { to, prefix_len, via: self.address(way.far), port: way.port, reaches });
        }
        routes
    }

    /// Notes the ports between which each host forwards, for packets of all hosts to an address.
    fn note_passes(&self, target: At, plans: &mut [HostPlan]) {
        for source in (0..self.hosts.len()).filter(|source| *source != target.0) {
            let (mut host, mut arrived_at) = (source, None);
            // A plan without loops needs fewer steps than there are hosts.
            for _ in 0..=self.hosts.len() {
                let Some((port, far)) = self.next_hop(host, target, &plans[host].routes) else { break };
                if let Some(arrived_at) = arrived_at {
                    plans[host].passes.insert((arrived_at, port));
                }
                (host, arrived_at) = (far.0, Some(far.1));
                if host == target.0 {
                    break;
                }
            }
        }
    }

    /// Returns the port by which a host sends towards an address, and the port that packets arrive at.
    fn next_hop(&self, host: usize, target: At, routes: &[PlannedRoute]) -> Option<(usize, At)> {
        if let Some(cable) = self.cables[host].iter().find(|cable| cable.far == target) {
            return Some((cable.port, cable.far));
        }
        let address = self.address(target);
        let route = routes.iter().find(|route| route.reaches.contains(&address))?;
        let cable = self.cables[host].iter().find(|cable| self.address(cable.far) == route.via)?;
        Some((cable.port, cable.far))
    }
}

fn bits(network: &NetworkAddress) -> u8 {
    if network.address().is_ipv4() { 32 } else { 128 }
}

/// Returns the subnet's own address.
fn subnet(network: &NetworkAddress, prefix_len: u8) -> NetworkAddress {
    let text = super::view::subnet(network, prefix_len);
    let address = text.split('/').next().and_then(|address| address.parse().ok());
    NetworkAddress::new(address.unwrap_or_else(|| network.address()), prefix_len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn port(address: &str) -> PlanPort {
        let (address, length) = address.split_once('/').unwrap();
        let prefix_len = length.parse().unwrap();
        PlanPort { network: NetworkAddress::new(address.parse().unwrap(), prefix_len), prefix_len, interface: None }
    }

    /// Returns a ring in which `parallel` cables join each host to the next. Cable `lane` between host `n` and the next
    /// is 10.lane.n.0/24, with `.1` at host `n`. `turned` hosts list their ports in the other order.
    fn ring(hosts: usize, parallel: usize, turned: u32) -> Vec<PlanHost> {
        let host = |number: usize| {
            let before = (number + hosts - 1) % hosts;
            let lanes = 0..parallel;
            let mut ports: Vec<PlanPort> = lanes
                .flat_map(|lane| [format!("10.{lane}.{number}.1/24"), format!("10.{lane}.{before}.2/24")])
                .map(|address| port(&address))
                .collect();
            if turned >> number & 1 == 1 {
                ports.reverse();
            }
            PlanHost { name: format!("host{number}"), ports }
        };
        (0..hosts).map(host).collect()
    }

    /// A packet's way, as kernels with these tables would forward it: the addresses of the ports that it leaves by and
    /// arrives at, hop by hop. `None` if it is dropped or goes in circles.
    fn forward(hosts: &[PlanHost], plan: &Plan, from: usize, to: IpAddr) -> Option<Vec<(IpAddr, IpAddr)>> {
        let mut way = Vec::new();
        let mut host = from;
        for _ in 0..=hosts.len() {
            if hosts[host].ports.iter().any(|port| port.network.address() == to) {
                return Some(way);
            }
            let connected = hosts[host].ports.iter().map(|port| (port.network, port.prefix_len, port, to));
            let planned = plan.hosts[host].routes.iter();
            let planned = planned.map(|route| (route.to, route.prefix_len, &hosts[host].ports[route.port], route.via));
            let fits = |network: &NetworkAddress, length: u8| network.shares_subnet(&NetworkAddress::new(to, length));
            let (.., out, next) = connected
                .chain(planned)
                .filter(|(network, length, ..)| fits(network, *length))
                .max_by_key(|(_, length, ..)| *length)?;
            // A next hop that is not on the port's own subnet would be looked for on the wrong cable.
            let reaches = |port: &PlanPort| port.network.address() == next && port.network.shares_subnet(&out.network);
            let arrives = |other: &usize| *other != host && hosts[*other].ports.iter().any(reaches);
            host = (0..hosts.len()).find(arrives)?;
            way.push((out.network.address(), next));
        }
        None
    }

    fn addresses(host: &PlanHost) -> impl Iterator<Item = IpAddr> + '_ {
        host.ports.iter().map(|port| port.network.address())
    }

    fn arrives_everywhere(hosts: &[PlanHost], plan: &Plan) {
        for (from, _) in hosts.iter().enumerate() {
            for to in hosts.iter().flat_map(addresses) {
                assert!(forward(hosts, plan, from, to).is_some(), "host{from} to {to}: {:?}", plan.hosts[from]);
            }
        }
    }

    proptest! {
        #[test]
        fn in_any_ring_every_packet_arrives(hosts in 3_usize..=8, parallel in 1_usize..=2, turned: u32) {
            let hosts = ring(hosts, parallel, turned);
            let plan = plan(&hosts);
            arrives_everywhere(&hosts, &plan);
            prop_assert!(plan.apart.is_empty());
            // Every host forwards exactly between the ports that the plan names.
            for from in 0..hosts.len() {
                for to in hosts.iter().flat_map(addresses) {
                    let way = forward(&hosts, &plan, from, to).unwrap();
                    for hop in way.windows(2) {
                        let is_at = |address: IpAddr| {
                            let at = |host: &PlanHost| addresses(host).position(|own| own == address);
                            hosts.iter().enumerate().find_map(|(number, host)| Some((number, at(host)?))).unwrap()
                        };
                        let ((host, arrived), (same, left)) = (is_at(hop[0].1), is_at(hop[1].0));
                        prop_assert_eq!(host, same);
                        prop_assert!(plan.hosts[host].passes.contains(&(arrived, left)));
                    }
                }
            }
        }

        #[test]
        fn each_cable_of_a_host_leads_to_a_port_of_each_other_and_back(
            hosts in 4_usize..=8,
            parallel in 1_usize..=2,
            turned: u32,
        ) {
            let hosts = ring(hosts, parallel, turned);
            let plan = plan(&hosts);
            let is_next = |one: usize, other: usize| (one + 1) % hosts.len() == other;
            let are_neighbours = |one: usize, other: usize| is_next(one, other) || is_next(other, one);
            for one in 0..hosts.len() {
                for other in (0..hosts.len()).filter(|other| *other != one && !are_neighbours(one, *other)) {
                    for ours in addresses(&hosts[one]) {
                        // A rail: packets leave by our port and arrive by theirs, and the other way round.
                        let is_rail = |theirs: &IpAddr| {
                            let there = forward(&hosts, &plan, one, *theirs).unwrap();
                            let back = forward(&hosts, &plan, other, ours).unwrap();
                            let ends = |way: &[(IpAddr, IpAddr)]| (way[0].0, way[way.len() - 1].1);
                            ends(&there) == (ours, *theirs) && ends(&back) == (*theirs, ours)
                        };
                        let rails = addresses(&hosts[other]).filter(is_rail).count();
                        prop_assert_eq!(rails, 1, "{} to host{}", ours, other);
                    }
                }
            }
        }

        #[test]
        fn in_any_mesh_of_cables_what_can_arrive_arrives(
            edges in proptest::collection::btree_set((0_usize..6, 0_usize..6), 0..12),
        ) {
            let host = |number: usize| PlanHost { name: format!("host{number}"), ports: Vec::new() };
            let mut hosts: Vec<PlanHost> = (0..6).map(host).collect();
            let edges: Vec<_> = edges.into_iter().filter(|(one, other)| one < other).collect();
            for (number, (one, other)) in edges.iter().enumerate() {
                hosts[*one].ports.push(port(&format!("10.0.{number}.0/31")));
                hosts[*other].ports.push(port(&format!("10.0.{number}.1/31")));
            }
            let plan = plan(&hosts);
            for from in 0..6 {
                for (other, host) in hosts.iter().enumerate().filter(|(other, _)| *other != from) {
                    let is_apart = plan.apart.contains(&[from.min(other), from.max(other)]);
                    for to in addresses(host) {
                        prop_assert_eq!(forward(&hosts, &plan, from, to).is_none(), is_apart, "host{} to {}", from, to);
                    }
                }
            }
        }
    }

    #[test]
    fn without_the_plan_or_with_a_part_of_it_packets_do_not_arrive() {
        let hosts = ring(4, 1, 0);
        let mut plan = plan(&hosts);
        let to = IpAddr::from([10, 0, 1, 2]);
        assert!(forward(&hosts, &plan, 0, to).is_some());
        plan.hosts[0].routes.retain(|route| !route.reaches.contains(&to));
        assert!(forward(&hosts, &plan, 0, to).is_none());
        // Two hosts that send a destination to each other.
        let mut plan = super::plan(&ring(5, 1, 0));
        let hosts = ring(5, 1, 0);
        let to = IpAddr::from([10, 0, 2, 2]);
        let wrong = |via: [u8; 4], port: usize| PlannedRoute {
            to: NetworkAddress::new(to, 32),
            prefix_len: 32,
            via: via.into(),
            port,
            reaches: vec![to],
        };
        plan.hosts[0].routes = vec![wrong([10, 0, 0, 2], 0)];
        plan.hosts[1].routes = vec![wrong([10, 0, 0, 1], 1)];
        assert!(forward(&hosts, &plan, 0, to).is_none());
    }

    #[test]
    fn a_ring_of_four_needs_two_routes_a_host_and_of_three_one() {
        let routes = |hosts: usize| -> Vec<usize> {
            plan(&ring(hosts, 1, 0)).hosts.iter().map(|host| host.routes.len()).collect()
        };
        assert_eq!(routes(3), [1; 3]);
        assert_eq!(routes(4), [2; 4]);
        assert!(plan(&ring(3, 1, 0)).is_complete && !plan(&ring(4, 1, 0)).is_complete);
    }

    #[test]
    fn a_switch_needs_no_routes_and_hosts_apart_are_named() {
        let host =
            |number: u8| PlanHost { name: number.to_string(), ports: vec![port(&format!("10.0.0.{number}/24"))] };
        let one_switch: Vec<PlanHost> = (1..=4).map(host).collect();
        let plan_of_switch = plan(&one_switch);
        assert!(plan_of_switch.is_complete && plan_of_switch.hosts.iter().all(|host| host.routes.is_empty()));
        let apart = [host(1), PlanHost { name: "2".into(), ports: vec![port("10.1.0.2/24")] }];
        assert_eq!(plan(&apart).apart, [[0, 1]]);
    }
}
