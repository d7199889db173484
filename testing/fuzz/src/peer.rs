//! Common parts of the data path's targets: the plan of a connection, and a peer that sets one up faultlessly.

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

use railweave_fabric::{LaneEndpoint, LinkLayer, MAX_RAILS, PolicyName, Step};
use railweave_transport::{
    AcceptPairing, Acceptor, Action, ConnectionConfig, Connector, Handshake, HandshakePort, Lanes, MAX_MESSAGE_BYTES,
    MakesConnection, Message, Offer, PortOffer, RailAnswer, RailCounters, RailLanes, RecvConnection, SendConnection,
    Token, Ways,
};

use crate::input::Input;
use crate::scripted::{Caps, Scripted, World};

/// The address that the peer gives for its stream or its records.
pub(crate) const PEER_STREAM: u64 = 0x7000_0000_0000;

/// Returns the key of the peer's stream or records on a rail.
pub(crate) fn peer_key(rail: usize) -> u32 {
    0x5a00_0000 | rail as u32
}

/// The flag of a connection that goes on without rails that fail.
pub(crate) const RECOVERS: u8 = 0x80;

/// The plan of a connection: the head of a script.
pub(crate) struct Plan {
    pub(crate) one_sided: bool,
    pub(crate) rails: usize,
    pub(crate) lanes: u8,
    pub(crate) config: ConnectionConfig,
    pub(crate) caps: Caps,
    weights: [Option<u32>; MAX_RAILS],
}

impl Plan {
    pub(crate) fn read(input: &mut Input<'_>) -> Self {
        let flags = input.u8();
        let rails = 1 + usize::from(input.u8()) % MAX_RAILS;
        let lanes = 1 + input.u8() % 16;
        let max_write = input.choose(&[1 << 30, 1 << 20, 16 << 20]);
        let split_min = input.choose(&[8192, 0, 1, 1 << 20, u64::MAX]);
        let mut weights = [None; MAX_RAILS];
        let skewed = input.u8();
        for (index, weight) in weights.iter_mut().enumerate().filter(|(index, _)| skewed & 1 << index != 0) {
            *weight = Some([0, 1, 1_000_000, u32::MAX][index % 4]);
        }
        Self {
            one_sided: flags & 1 != 0,
            rails,
            lanes,
            config: ConnectionConfig {
                split_min,
                policy: PolicyName::ALL[usize::from((flags & !RECOVERS) >> 4) % PolicyName::ALL.len()],
                striped: flags & 2 != 0,
                adaptive_routing_above: (flags & 4 != 0).then_some(8192),
                traffic_class: None,
                first_number: 0,
                probe_timeout: Duration::from_secs(10),
                recovers: flags & RECOVERS != 0,
                ..ConnectionConfig::default()
            },
            caps: Caps { max_write, byte_counts: flags & 8 == 0 },
            weights,
        }
    }

    pub(crate) fn ports<const ONE_SIDED: bool>(&self, world: &World) -> Vec<HandshakePort<Scripted<ONE_SIDED>>> {
        (0..self.rails)
            .map(|index| HandshakePort {
                offer: port_offer(index, 1, self.lanes),
                domain: world.port(index, self.caps),
                weight: self.weights[index],
                fixed: None,
            })
            .collect()
    }

    /// Returns the mask of all rails.
    fn all_rails(&self) -> u8 {
        (0xff_u16 >> (8 - self.rails)) as u8
    }

    fn peer_lanes(&self) -> Message {
        let endpoints = vec![LaneEndpoint::default(); usize::from(self.lanes)];
        let rail = |index| RailLanes::Open { key: peer_key(index), endpoints: endpoints.clone() };
        Message::Lanes(Lanes {
            byte_counts: self.caps.byte_counts,
            stream: PEER_STREAM,
            rails: (0..self.rails).map(rail).collect(),
        })
    }

    /// Sets up a sending connection, whose peer is the script.
    pub(crate) fn sender<const ONE_SIDED: bool>(&self, world: &World) -> SendConnection<Scripted<ONE_SIDED>> {
        let ports = self.ports(world);
        let mut connector = Connector::new(self.config.clone(), ports, 7, "the script".into(), 1, counters);
        let answer = |index| RailAnswer {
            connector_port: index as u8,
            lanes: self.lanes,
            port: port_offer(index, 2, self.lanes),
        };
        let rails = (0..self.rails).map(answer).collect();
        connector.handle_message(Message::Answer { token: Token([1; 16]), step: Step::Subnet, rails });
        connector.handle_message(self.peer_lanes());
        if ONE_SIDED {
            connector.handle_message(Message::Probe { rails: self.all_rails() });
        }
        assert_eq!(connector.poll_event(), None, "a faultless handshake has no events");
        loop {
            match connector.poll_action().expect("the connection comes to be") {
                Action::Dial(dial) => connector.handle_dialled(dial.rail, dial.lane, Ok(World::socket())),
                Action::Ready(connection) => {
                    world.lock().is_up = true;
                    return *connection;
                }
                Action::Send(_) => {}
                Action::Failed(error) => panic!("a faultless handshake failed: {error}"),
            }
        }
    }

    /// Sets up a receiving connection, whose peer is the script.
    pub(crate) fn receiver<const ONE_SIDED: bool>(&self, world: &World) -> RecvConnection<Scripted<ONE_SIDED>> {
        let offer = Offer {
            nonce: 7,
            striped: self.config.striped,
            traffic_class: None,
            ports: (0..self.rails).map(|index| port_offer(index, 2, self.lanes)).collect(),
            ways: Ways::default(),
        };
        let pairing = |index| AcceptPairing { connector_port: index, acceptor_port: index };
        let pairings: Vec<_> = (0..self.rails as u8).map(pairing).collect();
        let ports = self.ports(world);
        let mut acceptor = Acceptor::new(
            self.config.clone(),
            ports,
            &offer,
            Ok((Step::Subnet, &pairings)),
            Token([1; 16]),
            "the script".into(),
            1,
            counters,
        );
        acceptor.handle_message(self.peer_lanes());
        if !ONE_SIDED {
            for rail in 0..self.rails as u8 {
                for lane in 0..self.lanes {
                    acceptor.handle_lane(rail, lane, World::socket()).expect("the lane is awaited");
                }
            }
        }
        if ONE_SIDED {
            acceptor.handle_message(Message::Probe { rails: self.all_rails() });
        }
        acceptor.handle_message(Message::Ready { usable: self.all_rails() });
        assert_eq!(acceptor.poll_event(), None, "a faultless handshake has no events");
        loop {
            match acceptor.poll_action().expect("the connection comes to be") {
                Action::Ready(connection) => {
                    world.lock().is_up = true;
                    return *connection;
                }
                Action::Send(_) => {}
                Action::Dial(_) => panic!("an acceptor dials nobody"),
                Action::Failed(error) => panic!("a faultless handshake failed: {error}"),
            }
        }
    }
}

/// Returns the offer of a port of this or the other process: rail `index` has a subnet of its own.
pub(crate) fn port_offer(index: usize, host: u16, lanes: u8) -> PortOffer {
    PortOffer {
        link_layer: LinkLayer::Tcp,
        prefix_len: 24,
        lanes,
        speed_mbps: 10_000 << (index % 4),
        mtu: 1500,
        rail_id: -1,
        plane_id: -1,
        address: Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0x0a00 | index as u16, host),
    }
}

pub(crate) fn counters(_: &railweave_transport::RailName) -> Arc<RailCounters> {
    Arc::default()
}

/// Reads the size of a buffer or message, in bytes: often small or at an edge, seldom huge.
pub(crate) fn size(input: &mut Input<'_>) -> u64 {
    match input.u8() {
        exact @ 0..128 => u64::from(exact),
        units @ 128..200 => u64::from(units - 127) * 1024,
        200..220 => 65536 + u64::from(input.u8()) - 128,
        220..240 => u64::from(input.u32()) % MAX_MESSAGE_BYTES,
        240..250 => MAX_MESSAGE_BYTES - u64::from(input.u8()),
        _ => 1 << 20,
    }
}
