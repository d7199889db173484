//! The receiver's side of a connection's set-up: takes OFFER, answers with the rails, exchanges LANES, awaits READY.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use railweave_fabric::{
    Access, Domain, Fabric, Joining, LaneEndpoint, LaneId, MAX_RAILS, Part, PendingRail, RailId, RailSet, RailSpec,
    Region, Registration, Role, SetupError,
};

use crate::connection::RailCounters;
use crate::handshake::{Common, Depths, Exchange, RailPlan, endpoints, keys, register, weights};
use crate::plant::{Plant, kept, planted};
use crate::rails::{ConnectedRail, Rails};
use crate::receive::{ReceiveParts, RecvConnection};
use crate::{
    Action, ConnectionConfig, Error, HandshakePort, Lanes, Link, Message, Offer, RailAnswer, RailLanes, RailName, Token,
};

/// Which of the offered ports goes with which of this side's: the result of topology's pairing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptPairing {
    /// Index in the offer.
    pub connector_port: u8,
    /// Index among this side's ports.
    pub acceptor_port: u8,
}

struct Opening<F: Fabric> {
    plan: RailPlan,
    pending: Option<F::PendingRail>,
    registrations: Vec<F::Registration>,
    cts_shadow_key: u32,
    remote_cts_key: u32,
    record_key: u32,
    /// Lanes that this end is connecting.
    exchange: Option<Exchange<F>>,
    /// Why there is no such rail.
    dropped: Option<String>,
}

/// What hands a socket over to a lane: [`Joining::BySockets`].
type Attach<F> = fn(&mut <F as Fabric>::PendingRail, LaneId, OwnedFd) -> Result<(), SetupError>;

/// The memory of a connection that its peer writes to or is written from.
struct Streams {
    cts_shadow: Arc<Region>,
    records: Arc<Region>,
}

enum State {
    Lanes,
    Connecting,
    Ready,
    Over,
}

/// The receiver's side of a connection's set-up.
pub struct Acceptor<F: Fabric> {
    common: Common,
    ports: Vec<HandshakePort<F>>,
    state: State,
    token: Token,
    rails: Vec<Opening<F>>,
    /// None until the peer has told of its own: an offer alone costs little.
    streams: Option<Streams>,
    peer_cts: u64,
    pause: Option<Duration>,
    actions: VecDeque<Action<RecvConnection<F>>>,
}

impl<F: Fabric> Acceptor<F> {
    /// Answers an offer. `pairings` says which ports go together, or why none do: then the offer is refused. `token` is
    /// fresh random, and the rest is as for [`crate::Connector::new`].
    #[expect(clippy::too_many_arguments, reason = "each is a different thing, and there is one caller")]
    pub fn new(
        mut config: ConnectionConfig,
        ports: Vec<HandshakePort<F>>,
        offer: &Offer,
        pairings: Result<&[AcceptPairing], String>,
        token: Token,
        peer: String,
        deadline_ns: u64,
        counters: impl Fn(&RailName) -> Arc<RailCounters> + Send + 'static,
    ) -> Self {
        config.striped = offer.striped;
        config.traffic_class = config.traffic_class.or(offer.traffic_class);
        let mut answers = Vec::new();
        let mut rails = Vec::new();
        let refusal = pairings.as_ref().err().cloned();
        for pairing in pairings.unwrap_or_default() {
            let (theirs, ours) =
                (offer.ports[usize::from(pairing.connector_port)], &ports[usize::from(pairing.acceptor_port)]);
            let lanes = theirs.lanes.min(ours.offer.lanes);
            let connector_port = pairing.connector_port;
            answers.push(RailAnswer { connector_port, lanes, port: ours.offer });
            rails.push(Opening {
                plan: RailPlan {
                    local_port: pairing.acceptor_port,
                    remote_port: connector_port,
                    local: ours.offer,
                    remote: theirs,
                    weight: ours.weight,
                    lanes,
                },
                pending: None,
                registrations: Vec::new(),
                cts_shadow_key: 0,
                remote_cts_key: 0,
                record_key: 0,
                exchange: None,
                dropped: None,
            });
        }
        let mut acceptor = Self {
            common: Common { config, peer, deadline_ns, counters: Box::new(counters) },
            ports,
            state: State::Lanes,
            token,
            rails,
            streams: None,
            peer_cts: 0,
            pause: None,
            actions: VecDeque::new(),
        };
        if let Some(reason) = refusal {
            acceptor.give_up(Error::configuration(reason));
        } else {
            acceptor.actions.push_back(Action::Send(Message::Answer { token, rails: answers }));
        }
        acceptor
    }

    /// The token that this connection's lanes present.
    pub fn token(&self) -> Token {
        self.token
    }

    /// What to do next.
    pub fn poll_action(&mut self) -> Option<Action<RecvConnection<F>>> {
        self.actions.pop_front()
    }

    /// When [`Self::handle_timeout`] has to be called, in nanoseconds of the caller's clock; None once it is over.
    pub fn timeout_ns(&self) -> Option<u64> {
        (!matches!(self.state, State::Over)).then_some(self.common.deadline_ns)
    }

    /// Gives it until then, in nanoseconds of the caller's clock: the time in which it could do nothing is not its own.
    pub fn set_deadline(&mut self, deadline_ns: u64) {
        self.common.deadline_ns = deadline_ns;
    }

    /// How long to wait before [`Self::go_on`] is called, where this host could not connect a lane yet.
    pub fn pause(&self) -> Option<Duration> {
        self.pause
    }

    /// What of this host the connection is being made of, as the events of its devices name it.
    pub fn parts(&self) -> Vec<Part> {
        self.rails.iter().filter_map(|rail| rail.pending.as_ref()).flat_map(PendingRail::parts).collect()
    }

    /// Gives up when the time has come.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if now_ns < self.common.deadline_ns {
            return;
        }
        let error = match self.state {
            State::Lanes => self.common.timeout_error("LANES"),
            State::Connecting => return self.give_up_connecting(),
            State::Ready => self.common.timeout_error("READY"),
            State::Over => return,
        };
        self.give_up(error);
    }

    /// Goes on connecting lanes. May block, as [`Self::handle_message`].
    pub fn go_on(&mut self) {
        if !matches!(self.state, State::Connecting) {
            return;
        }
        self.pause = None;
        for index in 0..self.rails.len() {
            let rail = &mut self.rails[index];
            let (Some(exchange), Some(pending)) = (&mut rail.exchange, &mut rail.pending) else {
                continue;
            };
            match exchange.go_on(pending) {
                Ok(None) => rail.exchange = None,
                Ok(pause) => self.pause = self.pause.max(pause),
                Err(error) => self.drop_rail(index, error.to_string()),
            }
        }
        if self.pause.is_none() {
            self.send_lanes();
        }
    }

    /// Takes a message from the peer.
    pub fn handle_message(&mut self, message: Message) {
        let result = match (&self.state, message) {
            (State::Over, _) => Ok(()),
            (_, Message::Refuse { fault: _, reason }) => {
                let error = Error::peer(format!("{} gave the connection up: {reason}", self.common.peer));
                return self.fail(error);
            }
            (_, Message::Bye) => {
                let error = Error::peer(format!("{} closed the connection while it was set up", self.common.peer));
                return self.fail(error);
            }
            (State::Lanes, Message::Lanes(lanes)) => self.handle_lanes(lanes),
            (State::Ready, Message::Ready { usable }) => self.handle_ready(RailSet::from_bits(usable)),
            (_, other) => Err(Error::protocol(format!(
                "{} sent {} out of turn while a connection was set up; it breaks the protocol",
                self.common.peer,
                other.name()
            ))),
        };
        if let Err(error) = result {
            self.give_up(error);
        }
    }

    /// Whether a lane waits for the socket that the peer dials: until READY, as long as it has none that is open. A peer
    /// that was not answered in time closes its socket and dials another, and the closed one may have been taken
    /// meanwhile. An open one stays: whoever dials a second may only repeat what they saw the peer send.
    ///
    /// # Errors
    /// When it does not, in words.
    pub fn awaits_lane(&self, rail: u8, lane: u8) -> Result<(), String> {
        self.awaited(rail, lane).map(|_| ())
    }

    /// Takes the socket of a lane that the peer dialled.
    ///
    /// # Errors
    /// When no such lane waits for one, or the socket is none; it is closed.
    pub fn handle_lane(&mut self, rail: u8, lane: u8, socket: OwnedFd) -> Result<(), String> {
        let attach = self.awaited(rail, lane)?;
        let pending = self.rails[usize::from(rail)].pending.as_mut().expect("a rail whose lane is awaited is open");
        attach(pending, LaneId(lane), socket).map_err(|error| error.to_string())
    }

    /// What hands the socket over to a lane that waits for one.
    fn awaited(&self, rail: u8, lane: u8) -> Result<Attach<F>, String> {
        let none = || format!("no lane of rail {rail} is awaited");
        let (State::Ready, Joining::BySockets { awaits, attach }) = (&self.state, F::JOINING) else {
            return Err(none());
        };
        let open = self.rails.get(usize::from(rail)).and_then(|rail| Some((rail.plan.lanes, rail.pending.as_ref()?)));
        let (lanes, pending) = open.ok_or_else(none)?;
        match lane {
            _ if lane >= lanes => Err(format!("rail {rail} has {lanes} lanes, counted from 0")),
            _ if !awaits(pending, LaneId(lane)) => Err("it has its socket already".to_owned()),
            _ => Ok(attach),
        }
    }

    fn fail(&mut self, error: Error) {
        self.state = State::Over;
        self.rails.clear();
        self.pause = None;
        self.actions.push_back(Action::Failed(error));
    }

    fn give_up(&mut self, error: Error) {
        self.actions.push_back(Action::Send(Message::Refuse { fault: error.fault, reason: error.message.clone() }));
        self.fail(error);
    }

    fn handle_lanes(&mut self, lanes: Lanes) -> Result<(), Error> {
        if lanes.rails.len() != self.rails.len() {
            return Err(Error::protocol(format!(
                "{} sent LANES for {} rails, ANSWER had {}; it breaks the protocol",
                self.common.peer,
                lanes.rails.len(),
                self.rails.len()
            )));
        }
        self.peer_cts = lanes.stream;
        self.streams = Some(Streams {
            cts_shadow: Arc::new(Region::new(crate::cts::STREAM_BYTES)),
            records: Arc::new(Region::new(crate::record::RECORDS_BYTES)),
        });
        for (index, theirs) in lanes.rails.into_iter().enumerate() {
            let opened = match theirs {
                RailLanes::Dropped(reason) => Err(format!("the peer says: {reason}")),
                RailLanes::Open { key, endpoints } => {
                    if endpoints.len() != usize::from(self.rails[index].plan.lanes) {
                        return Err(Error::protocol(format!(
                            "{} sent {} lanes for rail {index}, agreed were {}; it breaks the protocol",
                            self.common.peer,
                            endpoints.len(),
                            self.rails[index].plan.lanes
                        )));
                    }
                    self.open_rail(index, key, endpoints).map_err(|error| error.message.clone())
                }
            };
            if let Err(reason) = opened {
                self.drop_rail(index, reason);
            }
        }
        self.state = State::Connecting;
        self.go_on();
        Ok(())
    }

    fn drop_rail(&mut self, index: usize, reason: String) {
        let rail = &mut self.rails[index];
        (rail.pending, rail.exchange) = (None, None);
        rail.registrations.clear();
        rail.dropped = Some(reason.clone());
        self.actions.push_back(Action::RailDropped { rail: index as u8, reason });
    }

    /// Every rail is connected, or dropped.
    fn send_lanes(&mut self) {
        let ours = |rail: &mut Opening<F>| match (&rail.pending, rail.dropped.take()) {
            (Some(pending), _) => {
                RailLanes::Open { key: rail.record_key, endpoints: endpoints::<F>(pending, rail.plan.lanes) }
            }
            (None, reason) => RailLanes::Dropped(reason.unwrap_or_default()),
        };
        let rails = self.rails.iter_mut().map(ours).collect();
        let byte_counts = self.ports.iter().all(|port| port.domain.byte_counts()) || planted(Plant::ByteSumTrusted);
        let stream = self.streams.as_ref().expect("LANES made them").records.address();
        let message = Lanes { byte_counts, stream, rails };
        self.actions.push_back(Action::Send(Message::Lanes(message)));
        self.state = State::Ready;
    }

    /// Gives up on lanes that this host could not connect in time; the rails that are connected carry on without.
    fn give_up_connecting(&mut self) {
        self.pause = None;
        let mut last = None;
        for index in 0..self.rails.len() {
            if let Some(exchange) = &self.rails[index].exchange {
                let reason = exchange.too_late();
                last = Some(reason.clone());
                self.drop_rail(index, reason);
            }
        }
        match last {
            Some(reason) if self.rails.iter().all(|rail| rail.pending.is_none()) => self.give_up(Error::local(reason)),
            _ => self.send_lanes(),
        }
    }

    fn open_rail(&mut self, index: usize, remote_cts_key: u32, endpoints: Vec<LaneEndpoint>) -> Result<(), Error> {
        let opening = &mut self.rails[index];
        let domain = &self.ports[usize::from(opening.plan.local_port)].domain;
        let depths = Depths::new(Role::Receiver, opening.plan.lanes, self.common.config.striped, domain.max_write());
        let streams = self.streams.as_ref().expect("LANES made them");
        let shadow = register::<F>(domain, &streams.cts_shadow, Access::SOURCE)?;
        let records = register::<F>(domain, &streams.records, Access::CONTROL)?;
        let pending = domain.open_rail(&RailSpec {
            role: Role::Receiver,
            lanes: opening.plan.lanes,
            send_depth: depths.send,
            receive_depth: depths.receive,
            lane_receives: depths.lane_receive,
            traffic_class: self.common.config.traffic_class,
            peer: Some(opening.plan.remote.address),
        })?;
        opening.record_key = records.remote_key();
        if let Joining::ByExchange { connect, .. } = F::JOINING {
            opening.exchange = Some(Exchange::new(connect, endpoints));
        }
        opening.cts_shadow_key = keys(&shadow).0;
        opening.remote_cts_key = remote_cts_key;
        opening.pending = Some(pending);
        opening.registrations = vec![shadow, records];
        Ok(())
    }

    fn handle_ready(&mut self, usable: RailSet) -> Result<(), Error> {
        let up = |rail: RailId| self.rails[rail.index()].pending.as_ref().is_some_and(PendingRail::is_ready);
        let known = !usable.is_empty() && usable.is_within(RailSet::first_of(self.rails.len()));
        if !known || !usable.iter().all(up) {
            return Err(Error::protocol(format!(
                "{} says that rails {usable:#b} are ready, of {} rails not all of these are; it breaks the protocol",
                self.common.peer,
                self.rails.len()
            )));
        }
        let openings = std::mem::take(&mut self.rails);
        let mut weights = weights(&openings.iter().map(|opening| opening.plan).collect::<Vec<_>>());
        let mut cts_shadow_keys = [0; MAX_RAILS];
        let mut remote_cts_keys = [0; MAX_RAILS];
        let mut rails = Vec::new();
        for (id, opening) in RailId::all().zip(openings) {
            cts_shadow_keys[id] = opening.cts_shadow_key;
            remote_cts_keys[id] = opening.remote_cts_key;
            let was_open = opening.pending.is_some();
            let Some(pending) = opening.pending.filter(|_| usable.contains(id)) else {
                if was_open {
                    let reason = "the peer could not bring its end up; its own log says why".to_owned();
                    self.actions.push_back(Action::RailDropped { rail: id.index() as u8, reason });
                }
                weights[id] = 0;
                rails.push(None);
                continue;
            };
            let rail = pending.into_rail()?;
            let info = opening.plan.info(id.index(), &self.common.counters);
            rails.push(Some(ConnectedRail::new(rail, info, kept(opening.registrations))));
        }
        let streams = self.streams.take().expect("LANES made them");
        let connection = RecvConnection::new(ReceiveParts {
            config: self.common.config.clone(),
            rails: Rails::new(rails),
            weights,
            cts_shadow: streams.cts_shadow,
            cts_shadow_keys,
            peer_cts: self.peer_cts,
            peer_cts_keys: remote_cts_keys,
            records: streams.records,
            peer: self.common.peer.clone(),
            link: Arc::new(Link::default()),
        });
        self.state = State::Over;
        self.actions.push_back(Action::Ready(Box::new(connection)));
        Ok(())
    }
}
