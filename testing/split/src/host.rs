//! A host: a process with a port for each rail, and the connections between two of them.

use std::net::Ipv6Addr;
use std::sync::Arc;

use railweave_fabric::{Access, LinkLayer, MAX_RAILS, Registration, Step};
use railweave_fabric_sim::{Opening, Sim, SimDomain, SimRegistration};
use railweave_transport::{
    AcceptPairing, Acceptor, Action, ConnectionConfig, Connector, Handshake, HandshakePort, MakesConnection,
    MemoryKeys, Message, PortOffer, RecvConnection, SendConnection, Token,
};

use crate::traffic::Traffic;

pub(crate) type World = railweave_fabric_sim::World<Traffic>;
type Fabric = Sim<true, Traffic>;
pub(crate) type Sender = SendConnection<Fabric>;
pub(crate) type Receiver = RecvConnection<Fabric>;

/// The longest write of a port: no limit that matters.
const UNLIMITED: u32 = 1 << 30;

/// The most turns of both ends until a handshake is over. It takes a handful.
const MOST_TURNS: u32 = 100;

/// The time between two turns.
const TURN_NS: u64 = 20_000;

/// A process with its ports.
pub(crate) struct Host {
    domains: Vec<Arc<SimDomain<true, Traffic>>>,
    number: usize,
}

/// Hollow memory that is registered on every port of its host.
pub(crate) struct Hollow {
    pub(crate) address: u64,
    pub(crate) keys: MemoryKeys,
    _registrations: Vec<SimRegistration<Traffic>>,
}

impl Host {
    pub(crate) fn new(world: &Arc<World>, rails: usize) -> Self {
        let number = world.add_process();
        let domains = (0..rails).map(|_| SimDomain::new(world, number, UNLIMITED, true)).collect();
        Self { domains, number }
    }

    /// Returns the number in the world of the port of a rail.
    pub(crate) fn port(&self, rail: usize) -> usize {
        self.domains[rail].port()
    }

    pub(crate) fn memory(&self, bytes: u64) -> Hollow {
        let address = 1 << 40;
        let register = |domain: &Arc<SimDomain<_, _>>| domain.register_hollow(bytes, address, Access::DATA);
        let registrations: Vec<_> = self.domains.iter().map(register).collect();
        let mut keys = MemoryKeys { local: [0; MAX_RAILS], remote: [0; MAX_RAILS], host: true };
        for (rail, registration) in registrations.iter().enumerate() {
            keys.local[rail] = registration.local_key();
            keys.remote[rail] = registration.remote_key();
        }
        Hollow { address, keys, _registrations: registrations }
    }

    fn ports(&self) -> Vec<HandshakePort<Fabric>> {
        let port = |(index, domain): (usize, &Arc<SimDomain<true, Traffic>>)| HandshakePort {
            offer: PortOffer {
                link_layer: LinkLayer::InfiniBand,
                prefix_len: 64,
                lanes: 1,
                speed_mbps: 100_000,
                mtu: 4096,
                rail_id: -1,
                plane_id: -1,
                address: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, self.number as u16, index as u16),
            },
            domain: Arc::clone(domain),
            weight: None,
            fixed: None,
        };
        self.domains.iter().enumerate().map(port).collect()
    }
}

/// Connects two hosts over all their ports, as connection number `flow`. All rails are quick while it does.
pub(crate) fn connect(world: &World, flow: usize, from: &Host, to: &Host) -> (Sender, Receiver) {
    let open = |sender| world.lock().opening = Some(Opening { connection: flow, sender, next_rail: 0 });
    let config = ConnectionConfig::default();
    let mut connector =
        Connector::new(config.clone(), from.ports(), 1, "the receiver".into(), 1 << 40, |_| Arc::default());
    let Some(Action::Send(Message::Offer(offer))) = connector.poll_action() else { panic!("no offer") };
    let pairings: Vec<AcceptPairing> =
        (0..from.domains.len() as u8).map(|port| AcceptPairing { connector_port: port, acceptor_port: port }).collect();
    let (pairings, token, peer) = (Ok((Step::Subnet, &pairings[..])), Token([1; 16]), "the sender".into());
    let mut acceptor = Acceptor::new(config, to.ports(), &offer, pairings, token, peer, 1 << 40, |_| Arc::default());
    let (mut sender, mut receiver): (Option<Sender>, Option<Receiver>) = (None, None);
    for _ in 0..MOST_TURNS {
        match acceptor.poll_action() {
            Some(Action::Send(message)) => {
                open(true);
                connector.handle_message(message);
            }
            Some(Action::Ready(made)) => receiver = Some(*made),
            Some(_) => panic!("the acceptor failed"),
            None => {}
        }
        match connector.poll_action() {
            Some(Action::Send(message)) => {
                open(false);
                acceptor.handle_message(message);
            }
            Some(Action::Ready(made)) => sender = Some(*made),
            Some(_) => panic!("the connector failed"),
            None => {}
        }
        if let (Some(_), Some(_)) = (&sender, &receiver) {
            break;
        }
        let until_ns = world.lock().now_ns + TURN_NS;
        let mut state = world.lock();
        while state.next_at().is_some_and(|at_ns| at_ns <= until_ns) {
            state.step();
        }
        state.pass_until(until_ns);
        drop(state);
        connector.go_on(until_ns);
        acceptor.go_on(until_ns);
    }
    sender.zip(receiver).expect("the handshake ends")
}
