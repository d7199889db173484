//! The two state machines of a connection's set-up, fed with whatever a peer may send, in any order.

mod common;

use std::net::Ipv6Addr;
use std::sync::Arc;

use common::{Fabric, Process};
use proptest::prelude::*;
use railweave_fabric::{Fault, LaneEndpoint, LinkLayer};
use railweave_fabric_sim::{Faults, World};
use railweave_transport::{
    AcceptPairing, Acceptor, Action, ConnectionConfig, Connector, Frame, Handshake, Lanes, Makes, Message, Offer,
    PortOffer, RailAnswer, RailLanes, Token,
};

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
        1 => Just(RailLanes::Dropped("no".into())),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    let answer = (0u8..4, 1u8..4, port());
    let answer = answer.prop_map(|(connector_port, lanes, port)| RailAnswer { connector_port, lanes, port });
    prop_oneof![
        3 => proptest::collection::vec(answer, 1..=8).prop_map(|rails| Message::Answer { token: Token([1; 16]), rails }),
        3 => (any::<bool>(), any::<u64>(), proptest::collection::vec(lanes(), 1..=8))
            .prop_map(|(byte_counts, stream, rails)| Message::Lanes(Lanes { byte_counts, stream, rails })),
        3 => any::<u8>().prop_map(|usable| Message::Ready { usable }),
        1 => Just(Message::Refuse { fault: Fault::Peer, reason: "no".into() }),
        1 => Just(Message::Bye),
        1 => proptest::collection::vec(any::<u8>(), 0..20).prop_map(Message::Hello),
        1 => proptest::collection::vec(port(), 1..=8)
            .prop_map(|ports| Message::Offer(Offer { nonce: 1, striped: false, traffic_class: None, ports })),
    ]
}

/// What a machine has asked for, until it says that it is over.
fn drain<C>(mut next: impl FnMut() -> Option<Action<C>>) -> (usize, bool) {
    let (mut endings, mut ready) = (0, false);
    while let Some(action) = next() {
        match action {
            Action::Ready(_) => (endings, ready) = (endings + 1, true),
            Action::Failed(error) => {
                assert!(error.to_string().len() > 10, "{error:?}");
                endings += 1;
            }
            // What a machine sends must be a frame that the peer can read.
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

proptest! {
    #[test]
    fn a_connector_takes_anything(messages in proptest::collection::vec(message(), 0..8)) {
        let world = World::new(1, Faults::none());
        let process = Process::new(&world, &[1 << 30, 4096]);
        let mut connector = Connector::<Fabric>::new(
            ConnectionConfig::default(), process.ports(), 1, "the peer".into(), 1000, |_| Arc::default(),
        );
        messages.into_iter().for_each(|message| connector.handle_message(message));
        connector.handle_timeout(1000);
        prop_assert_eq!(connector.timeout_ns(), None);
        prop_assert_eq!(drain(|| connector.poll_action()).0, 1, "it ends once");
    }

    #[test]
    fn an_acceptor_takes_anything(
        ports in proptest::collection::vec(port(), 2..=4),
        messages in proptest::collection::vec(message(), 0..8),
    ) {
        let world = World::new(1, Faults::none());
        let process = Process::new(&world, &[1 << 30, 4096]);
        let offer = Offer { nonce: 1, striped: true, traffic_class: Some(3), ports };
        let pairings = [0, 1].map(|port| AcceptPairing { connector_port: port, acceptor_port: port });
        let mut acceptor = Acceptor::<Fabric>::new(
            ConnectionConfig::default(), process.ports(), &offer, Ok(&pairings), Token([1; 16]), "the peer".into(), 1000,
            |_| Arc::default(),
        );
        messages.into_iter().for_each(|message| acceptor.handle_message(message));
        acceptor.handle_timeout(1000);
        prop_assert_eq!(acceptor.timeout_ns(), None);
        prop_assert_eq!(drain(|| acceptor.poll_action()).0, 1, "it ends once");
    }
}
