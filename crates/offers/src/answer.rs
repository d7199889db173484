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
