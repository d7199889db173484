// Two processes with a connection between them in a simulated world, where the test makes every call. The examples of
// the documentation include this file too, so it has no module comment.

use std::convert::Infallible;
use std::net::Ipv6Addr;
use std::sync::Arc;

use railweave_fabric::{
    Access, LinkLayer, MAX_RAILS, MemoryKind, PolicyName, Region, Registration, Step, WorkId, Write,
};
use railweave_fabric_sim::{
    Event, Faults, Mishap, Observer, Opening, Place, Sim, SimDomain, SimRegistration, Unobserved,
};
use railweave_transport::{
    AcceptPairing, Acceptor, Action, ConnectionConfig, Connector, Handshake, HandshakePort, Incoming, MakesConnection,
    MemoryKeys, Message, Outgoing, PortOffer, RecvConnection, RecvRequest, SendConnection, SendRequest, Token,
};

/// The world of a pair.
pub(crate) type World = railweave_fabric_sim::World<Posts>;

/// A pair over a fabric whose writes land when they arrive, as over RDMA.
pub(crate) type OneSidedPair = Pair<true>;

/// A pair over a fabric whose writes land when the peer polls, as over TCP.
pub(crate) type TwoSidedPair = Pair<false>;

/// The longest write of a port that has no limit of its own.
const UNLIMITED: u32 = 1 << 30;

/// The default number of lanes that a port offers for a rail.
const LANES: u8 = 2;

/// The number of steps after which a world that is still busy counts as stuck. The longest story takes a few thousand.
const MOST_STEPS: u32 = 1_000_000;

/// The number of turns of both ends after which a handshake has stalled. It takes a handful.
const MOST_TURNS: u32 = 100;

/// The time between the first two turns; it doubles, because completions may be late.
const TURN_NS: u64 = 20_000;

/// The parts of a pair.
pub(crate) struct Setup {
    /// The longest write of each port of the sender's process, in bytes.
    pub(crate) from: Vec<u32>,
    /// The same for the receiver's process. Its first port is paired with the sender's first, and so on.
    pub(crate) to: Vec<u32>,
    /// Lanes of each rail; the last number is that of all further rails too.
    pub(crate) lanes: Vec<u8>,
    pub(crate) faults: Faults,
    /// Bytes of memory that each process has.
    pub(crate) bytes: usize,
    /// Kind of the receiver's memory.
    pub(crate) kind: MemoryKind,
    /// The configuration of both ends.
    pub(crate) config: ConnectionConfig,
}

impl Default for Setup {
    /// One rail of two lanes without faults, and 64 bytes of host memory. The split follows the ports' speeds, so that
    /// it is the same however long anything takes. A failure ends the connection.
    fn default() -> Self {
        let (from, to) = (vec![UNLIMITED], vec![UNLIMITED]);
        let config = ConnectionConfig { policy: PolicyName::Speed, recovers: false, ..ConnectionConfig::default() };
        Self { from, to, lanes: vec![LANES], faults: Faults::none(), bytes: 64, kind: MemoryKind::Host, config }
    }
}

impl Setup {
    /// Returns a setup of two rails.
    pub(crate) fn two_rails() -> Self {
        Self { from: vec![UNLIMITED; 2], to: vec![UNLIMITED; 2], ..Self::default() }
    }

    /// Returns this setup with ends that go on without rails that fail.
    #[allow(dead_code, reason = "the examples do without")]
    pub(crate) fn recovers(self) -> Self {
        Self { config: ConnectionConfig { recovers: true, ..self.config }, ..self }
    }

    /// Returns this setup with GPU memory at the receiver.
    pub(crate) fn gpu(self) -> Self {
        Self { kind: MemoryKind::Cuda, ..self }
    }

    /// Returns this setup with a receiver that puts its acknowledgements off, if its fabric is two-sided.
    pub(crate) fn acks_put_off(self) -> Self {
        Self { faults: Faults { acks_put_off: true, ..self.faults }, ..self }
    }
}

/// Everything that the ends of a connection have posted. It panics if they break a rule of the fabric.
#[derive(Debug, Default)]
pub(crate) struct Posts {
    writes: Vec<(Place, Write)>,
    flushes: Vec<Place>,
    /// The rails whose fences have read memory back.
    fences: Vec<Place>,
}

impl Observer for Posts {
    type Task = Infallible;

    fn see(&mut self, _: u64, place: Place, event: &Event<'_>) {
        match event {
            Event::Posted { write, .. } => self.writes.push((place, **write)),
            Event::Flush { .. } => self.flushes.push(place),
            // A flush that an application has asked for has another number.
            Event::Flushed { id: WorkId(0), .. } => self.fences.push(place),
            Event::Broken(breach) => panic!("{place:?}: {breach:?}"),
            _ => {}
        }
    }

    fn suffer(&mut self, _: Mishap) {}
}

/// A connection, the memory that its ends use, and the world that they are in.
pub(crate) struct Pair<const ONE_SIDED: bool> {
    pub(crate) world: Arc<World>,
    pub(crate) sender: SendConnection<Sim<ONE_SIDED, Posts>>,
    pub(crate) receiver: RecvConnection<Sim<ONE_SIDED, Posts>>,
    /// Memory of the sender's process.
    pub(crate) source: Memory,
    /// Memory of the receiver's process.
    pub(crate) target: Memory,
    /// More of it.
    #[allow(dead_code, reason = "the examples need none")]
    pub(crate) spare: Memory,
}

impl<const ONE_SIDED: bool> Pair<ONE_SIDED> {
    pub(crate) fn new(setup: Setup) -> Self {
        let world = World::observed(1, setup.faults, Posts::default());
        let process = |max_writes: &[u32]| Process { lanes: setup.lanes.clone(), ..Process::new(&world, max_writes) };
        let (from, to) = (process(&setup.from), process(&setup.to));
        let (sender, receiver) = connect(&world, &from, &to, &setup.config);
        let (source, target) = (from.memory(MemoryKind::Host, setup.bytes), to.memory(setup.kind, setup.bytes));
        let spare = to.memory(setup.kind, setup.bytes);
        Self { world, sender, receiver, source, target, spare }
    }

    /// Steps until nothing is scheduled, and then lets time pass until every completion is visible.
    pub(crate) fn drive(&self) {
        drive(&self.world);
    }

    /// Returns the writes that one end has posted since the last call for either end, with their places.
    pub(crate) fn posted(&self, sender: bool) -> Vec<(Place, Write)> {
        let posted = std::mem::take(&mut self.world.lock().observer.writes);
        posted.into_iter().filter(|(place, _)| place.sender == sender).collect()
    }

    /// Returns the rails over which flushes were posted since the last call.
    pub(crate) fn flushed(&self) -> Vec<u8> {
        std::mem::take(&mut self.world.lock().observer.flushes).into_iter().map(|place| place.rail).collect()
    }

    /// Returns the rails whose fences have read memory back since the last call.
    pub(crate) fn read_back(&self) -> Vec<u8> {
        std::mem::take(&mut self.world.lock().observer.fences).into_iter().map(|place| place.rail).collect()
    }

    /// Posts a receive of 8 bytes with tag 0.
    pub(crate) fn irecv(&mut self) -> RecvRequest {
        self.irecv_of([8])
    }

    /// Posts a receive of buffers of these sizes, whose tags count from 0.
    pub(crate) fn irecv_of<const BUFFERS: usize>(&mut self, sizes: [u64; BUFFERS]) -> RecvRequest {
        let buffers = std::array::from_fn::<_, BUFFERS, _>(|index| self.target.buffer(sizes[index], index as u32));
        // A call that finds no room makes some for the next call.
        (0..2).find_map(|_| self.receiver.irecv(&buffers, false).unwrap()).expect("there is room")
    }

    /// Sends 8 bytes with tag 0.
    pub(crate) fn isend(&mut self) -> SendRequest {
        self.isend_of(8, 0)
    }

    /// Sends this many bytes with this tag.
    pub(crate) fn isend_of(&mut self, size: u64, tag: u32) -> SendRequest {
        let message = self.source.message(size, tag);
        // On a two-sided fabric a call that finds no CTS polls, and the next call finds those that have arrived.
        let calls = if ONE_SIDED { 1 } else { 2 };
        (0..calls).find_map(|_| self.sender.isend(&message).unwrap()).expect("the CTS is there, and room")
    }

    /// Drives until a send is done. Returns its size. On a two-sided fabric the receiver must have polled before.
    pub(crate) fn sent(&mut self, send: SendRequest) -> u64 {
        self.drive();
        self.sender.test(send).unwrap().expect("it is done")
    }

    /// Drives until a receive is done. Returns its sizes.
    pub(crate) fn received(&mut self, receive: RecvRequest) -> Vec<u64> {
        self.drive();
        self.receiver.test(receive).unwrap().expect("it is done").to_vec()
    }
}

/// Steps until nothing is scheduled, and then lets time pass until every completion is visible.
pub(crate) fn drive(world: &World) {
    let mut state = world.lock();
    let busy = (0..MOST_STEPS).all(|_| {
        let is_due = state.next_at().is_some();
        state.step();
        is_due
    });
    assert!(!busy, "the world is still busy after {MOST_STEPS} steps");
    let late_ns = state.faults.completion_late_ns;
    drop(state);
    world.advance(late_ns);
}

/// Memory that is registered on every port of its process.
pub(crate) struct Memory {
    pub(crate) region: Arc<Region>,
    pub(crate) keys: MemoryKeys,
    registrations: Vec<SimRegistration<Posts>>,
}

impl Memory {
    /// Deregisters it on every port.
    #[allow(dead_code, reason = "the examples keep it")]
    pub(crate) fn deregister(&mut self) {
        self.registrations.clear();
    }

    /// Returns its first bytes as a buffer to receive into.
    pub(crate) fn buffer(&self, size: u64, tag: u32) -> Incoming<'_> {
        Incoming { address: self.region.address(), size, tag, keys: &self.keys }
    }

    /// Returns its first bytes as a message to send.
    pub(crate) fn message(&self, size: u64, tag: u32) -> Outgoing<'_> {
        Outgoing { address: self.region.address(), size, tag, keys: &self.keys }
    }
}

/// A process with its ports.
pub(crate) struct Process<const ONE_SIDED: bool, O: Observer = Unobserved> {
    domains: Vec<Arc<SimDomain<ONE_SIDED, O>>>,
    number: u16,
    /// The number of lanes that each port offers for a rail; the last is that of all further ports too.
    lanes: Vec<u8>,
}

impl<const ONE_SIDED: bool, O: Observer> Process<ONE_SIDED, O> {
    /// Returns a process of the world with a port for each `max_write`.
    pub(crate) fn new(world: &Arc<railweave_fabric_sim::World<O>>, max_writes: &[u32]) -> Self {
        let number = world.add_process();
        let domains = max_writes.iter().map(|max_write| SimDomain::new(world, number, *max_write, true)).collect();
        Self { domains, number: number as u16, lanes: vec![LANES] }
    }

    /// Returns its ports, as they are offered.
    pub(crate) fn ports(&self) -> Vec<HandshakePort<Sim<ONE_SIDED, O>>> {
        let port = |(index, domain): (usize, &Arc<SimDomain<ONE_SIDED, O>>)| HandshakePort {
            offer: PortOffer {
                link_layer: LinkLayer::InfiniBand,
                prefix_len: 64,
                lanes: self.lanes[index.min(self.lanes.len() - 1)],
                speed_mbps: 100_000,
                mtu: 4096,
                rail_id: -1,
                plane_id: -1,
                address: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, self.number, index as u16),
            },
            domain: Arc::clone(domain),
            weight: None,
            fixed: None,
        };
        self.domains.iter().enumerate().map(port).collect()
    }
}

impl<const ONE_SIDED: bool> Process<ONE_SIDED, Posts> {
    fn memory(&self, kind: MemoryKind, length: usize) -> Memory {
        let region = Arc::new(Region::new(length));
        let address = region.address();
        let register =
            |domain: &Arc<SimDomain<ONE_SIDED, Posts>>| domain.register_as(&region, address, kind, Access::DATA);
        let registrations: Vec<SimRegistration<Posts>> = self.domains.iter().map(register).collect();
        let mut keys = MemoryKeys { local: [0; MAX_RAILS], remote: [0; MAX_RAILS], host: kind == MemoryKind::Host };
        for (rail, registration) in registrations.iter().enumerate() {
            keys.local[rail] = registration.local_key();
            keys.remote[rail] = registration.remote_key();
        }
        Memory { region, keys, registrations }
    }
}

/// The ends of a connection.
type Ends<const ONE_SIDED: bool> = (SendConnection<Sim<ONE_SIDED, Posts>>, RecvConnection<Sim<ONE_SIDED, Posts>>);

/// Connects two processes over all their ports.
fn connect<const ONE_SIDED: bool>(
    world: &World,
    from: &Process<ONE_SIDED, Posts>,
    to: &Process<ONE_SIDED, Posts>,
    config: &ConnectionConfig,
) -> Ends<ONE_SIDED> {
    let open = |sender| world.lock().opening = Some(Opening { connection: 0, sender, next_rail: 0 });
    let mut connector = Connector::<Sim<ONE_SIDED, Posts>>::new(
        config.clone(),
        from.ports(),
        1,
        "the receiver".into(),
        1 << 40,
        |_| Arc::default(),
    );
    let Some(Action::Send(Message::Offer(offer))) = connector.poll_action() else { panic!("no offer") };
    let pairings: Vec<AcceptPairing> =
        (0..from.domains.len() as u8).map(|port| AcceptPairing { connector_port: port, acceptor_port: port }).collect();
    let (pairings, token, peer) = (Ok((Step::Subnet, &pairings[..])), Token([1; 16]), "the sender".into());
    let mut acceptor =
        Acceptor::new(config.clone(), to.ports(), &offer, pairings, token, peer, 1 << 40, |_| Arc::default());
    let (mut sender, mut receiver) = (None, None);
    let mut turn_ns = TURN_NS;
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
        if sender.is_some() && receiver.is_some() {
            break;
        }
        // The first packets of the rails take their time.
        world.advance(turn_ns);
        turn_ns = (2 * turn_ns).min(1_000_000_000);
        let now_ns = world.lock().now_ns;
        connector.go_on(now_ns);
        acceptor.go_on(now_ns);
    }
    // Whoever looks at the posts looks at those of the connection.
    world.lock().observer.writes.clear();
    let made = sender.zip(receiver);
    made.unwrap_or_else(|| panic!("the handshake has stalled: it is not over after {MOST_TURNS} turns of both ends"))
}
