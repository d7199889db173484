//! The two state machines of a connection's set-up, fed with everything that a peer may send, in any order.

use std::net::Ipv6Addr;
use std::sync::Arc;

use proptest::prelude::*;
use railweave_fabric::{Fault, LaneEndpoint, LinkLayer, RailId, RailSet, Route, Step};
use railweave_fabric_sim::{Faults, Sim, World};
use railweave_transport::{
    AcceptPairing, Acceptor, Action, Awaited, Cause, ConnectionConfig, Connector, Event, Frame, Handshake,
    HandshakeFailure, Lanes, LeftOut, MakesConnection, Message, Offer, PortOffer, RailAnswer, RailLanes, Token, Ways,
};

use crate::pair;

/// Either fabric would do: a handshake does not depend on when writes land.
type Fabric = Sim<true>;
type Process = pair::Process<true>;

fn port() -> impl Strategy<Value = PortOffer> {
    (1u8..=16, 0u32..1000, any::<u16>()).prop_map(|(lanes, speed_mbps, last)| PortOffer {
        link_layer: LinkLayer::InfiniBand,
        prefix_len: 64,
        lanes,
        speed_mbps,
        mtu: 4096,
        rail_id: -1,
        plane_id: -1,
        address: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last),
    })
}

fn lanes() -> impl Strategy<Value = RailLanes> {
    let endpoint = (0u64..20, 0u8..3).prop_map(|(end, lane)| {
        let mut bytes = [0; LaneEndpoint::BYTES];
        bytes[..8].copy_from_slice(&end.to_le_bytes());
        bytes[8] = lane;
        LaneEndpoint(bytes)
    });
    let open = (any::<u32>(), proptest::collection::vec(endpoint, 1..4));
    prop_oneof![
        4 => open.prop_map(|(key, endpoints)| RailLanes::Open { key, endpoints }),
        1 => any::<bool>().prop_map(|is_of_way| RailLanes::Dropped { reason: "no".into(), is_of_way }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    proptest::sample::select(Step::ALL)
}

/// Ways from an offer without other ports.
fn ways() -> impl Strategy<Value = Ways> {
    let targets = proptest::collection::vec(any::<[u8; 16]>(), 0..4);
    (step(), targets).prop_map(|(first_step, targets)| Ways {
        first_step,
        targets: targets.into_iter().map(Ipv6Addr::from).collect(),
        ..Ways::default()
    })
}

fn message() -> impl Strategy<Value = Message> {
    let answer = (0u8..4, 1u8..4, port());
    let answer = answer.prop_map(|(connector_port, lanes, port)| RailAnswer { connector_port, lanes, port });
    prop_oneof![
        3 => (step(), proptest::collection::vec(answer, 1..=8))
            .prop_map(|(step, rails)| Message::Answer { token: Token([1; 16]), step, rails }),
        3 => (any::<bool>(), any::<u64>(), proptest::collection::vec(lanes(), 1..=8))
            .prop_map(|(byte_counts, stream, rails)| Message::Lanes(Lanes { byte_counts, stream, rails })),
        3 => any::<u8>().prop_map(|usable| Message::Ready { usable }),
        3 => any::<u8>().prop_map(|rails| Message::Probe { rails }),
        1 => Just(Message::Refuse { fault: Fault::Peer, of_rails: false, reason: "no".into() }),
        1 => Just(Message::Bye(None)),
        1 => proptest::collection::vec(any::<u8>(), 0..20).prop_map(Message::Hello),
        1 => (proptest::collection::vec(port(), 1..=8), ways()).prop_map(|(ports, ways)| {
            let ways = Ways { routes: vec![Route::Leaves; ports.len() * ways.targets.len()], ..ways };
            Message::Offer(Offer { nonce: 1, striped: false, traffic_class: None, ports, ways })
        }),
    ]
}

/// Takes all actions of a machine. Returns the number of times that it ended, and true if it made a connection.
fn drain<C>(mut next: impl FnMut() -> Option<Action<C>>) -> (usize, bool) {
    let (mut endings, mut ready) = (0, false);
    while let Some(action) = next() {
        match action {
            Action::Ready(_) => (endings, ready) = (endings + 1, true),
            Action::Failed(error) => {
                assert!(error.to_string().len() > 10, "{error:?}");
                endings += 1;
            }
            // Each message of a machine must be a frame that the peer can read.
            Action::Send(message) => {
                let frame = Frame { connection: 1, message };
                let bytes = frame.encode();
                assert_eq!(Frame::decode(&bytes), Ok(Some((frame, bytes.len()))));
            }
            Action::Dial(_) => {}
        }
    }
    (endings, ready)
}

/// Lets the time of a handshake pass. It may have to give up its first packets, and then its peer.
fn until_over(handshake: &mut dyn Handshake) {
    for again in 0..3 {
        handshake.handle_timeout(1000 + again * 20_000_000_000);
    }
    assert_eq!(handshake.timeout_ns(), None);
}

proptest! {
    #[test]
    fn a_connector_takes_anything(messages in proptest::collection::vec(message(), 0..8)) {
        let world = World::new(1, Faults::none());
        let process = Process::new(&world, &[1 << 30, 4096]);
        let mut connector = Connector::<Fabric>::new(
            ConnectionConfig::default(), process.ports(), 1, "the peer".into(), 1000, |_| Arc::default(),
        );
        messages.into_iter().for_each(|message| connector.handle_message(message));
        until_over(&mut connector);
        prop_assert_eq!(drain(|| connector.poll_action()).0, 1, "it ends once");
    }

    #[test]
    fn an_acceptor_takes_anything(
        ports in proptest::collection::vec(port(), 2..=4),
        messages in proptest::collection::vec(message(), 0..8),
    ) {
        let world = World::new(1, Faults::none());
        let process = Process::new(&world, &[1 << 30, 4096]);
        let offer = Offer { nonce: 1, striped: true, traffic_class: Some(3), ports, ways: Ways::default() };
        let pairings = [0, 1].map(|port| AcceptPairing { connector_port: port, acceptor_port: port });
        let mut acceptor = Acceptor::<Fabric>::new(
            ConnectionConfig::default(), process.ports(), &offer, Ok((Step::Subnet, &pairings)), Token([1; 16]),
            "the peer".into(), 1000, |_| Arc::default(),
        );
        messages.into_iter().for_each(|message| acceptor.handle_message(message));
        until_over(&mut acceptor);
        prop_assert_eq!(drain(|| acceptor.poll_action()).0, 1, "it ends once");
    }
}

/// The connector of a process with two ports, once it has sent its offer.
fn connector(process: &Process) -> Connector<Fabric> {
    let ports = process.ports();
    let mut connector =
        Connector::new(ConnectionConfig::default(), ports, 1, "the peer".into(), 1000, |_| Arc::default());
    assert!(matches!(connector.poll_action(), Some(Action::Send(Message::Offer(_)))));
    connector
}

/// The acceptor of an offer from a process like its own.
fn acceptor(process: &Process, pairings: Result<&[AcceptPairing], String>) -> Acceptor<Fabric> {
    let ports = process.ports().iter().map(|port| port.offer).collect();
    let offer = Offer { nonce: 1, striped: false, traffic_class: None, ports, ways: Ways::default() };
    let (config, token, peer) = (ConnectionConfig::default(), Token([1; 16]), "the peer".into());
    let pairings = pairings.map(|pairings| (Step::Subnet, pairings));
    Acceptor::new(config, process.ports(), &offer, pairings, token, peer, 1000, |_| Arc::default())
}

/// The answer of a process to an offer from one like it.
fn answer(process: &Process) -> Message {
    let rails = (0..).zip(process.ports()).map(|(connector_port, port)| RailAnswer {
        connector_port,
        lanes: port.offer.lanes,
        port: port.offer,
    });
    Message::Answer { token: Token([1; 16]), step: Step::Subnet, rails: rails.collect() }
}

fn dropped(rails: usize) -> Message {
    let rails = vec![RailLanes::Dropped { reason: "no".into(), is_of_way: false }; rails];
    Message::Lanes(Lanes { byte_counts: false, stream: 0, rails })
}

/// Returns the reason why a handshake failed. Checks that its peer was told exactly if `is_told`.
fn failure<C>(mut next: impl FnMut() -> Option<Action<C>>, is_told: bool) -> HandshakeFailure {
    let mut told = false;
    loop {
        match next().expect("it fails") {
            Action::Send(message) => told = matches!(message, Message::Refuse { .. }),
            Action::Failed(error) => {
                assert_eq!(told, is_told, "{error}");
                let Cause::Handshake { peer, failure } = (*error).clone() else { panic!("{error:?}") };
                assert_eq!(peer, "the peer");
                return failure;
            }
            Action::Dial(_) | Action::Ready(_) => panic!("it fails"),
        }
    }
}

#[test]
fn each_failure_of_a_connector_has_its_cause() {
    let refusal = Message::Refuse { fault: Fault::Local, of_rails: false, reason: "no".into() };
    let ready = Message::Ready { usable: 1 };
    let world = World::new(1, Faults::none());
    let process = Process::new(&world, &[1 << 30; 2]);
    let mut wrong = answer(&process);
    if let Message::Answer { rails, .. } = &mut wrong {
        rails[1].connector_port = 2;
    }
    let mut more_lanes = answer(&process);
    if let Message::Answer { rails, .. } = &mut more_lanes {
        rails[1].lanes = 3;
    }
    let mut by_tcp = answer(&process);
    if let Message::Answer { step, .. } = &mut by_tcp {
        *step = Step::Tcp;
    }
    let first = LeftOut::PeerSays { reason: "no".into(), is_of_way: false };
    let (late, no_rail) = (HandshakeFailure::Late, HandshakeFailure::NoRail { failed_here: false, first });
    for (messages, expected) in [
        (vec![], late(Awaited::Answer)),
        (vec![refusal], HandshakeFailure::Refused { fault: Fault::Local, reason: "no".into() }),
        (vec![Message::Bye(None)], HandshakeFailure::Closed),
        (vec![ready], HandshakeFailure::OutOfTurn("READY")),
        (vec![wrong], HandshakeFailure::WrongAnswer { port: 2, lanes: 2, offered: 2 }),
        (vec![more_lanes], HandshakeFailure::WrongAnswer { port: 1, lanes: 3, offered: 2 }),
        (vec![by_tcp], HandshakeFailure::WrongStep { step: Step::Tcp, first_step: Step::Subnet }),
        (vec![answer(&process)], late(Awaited::Lanes)),
        (vec![answer(&process), dropped(1)], HandshakeFailure::WrongRails { lanes: 1, answered: 2 }),
        (vec![answer(&process), dropped(2)], no_rail),
    ] {
        let is_told = !matches!(expected, HandshakeFailure::Refused { .. } | HandshakeFailure::Closed);
        let mut connector = connector(&process);
        messages.into_iter().for_each(|message| connector.handle_message(message));
        connector.handle_timeout(1000);
        assert_eq!(failure(|| connector.poll_action(), is_told), expected);
    }
}

#[test]
fn each_failure_of_an_acceptor_has_its_cause() {
    let world = World::new(1, Faults::none());
    let process = Process::new(&world, &[1 << 30; 2]);
    let both = [0, 1].map(|port| AcceptPairing { connector_port: port, acceptor_port: port });
    let late = HandshakeFailure::Late;
    let lanes = |count| {
        let open = RailLanes::Open { key: 1, endpoints: vec![LaneEndpoint::default(); count] };
        let rails = vec![open, RailLanes::Dropped { reason: "no".into(), is_of_way: false }];
        Message::Lanes(Lanes { byte_counts: true, stream: 0, rails })
    };
    let wrong_lanes = HandshakeFailure::WrongLanes { rail: RailId::default(), lanes: 3, agreed: 2 };
    let wrong_probe = |bits| {
        let named = RailSet::from_bits(bits);
        HandshakeFailure::WrongRailSet { message: "PROBE", named, rails: 2 }
    };
    for (messages, expected) in [
        (vec![], late(Awaited::Lanes)),
        (
            vec![Message::Refuse { fault: Fault::Local, of_rails: false, reason: "no".into() }],
            HandshakeFailure::GaveUp("no".into()),
        ),
        (vec![Message::Bye(None)], HandshakeFailure::Closed),
        (vec![answer(&process)], HandshakeFailure::OutOfTurn("ANSWER")),
        (vec![dropped(3)], HandshakeFailure::WrongRails { lanes: 3, answered: 2 }),
        (vec![lanes(3)], wrong_lanes),
        (vec![dropped(2)], late(Awaited::Probe)),
        (vec![dropped(2), Message::Ready { usable: 0b10 }], HandshakeFailure::OutOfTurn("READY")),
        (vec![dropped(2), Message::Probe { rails: 0b10 }], wrong_probe(0b10)),
        (vec![dropped(2), Message::Probe { rails: 0b100 }], wrong_probe(0b100)),
        // It says that it has no rail, and the connector gives up.
        (vec![dropped(2), Message::Probe { rails: 0 }], late(Awaited::Ready)),
    ] {
        let is_told = !matches!(expected, HandshakeFailure::GaveUp(_) | HandshakeFailure::Closed);
        let mut acceptor = acceptor(&process, Ok(&both));
        messages.into_iter().for_each(|message| acceptor.handle_message(message));
        acceptor.handle_timeout(1000);
        assert_eq!(failure(|| acceptor.poll_action(), is_told), expected);
    }
    let mut unpaired = acceptor(&process, Err("no port fits".into()));
    assert_eq!(failure(|| unpaired.poll_action(), true), HandshakeFailure::Unpaired("no port fits".into()));
}

#[test]
fn a_host_that_can_make_no_rail_is_at_fault_itself() {
    let world = World::new(1, Faults { open_fails_permille: 1000, ..Faults::none() });
    let process = Process::new(&world, &[1 << 30; 2]);
    let mut connector = connector(&process);
    connector.handle_message(answer(&process));
    connector.handle_message(dropped(2));
    let failure = failure(|| connector.poll_action(), true);
    assert!(matches!(failure, HandshakeFailure::NoRail { failed_here: true, .. }), "{failure:?}");
    assert_eq!(failure.fault(), Fault::Local);
    let left_out = std::iter::from_fn(|| connector.poll_event());
    assert_eq!(
        left_out.filter(|event| matches!(event, Event::RailLeftOut { reason: LeftOut::Failed(_), .. })).count(),
        2
    );
}
