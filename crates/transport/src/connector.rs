//! The sender's side of a connection's set-up: OFFER, then ANSWER, LANES both ways, and READY.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use railweave_fabric::{
    Access, Domain, Fabric, Fault, Joining, LaneId, MAX_RAILS, Part, PendingRail, RailSpec, Region, Registration, Role,
};

use crate::connection::RailCounters;
use crate::handshake::{Common, Depths, Exchange, RailPlan, endpoints, keys, register, weights};
use crate::plant::{Plant, kept, planted};
use crate::rails::{ConnectedRail, Rails};
use crate::send::{SendConnection, SendParts};
use crate::{
    Action, ConnectionConfig, Dial, Error, HandshakePort, Lanes, Link, Message, Offer, RailAnswer, RailLanes, RailName,
    Token,
};

/// One rail while it comes up.
struct Opening<F: Fabric> {
    plan: RailPlan,
    pending: Option<F::PendingRail>,
    registrations: Vec<F::Registration>,
    record_key: u32,
    remote_record_key: u32,
    cts_key: u32,
    undialed: u32,
    /// Lanes that this end is connecting.
    exchange: Option<Exchange<F>>,
    /// It was left out because this host could not make it.
    failed_here: bool,
}

enum State {
    Answer,
    Lanes,
    Dialing,
    Over,
}

/// The sender's side of a connection's set-up.
pub struct Connector<F: Fabric> {
    common: Common,
    ports: Vec<HandshakePort<F>>,
    state: State,
    token: Token,
    rails: Vec<Opening<F>>,
    cts: Arc<Region>,
    records: Arc<Region>,
    peer_records: u64,
    peer_counts_bytes: bool,
    pause: Option<Duration>,
    actions: VecDeque<Action<SendConnection<F>>>,
}

impl<F: Fabric> Connector<F> {
    /// Begins a connection over a device's ports to the listener with this nonce. `peer` names the other process in
    /// messages, `deadline_ns` is when to give up, and `counters` gives the counters of a rail.
    pub fn new(
        config: ConnectionConfig,
        ports: Vec<HandshakePort<F>>,
        nonce: u64,
        peer: String,
        deadline_ns: u64,
        counters: impl Fn(&RailName) -> Arc<RailCounters> + Send + 'static,
    ) -> Self {
        assert!((1..=MAX_RAILS).contains(&ports.len()), "a device has 1 to {MAX_RAILS} ports, not {}", ports.len());
        let offer = Offer {
            nonce,
            striped: config.striped,
            traffic_class: config.traffic_class,
            ports: ports.iter().map(|port| port.offer).collect(),
        };
        Self {
            common: Common { config, peer, deadline_ns, counters: Box::new(counters) },
            ports,
            state: State::Answer,
            token: Token([0; 16]),
            rails: Vec::new(),
            cts: Arc::new(Region::new(crate::cts::STREAM_BYTES)),
            records: Arc::new(Region::new(crate::record::RECORDS_BYTES)),
            peer_records: 0,
            peer_counts_bytes: false,
            pause: None,
            actions: VecDeque::from([Action::Send(Message::Offer(offer))]),
        }
    }

    /// What to do next.
    pub fn poll_action(&mut self) -> Option<Action<SendConnection<F>>> {
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
            State::Answer => self.common.timeout_error("ANSWER"),
            State::Lanes => self.common.timeout_error("LANES"),
            State::Dialing if self.rails.iter().any(|rail| rail.exchange.is_some()) => {
                return self.give_up_connecting();
            }
            State::Dialing => self.common.timeout_error("its end of every lane"),
            State::Over => return,
        };
        self.give_up(error);
    }

    /// Goes on connecting lanes. May block, as [`Self::handle_message`].
    pub fn go_on(&mut self) {
        if !matches!(self.state, State::Dialing) {
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
                Err(error) => {
                    rail.failed_here = error.fault() == Fault::Local;
                    self.drop_rail(index, error.to_string());
                }
            }
        }
        if self.pause.is_none() && self.rails.iter().all(|rail| rail.undialed == 0) {
            self.finish();
        }
    }

    /// Takes a message from the peer.
    pub fn handle_message(&mut self, message: Message) {
        let result = match (&self.state, message) {
            (State::Over, _) => Ok(()),
            (_, Message::Refuse { fault: _, reason }) => {
                let error = Error::peer(format!("{} refused the connection: {reason}", self.common.peer));
                return self.fail(error);
            }
            (_, Message::Bye) => {
                let error = Error::peer(format!("{} closed the connection while it was set up", self.common.peer));
                return self.fail(error);
            }
            (State::Answer, Message::Answer { token, rails }) => self.handle_answer(token, &rails),
            (State::Lanes, Message::Lanes(lanes)) => self.handle_lanes(lanes),
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

    /// Takes the socket of a dialled lane, or the reason why there is none.
    pub fn handle_dialed(&mut self, rail: u8, lane: u8, socket: Result<OwnedFd, String>) {
        if !matches!(self.state, State::Dialing) {
            return;
        }
        let Joining::BySockets { attach, .. } = F::JOINING else {
            return;
        };
        let opening = &mut self.rails[usize::from(rail)];
        opening.undialed -= 1;
        let attached = match (socket, &mut opening.pending) {
            (_, None) => Ok(()),
            (Err(reason), Some(_)) => Err(reason),
            (Ok(socket), Some(pending)) => attach(pending, LaneId(lane), socket).map_err(|error| error.to_string()),
        };
        if let Err(reason) = attached {
            self.drop_rail(usize::from(rail), reason);
        }
        if self.rails.iter().all(|rail| rail.undialed == 0) {
            self.finish();
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

    fn drop_rail(&mut self, rail: usize, reason: String) {
        self.rails[rail].pending = None;
        self.rails[rail].exchange = None;
        self.actions.push_back(Action::RailDropped { rail: rail as u8, reason });
    }

    fn handle_answer(&mut self, token: Token, answers: &[RailAnswer]) -> Result<(), Error> {
        self.token = token;
        let mut lanes = Vec::new();
        for (index, answer) in answers.iter().enumerate() {
            let port =
                self.ports.get(usize::from(answer.connector_port)).filter(|port| answer.lanes <= port.offer.lanes);
            let Some(port) = port.cloned() else {
                return Err(Error::protocol(format!(
                    "{} answered with port {} and {} lanes, of which the offer has {} ports; it breaks the protocol",
                    self.common.peer,
                    answer.connector_port,
                    answer.lanes,
                    self.ports.len()
                )));
            };
            let plan = RailPlan {
                local_port: answer.connector_port,
                // Which of the peer's ports are one and the same shows in their addresses.
                remote_port: answers.iter().position(|other| other.port.address == answer.port.address).unwrap_or(0)
                    as u8,
                local: port.offer,
                remote: answer.port,
                weight: port.weight,
                lanes: answer.lanes,
            };
            let (opening, rail_lanes) = self.open(&port, plan);
            if let RailLanes::Dropped(reason) = &rail_lanes {
                self.actions.push_back(Action::RailDropped { rail: index as u8, reason: reason.clone() });
            }
            self.rails.push(opening);
            lanes.push(rail_lanes);
        }
        let byte_counts = false; // the sender receives no data
        let message = Lanes { byte_counts, stream: self.cts.address(), rails: lanes };
        self.actions.push_back(Action::Send(Message::Lanes(message)));
        self.state = State::Lanes;
        Ok(())
    }

    fn open(&self, port: &HandshakePort<F>, plan: RailPlan) -> (Opening<F>, RailLanes) {
        let mut opening = Opening {
            plan,
            pending: None,
            registrations: Vec::new(),
            record_key: 0,
            remote_record_key: 0,
            cts_key: 0,
            undialed: 0,
            exchange: None,
            failed_here: false,
        };
        let lanes = match self.open_rail(port, plan, &mut opening) {
            Ok(lanes) => lanes,
            Err(error) => {
                opening.failed_here = error.fault == Fault::Local;
                RailLanes::Dropped(error.message.clone())
            }
        };
        (opening, lanes)
    }

    fn open_rail(&self, port: &HandshakePort<F>, plan: RailPlan, opening: &mut Opening<F>) -> Result<RailLanes, Error> {
        // A connection cuts its writes to what all of its ports can carry, so every queue must hold the longest chain
        // of the smallest writes.
        let shortest = self.ports.iter().map(|port| port.domain.max_write()).min().unwrap_or(1);
        let max_write = if planted(Plant::ShortQueues) { port.domain.max_write() } else { shortest };
        let depths = Depths::new(Role::Sender, plan.lanes, self.common.config.striped, max_write);
        let cts = register::<F>(&port.domain, &self.cts, Access::CONTROL)?;
        let records = register::<F>(&port.domain, &self.records, Access::SOURCE)?;
        let pending = port.domain.open_rail(&RailSpec {
            role: Role::Sender,
            lanes: plan.lanes,
            send_depth: depths.send,
            receive_depth: depths.receive,
            lane_receives: depths.lane_receive,
            traffic_class: self.common.config.traffic_class,
            peer: Some(plan.remote.address),
        })?;
        opening.cts_key = cts.remote_key();
        opening.record_key = keys(&records).0;
        let endpoints = endpoints::<F>(&pending, plan.lanes);
        opening.pending = Some(pending);
        opening.registrations = vec![cts, records];
        Ok(RailLanes::Open { key: opening.cts_key, endpoints })
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
        self.peer_records = lanes.stream;
        self.peer_counts_bytes = lanes.byte_counts;
        self.state = State::Dialing;
        for (index, theirs) in lanes.rails.into_iter().enumerate() {
            let opening = &mut self.rails[index];
            if opening.pending.is_none() {
                continue;
            }
            match theirs {
                RailLanes::Dropped(reason) => self.drop_rail(index, format!("the peer says: {reason}")),
                RailLanes::Open { endpoints, .. } if endpoints.len() != usize::from(opening.plan.lanes) => {
                    return Err(Error::protocol(format!(
                        "{} sent {} lanes for rail {index}, agreed were {}; it breaks the protocol",
                        self.common.peer,
                        endpoints.len(),
                        opening.plan.lanes
                    )));
                }
                RailLanes::Open { key, endpoints } => {
                    opening.remote_record_key = key;
                    match F::JOINING {
                        Joining::ByExchange { connect, .. } => {
                            opening.exchange = Some(Exchange::new(connect, endpoints));
                        }
                        Joining::BySockets { .. } => {
                            opening.undialed = u32::from(opening.plan.lanes);
                            let (local, remote) = (opening.plan.local_address(), opening.plan.remote_address());
                            for lane in 0..opening.plan.lanes {
                                let dial = Dial { rail: index as u8, lane, local, remote, token: self.token };
                                self.actions.push_back(Action::Dial(dial));
                            }
                        }
                    }
                }
            }
        }
        self.go_on();
        Ok(())
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
            _ => self.finish(),
        }
    }

    fn finish(&mut self) {
        let openings = std::mem::take(&mut self.rails);
        let all_failed_here = openings.iter().all(|opening| opening.failed_here);
        let mut weights = weights(&openings.iter().map(|opening| opening.plan).collect::<Vec<_>>());
        let mut record_keys = [0; MAX_RAILS];
        let mut remote_record_keys = [0; MAX_RAILS];
        let mut rails = Vec::new();
        for (index, opening) in openings.into_iter().enumerate() {
            record_keys[index] = opening.record_key;
            remote_record_keys[index] = opening.remote_record_key;
            let rail = opening.pending.and_then(|pending| match pending.into_rail() {
                Ok(rail) => Some(rail),
                Err(error) => {
                    self.actions.push_back(Action::RailDropped { rail: index as u8, reason: error.to_string() });
                    None
                }
            });
            if rail.is_none() {
                weights[index] = 0;
            }
            rails.push(rail.map(|rail| {
                let info = opening.plan.info(index, &self.common.counters);
                ConnectedRail::new(rail, info, kept(opening.registrations))
            }));
        }
        let rails = Rails::<F>::new(rails);
        if rails.usable().is_empty() {
            let fault = if all_failed_here { Fault::Local } else { Fault::Peer };
            let reason = "came up; the lines before this one name the reason for each";
            return self.give_up(Error::new(fault, format!("no rail to {} {reason}", self.common.peer)));
        }
        self.actions.push_back(Action::Send(Message::Ready { usable: rails.usable().bits() }));
        let connection = SendConnection::new(SendParts {
            config: self.common.config.clone(),
            rails,
            weights,
            cts: Arc::clone(&self.cts),
            records: Arc::clone(&self.records),
            record_keys,
            peer_records: self.peer_records,
            peer_record_keys: remote_record_keys,
            peer_counts_bytes: self.peer_counts_bytes,
            peer: self.common.peer.clone(),
            link: Arc::new(Link::default()),
        });
        self.state = State::Over;
        self.actions.push_back(Action::Ready(Box::new(connection)));
    }
}
