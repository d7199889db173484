//! The answer to an offer: the pairing, and the step of the ladder that gave it.

use std::net::Ipv6Addr;

use railweave_fabric::{Route, Step};
use railweave_topology::{Between, Endpoint, Pair, Pairing, Ports, pair};
use railweave_transport::{Offer, PortOffer};

/// The ports with which an acceptor answers.
#[derive(Clone, Copy, Debug)]
pub struct OwnPorts<'a> {
    /// The ports of the device that the peer wants to reach, then the host's others.
    pub all: &'a [PortOffer],
    /// The number of others at the end of the list.
    pub others: usize,
}

/// The answer to an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The rails, and the ports without one.
    pub pairing: Pairing,
    /// The step of the ladder by which the rails were found; without rails it means nothing.
    pub step: Step,
}

/// Answers an offer. `same_network`: both processes share a network namespace. `back` returns what the acceptor's
/// kernel says of the way from one of its ports, by its place, to an address of the connector's.
pub fn answer(
    offer: &Offer,
    ours: OwnPorts<'_>,
    same_network: bool,
    back: impl Fn(usize, Ipv6Addr) -> Route,
) -> Answer {
    let theirs: Vec<_> = offer.ports.iter().map(endpoint).collect();
    let own: Vec<_> = ours.all.iter().map(endpoint).collect();
    let route = |pair: Pair| {
        let (theirs, ours) = (offer.ports[pair.connector].address, own[pair.acceptor].address);
        match offer.ways.route(pair.connector, ours) {
            there @ (Route::Elsewhere | Route::Failed) => there,
            there => there.and(back(pair.acceptor, theirs)),
        }
    };
    let has_failed = |pair: Pair| {
        let address = own[pair.acceptor].address;
        offer.ways.route(pair.connector, address) == Route::Failed
    };
    // Over TCP, the ladder begins again.
    let by_tcp = offer.ways.first_step == Step::Tcp;
    let first_step = if by_tcp { Step::Subnet } else { offer.ways.first_step };
    let pairing = pair(
        Ports { all: &theirs, others: offer.ways.others.into() },
        Ports { all: &own, others: ours.others },
        &Between { same_network, first_step, route: &route, has_failed: &has_failed },
    );
    let step = if by_tcp { Step::Tcp } else { pairing.step.unwrap_or_default() };
    Answer { pairing, step }
}

fn endpoint(port: &PortOffer) -> Endpoint {
    Endpoint {
        link_layer: port.link_layer,
        address: port.address,
        prefix_len: port.prefix_len,
        speed_mbps: port.speed_mbps,
        rail_id: port.rail_id,
        plane_id: port.plane_id,
    }
}

#[cfg(test)]
mod tests {
    use railweave_transport::Ways;

    use super::*;
    use crate::test_ports::port;

    fn offer(ways: Ways) -> Offer {
        Offer { nonce: 0, striped: false, traffic_class: None, ports: vec![port("10.0.0.1")], ways }
    }

    #[test]
    fn the_way_back_counts_as_much_as_the_way_there() {
        let ours = [port("10.1.0.1")];
        let to = |there: Route, back: Route| {
            let ways = Ways { targets: vec![ours[0].address], routes: vec![there], ..Ways::default() };
            let own = OwnPorts { all: &ours, others: 0 };
            answer(&offer(ways), own, false, |_, _| back).pairing.pairs.len()
        };
        assert_eq!(to(Route::Leaves, Route::Leaves), 1);
        assert_eq!(to(Route::Leaves, Route::Elsewhere), 0);
        assert_eq!(to(Route::Elsewhere, Route::Leaves), 0);
    }

    #[test]
    fn the_way_back_is_asked_for_only_if_there_is_one_there() {
        let ours = [port("10.1.0.1")];
        for there in [Route::Elsewhere, Route::Failed] {
            let ways = Ways { targets: vec![ours[0].address], routes: vec![there], ..Ways::default() };
            let own = OwnPorts { all: &ours, others: 0 };
            let answer = answer(&offer(ways), own, false, |_, _| panic!("the kernel is asked"));
            assert_eq!(answer.pairing.pairs, [], "{there:?}");
        }
    }

    #[test]
    fn the_way_back_is_that_from_the_acceptors_port_to_the_connectors_address() {
        let ours = [port("10.1.0.1"), port("10.2.0.1")];
        let back = |place: usize, address: Ipv6Addr| {
            let is_right = place == 1 && address == port("10.0.0.1").address;
            if is_right { Route::Leaves } else { Route::Elsewhere }
        };
        let own = OwnPorts { all: &ours, others: 0 };
        let answer = answer(&offer(Ways::default()), own, false, back);
        assert_eq!(answer.pairing.pairs, [Pair { connector: 0, acceptor: 1 }]);
    }

    #[test]
    fn a_way_that_only_the_acceptors_kernel_knows_is_not_known() {
        let ours = [port("10.1.0.1")];
        let own = OwnPorts { all: &ours, others: 0 };
        let to = |there: Route| {
            let (targets, routes) = (vec![ours[0].address], vec![there]);
            let ways = Ways { first_step: Step::Forwarded, targets, routes, ..Ways::default() };
            answer(&offer(ways), own, false, |_, _| Route::Leaves).pairing.pairs.len()
        };
        assert_eq!([Route::Leaves, Route::Unknown].map(to), [1, 0]);
    }

    #[test]
    fn the_ways_of_an_offer_are_those_of_the_connectors_ports() {
        let of_second = |ours: &str, route: Route| {
            let ours = [port(ours)];
            let ways = Ways { targets: vec![ours[0].address], routes: vec![route, Route::Leaves], ..Ways::default() };
            let offer = Offer { ports: vec![port("10.0.0.1"), port("10.0.0.2")], ..offer(ways) };
            let own = OwnPorts { all: &ours, others: 0 };
            assert_eq!(
                answer(&offer, own, false, |_, _| Route::Leaves).pairing.pairs,
                [Pair { connector: 1, acceptor: 0 }]
            );
        };
        of_second("10.1.0.9", Route::Elsewhere);
        of_second("10.0.0.9", Route::Failed);
    }

    #[test]
    fn a_way_that_has_failed_is_no_rail_even_on_a_common_subnet() {
        let ours = [port("10.0.0.2"), port("10.0.0.3")];
        let ways = Ways { targets: vec![ours[0].address], routes: vec![Route::Failed], ..Ways::default() };
        let own = OwnPorts { all: &ours, others: 0 };
        let answer = answer(&offer(ways), own, false, |_, _| Route::Unknown);
        assert_eq!(answer.pairing.pairs, [Pair { connector: 0, acceptor: 1 }]);
    }

    #[test]
    fn the_step_of_an_answer_is_the_one_that_gave_the_rails() {
        let theirs = vec![port("10.0.0.1"), port("10.5.0.1")];
        let of = |ours: &[PortOffer], others: usize, first_step: Step| {
            let offer = Offer { ports: theirs.clone(), ..offer(Ways { first_step, others: 1, ..Ways::default() }) };
            let answer = answer(&offer, OwnPorts { all: ours, others }, false, |_, _| Route::Elsewhere);
            let pairs: Vec<_> = answer.pairing.pairs.iter().map(|pair| (pair.connector, pair.acceptor)).collect();
            (answer.step, pairs)
        };
        let ours = [port("10.1.0.2"), port("10.0.0.2")];
        assert_eq!(of(&ours, 1, Step::Subnet), (Step::OtherPort, vec![(0, 1)]));
        assert_eq!(of(&ours, 0, Step::Subnet), (Step::Subnet, vec![(0, 1)]), "both ports are the device's");
        let ours = [port("10.5.0.2")];
        assert_eq!(of(&ours, 0, Step::Subnet), (Step::OtherPort, vec![(1, 0)]));
        assert_eq!(of(&ours, 0, Step::Tcp), (Step::Tcp, vec![(1, 0)]), "whichever step of TCP's own it was");
        assert_eq!(of(&ours, 0, Step::Forwarded).1, []);
    }

    #[test]
    fn equal_addresses_pair_only_if_both_processes_share_a_network_namespace() {
        let ours = [port("10.0.0.1")];
        let pairs = |same_network: bool| {
            let own = OwnPorts { all: &ours, others: 0 };
            answer(&offer(Ways::default()), own, same_network, |_, _| Route::Unknown).pairing.pairs.len()
        };
        assert_eq!([true, false].map(pairs), [1, 0]);
    }

    #[test]
    fn a_port_pairs_by_each_fact_of_its_offer() {
        let shown = PortOffer { speed_mbps: 200_000, rail_id: 1, plane_id: 2, ..port("10.0.0.1") };
        let expected = Endpoint {
            link_layer: shown.link_layer,
            address: shown.address,
            prefix_len: 24,
            speed_mbps: 200_000,
            rail_id: 1,
            plane_id: 2,
        };
        assert_eq!(endpoint(&shown), expected);
    }

    #[test]
    fn over_tcp_the_ladder_begins_again_and_the_step_stays_tcp() {
        let ours = [port("10.0.0.2")];
        let by = |first_step: Step| {
            let ways = Ways { first_step, ..Ways::default() };
            let own = OwnPorts { all: &ours, others: 0 };
            let answer = answer(&offer(ways), own, false, |_, _| Route::Unknown);
            (answer.step, answer.pairing.pairs.len())
        };
        assert_eq!(by(Step::Tcp), (Step::Tcp, 1));
        assert_eq!(by(Step::Subnet), (Step::Subnet, 1));
        assert_eq!(by(Step::OtherPort).1, 0, "a step of RDMA is not repeated");
    }
}
