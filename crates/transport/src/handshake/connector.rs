//! The sender's side of a connection's set-up: OFFER, then ANSWER, LANES both ways, and READY.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use railweave_fabric::{Domain, Fabric, Fault, Joining, LaneId, MAX_RAILS, Part, PendingRail, RailId, Role};

use super::opening::{Opening, OwnMemory, RailPlan, SetUp};
use super::{Action, Dial, Handshake, HandshakePort, Makes, Token};
use crate::connection::RailCounters;
use crate::plant::{Plant, planted};
use crate::send::{SendConnection, SendParts};
use crate::{ConnectionConfig, Error, Event, Lanes, Link, Message, Offer, RailAnswer, RailLanes, RailName};

enum State {
    Answer,
    Lanes,
    /// Lanes come up: this end connects them, or dials them.
    Dialing,
    Over,
}

/// The sender's side of a connection's set-up.
pub struct Connector<F: Fabric> {
    set_up: SetUp<F, SendConnection<F>>,
    state: State,
    peer_counts_bytes: bool,
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
        let mut set_up = SetUp::new(config, ports, peer, Token([0; 16]), deadline_ns, Box::new(counters));
        set_up.memory = Some(OwnMemory::new(crate::cts::STREAM_BYTES, crate::record::RECORDS_BYTES));
        set_up.send(Message::Offer(offer));
        Self { set_up, state: State::Answer, peer_counts_bytes: false }
    }

    fn fail(&mut self, error: Error) {
        self.state = State::Over;
        self.set_up.fail(error);
    }

    fn give_up(&mut self, error: Error) {
        self.state = State::Over;
        self.set_up.give_up(error);
    }

    fn handle_answer(&mut self, token: Token, answers: &[RailAnswer]) -> Result<(), Error> {
        let set_up = &mut self.set_up;
        set_up.token = token;
        // A connection cuts its writes to what all of its ports can carry, so every queue must hold the longest chain
        // of the smallest writes.
        let shortest = set_up.ports.iter().map(|port| port.domain.max_write()).min().unwrap_or(1);
        for (index, answer) in answers.iter().enumerate() {
            let port = set_up.ports.get(usize::from(answer.connector_port));
            let Some(port) = port.filter(|port| answer.lanes <= port.offer.lanes) else {
                return Err(Error::protocol(format!(
                    "{} answered with port {} and {} lanes, of which the offer has {} ports; it breaks the protocol",
                    set_up.peer,
                    answer.connector_port,
                    answer.lanes,
                    set_up.ports.len()
                )));
            };
            let own = port.domain.max_write();
            set_up.rails.push(Opening::new(RailPlan {
                local_port: answer.connector_port,
                // Which of the peer's ports are one and the same shows in their addresses.
                remote_port: answers.iter().position(|other| other.port.address == answer.port.address).unwrap_or(0)
                    as u8,
                local: port.offer,
                remote: answer.port,
                weight: port.weight,
                lanes: answer.lanes,
            }));
            let max_write = if planted(Plant::ShortQueues) { own } else { shortest };
            if let Err(error) = set_up.open_rail(index, Role::Sender, max_write) {
                set_up.rails[index].failed_here = error.fault == Fault::Local;
                set_up.drop_rail(index, error.message.clone());
            }
        }
        // The sender receives no data, whose bytes might be counted.
        set_up.send_lanes(false);
        self.state = State::Lanes;
        Ok(())
    }

    fn handle_lanes(&mut self, lanes: Lanes) -> Result<(), Error> {
        self.peer_counts_bytes = lanes.byte_counts;
        let set_up = &mut self.set_up;
        let theirs = set_up.take_lanes(lanes)?;
        self.state = State::Dialing;
        for ((index, theirs), rail) in theirs.into_iter().enumerate().zip(RailId::all()) {
            if set_up.rails[index].pending.is_none() {
                continue;
            }
            match theirs {
                RailLanes::Dropped(reason) => set_up.drop_rail(index, format!("the peer says: {reason}")),
                RailLanes::Open { key, endpoints } => {
                    set_up.check_lanes(index, &endpoints)?;
                    if !set_up.peer_opened(index, key, endpoints) {
                        let (plan, token) = (set_up.rails[index].plan, set_up.token);
                        set_up.rails[index].undialed = u32::from(plan.lanes);
                        let (local, remote) = (plan.local_address(), plan.remote_address());
                        for lane in (0..plan.lanes).map(LaneId) {
                            set_up.actions.push_back(Action::Dial(Dial { rail, lane, local, remote, token }));
                        }
                    }
                }
            }
        }
        self.go_on();
        Ok(())
    }

    /// Every lane is connected, or its rail is left out.
    fn finish(&mut self) {
        let set_up = &mut self.set_up;
        let all_failed_here = set_up.rails.iter().all(|opening| opening.failed_here);
        let mut up = Vec::new();
        for index in 0..set_up.rails.len() {
            up.push(match set_up.rails[index].pending.take().map(PendingRail::into_rail) {
                Some(Ok(rail)) => Some(rail),
                Some(Err(error)) => {
                    set_up.say_dropped(index, error.to_string());
                    None
                }
                None => None,
            });
        }
        let made = set_up.make(up);
        if made.rails.usable().is_empty() {
            let fault = if all_failed_here { Fault::Local } else { Fault::Peer };
            let reason = "came up; the lines before this one name the reason for each";
            let error = Error::new(fault, format!("no rail to {} {reason}", set_up.peer));
            return self.give_up(error);
        }
        set_up.send(Message::Ready { usable: made.rails.usable().bits() });
        let memory = set_up.memory.as_ref().expect("it was there from the beginning");
        let connection = SendConnection::new(SendParts {
            config: set_up.config.clone(),
            rails: made.rails,
            weights: made.weights,
            cts: Arc::clone(&memory.inbox),
            records: Arc::clone(&memory.outbox),
            record_keys: made.outbox_keys,
            peer_records: set_up.peer_stream,
            peer_record_keys: made.peer_keys,
            peer_counts_bytes: self.peer_counts_bytes,
            peer: set_up.peer.clone(),
            link: Arc::new(Link::default()),
        });
        self.state = State::Over;
        set_up.actions.push_back(Action::Ready(Box::new(connection)));
    }
}

impl<F: Fabric> Handshake for Connector<F>
where
    Self: Send,
{
    fn handle_message(&mut self, message: Message) {
        let result = match (&self.state, message) {
            (State::Over, _) => Ok(()),
            (_, Message::Refuse { fault: _, reason }) => {
                let error = Error::peer(format!("{} refused the connection: {reason}", self.set_up.peer));
                return self.fail(error);
            }
            (_, Message::Bye) => return self.fail(self.set_up.closed_error()),
            (State::Answer, Message::Answer { token, rails }) => self.handle_answer(token, &rails),
            (State::Lanes, Message::Lanes(lanes)) => self.handle_lanes(lanes),
            (_, other) => Err(self.set_up.out_of_turn(&other)),
        };
        if let Err(error) = result {
            self.give_up(error);
        }
    }

    fn handle_dialed(&mut self, rail: RailId, lane: LaneId, socket: Result<OwnedFd, String>) {
        let (State::Dialing, Joining::BySockets { attach, .. }) = (&self.state, F::JOINING) else {
            return;
        };
        let opening = &mut self.set_up.rails[rail.index()];
        opening.undialed -= 1;
        let attached = match (socket, &mut opening.pending) {
            (_, None) => Ok(()),
            (Err(reason), Some(_)) => Err(reason),
            (Ok(socket), Some(pending)) => attach(pending, lane, socket).map_err(|error| error.to_string()),
        };
        if let Err(reason) = attached {
            self.set_up.drop_rail(rail.index(), reason);
        }
        if self.set_up.rails.iter().all(|rail| rail.undialed == 0) {
            self.finish();
        }
    }

    fn awaits_lane(&self, rail: u8, _lane: u8) -> Result<(), String> {
        Err(format!("rail {rail} is dialled from this side"))
    }

    fn handle_lane(&mut self, rail: u8, lane: u8, _socket: OwnedFd) -> Result<(), String> {
        self.awaits_lane(rail, lane)
    }

    fn handle_timeout(&mut self, now_ns: u64) {
        if now_ns < self.set_up.deadline_ns {
            return;
        }
        let error = match self.state {
            State::Answer => self.set_up.timeout_error("ANSWER"),
            State::Lanes => self.set_up.timeout_error("LANES"),
            State::Dialing if self.set_up.is_connecting() => match self.set_up.give_up_connecting() {
                Ok(()) => return self.finish(),
                Err(error) => error,
            },
            State::Dialing => self.set_up.timeout_error("its end of every lane"),
            State::Over => return,
        };
        self.give_up(error);
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

    fn go_on(&mut self) {
        if matches!(self.state, State::Dialing)
            && self.set_up.connect()
            && self.set_up.rails.iter().all(|rail| rail.undialed == 0)
        {
            self.finish();
        }
    }

    fn parts(&self) -> Vec<Part> {
        self.set_up.parts()
    }

    fn may_block(&self) -> bool {
        F::JOINING.may_block()
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.set_up.events.pop_front()
    }
}

impl<F: Fabric> Makes for Connector<F>
where
    Self: Send,
{
    type Connection = SendConnection<F>;

    fn poll_action(&mut self) -> Option<Action<SendConnection<F>>> {
        self.set_up.actions.pop_front()
    }
}
