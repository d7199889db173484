//! The pairing of two hosts' devices, as the plugin would make it.

use super::half::{Half, HalfDevice, HalfPort};
use railweave_fabric::{Route, Step};
use railweave_offers::{Answer, OwnPorts, answer, handle_addresses, mapped, ways};
use railweave_topology::Side;
use railweave_transport::{Offer, PortOffer};
use std::net::IpAddr;

/// The connection that a device of the connector's host and one of the acceptor's would make.
#[derive(Clone, Debug)]
pub(crate) struct Paired<'a> {
    /// The numbers of the devices.
    pub(crate) numbers: [usize; 2],
    /// The step of the ladder; `None` if there is no rail.
    pub(crate) step: Option<Step>,
    pub(crate) rails: Vec<Rail<'a>>,
    pub(crate) unpaired: Vec<Lone<'a>>,
    /// The message of both ends if there is no rail.
    pub(crate) refusal: Option<String>,
}

/// A rail, with its ports of the connector and of the acceptor.
#[derive(Clone, Debug)]
pub(crate) struct Rail<'a> {
    pub(crate) ports: [&'a HalfPort; 2],
    /// The speed of the slower port, in Mbit/s, of which several rails of one port have a part each.
    pub(crate) speed_mbps: u32,
    /// The part of the connection's traffic, 0 to 1.
    pub(crate) share: f64,
}

/// A port without a rail.
#[derive(Clone, Debug)]
pub(crate) struct Lone<'a> {
    pub(crate) side: Side,
    pub(crate) port: &'a HalfPort,
    /// True if it belongs to the device, false if it may only take the place of its ports.
    pub(crate) is_own: bool,
    pub(crate) reason: String,
}

/// Returns the pairing of each device of the connector's host with each of the acceptor's.
pub(crate) fn pair_all<'a>(connector: &'a Half, acceptor: &'a Half) -> Vec<Paired<'a>> {
    let all = |number: usize| (0..acceptor.devices.len()).map(move |other| [number, other]);
    let numbers = (0..connector.devices.len()).flat_map(all);
    numbers.map(|numbers| pair_devices(connector, acceptor, numbers)).collect()
}

fn pair_devices<'a>(connector: &'a Half, acceptor: &'a Half, numbers: [usize; 2]) -> Paired<'a> {
    let devices = [&connector.devices[numbers[0]], &acceptor.devices[numbers[1]]];
    let same_network = connector.network == acceptor.network;
    let first = made(devices, devices[1], same_network, Step::Subnet);
    let by_rdma = paired(devices, numbers, first);
    let (Some(_), Some(ours), Some(theirs)) = (&by_rdma.refusal, &connector.fallback, &acceptor.fallback) else {
        return by_rdma;
    };
    let by_tcp = paired([ours, theirs], numbers, made([ours, theirs], devices[1], same_network, Step::Tcp));
    // The first error is the one that is reported.
    if by_tcp.refusal.is_some() {
        return by_rdma;
    }
    by_tcp
}

/// Returns the acceptor's answer. `named` is the device that the acceptor's handle names.
fn made(devices: [&HalfDevice; 2], named: &HalfDevice, same_network: bool, first_step: Step) -> Answer {
    let [connector, acceptor] = devices;
    let [ours, theirs] = devices.map(|device| device.ports.iter().map(|port| port.offer).collect::<Vec<PortOffer>>());
    let named_ports: Vec<PortOffer> = named.ports.iter().map(|port| port.offer).collect();
    let to = handle_addresses(&named_ports, named.others, |_| true);
    let own = OwnPorts { all: &ours, others: connector.others };
    let ways =
        ways(own, &to, first_step, &[], || Some(|place: usize, to: IpAddr| connector.ports[place].route(mapped(to))));
    let offer = Offer { nonce: 0, striped: false, traffic_class: None, ports: ours, ways };
    let own = OwnPorts { all: &theirs, others: acceptor.others };
    answer(&offer, own, same_network, |place, to| -> Route { acceptor.ports[place].route(to) })
}

fn paired<'a>(devices: [&'a HalfDevice; 2], numbers: [usize; 2], answer: Answer) -> Paired<'a> {
    let [connector, acceptor] = devices;
    let refusal = answer.pairing.refusal();
    let places: Vec<[usize; 2]> = answer.pairing.pairs.iter().map(|pair| [pair.connector, pair.acceptor]).collect();
    let ports = |places: &[usize; 2]| [&connector.ports[places[0]], &acceptor.ports[places[1]]];
    let weights: Vec<f64> = places.iter().map(|rail| weight(rail, &places, ports(rail))).collect();
    let sum: f64 = weights.iter().sum();
    let rails = places.iter().zip(weights).map(|(rail, weight)| {
        let ports = ports(rail);
        let speed_mbps = ports[0].offer.speed_mbps.min(ports[1].offer.speed_mbps);
        Rail { ports, speed_mbps, share: if sum > 0.0 { weight / sum } else { 0.0 } }
    });
    let rails = rails.collect();
    let unpaired = answer.pairing.unpaired.into_iter().map(|lone| {
        let device = if lone.side == Side::Connector { connector } else { acceptor };
        let is_own = lone.index < device.own_ports().len();
        Lone { side: lone.side, port: &device.ports[lone.index], is_own, reason: lone.reason }
    });
    let unpaired = unpaired.collect();
    let step = refusal.is_none().then_some(answer.step);
    Paired { numbers, step, rails, unpaired, refusal }
}

/// Returns the weight of a rail if the connector sends, as a connection has it: that of the settings, otherwise the
/// slower speed; rails of one port share its weight.
fn weight(rail: &[usize; 2], all: &[[usize; 2]], ports: [&HalfPort; 2]) -> f64 {
    let share = |end: usize, value: u32| {
        let sharing = all.iter().filter(|other| other[end] == rail[end]).count();
        f64::from(value) / sharing as f64
    };
    match ports[0].weight {
        Some(weight) => share(0, weight),
        None => share(0, ports[0].offer.speed_mbps.max(1)).min(share(1, ports[1].offer.speed_mbps.max(1))),
    }
}

/// Returns the name of a step, for people.
pub(crate) fn step_name(step: Step) -> &'static str {
    match step {
        Step::Subnet => "a common subnet",
        Step::Routed => "a route of each port's own",
        Step::OtherPort => "another port",
        Step::Forwarded => "a host that forwards",
        Step::Tcp => "TCP in place of RDMA",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topo::examples::{half, with_routes};

    #[test]
    fn ports_on_a_common_subnet_pair_and_the_slower_end_sets_the_share() {
        let ours = half("a", &[&["10.0.0.1/24", "10.1.0.1/24"]]);
        let mut theirs = half("b", &[&["10.1.0.2/24", "10.0.0.2/24"]]);
        theirs.devices[0].ports[0].offer.speed_mbps = 30_000;
        let all = pair_all(&ours, &theirs);
        let [paired] = &all[..] else { panic!() };
        assert_eq!((paired.step, paired.unpaired.len()), (Some(Step::Subnet), 0));
        let shares: Vec<_> = paired.rails.iter().map(|rail| (rail.speed_mbps, rail.share)).collect();
        assert_eq!(shares, [(10_000, 0.5), (10_000, 0.5)]);
        theirs.devices[0].ports[0].offer.speed_mbps = 5_000;
        let shares: Vec<_> = pair_all(&ours, &theirs)[0].rails.iter().map(|rail| rail.share).collect();
        assert_eq!(shares, [2.0 / 3.0, 1.0 / 3.0]);
    }

    #[test]
    fn a_port_without_a_partner_has_its_reason_and_no_rail_has_a_remedy() {
        let ours = half("a", &[&["10.0.0.1/24", "10.9.0.1/24"]]);
        let theirs = half("b", &[&["10.0.0.2/24"]]);
        let paired = &pair_all(&ours, &theirs)[0];
        assert_eq!(paired.rails.len(), 1);
        assert!(paired.unpaired[0].reason.contains("10.9.0.1/24"), "{paired:?}");
        let theirs = half("b", &[&["10.8.0.2/24"]]);
        let theirs = with_routes(theirs, Route::Elsewhere);
        let paired = &pair_all(&ours, &theirs)[0];
        assert!(paired.step.is_none() && paired.refusal.as_ref().unwrap().contains("topo --routes"), "{paired:?}");
    }

    #[test]
    fn tcp_takes_the_place_of_rdma_only_where_both_have_it() {
        let apart = |host: &str, address: &str, tcp: Option<&str>| {
            let mut half = with_routes(half(host, &[&[address]]), Route::Elsewhere);
            half.fallback = tcp.map(|address| crate::topo::examples::half(host, &[&[address]]).devices.remove(0));
            half
        };
        let ours = apart("a", "10.0.0.1/24", Some("192.168.0.1/24"));
        let theirs = apart("b", "10.1.0.1/24", Some("192.168.0.2/24"));
        assert_eq!(pair_all(&ours, &theirs)[0].step, Some(Step::Tcp));
        assert_eq!(pair_all(&ours, &apart("b", "10.1.0.1/24", None))[0].step, None);
    }
}
