//! The sender's side of a connection's set-up: OFFER, then ANSWER, LANES and, over RDMA,
//! PROBE both ways, and READY.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use railweave_fabric::{Domain, Fabric, Joining, LaneId, MAX_RAILS, Part, RailId, RailSet, Role, Step};

use super::failure::{Awaited, HandshakeFailure, LaneRefused, LeftOut};
use super::opening::{Opening, OwnMemory, SetUp, proves};
use super::plan::RailPlan;
use super::{Action, Dial, Handshake, HandshakePort, MakesConnection};
use crate::message::Incarnation;
use crate::preface::Token;
use crate::rail_info::RailCounters;
use crate::send::{SendConnection, SendParts};
use crate::{ConnectionConfig, Event, Fate, Lanes, Message, Offer, RailAnswer, RailLanes, RailName, Ways};

enum State {
    Answer,
    Lanes,
    /// The lanes come up: this end connects them, or dials them.
    Dialling,
    Probing,
    Over,
}

/// The listener that a connector wants, and the ways to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The listener's nonce, from its handle.
    pub nonce: u64,
    /// The ways to its process.
    pub ways: Ways,
}

impl From<u64> for Wanted {
    /// Returns the listener with this nonce, to which nothing but the device's own ports leads.
    fn from(nonce: u64) -> Self {
        Self { nonce, ways: Ways::default() }
    }
}

/// The sender's side of a connection's set-up.
pub struct Connector<F: Fabric> {
    set_up: SetUp<F, SendConnection<F>>,
    state: State,
    peer_counts_bytes: bool,
    /// The first step of the ladder that ANSWER may have.
    first_step: Step,
    /// The step of the ladder in ANSWER.
    answered: Option<Step>,
    /// True if it has failed because none of its rails came up.
    is_of_rails: bool,
    /// The rails that this end has named in PROBE.
    probed: RailSet,
    /// True once the acceptor has said which of its first packets have come through.
    peer_has_probed: bool,
}

impl<F: Fabric> Connector<F> {
    /// Begins a connection to a listener. `ports` are the device's, then the host's others, as `wanted` counts them.
    /// `peer` names the other process in messages, `deadline_ns` is when to give up, and `counters` returns the
    /// counters of a rail.
    pub fn new(
        config: ConnectionConfig,
        ports: Vec<HandshakePort<F>>,
        wanted: impl Into<Wanted>,
        peer: String,
        deadline_ns: u64,
        counters: impl Fn(&RailName) -> Arc<RailCounters> + Send + 'static,
    ) -> Self {
        let Wanted { nonce, ways } = wanted.into();
        let of_device = ports.len() - usize::from(ways.others);
        assert!((1..=MAX_RAILS).contains(&of_device), "a device has 1 to {MAX_RAILS} ports, not {of_device}");
        let offer = Offer {
            nonce,
            striped: config.striped,
            traffic_class: config.traffic_class,
            ports: ports.iter().map(|port| port.offer).collect(),
            ways,
        };
        let mut set_up = SetUp::new(config, ports, peer, Token([0; 16]), deadline_ns, Box::new(counters));
        set_up.memory = Some(OwnMemory::new(crate::cts::STREAM_BYTES, crate::record::MEMORY_BYTES));
        set_up.has_others = offer.ways.others > 0;
        let first_step = offer.ways.first_step;
        set_up.send(Message::Offer(offer));
        Self {
            set_up,
            state: State::Answer,
            peer_counts_bytes: false,
            first_step,
            answered: None,
            is_of_rails: false,
            probed: RailSet::EMPTY,
            peer_has_probed: false,
        }
    }

    fn fail(&mut self, failure: HandshakeFailure) {
        self.state = State::Over;
        self.is_of_rails = self.answered.is_some() && failure.is_of_rails();
        self.set_up.fail(failure);
    }

    fn give_up(&mut self, failure: HandshakeFailure) {
        self.state = State::Over;
        self.is_of_rails = self.answered.is_some() && failure.is_of_rails();
        self.set_up.give_up(failure);
    }

    fn handle_answer(&mut self, token: Token, step: Step, answers: &[RailAnswer]) -> Result<(), HandshakeFailure> {
        let first_step = self.first_step;
        if step < first_step || (step == Step::Tcp && first_step != Step::Tcp) {
            return Err(HandshakeFailure::WrongStep { step, first_step });
        }
        self.answered = Some(step);
        let set_up = &mut self.set_up;
        set_up.token = token;
        // A connection cuts its writes to a length that all of its ports can carry, so every queue must hold the
        // longest chain of writes of that length.
        let shortest = set_up.ports.iter().map(|port| port.domain.max_write()).min().unwrap_or(1);
        for (rail, answer) in RailId::all().zip(answers) {
            let port = set_up.ports.get(usize::from(answer.connector_port));
            let Some(port) = port.filter(|port| answer.lanes <= port.offer.lanes) else {
                return Err(HandshakeFailure::WrongAnswer {
                    port: answer.connector_port,
                    lanes: answer.lanes,
                    offered: set_up.ports.len(),
                });
            };
            set_up.rails.push(Opening::new(RailPlan {
                local_port: answer.connector_port,
                remote_port: remote_port(answers, answer),
                local: port.offer,
                remote: answer.port,
                weight: port.weight,
                fixed: port.fixed,
                lanes: answer.lanes,
            }));
            if let Err(error) = set_up.open_rail(rail, Role::Sender, shortest) {
                set_up.drop_rail(rail, LeftOut::Failed(error));
            }
        }
        // The sender receives no data whose bytes could be counted.
        set_up.send_lanes(false);
        self.state = State::Lanes;
        Ok(())
    }

    fn handle_lanes(&mut self, lanes: Lanes) -> Result<(), HandshakeFailure> {
        self.peer_counts_bytes = lanes.byte_counts;
        let set_up = &mut self.set_up;
        let theirs = set_up.take_lanes(lanes)?;
        self.state = State::Dialling;
        for (rail, theirs) in RailId::all().zip(theirs) {
            if set_up.rails[rail.index()].pending.is_none() {
                continue;
            }
            match theirs {
                RailLanes::Dropped { reason, is_of_way } => {
                    set_up.drop_rail(rail, LeftOut::PeerSays { reason, is_of_way });
                }
                RailLanes::Open { key, endpoints } => {
                    set_up.check_lanes(rail, &endpoints)?;
                    if !set_up.peer_opened(rail, key, endpoints) {
                        let (plan, token) = (set_up.rails[rail.index()].plan, set_up.token);
                        set_up.rails[rail.index()].undialled = u32::from(plan.lanes);
                        let (local, remote) = (plan.local_address(), plan.remote_address());
                        let incarnation = Incarnation::default();
                        for lane in (0..plan.lanes).map(LaneId) {
                            set_up.actions.push_back(Action::Dial(Dial {
                                rail,
                                lane,
                                local,
                                remote,
                                token,
                                incarnation,
                            }));
                        }
                    }
                }
            }
        }
        self.connect(None);
        Ok(())
    }

    /// Continues to connect lanes.
    fn connect(&mut self, now_ns: Option<u64>) {
        if self.set_up.connect(now_ns) && self.set_up.rails.iter().all(|rail| rail.undialled == 0) {
            self.connected();
        }
    }

    /// Goes on once every lane is connected or its rail is left out.
    fn connected(&mut self) {
        if !proves::<F>() {
            return self.finish();
        }
        self.probed = self.set_up.connected();
        if !self.probed.is_empty() {
            self.set_up.send(Message::Probe { rails: self.probed.bits() });
        }
        self.set_up.begin_probes();
        self.state = State::Probing;
        self.probe(None);
    }

    /// Looks after the first packets, and makes the connection once neither end waits for them.
    fn probe(&mut self, now_ns: Option<u64>) {
        if self.set_up.probe(now_ns) && (self.peer_has_probed || self.set_up.connected().is_empty()) {
            self.finish();
        }
    }

    fn handle_probe(&mut self, rails: u8) -> Result<(), HandshakeFailure> {
        self.set_up.keep_named("PROBE", RailSet::from_bits(rails), self.probed, &LeftOut::PeerSilent)?;
        self.peer_has_probed = true;
        self.probe(None);
        Ok(())
    }

    /// Makes the connection over the rails that are connected.
    fn finish(&mut self) {
        let set_up = &mut self.set_up;
        let mut up = Vec::new();
        for rail in RailId::all().take(set_up.rails.len()) {
            up.push(set_up.take_rail(rail).unwrap_or_else(|error| {
                set_up.drop_rail(rail, LeftOut::Failed(error));
                None
            }));
        }
        let (failed_here, first) = (set_up.failed_here(), set_up.first_left_out());
        let made = set_up.make(up);
        if let Some(first) = first.filter(|_| made.rails.usable().is_empty()) {
            return self.give_up(HandshakeFailure::NoRail { failed_here, first });
        }
        set_up.send(Message::Ready { usable: made.rails.usable().bits() });
        let memory = set_up.memory.as_ref().expect("it was there from the beginning");
        let connection = SendConnection::new(SendParts {
            config: set_up.config.clone(),
            rails: made.rails,
            order: made.order,
            weights: made.weights,
            clock: made.clock,
            cts: Arc::clone(&memory.inbox),
            records: Arc::clone(&memory.outbox),
            record_keys: made.outbox_keys,
            peer_records: set_up.peer_stream,
            peer_record_keys: made.peer_keys,
            peer_counts_bytes: self.peer_counts_bytes,
            peer: set_up.peer.clone(),
            fate: Arc::new(Fate::default()),
        });
        self.state = State::Over;
        set_up.actions.push_back(Action::Ready(Box::new(connection)));
    }
}

/// Returns a number of the peer's port in an answer. The peer's ports are told apart by their addresses.
fn remote_port(answers: &[RailAnswer], answer: &RailAnswer) -> u8 {
    answers.iter().position(|other| other.port.address == answer.port.address).unwrap_or(0) as u8
}

impl<F: Fabric> Handshake for Connector<F>
where
    Self: Send,
{
    fn handle_message(&mut self, message: Message) {
        self.set_up.leave_out_failed();
        let result = match (&self.state, message) {
            (State::Over, _) => Ok(()),
            (_, Message::Refuse { fault, of_rails, reason }) => {
                if of_rails {
                    self.set_up.drop_all(&LeftOut::PeerSays { reason: reason.clone(), is_of_way: false });
                }
                self.fail(HandshakeFailure::Refused { fault, reason });
                self.is_of_rails = of_rails;
                return;
            }
            (_, Message::Bye(_)) => return self.fail(HandshakeFailure::Closed),
            (State::Answer, Message::Answer { token, step, rails }) => self.handle_answer(token, step, &rails),
            (State::Lanes, Message::Lanes(lanes)) => self.handle_lanes(lanes),
            (State::Probing, Message::Probe { rails }) if !self.peer_has_probed => self.handle_probe(rails),
            (_, other) => Err(HandshakeFailure::OutOfTurn(other.name())),
        };
        if let Err(failure) = result {
            self.give_up(failure);
        }
    }

    fn handle_dialled(&mut self, rail: RailId, lane: LaneId, socket: Result<OwnedFd, String>) {
        let (State::Dialling, Joining::BySockets { attach, .. }) = (&self.state, F::JOINING) else {
            return;
        };
        let opening = &mut self.set_up.rails[rail.index()];
        opening.undialled -= 1;
        let attached = match (socket, &mut opening.pending) {
            (_, None) => Ok(()),
            (Err(reason), Some(_)) => Err(LeftOut::Undialled(reason)),
            (Ok(socket), Some(pending)) => attach(pending, lane, socket).map_err(LeftOut::Failed),
        };
        if let Err(reason) = attached {
            self.set_up.drop_rail(rail, reason);
        }
        if self.set_up.rails.iter().all(|rail| rail.undialled == 0) {
            self.connected();
        }
    }

    fn awaits_lane(&self, rail: u8, _lane: u8) -> Result<(), LaneRefused> {
        Err(LaneRefused::DialledHere(rail))
    }

    fn handle_lane(&mut self, rail: u8, lane: u8, _socket: OwnedFd) -> Result<(), LaneRefused> {
        self.awaits_lane(rail, lane)
    }

    fn handle_timeout(&mut self, now_ns: u64) {
        if now_ns < self.set_up.deadline_ns {
            return;
        }
        self.set_up.leave_out_failed();
        let failure = match self.state {
            State::Answer => HandshakeFailure::Late(Awaited::Answer),
            State::Lanes => HandshakeFailure::Late(Awaited::Lanes),
            State::Dialling if self.set_up.is_connecting() => match self.set_up.give_up_connecting() {
                None => return self.connected(),
                Some(reason) => HandshakeFailure::Unconnected(reason),
            },
            State::Dialling => HandshakeFailure::Late(Awaited::Sockets),
            State::Probing if self.set_up.pause.is_some() => {
                self.set_up.end_probes(now_ns);
                return self.probe(None);
            }
            State::Probing => HandshakeFailure::Late(Awaited::Probe),
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
            State::Dialling => self.connect(Some(now_ns)),
            State::Probing => self.probe(Some(now_ns)),
            State::Answer | State::Lanes | State::Over => {}
        }
    }

    fn parts(&self) -> Vec<Part> {
        self.set_up.parts()
    }

    fn handle_part_failed(&mut self, failed: &Part, reason: &str) -> bool {
        self.set_up.note_failed(failed, reason);
        true
    }

    fn may_block(&self) -> bool {
        F::JOINING.may_block()
    }

    fn step(&self) -> Option<Step> {
        self.answered
    }

    fn is_of_rails(&self) -> bool {
        self.is_of_rails
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.set_up.events.pop_front()
    }
}

impl<F: Fabric> MakesConnection for Connector<F>
where
    Self: Send,
{
    type Connection = SendConnection<F>;

    fn poll_action(&mut self) -> Option<Action<SendConnection<F>>> {
        self.set_up.actions.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use railweave_fabric::LinkLayer;

    use super::*;
    use crate::PortOffer;

    #[test]
    fn rails_to_one_address_share_the_peers_port() {
        let answer = |last| RailAnswer {
            connector_port: 0,
            lanes: 1,
            port: PortOffer {
                link_layer: LinkLayer::Tcp,
                prefix_len: 24,
                lanes: 1,
                speed_mbps: 1000,
                mtu: 1500,
                rail_id: -1,
                plane_id: -1,
                address: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last),
            },
        };
        let answers = [7, 8, 7, 9, 8].map(answer);
        assert_eq!(answers.map(|answer| remote_port(&answers, &answer)), [0, 1, 0, 3, 1]);
    }
}
