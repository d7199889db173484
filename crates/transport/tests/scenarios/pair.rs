//! Connections in a world without players: whoever tests makes every call.

use std::net::Ipv6Addr;
use std::sync::Arc;

use railweave_fabric::{Access, LinkLayer, MAX_RAILS, MemoryKind, Region, Registration};
use railweave_fabric_sim::{Sim, SimDomain, SimRegistration, World};
use railweave_transport::{
    AcceptPairing, Acceptor, Action, ConnectionConfig, Connector, Handshake, HandshakePort, Makes, MemoryKeys, Message,
    PortOffer, RecvConnection, SendConnection, Token,
};

/// The fabric of these tests.
pub(crate) type Fabric = Sim<true>;

/// A process with its ports.
pub(crate) struct Process {
    pub(crate) domains: Vec<Arc<SimDomain<true>>>,
    number: u16,
}

impl Process {
    /// A process of the world with a port for each `max_write`.
    pub(crate) fn new(world: &Arc<World>, max_writes: &[u32]) -> Self {
        let number = world.add_process();
        let domains = max_writes.iter().map(|max_write| SimDomain::new(world, number, *max_write, true)).collect();
        Self { domains, number: number as u16 }
    }

    /// Its ports, as they are offered.
    pub(crate) fn ports(&self) -> Vec<HandshakePort<Fabric>> {
        let port = |(index, domain): (usize, &Arc<SimDomain<true>>)| HandshakePort {
            offer: PortOffer {
                link_layer: LinkLayer::InfiniBand,
                prefix_len: 64,
                lanes: 2,
                speed_mbps: 100_000,
                mtu: 4096,
                rail_id: -1,
                plane_id: -1,
                address: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, self.number, index as u16),
            },
            domain: Arc::clone(domain),
            weight: None,
        };
        self.domains.iter().enumerate().map(port).collect()
    }

    /// Memory that is registered on every port.
    pub(crate) fn memory(&self, length: usize) -> Memory {
        self.memory_of(MemoryKind::Host, length)
    }

    /// Memory of a kind that is registered on every port.
    pub(crate) fn memory_of(&self, kind: MemoryKind, length: usize) -> Memory {
        let region = Arc::new(Region::new(length));
        let address = region.address();
        let register = |domain: &Arc<SimDomain<true>>| domain.register_as(&region, address, kind, Access::DATA);
        let registrations: Vec<SimRegistration> = self.domains.iter().map(register).collect();
        let mut keys = MemoryKeys { local: [0; MAX_RAILS], remote: [0; MAX_RAILS], host: kind == MemoryKind::Host };
        for (rail, registration) in registrations.iter().enumerate() {
            keys.local[rail] = registration.local_key();
            keys.remote[rail] = registration.remote_key();
        }
        Memory { region, keys, _registrations: registrations }
    }
}

/// Registered memory.
pub(crate) struct Memory {
    pub(crate) region: Arc<Region>,
    pub(crate) keys: MemoryKeys,
    _registrations: Vec<SimRegistration>,
}

/// A connection over all ports of two processes.
pub(crate) fn connect(
    config: &ConnectionConfig,
    from: &Process,
    to: &Process,
) -> (SendConnection<Fabric>, RecvConnection<Fabric>) {
    let mut connector =
        Connector::<Fabric>::new(config.clone(), from.ports(), 1, "the receiver".into(), 1 << 40, |_| Arc::default());
    let Some(Action::Send(Message::Offer(offer))) = connector.poll_action() else { panic!("no offer") };
    let pairings: Vec<AcceptPairing> =
        (0..from.domains.len() as u8).map(|port| AcceptPairing { connector_port: port, acceptor_port: port }).collect();
    let mut acceptor = Acceptor::new(
        config.clone(),
        to.ports(),
        &offer,
        Ok(&pairings),
        Token([1; 16]),
        "the sender".into(),
        1 << 40,
        |_| Arc::default(),
    );
    let (mut sender, mut receiver) = (None, None);
    while sender.is_none() || receiver.is_none() {
        match acceptor.poll_action() {
            Some(Action::Send(message)) => connector.handle_message(message),
            Some(Action::Ready(made)) => receiver = Some(*made),
            Some(_) => panic!("the acceptor failed"),
            None => {}
        }
        match connector.poll_action() {
            Some(Action::Send(message)) => acceptor.handle_message(message),
            Some(Action::Ready(made)) => sender = Some(*made),
            Some(_) => panic!("the connector failed"),
            None => {}
        }
    }
    (sender.unwrap(), receiver.unwrap())
}
