//! A connector and an acceptor, and between them an adversary who changes, drops, repeats and invents their messages.
//!
//! Whatever the adversary does: no panic; each end reports exactly once, at its deadline at the latest, that the
//! connection exists or never will; and nothing that was opened or registered for it is leaked.

use std::collections::VecDeque;
use std::time::Duration;

use railweave_fabric::Route;
use railweave_topology::{Between, Endpoint, Pair, Ports, pair};
use railweave_transport::{
    AcceptPairing, Acceptor, Action, ConnectionEnd, Connector, Dial, Event, Frame, Handshake, Incoming,
    MakesConnection, MemoryKeys, Message, Outgoing, PortOffer, RecvConnection, SendConnection, Token,
};

use crate::input::Input;
use crate::peer::{Plan, counters};
use crate::scripted::{FirstPackets, Scripted, World};

const DEADLINE_NS: u64 = 1000;
const PROBE_TIMEOUT_NS: u64 = 10_000_000_000;
const MOST_STEPS: usize = 500;
const MOST_QUEUED: usize = 64;

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let plan = Plan::read(&mut input);
    if plan.one_sided { play::<true>(&plan, &mut input) } else { play::<false>(&plan, &mut input) }
}

/// The outcome of a handshake at one end.
enum End<C> {
    Not,
    Ready(Box<C>),
    Failed,
}

impl<C> End<C> {
    fn is_over(&self) -> bool {
        !matches!(self, Self::Not)
    }
}

struct Script<'a, const ONE_SIDED: bool> {
    plan: &'a Plan,
    worlds: [World; 2],
    connector: Option<Connector<Scripted<ONE_SIDED>>>,
    acceptor: Option<Acceptor<Scripted<ONE_SIDED>>>,
    sender: End<SendConnection<Scripted<ONE_SIDED>>>,
    receiver: End<RecvConnection<Scripted<ONE_SIDED>>>,
    /// Frames in flight: from the connector, from the acceptor.
    wires: [VecDeque<Vec<u8>>; 2],
    dials: VecDeque<Dial>,
    session_over: bool,
}

fn play<const ONE_SIDED: bool>(plan: &Plan, input: &mut Input<'_>) {
    let worlds = [World::default(), World::default()];
    let ports = plan.ports(&worlds[0]);
    let connector = Connector::new(plan.config.clone(), ports, 7, "the acceptor".into(), DEADLINE_NS, counters);
    let mut script = Script::<ONE_SIDED> {
        plan,
        worlds: worlds.clone(),
        connector: Some(connector),
        acceptor: None,
        sender: End::Not,
        receiver: End::Not,
        wires: Default::default(),
        dials: VecDeque::new(),
        session_over: false,
    };
    script.drain();
    for _ in 0..MOST_STEPS {
        if input.is_empty() || script.session_over {
            break;
        }
        script.step(input);
        script.drain();
    }
    script.end();
    drop(script);
    worlds.iter().for_each(World::assert_freed);
}

impl<const ONE_SIDED: bool> Script<'_, ONE_SIDED> {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 15 {
            0..=3 => {
                let wire = usize::from(input.u8() % 2);
                if let Some(frame) = self.wires[wire].pop_front() {
                    self.arrive(wire, &frame);
                }
            }
            4 => {
                let (wire, at, value) = (usize::from(input.u8() % 2), usize::from(input.u16()), input.u8());
                if let Some(frame) = self.wires[wire].front_mut() {
                    let at = at % frame.len();
                    frame[at] ^= value;
                }
            }
            5 => {
                let wire = usize::from(input.u8() % 2);
                let first = self.wires[wire].front().cloned();
                self.wires[wire].extend(first.filter(|_| self.wires[wire].len() < MOST_QUEUED));
            }
            6 => drop(self.wires[usize::from(input.u8() % 2)].pop_front()),
            7 => {
                let (wire, kind, length) = (usize::from(input.u8() % 2), input.u8() % 14, input.u16() % 2048);
                let body = input.take(usize::from(length));
                let header = [&(body.len() as u32).to_le_bytes()[..], &[kind, 0, 0, 0], &1_u32.to_le_bytes()].concat();
                self.arrive(wire, &[header.as_slice(), body].concat());
            }
            8 | 9 => self.dial(true),
            10 => self.dial(false),
            11 => {
                let (rail, lane) = (input.u8(), input.u8());
                if let Some(acceptor) = &mut self.acceptor {
                    let awaited = acceptor.awaits_lane(rail, lane).is_ok();
                    assert!(!awaited || !ONE_SIDED, "no lane is a socket");
                    let taken = acceptor.handle_lane(rail, lane, World::socket()).is_ok();
                    assert!(awaited || !taken, "a socket is taken where one is awaited");
                    assert!(!taken || acceptor.awaits_lane(rail, lane).is_err(), "its socket is open");
                }
            }
            12 => {
                let mut state = self.worlds[usize::from(input.u8() % 2)].lock();
                let [register, open, connect] = input.array();
                state.refusals.register = register % 40;
                state.refusals.later = register / 40;
                state.refusals.open = open % 10;
                state.refusals.connect = connect % 10;
                state.first_packets = match connect / 10 {
                    1 => FirstPackets::Vanish,
                    2 => FirstPackets::Fail,
                    _ => FirstPackets::ComeThrough,
                };
            }
            13 => {
                // The deadline of one end has passed, or is about to.
                let (who, now) = (input.u8(), DEADLINE_NS - 1 + u64::from(input.u8() % 2));
                match (&mut self.connector, &mut self.acceptor) {
                    // A step that was put off may work now.
                    (Some(connector), _) if who % 4 == 2 => connector.go_on(now),
                    (_, Some(acceptor)) if who % 4 == 3 => acceptor.go_on(now),
                    (Some(connector), _) if who.is_multiple_of(2) => connector.handle_timeout(now),
                    (_, Some(acceptor)) => acceptor.handle_timeout(now),
                    _ => {}
                }
            }
            // The acceptor finds all sockets closed that the connector has dialled so far.
            _ => self.worlds[1].lock().closings += 1,
        }
    }

    /// Delivers a frame at the end of wire 0, which is the acceptor, or of wire 1, which is the connector.
    fn arrive(&mut self, wire: usize, bytes: &[u8]) {
        let message = match Frame::decode(bytes) {
            Ok(Some((frame, _))) => frame.message,
            // The session waits for bytes that never come.
            Ok(None) => return,
            // The session ends, and with it the connections that it was setting up.
            Err(_) => {
                (self.connector, self.acceptor, self.session_over) = (None, None, true);
                self.dials.clear();
                return;
            }
        };
        match (wire, &mut self.connector, &mut self.acceptor, message) {
            (0, _, None, Message::Offer(offer)) => {
                let ports = self.plan.ports(&self.worlds[1]);
                let endpoint = |port: &PortOffer| Endpoint {
                    link_layer: port.link_layer,
                    address: port.address,
                    prefix_len: port.prefix_len,
                    speed_mbps: port.speed_mbps,
                    rail_id: port.rail_id,
                    plane_id: port.plane_id,
                };
                let theirs: Vec<_> = offer.ports.iter().map(endpoint).collect();
                let mut ours: Vec<_> = ports.iter().map(|port| endpoint(&port.offer)).collect();
                // Both ends are made from one plan, and equal addresses never pair between hosts.
                ours.iter_mut().for_each(|port| port.address = (u128::from(port.address) + 1).into());
                let ways = &offer.ways;
                let route = |pair: Pair| ways.route(pair.connector, ours[pair.acceptor].address);
                let has_failed = |pair: Pair| route(pair) == Route::Failed;
                let first_step = ways.first_step;
                let between = Between { same_network: false, first_step, route: &route, has_failed: &has_failed };
                let theirs = Ports { all: &theirs, others: ways.others.into() };
                let pairing = pair(theirs, Ports::of_device(&ours), &between);
                assert!(pairing.pairs.len() <= railweave_fabric::MAX_RAILS, "a connection has at most 8 rails");
                let pairs: Vec<_> = pairing
                    .pairs
                    .iter()
                    .map(|pair| AcceptPairing {
                        connector_port: u8::try_from(pair.connector).expect("an offer has at most 16 ports"),
                        acceptor_port: u8::try_from(pair.acceptor).expect("a device has at most 8 ports"),
                    })
                    .collect();
                let (refusal, step) = (pairing.refusal(), pairing.step.unwrap_or_default());
                self.acceptor = Some(Acceptor::new(
                    self.plan.config.clone(),
                    ports,
                    &offer,
                    refusal.map_or(Ok((step, pairs.as_slice())), Err),
                    Token([3; 16]),
                    "the connector".into(),
                    DEADLINE_NS,
                    counters,
                ));
            }
            (0, _, Some(acceptor), message) => acceptor.handle_message(message),
            (1, Some(connector), _, message) => connector.handle_message(message),
            _ => {}
        }
    }

    /// Ends the next dial: its lane comes up if it `works` and the acceptor takes it, and otherwise fails.
    fn dial(&mut self, works: bool) {
        let Some(dial) = self.dials.pop_front() else {
            return;
        };
        let taken = match &mut self.acceptor {
            Some(acceptor) if works => acceptor
                .handle_lane(dial.rail.index() as u8, dial.lane.0, World::socket())
                .map_err(|refused| refused.to_string()),
            _ => Err("the peer cannot be reached".to_owned()),
        };
        if let Some(connector) = &mut self.connector {
            connector.handle_dialled(dial.rail, dial.lane, taken.map(|()| World::socket()));
        }
    }

    /// Carries out the actions of both ends.
    fn drain(&mut self) {
        let waits =
            [self.connector.as_ref().and_then(Connector::pause), self.acceptor.as_ref().and_then(Acceptor::pause)];
        let is_open = |is_over: bool, pause: Option<Duration>| pause.is_none() || !is_over;
        assert!(is_open(self.sender.is_over(), waits[0]), "a connector that is over waits for nothing");
        assert!(is_open(self.receiver.is_over(), waits[1]), "nor does an acceptor");
        let events = [
            self.connector.as_mut().map(|connector| std::iter::from_fn(|| connector.poll_event()).collect::<Vec<_>>()),
            self.acceptor.as_mut().map(|acceptor| std::iter::from_fn(|| acceptor.poll_event()).collect()),
        ];
        for event in events.into_iter().flatten().flatten() {
            let Event::RailLeftOut { reason, .. } = event else { panic!("{event:?} is no event of a handshake") };
            assert!(!reason.to_string().is_empty(), "a rail goes with a reason");
        }
        while let Some(action) = self.connector.as_mut().and_then(Connector::poll_action) {
            match action {
                Action::Send(message) => self.send(0, message),
                Action::Dial(dial) => self.dials.push_back(dial),
                Action::Ready(connection) => {
                    assert!(!self.sender.is_over(), "a handshake ends once");
                    self.sender = End::Ready(connection);
                }
                Action::Failed(error) => {
                    assert!(!self.sender.is_over(), "a handshake ends once");
                    assert!(!error.to_string().contains(char::is_control), "{error:?}");
                    self.sender = End::Failed;
                }
            }
        }
        while let Some(action) = self.acceptor.as_mut().and_then(Acceptor::poll_action) {
            match action {
                Action::Send(message) => self.send(1, message),
                Action::Dial(_) => panic!("an acceptor dials nobody"),
                Action::Ready(connection) => {
                    assert!(!self.receiver.is_over(), "a handshake ends once");
                    self.receiver = End::Ready(connection);
                }
                Action::Failed(error) => {
                    assert!(!self.receiver.is_over(), "a handshake ends once");
                    assert!(!error.to_string().contains(char::is_control), "{error:?}");
                    self.receiver = End::Failed;
                }
            }
        }
    }

    /// Queues a message; the other end must be able to decode it.
    fn send(&mut self, wire: usize, message: Message) {
        let name = message.name();
        let bytes = Frame { connection: 1, message }.encode();
        assert!(
            matches!(Frame::decode(&bytes), Ok(Some((_, length))) if length == bytes.len()),
            "{name} is sent whole"
        );
        if self.wires[wire].len() < MOST_QUEUED {
            self.wires[wire].push_back(bytes);
        }
    }

    /// Lets the deadline of both ends pass. An end that has a connection by then uses it.
    fn end(&mut self) {
        // An end that gives up rails that were put off for too long goes on with the others, gives their first packets
        // time, and waits for its peer once more.
        for again in 0..4 {
            let now_ns = DEADLINE_NS + again * PROBE_TIMEOUT_NS;
            if let Some(connector) = &mut self.connector {
                connector.handle_timeout(now_ns);
            }
            if let Some(acceptor) = &mut self.acceptor {
                acceptor.handle_timeout(now_ns);
            }
            self.drain();
        }
        self.worlds.iter().for_each(|world| world.lock().is_up = true);
        if let Some(connector) = &self.connector {
            assert!(self.sender.is_over() && connector.timeout_ns().is_none(), "the connector is over at its deadline");
        }
        if let Some(acceptor) = &self.acceptor {
            assert!(self.receiver.is_over() && acceptor.timeout_ns().is_none(), "so is the acceptor");
        }
        let mut keys = MemoryKeys { host: true, ..MemoryKeys::default() };
        if let End::Ready(receiver) = &mut self.receiver {
            let buffer = Incoming { address: 1 << 40, size: 1 << 20, tag: 1, keys: &keys };
            assert!(receiver.irecv(&[buffer], false).is_ok(), "a fresh connection receives");
            assert!(!receiver.rails().is_empty());
        }
        if let End::Ready(sender) = &mut self.sender {
            {
                let mut state = self.worlds[0].lock();
                for (rail, key) in keys.local.iter_mut().enumerate() {
                    *key = state.announce(rail, 1 << 40, 1 << 20);
                }
                // The answer may give one port several rails, so each rail gets the key of its port.
                let ports: Vec<usize> = sender.rails().iter().map(|rail| rail.local_port).collect();
                let by_port = keys.local;
                for (rail, port) in sender.rails().iter().zip(&ports) {
                    keys.local[rail.index] = by_port[*port];
                }
                let ring = state.own_region(true).expect("the CTS stream");
                let words = [1_u64 << 41, 1 << 20, 1 | 1 << 48, 0, 0, 0, 0, 1];
                words.iter().enumerate().for_each(|(at, word)| ring.write(8 * at, &word.to_le_bytes()));
            }
            let message = Outgoing { address: 1 << 40, size: 1 << 20, tag: 1, keys: &keys };
            assert!(sender.isend(&message).is_ok(), "a fresh connection sends");
        }
    }
}
