//! Two hosts of a simulated world, and connects between them that climb the ladder as the plugin's do: by the
//! protocol's rules, with the plugin's offers and answers.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use railweave_fabric::{LinkLayer, Route, Step};
use railweave_fabric_sim::{Faults, Opening, Sim, SimDomain, Unobserved, World};
use railweave_offers::{Answer, OwnPorts, answer, handle_addresses, ways};
use railweave_transport::progress::{self, Progress, Received};
use railweave_transport::{
    AcceptPairing, Acceptor, Action, Climb, ConnectionConfig, ConnectionEnd, Connector, Error, Event, Failed, Frame,
    Handshake, HandshakePort, KnownWays, MakesConnection, Message, PortOffer, RailName, Side, Token, Wanted,
};

/// The longest write of a port, in bytes.
const MAX_WRITE: u32 = 1 << 30;

/// The time for each step of a set-up.
const TIMEOUT_NS: u64 = 30_000_000_000;

/// The time that a rail has to bring its first packets through.
pub(crate) const PROBE_NS: u64 = 1_000_000_000;

/// The longest time for which the world takes to do what nothing delays.
pub(crate) const QUICK_NS: u64 = 300_000_000;

/// More attempts than one connect makes: three at each step, and all but those of TCP again.
const MOST_ATTEMPTS: usize = 2 * 3 * Step::ALL.len();

/// A way: an address of the connector's host, and one of the acceptor's.
pub(crate) type Way = [IpAddr; 2];

/// A host: its ports, of which the last do not belong to the device of the connection.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) addresses: Vec<Ipv4Addr>,
    pub(crate) others: usize,
    /// The length of every subnet's prefix.
    pub(crate) prefix_len: u8,
    /// The ports on which no rail can be opened.
    pub(crate) broken: BTreeSet<usize>,
    /// The kernel's route from a port to an address, if it is not the default: out by that port.
    pub(crate) routes: HashMap<(usize, IpAddr), Route>,
}

impl Host {
    /// Returns a host whose device has the first of these ports, on subnets of 24 bits.
    pub(crate) fn new(device: &[[u8; 4]], others: &[[u8; 4]]) -> Self {
        Self {
            addresses: device.iter().chain(others).map(|address| Ipv4Addr::from(*address)).collect(),
            others: others.len(),
            prefix_len: 24,
            broken: BTreeSet::new(),
            routes: HashMap::new(),
        }
    }

    fn offers(&self, link_layer: LinkLayer) -> Vec<PortOffer> {
        let port = |address: &Ipv4Addr| PortOffer {
            link_layer,
            prefix_len: self.prefix_len,
            lanes: 2,
            speed_mbps: 100_000,
            mtu: 4096,
            rail_id: -1,
            plane_id: -1,
            address: address.to_ipv6_mapped(),
        };
        self.addresses.iter().map(port).collect()
    }

    pub(crate) fn route(&self, place: usize, to: IpAddr) -> Route {
        self.routes.get(&(place, to)).copied().unwrap_or(Route::Leaves)
    }
}

/// A host whose ports are in the world, with a fabric of one kind.
struct Placed<const ONE_SIDED: bool> {
    host: Host,
    link_layer: LinkLayer,
    domains: Vec<Arc<SimDomain<ONE_SIDED>>>,
}

impl<const ONE_SIDED: bool> Placed<ONE_SIDED> {
    fn new(world: &Arc<World<Unobserved>>, host: Host, link_layer: LinkLayer) -> Self {
        let process = world.add_process();
        let domains: Vec<_> = host.addresses.iter().map(|_| SimDomain::new(world, process, MAX_WRITE, true)).collect();
        for place in &host.broken {
            world.lock().fail_device(domains[*place].port());
        }
        Self { host, link_layer, domains }
    }

    fn offers(&self) -> Vec<PortOffer> {
        self.host.offers(self.link_layer)
    }

    fn ports(&self) -> Vec<HandshakePort<Sim<ONE_SIDED>>> {
        let port = |(offer, domain): (PortOffer, &Arc<_>)| HandshakePort {
            offer,
            domain: Arc::clone(domain),
            weight: None,
            fixed: None,
        };
        self.offers().into_iter().zip(&self.domains).map(port).collect()
    }
}

/// The end of a connect that has reached its peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reached {
    pub(crate) step: Step,
    pub(crate) rails: BTreeSet<Way>,
}

/// One connect, once it has ended.
#[derive(Clone, Debug)]
pub(crate) struct Connect {
    pub(crate) result: Result<Reached, Error>,
    /// The rails that were left out, and the time from the beginning of the attempt until then.
    pub(crate) left_out: Vec<(Way, u64)>,
    /// The steps at which its attempts began.
    pub(crate) attempts: Vec<Step>,
    pub(crate) took_ns: u64,
}

impl Connect {
    /// Returns the ways whose failure has cost time.
    pub(crate) fn slow(&self) -> Vec<Way> {
        self.left_out.iter().filter(|(_, took_ns)| *took_ns >= QUICK_NS).map(|(way, _)| *way).collect()
    }

    /// Returns true if it has climbed the ladder twice.
    pub(crate) fn has_begun_again(&self) -> bool {
        self.attempts.iter().filter(|step| **step == Step::Subnet).count() > 1
    }

    pub(crate) fn reached(&self) -> &Reached {
        self.result.as_ref().unwrap_or_else(|error| panic!("{error}; {self:#?}"))
    }
}

/// The two hosts, and one session between them.
pub(crate) struct Hosts {
    world: Arc<World<Unobserved>>,
    here: Placed<true>,
    there: Placed<true>,
    /// TCP in place of RDMA, if both hosts have it.
    tcp: Option<(Placed<false>, Placed<false>)>,
    /// The ways over which rails are connected, but no packet comes through.
    pub(crate) silent: BTreeSet<Way>,
    known: KnownWays,
    /// False if the connects forget what earlier ones have found out: for the tests of the tests.
    pub(crate) remembers: bool,
    connections: usize,
}

/// One end of a set-up.
struct End<H> {
    handshake: H,
    progress: Progress,
}

impl<H: Handshake> End<H> {
    fn new(handshake: H, side: Side, now_ns: u64) -> Self {
        let progress = Progress::new(side, handshake.may_block(), TIMEOUT_NS, now_ns);
        Self { handshake, progress }
    }

    fn take(&mut self, step: progress::Step, now_ns: u64) {
        if !self.progress.begin(&step, now_ns) {
            return step.take(&mut self.handshake, now_ns);
        }
        step.take_away(&mut self.handshake, now_ns, now_ns, TIMEOUT_NS);
        if let Some(deadline_ns) = self.progress.come_back(self.handshake.pause(), now_ns) {
            self.handshake.set_deadline(deadline_ns);
        }
    }

    fn handle_message(&mut self, message: Message, now_ns: u64) {
        if matches!(message, Message::Wait) {
            if let Some(deadline_ns) = self.progress.handle_wait(now_ns) {
                self.handshake.set_deadline(deadline_ns);
            }
            return;
        }
        match self.progress.handle_message(message) {
            Received::Step(step) => self.take(step, now_ns),
            other => unreachable!("it is never away: {other:?}"),
        }
    }

    fn next_ns(&self) -> Option<u64> {
        self.progress.next_ns(self.handshake.timeout_ns())
    }

    /// Takes the step that is due. Returns true if the peer must be told WAIT.
    fn go_on(&mut self, now_ns: u64) -> bool {
        let due = self.progress.due(self.handshake.timeout_ns(), now_ns);
        if let Some(step) = due.step {
            self.take(step, now_ns);
        }
        due.says_wait
    }
}

/// Takes a handshake's actions: its messages, and its end once it has one.
fn drain<H: MakesConnection>(handshake: &mut H, end: &mut Option<Result<H::Connection, Error>>) -> VecDeque<Message> {
    let mut messages = VecDeque::new();
    while let Some(action) = handshake.poll_action() {
        match action {
            Action::Send(message) => {
                let bytes = Frame { connection: 1, message }.encode();
                let (frame, length) = Frame::decode(&bytes).unwrap().expect("it is whole");
                assert_eq!(length, bytes.len());
                messages.push_back(frame.message);
            }
            Action::Dial(_) => unreachable!("no lane is a socket"),
            Action::Ready(made) => *end = Some(Ok(*made)),
            Action::Failed(error) => *end = Some(Err(error)),
        }
    }
    messages
}

impl Hosts {
    /// `tcp`: the addresses of the two hosts for TCP in place of RDMA.
    pub(crate) fn new(here: Host, there: Host, tcp: Option<[Host; 2]>) -> Self {
        let world = World::new(1, Faults { retry_ns: 60 * PROBE_NS, ..Faults::none() });
        let placed = |host| Placed::new(&world, host, LinkLayer::Roce);
        let (here, there) = (placed(here), placed(there));
        let tcp = tcp.map(|hosts| hosts.map(|host| Placed::new(&world, host, LinkLayer::Tcp)));
        let tcp = tcp.map(|[here, there]| (here, there));
        let known = KnownWays::default();
        Self { world, here, there, tcp, silent: BTreeSet::new(), known, remembers: true, connections: 0 }
    }

    fn now_ns(&self) -> u64 {
        self.world.lock().now_ns
    }

    pub(crate) fn here_mut(&mut self) -> &mut Host {
        &mut self.here.host
    }

    pub(crate) fn there_mut(&mut self) -> &mut Host {
        &mut self.there.host
    }

    pub(crate) fn advance(&self, ns: u64) {
        self.world.advance(ns);
    }

    /// Connects, as `connect` of the plugin does.
    pub(crate) fn connect(&mut self) -> Connect {
        let (mut climb, connect_ns) = (Climb::default(), self.now_ns());
        let (mut left_out, mut attempts) = (Vec::new(), Vec::new());
        let result = loop {
            if !self.remembers {
                self.known = KnownWays::default();
            }
            let (began_ns, first_step) = (self.now_ns(), climb.first_step());
            attempts.push(first_step);
            assert!(attempts.len() < MOST_ATTEMPTS, "it never ends: {attempts:?}");
            let avoided = climb.begin(&mut self.known, began_ns);
            let attempt = self.attempt(&mut climb, &avoided, &mut left_out);
            let failed = match attempt {
                Ok(reached) => break Ok(reached),
                Err(failed) => failed,
            };
            if let Err(error) = climb.go_on(&mut self.known, failed, self.tcp.is_some()) {
                break Err(error);
            }
        };
        let took_ns = self.now_ns() - connect_ns;
        Connect { result, left_out, attempts, took_ns }
    }

    fn attempt(
        &mut self,
        climb: &mut Climb,
        avoided: &[Way],
        left_out: &mut Vec<(Way, u64)>,
    ) -> Result<Reached, Failed> {
        self.connections += 1;
        let first_step = climb.first_step();
        let play = Play {
            world: &self.world,
            connection: self.connections,
            climb,
            avoided,
            silent: &self.silent,
            known: &mut self.known,
            left_out,
        };
        match &self.tcp {
            Some((here, there)) if first_step == Step::Tcp => play.play(here, there),
            _ => play.play(&self.here, &self.there),
        }
    }
}

/// One attempt.
struct Play<'a> {
    world: &'a Arc<World<Unobserved>>,
    connection: usize,
    climb: &'a mut Climb,
    avoided: &'a [Way],
    silent: &'a BTreeSet<Way>,
    known: &'a mut KnownWays,
    left_out: &'a mut Vec<(Way, u64)>,
}

impl Play<'_> {
    fn now_ns(&self) -> u64 {
        self.world.lock().now_ns
    }

    fn play<const ONE_SIDED: bool>(
        mut self,
        here: &Placed<ONE_SIDED>,
        there: &Placed<ONE_SIDED>,
    ) -> Result<Reached, Failed> {
        let (began_ns, ours, theirs) = (self.now_ns(), here.offers(), there.offers());
        let deadline_ns = began_ns + TIMEOUT_NS;
        let config = ConnectionConfig { probe_timeout: Duration::from_nanos(PROBE_NS), ..ConnectionConfig::default() };
        let own = OwnPorts { all: &ours, others: here.host.others };
        let handle = handle_addresses(&theirs, there.host.others, |_| true);
        let ways = ways(own, &handle, self.climb.first_step(), self.avoided, || {
            Some(|place: usize, to: IpAddr| here.host.route(place, to))
        });
        let wanted = Wanted { nonce: 1, ways };
        let connector =
            Connector::<Sim<ONE_SIDED>>::new(config.clone(), here.ports(), wanted, "there".into(), deadline_ns, |_| {
                Arc::default()
            });
        let mut connector = End::new(connector, Side::Opener, began_ns);
        let (mut made, mut accepted) = (None, None);
        let mut to_there = drain(&mut connector.handshake, &mut made);
        let Some(Message::Offer(offer)) = to_there.pop_front() else { panic!("an offer comes first") };
        let own = OwnPorts { all: &theirs, others: there.host.others };
        let Answer { pairing, step } =
            answer(&offer, own, false, |place, to| there.host.route(place, to.to_canonical()));
        let pairs: Vec<_> = pairing
            .pairs
            .iter()
            .map(|pair| AcceptPairing { connector_port: pair.connector as u8, acceptor_port: pair.acceptor as u8 })
            .collect();
        let ends = |pair: &AcceptPairing| {
            let (ours, theirs) = (
                here.host.addresses[usize::from(pair.connector_port)],
                there.host.addresses[usize::from(pair.acceptor_port)],
            );
            [IpAddr::from(ours), IpAddr::from(theirs)]
        };
        let between: Vec<Way> = pairs.iter().map(ends).collect();
        let acceptor = Acceptor::<Sim<ONE_SIDED>>::new(
            config,
            there.ports(),
            &offer,
            pairing.refusal().map_or(Ok((step, pairs.as_slice())), Err),
            Token([1; 16]),
            "here".into(),
            deadline_ns,
            |_| Arc::default(),
        );
        let mut acceptor = End::new(acceptor, Side::Acceptor, began_ns);
        while made.is_none() {
            let now_ns = self.now_ns();
            let to_here = drain(&mut acceptor.handshake, &mut accepted);
            to_there.extend(drain(&mut connector.handshake, &mut made));
            self.take_events(&mut connector.handshake, began_ns);
            if made.is_some() {
                break;
            }
            if to_here.is_empty() && to_there.is_empty() {
                self.wait(&mut connector, &mut acceptor);
                continue;
            }
            for message in to_here {
                self.opening(true);
                connector.handle_message(message, now_ns);
                self.cut_silent(&between);
            }
            for message in std::mem::take(&mut to_there) {
                self.opening(false);
                acceptor.handle_message(message, now_ns);
            }
        }
        self.take_events(&mut connector.handshake, began_ns);
        // READY, or the connector's reason why there is none.
        let last_ns = self.now_ns();
        for message in to_there.into_iter().chain(drain(&mut connector.handshake, &mut None)) {
            acceptor.handle_message(message, last_ns);
        }
        drain(&mut acceptor.handshake, &mut accepted);
        let accepted = accepted.expect("both ends end");
        match made.expect("the loop ended with it") {
            Err(error) => Err(Failed::new(&connector.handshake, error)),
            Ok(sender) => {
                let (rails, back) = (rails(&sender), rails(&accepted.expect("the peer's end is up too")));
                assert_eq!(rails, back.into_iter().map(|[there, here]| [here, there]).collect());
                Ok(Reached { step: connector.handshake.step().expect("ANSWER has one"), rails })
            }
        }
    }

    /// Notes, for the world, that the rails of an end are opened next.
    fn opening(&self, sender: bool) {
        self.world.lock().opening = Some(Opening { connection: self.connection, sender, next_rail: 0 });
    }

    /// Lets nothing through over the rails of silent ways, from the moment at which their first end is open.
    fn cut_silent(&self, pairs: &[Way]) {
        let mut state = self.world.lock();
        for end in state.ends_of(self.connection, true) {
            let rail = state.place_of(end).expect("it was just found").rail;
            if self.silent.contains(&pairs[usize::from(rail)]) {
                state.cut(end);
            }
        }
    }

    /// Takes the events of the connector's end.
    fn take_events(&mut self, connector: &mut impl Handshake, began_ns: u64) {
        let now_ns = self.now_ns();
        while let Some(event) = connector.poll_event() {
            let took_ns = now_ns - began_ns;
            self.climb.handle_event(self.known, &event, took_ns, now_ns);
            let Event::RailLeftOut { name, .. } = event else { panic!("{event:?} is no event of a handshake") };
            self.left_out.push((way(&name), took_ns));
        }
    }

    /// Lets time pass until an end has something to do, and lets it do that.
    fn wait(&self, connector: &mut End<impl Handshake>, acceptor: &mut End<impl Handshake>) {
        let next_ns = connector.next_ns().into_iter().chain(acceptor.next_ns()).min().expect("an end waits");
        self.world.advance(next_ns.saturating_sub(self.now_ns()));
        let now_ns = self.now_ns();
        if connector.go_on(now_ns) {
            acceptor.handle_message(Message::Wait, now_ns);
        }
        if acceptor.go_on(now_ns) {
            connector.handle_message(Message::Wait, now_ns);
        }
    }
}

fn way(name: &RailName) -> Way {
    [&name.local, &name.remote].map(|end| end.parse().expect("the ends of rails are addresses"))
}

fn rails(end: &impl ConnectionEnd) -> BTreeSet<Way> {
    end.rails().iter().map(|rail| way(&rail.name)).collect()
}
