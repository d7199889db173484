//! The receiver's side of a connection's set-up: takes OFFER, answers with the rails, exchanges LANES
//! and, over RDMA, PROBE, awaits READY.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use railweave_fabric::{Domain, Fabric, Joining, LaneId, Part, RailId, RailSet, Role, SetupError, Step};

use super::failure::{Awaited, HandshakeFailure, LaneRefused, LeftOut};
use super::opening::{Opening, OwnMemory, SetUp, proves};
use super::plan::RailPlan;
use super::{Action, Handshake, HandshakePort, MakesConnection};
use crate::preface::Token;
use crate::rail_info::RailCounters;
use crate::receive::{ReceiveParts, RecvConnection};
use crate::{ConnectionConfig, Event, Fate, Lanes, Message, Offer, RailAnswer, RailLanes, RailName};

/// An offered port and the port of this side that goes with it, as topology paired them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptPairing {
    /// Index in the offer.
    pub connector_port: u8,
    /// Index among this side's ports.
    pub acceptor_port: u8,
}

/// The function that hands a socket over to a lane: [`Joining::BySockets`].
type Attach<F> = fn(&mut <F as Fabric>::PendingRail, LaneId, OwnedFd) -> Result<(), SetupError>;

enum State {
    Lanes,
    Connecting,
    Probe,
    Probing,
    Ready,
    Over,
}

/// The receiver's side of a connection's set-up.
pub struct Acceptor<F: Fabric> {
    set_up: SetUp<F, RecvConnection<F>>,
    state: State,
}

impl<F: Fabric> Acceptor<F> {
    /// Answers an offer. `pairings` says which ports go together and by which step of the ladder, or why none do: then
    /// the offer is refused. `token` must be freshly random, and the rest is as for [`crate::Connector::new`].
    #[expect(clippy::too_many_arguments, reason = "each is a different thing, and there is one caller")]
    pub fn new(
        mut config: ConnectionConfig,
        ports: Vec<HandshakePort<F>>,
        offer: &Offer,
        pairings: Result<(Step, &[AcceptPairing]), String>,
        token: Token,
        peer: String,
        deadline_ns: u64,
        counters: impl Fn(&RailName) -> Arc<RailCounters> + Send + 'static,
    ) -> Self {
        config.striped = offer.striped;
        config.traffic_class = config.traffic_class.or(offer.traffic_class);
        let mut set_up = SetUp::new(config, ports, peer, token, deadline_ns, Box::new(counters));
        set_up.has_others = offer.ways.others > 0;
        let mut acceptor = Self { set_up, state: State::Lanes };
        match pairings {
            Ok((step, pairings)) => acceptor.answer(offer, step, pairings),
            Err(reason) => acceptor.give_up(HandshakeFailure::Unpaired(reason)),
        }
        acceptor
    }

    /// Returns the token that this connection's lanes present.
    pub fn token(&self) -> Token {
        self.set_up.token
    }

    fn fail(&mut self, failure: HandshakeFailure) {
        self.state = State::Over;
        self.set_up.fail(failure);
    }

    fn give_up(&mut self, failure: HandshakeFailure) {
        self.state = State::Over;
        self.set_up.give_up(failure);
    }

    fn answer(&mut self, offer: &Offer, step: Step, pairings: &[AcceptPairing]) {
        let set_up = &mut self.set_up;
        let mut answers = Vec::new();
        for AcceptPairing { connector_port, acceptor_port } in pairings.iter().copied() {
            let (theirs, ours) = (offer.ports[usize::from(connector_port)], &set_up.ports[usize::from(acceptor_port)]);
            let lanes = theirs.lanes.min(ours.offer.lanes);
            answers.push(RailAnswer { connector_port, lanes, port: ours.offer });
            set_up.rails.push(Opening::new(RailPlan {
                local_port: acceptor_port,
                remote_port: connector_port,
                local: ours.offer,
                remote: theirs,
                weight: ours.weight,
                fixed: ours.fixed,
                lanes,
            }));
        }
        let token = set_up.token;
        set_up.send(Message::Answer { token, step, rails: answers });
    }

    fn handle_lanes(&mut self, lanes: Lanes) -> Result<(), HandshakeFailure> {
        let set_up = &mut self.set_up;
        let theirs = set_up.take_lanes(lanes)?;
        set_up.memory = Some(OwnMemory::new(crate::record::MEMORY_BYTES, crate::cts::STREAM_BYTES));
        for (rail, theirs) in RailId::all().zip(theirs) {
            match theirs {
                RailLanes::Dropped { reason, is_of_way } => {
                    set_up.drop_rail(rail, LeftOut::PeerSays { reason, is_of_way });
                }
                RailLanes::Open { key, endpoints } => {
                    set_up.check_lanes(rail, &endpoints)?;
                    let port = &set_up.ports[usize::from(set_up.rails[rail.index()].plan.local_port)];
                    match set_up.open_rail(rail, Role::Receiver, port.domain.max_write()) {
                        Ok(()) => drop(set_up.peer_opened(rail, key, endpoints)),
                        Err(error) => set_up.drop_rail(rail, LeftOut::Failed(error)),
                    }
                }
            }
        }
        self.state = State::Connecting;
        self.connect(None);
        Ok(())
    }

    /// Continues to connect lanes.
    fn connect(&mut self, now_ns: Option<u64>) {
        if self.set_up.connect(now_ns) {
            self.send_lanes();
        }
    }

    /// Sends LANES, once every rail is connected or dropped.
    fn send_lanes(&mut self) {
        let counted = self.set_up.ports.iter().all(|port| port.domain.byte_counts());
        self.set_up.send_lanes(counted);
        self.state = if proves::<F>() { State::Probe } else { State::Ready };
    }

    /// Sends the first packets: those of the connector show that its lanes are connected.
    fn handle_probe(&mut self, rails: u8) -> Result<(), HandshakeFailure> {
        let known = RailSet::from_bits(self.set_up.connected().bits() | self.set_up.failed().bits());
        self.set_up.keep_named("PROBE", RailSet::from_bits(rails), known, &LeftOut::NotReady)?;
        self.set_up.begin_probes();
        self.state = State::Probing;
        self.probe(None);
        Ok(())
    }

    /// Looks after the first packets, and tells the connector once none is awaited.
    fn probe(&mut self, now_ns: Option<u64>) {
        if !self.set_up.probe(now_ns) {
            return;
        }
        // Without a rail, the connector gives the set-up up: it knows the next step.
        let rails = self.set_up.connected();
        self.set_up.send(Message::Probe { rails: rails.bits() });
        self.state = State::Ready;
    }

    fn handle_ready(&mut self, usable: RailSet) -> Result<(), HandshakeFailure> {
        let set_up = &mut self.set_up;
        if usable.is_empty() {
            return Err(HandshakeFailure::WrongRailSet { message: "READY", named: usable, rails: set_up.rails.len() });
        }
        let known = RailSet::from_bits(set_up.connected().bits() | set_up.failed().bits());
        let reason = if proves::<F>() { LeftOut::PeerSilent } else { LeftOut::NotReady };
        set_up.keep_named("READY", usable, known, &reason)?;
        if let Some(reason) = set_up.reason_of_failed(usable) {
            return Err(HandshakeFailure::Broke(reason));
        }
        let mut up = Vec::new();
        for rail in RailId::all().take(set_up.rails.len()) {
            up.push(set_up.take_rail(rail).map_err(HandshakeFailure::Unfinished)?);
        }
        let made = set_up.make(up);
        let memory = set_up.memory.take().expect("LANES made it");
        let connection = RecvConnection::new(ReceiveParts {
            config: set_up.config.clone(),
            rails: made.rails,
            order: made.order,
            weights: made.weights,
            cts_shadow: memory.outbox,
            cts_shadow_keys: made.outbox_keys,
            peer_cts: set_up.peer_stream,
            peer_cts_keys: made.peer_keys,
            records: memory.inbox,
            peer: set_up.peer.clone(),
            fate: Arc::new(Fate::default()),
            token: set_up.token,
        });
        self.state = State::Over;
        set_up.actions.push_back(Action::Ready(Box::new(connection)));
        Ok(())
    }

    /// Returns the function that hands a socket over to a lane, if the lane waits for one: until READY, as long as it
    /// has no open socket. A peer that was not answered in time closes its socket and dials another; this end may have
    /// taken the closed one meanwhile. An open socket stays, because whoever dials a second one may only repeat what
    /// they saw the peer send.
    fn awaited(&self, rail: u8, lane: u8) -> Result<Attach<F>, LaneRefused> {
        let none = || LaneRefused::NotAwaited(rail);
        let (State::Ready, Joining::BySockets { awaits, attach, .. }) = (&self.state, F::JOINING) else {
            return Err(none());
        };
        let opening = self.set_up.rails.get(usize::from(rail));
        let open = opening.and_then(|rail| Some((rail.plan.lanes, rail.pending.as_ref()?)));
        let (lanes, pending) = open.ok_or_else(none)?;
        match lane {
            _ if lane >= lanes => Err(LaneRefused::NoSuchLane { rail, lanes }),
            _ if !awaits(pending, LaneId(lane)) => Err(LaneRefused::HasSocket),
            _ => Ok(attach),
        }
    }
}

impl<F: Fabric> Handshake for Acceptor<F>
where
    Self: Send,
{
    fn handle_message(&mut self, message: Message) {
        self.set_up.leave_out_failed();
        let result = match (&self.state, message) {
            (State::Over, _) => Ok(()),
            (_, Message::Refuse { reason, .. }) => return self.fail(HandshakeFailure::GaveUp(reason)),
            (_, Message::Bye(_)) => return self.fail(HandshakeFailure::Closed),
            (State::Lanes, Message::Lanes(lanes)) => self.handle_lanes(lanes),
            (State::Probe, Message::Probe { rails }) => self.handle_probe(rails),
            (State::Ready, Message::Ready { usable }) => self.handle_ready(RailSet::from_bits(usable)),
            (_, other) => Err(HandshakeFailure::OutOfTurn(other.name())),
        };
        if let Err(failure) = result {
            self.give_up(failure);
        }
    }

    fn handle_dialled(&mut self, _rail: RailId, _lane: LaneId, _socket: Result<OwnedFd, String>) {}

    fn awaits_lane(&self, rail: u8, lane: u8) -> Result<(), LaneRefused> {
        self.awaited(rail, lane).map(|_| ())
    }

    fn handle_lane(&mut self, rail: u8, lane: u8, socket: OwnedFd) -> Result<(), LaneRefused> {
        let attach = self.awaited(rail, lane)?;
        let opening = &mut self.set_up.rails[usize::from(rail)];
        let pending = opening.pending.as_mut().expect("a rail whose lane is awaited is open");
        Ok(attach(pending, LaneId(lane), socket)?)
    }

    fn handle_timeout(&mut self, now_ns: u64) {
        if now_ns < self.set_up.deadline_ns {
            return;
        }
        self.set_up.leave_out_failed();
        let failure = match self.state {
            State::Lanes => HandshakeFailure::Late(Awaited::Lanes),
            State::Connecting => {
                // The connector learns each rail's reason from LANES.
                self.set_up.give_up_connecting();
                return self.send_lanes();
            }
            State::Probe => HandshakeFailure::Late(Awaited::Probe),
            State::Probing => {
                self.set_up.end_probes(now_ns);
                return self.probe(None);
            }
            State::Ready => HandshakeFailure::Late(Awaited::Ready),
            State::Over => return,
        };
        self.give_up(failure);
    }

    fn timeout_ns(&self) -> Option<u64> {
        (!matches!(self.state, State::Over)).then_some(self.set_up.deadline_ns)
    }

    fn set_deadline(&mut self, deadline_ns: u64) {
        self.set_up.deadline_ns = deadline_ns;
    }

    fn pause(&self) -> Option<Duration> {
        self.set_up.pause
    }

    fn go_on(&mut self, now_ns: u64) {
        self.set_up.leave_out_failed();
        match self.state {
            State::Connecting => self.connect(Some(now_ns)),
            State::Probing => self.probe(Some(now_ns)),
            State::Lanes | State::Probe | State::Ready | State::Over => {}
        }
    }

    fn parts(&self) -> Vec<Part> {
        self.set_up.parts()
    }

    fn handle_part_failed(&mut self, failed: &Part, reason: &str) -> bool {
        self.set_up.note_failed(failed, reason);
        // The connector may do without these rails, but not without all of them.
        !matches!(self.state, State::Ready) || !self.set_up.connected().is_within(self.set_up.failed())
    }

    fn may_block(&self) -> bool {
        F::JOINING.may_block()
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.set_up.events.pop_front()
    }
}

impl<F: Fabric> MakesConnection for Acceptor<F>
where
    Self: Send,
{
    type Connection = RecvConnection<F>;

    fn poll_action(&mut self) -> Option<Action<RecvConnection<F>>> {
        self.set_up.actions.pop_front()
    }
}
