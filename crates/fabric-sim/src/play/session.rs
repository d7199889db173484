//! Set-up and end of a connection: handshakes over a control session, goodbyes, and sessions that break.

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

use railweave_fabric::LinkLayer;
use railweave_transport::{
    AcceptPairing, Acceptor, Action, ConnectionConfig, Connector, Error, Frame, HandshakePort, Message, Offer,
    PortOffer, RailCounters, RailInfo, RecvConnection, SendConnection, Token,
};

use super::Task;
use super::game::{Game, Side, Stage};
use super::memory::Memory;
use super::receiver::RecvApp;
use super::sender::SendApp;
use crate::history::{Kind, Who};
use crate::world::Opening;
use crate::{Checker, Seen, Sim};
use railweave_fabric::MemoryKind;

/// How long a closed end waits for its peer.
const LINGER_LIMIT_NS: u64 = 4_000_000;
const LINGER_STEP_NS: u64 = 20_000;

fn counters(_: &railweave_transport::RailName) -> Arc<RailCounters> {
    Arc::default()
}

impl<const ONE_SIDED: bool> Game<ONE_SIDED> {
    fn config(&self, connection: usize) -> ConnectionConfig {
        let plan = &self.connections[connection].plan;
        ConnectionConfig {
            split_min: plan.split_min,
            striped: plan.striped,
            adaptive_routing_above: plan.adaptive_above,
            traffic_class: None,
        }
    }

    /// The ports of a process, as one end of a connection offers them.
    fn ports(&self, process: usize, connection: usize, sender: bool) -> Vec<HandshakePort<Sim<ONE_SIDED>>> {
        let plan = &self.connections[connection].plan;
        let lanes = if sender { plan.lanes.0 } else { plan.lanes.1 };
        let port = |(index, domain): (usize, &Arc<crate::SimDomain<ONE_SIDED>>)| HandshakePort {
            offer: PortOffer {
                link_layer: LinkLayer::InfiniBand,
                prefix_len: 64,
                lanes,
                speed_mbps: plan.speeds[index],
                mtu: 4096,
                rail_id: -1,
                plane_id: -1,
                address: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, process as u16, index as u16),
            },
            domain: Arc::clone(domain),
            weight: plan.weights[index],
        };
        self.processes[process].domains.iter().enumerate().map(port).collect()
    }

    pub(super) fn handle_connect(&mut self, connection: usize) {
        let plan = &self.connections[connection].plan;
        let (from, deadline_ns) = (plan.from, self.now_ns() + plan.deadline_ns);
        if self.processes[from].dead || self.processes[from].aborted {
            self.connections[connection].sender.stage = Stage::Over;
            self.end_session(connection);
            return;
        }
        let ports = self.ports(from, connection, true);
        let connector =
            Connector::new(self.config(connection), ports, 7, format!("c{connection}r"), deadline_ns, counters);
        self.connections[connection].sender.stage = Stage::Handshake(connector);
        self.world.lock().at(deadline_ns, Task::Deadline { connection, sender: true });
        self.drive_connector(connection);
    }

    fn send(&mut self, connection: usize, to_sender: bool, message: Message) {
        let session = &mut self.connections[connection];
        if session.session_over {
            return;
        }
        let bytes = Frame { connection: connection as u32 + 1, message }.encode();
        let mut state = self.world.lock();
        let delay_ns = state.faults.session_delay_ns;
        let jitter_ns = state.faults.session_jitter_ns;
        let extra_ns = state.chance.below(jitter_ns + 1);
        if extra_ns > 0 {
            state.saw(Seen::SlowControl);
        }
        // A session is a stream: it keeps its order.
        let last_ns = &mut session.last_frame_ns[usize::from(to_sender)];
        *last_ns = (state.now_ns + delay_ns + extra_ns).max(*last_ns);
        state.at(*last_ns, Task::Frame { connection, to_sender, bytes });
    }

    pub(super) fn handle_frame(&mut self, connection: usize, to_sender: bool, bytes: &[u8]) {
        let session = &self.connections[connection];
        let process = if to_sender { session.plan.from } else { session.plan.to };
        if session.session_over || self.processes[process].dead {
            return;
        }
        let message = match Frame::decode(bytes) {
            Ok(Some((frame, _))) => frame.message,
            other => {
                let text = format!("c{connection}: a frame came out of its bytes as {other:?}");
                return self.violate(Checker::Wire, text);
            }
        };
        let who = Who::End { connection, sender: to_sender };
        self.world.lock().record(Kind::Control, who, [u64::from(message.kind()), u64::from(to_sender), 0, 0]);
        if message == Message::Bye {
            let session = &mut self.connections[connection];
            if to_sender { session.sender.peer_said_bye = true } else { session.receiver.peer_said_bye = true }
        }
        let ending = matches!(message, Message::Bye | Message::Refuse { .. });
        match (to_sender, message) {
            (false, Message::Offer(offer)) => self.handle_offer(connection, &offer),
            (true, message) => {
                self.opening(connection, true);
                match &mut self.connections[connection].sender.stage {
                    Stage::Handshake(connector) => {
                        connector.handle_message(message);
                        self.drive_connector(connection);
                    }
                    Stage::Up(..) if ending => self.lose_later(connection, true),
                    _ => {}
                }
            }
            (false, message) => {
                self.opening(connection, false);
                match &mut self.connections[connection].receiver.stage {
                    Stage::Handshake(acceptor) => {
                        acceptor.handle_message(message);
                        self.drive_acceptor(connection);
                    }
                    Stage::Up(..) if ending => self.lose_later(connection, false),
                    _ => {}
                }
            }
        }
    }

    fn opening(&mut self, connection: usize, sender: bool) {
        self.world.lock().opening = Some(Opening { connection, sender, next_rail: 0 });
    }

    /// A peer that waits for nothing says nothing: whoever still needs it must be told, but not before what is under
    /// way has had its time.
    fn lose_later(&mut self, connection: usize, sender: bool) {
        let mut state = self.world.lock();
        let grace_ns = state.faults.grace_ns;
        state.later(grace_ns, Task::Lose { connection, sender });
    }

    fn handle_offer(&mut self, connection: usize, offer: &Offer) {
        if !matches!(self.connections[connection].receiver.stage, Stage::Waiting) {
            return;
        }
        let plan = &self.connections[connection].plan;
        let (to, deadline_ns) = (plan.to, self.now_ns() + plan.deadline_ns);
        let pairings: Vec<AcceptPairing> =
            plan.pairs.iter().map(|pair| AcceptPairing { connector_port: pair.0, acceptor_port: pair.1 }).collect();
        let ports = self.ports(to, connection, false);
        let pairings = if pairings.is_empty() { Err("No local NIC found".to_owned()) } else { Ok(&pairings[..]) };
        let acceptor = Acceptor::new(
            self.config(connection),
            ports,
            offer,
            pairings,
            Token([connection as u8; 16]),
            format!("c{connection}s"),
            deadline_ns,
            counters,
        );
        self.connections[connection].receiver.stage = Stage::Handshake(acceptor);
        self.world.lock().at(deadline_ns, Task::Deadline { connection, sender: false });
        self.drive_acceptor(connection);
    }

    /// What this end's host could not do before may work now.
    pub(super) fn handle_go_on(&mut self, connection: usize, sender: bool) {
        let session = &mut self.connections[connection];
        let process = if sender { session.plan.from } else { session.plan.to };
        if self.processes[process].dead {
            return;
        }
        self.opening(connection, sender);
        let session = &mut self.connections[connection];
        match (sender, &mut session.sender.stage, &mut session.receiver.stage) {
            (true, Stage::Handshake(connector), _) if connector.pause().is_some() => {
                connector.go_on();
                self.drive_connector(connection);
            }
            (false, _, Stage::Handshake(acceptor)) if acceptor.pause().is_some() => {
                acceptor.go_on();
                self.drive_acceptor(connection);
            }
            _ => {}
        }
    }

    /// Where a handshake could not connect all of its rails, it tries again after its pause.
    fn go_on_later(&mut self, connection: usize, sender: bool, pause: Option<Duration>) {
        if let Some(pause) = pause {
            self.world.lock().later(pause.as_nanos() as u64, Task::GoOn { connection, sender });
        }
    }

    pub(super) fn handle_deadline(&mut self, connection: usize, sender: bool) {
        let now_ns = self.now_ns();
        if sender {
            if let Stage::Handshake(connector) = &mut self.connections[connection].sender.stage {
                connector.handle_timeout(now_ns);
                self.world.lock().saw(Seen::TimedOut);
                self.drive_connector(connection);
            }
        } else if let Stage::Handshake(acceptor) = &mut self.connections[connection].receiver.stage {
            acceptor.handle_timeout(now_ns);
            self.world.lock().saw(Seen::TimedOut);
            self.drive_acceptor(connection);
        }
    }

    fn drive_connector(&mut self, connection: usize) {
        while let Stage::Handshake(connector) = &mut self.connections[connection].sender.stage {
            let Some(action) = connector.poll_action() else {
                let pause = connector.pause();
                return self.go_on_later(connection, true, pause);
            };
            match action {
                Action::Send(message) => self.send(connection, false, message),
                Action::Dial(_) => self.violate(Checker::Wire, "a lane that is no socket is to be dialled".into()),
                Action::RailDropped { .. } => {}
                Action::Failed(error) => self.set_up_failed(connection, true, &error),
                Action::Ready(made) => self.sender_up(connection, *made),
            }
        }
    }

    fn drive_acceptor(&mut self, connection: usize) {
        while let Stage::Handshake(acceptor) = &mut self.connections[connection].receiver.stage {
            let Some(action) = acceptor.poll_action() else {
                let pause = acceptor.pause();
                return self.go_on_later(connection, false, pause);
            };
            match action {
                Action::Send(message) => self.send(connection, true, message),
                Action::Dial(_) => self.violate(Checker::Wire, "an acceptor wants to dial".into()),
                Action::RailDropped { .. } => {}
                Action::Failed(error) => self.set_up_failed(connection, false, &error),
                Action::Ready(made) => self.receiver_up(connection, *made),
            }
        }
    }

    fn set_up_failed(&mut self, connection: usize, sender: bool, error: &Error) {
        let side = Side { connection, sender };
        let mut state = self.world.lock();
        state.record(Kind::Over, side.who(), [0; 4]);
        state.history.remark(&error.message);
        state.saw(Seen::Refused);
        let may_fail = state.faults.open_fails_permille > 0 || state.watch.harmed(connection).is_some();
        let now_ns = state.now_ns;
        drop(state);
        let plan = &self.connections[connection].plan;
        if !may_fail && !plan.pairs.is_empty() && plan.deadline_ns >= 50_000_000 {
            let text = format!("{}: no connection came to be: {}", side.who(), error.message);
            self.violate(Checker::Errors, text);
        }
        if error.message.len() < 10 {
            self.violate(Checker::Errors, format!("{}: an error without words: {:?}", side.who(), error.message));
        }
        self.world.lock().watch.harm(now_ns, connection, "the handshake failed");
        self.over(side);
    }

    fn memory(&self, side: Side, kind: MemoryKind) -> Memory<ONE_SIDED> {
        let plan = &self.connections[side.connection].plan;
        let process = if side.sender { plan.from } else { plan.to };
        let number = side.connection * 2 + usize::from(side.sender);
        Memory::new(&self.world, &self.processes[process].domains, side.who(), number, kind)
    }

    fn sender_up(&mut self, connection: usize, made: SendConnection<Sim<ONE_SIDED>>) {
        let side = Side { connection, sender: true };
        let rails = made.rails();
        self.bind(side, &rails);
        let app = SendApp::new(&self.connections[connection].plan, self.memory(side, MemoryKind::Host), rails);
        self.connections[connection].sender.stage = Stage::Up(Box::new(made), Box::new(app));
        self.wake(self.connections[connection].plan.from);
    }

    fn receiver_up(&mut self, connection: usize, made: RecvConnection<Sim<ONE_SIDED>>) {
        let side = Side { connection, sender: false };
        let rails = made.rails();
        self.bind(side, &rails);
        let kind = if self.connections[connection].plan.cuda { MemoryKind::Cuda } else { MemoryKind::Host };
        let app = RecvApp::new(&self.connections[connection].plan, self.memory(side, kind), rails);
        self.connections[connection].receiver.stage = Stage::Up(Box::new(made), Box::new(app));
        self.wake(self.connections[connection].plan.to);
    }

    /// Tells the checkers what the handshake has made.
    fn bind(&mut self, side: Side, rails: &[RailInfo]) {
        let usable = rails.iter().fold(0u8, |mask, rail| mask | 1 << rail.index);
        let plan = &self.connections[side.connection].plan;
        let mut state = self.world.lock();
        let now_ns = state.now_ns;
        state.record(Kind::Up, side.who(), [u64::from(usable), 0, 0, 0]);
        let receiving: Vec<bool> = self.processes[plan.to]
            .domains
            .iter()
            .map(|domain| railweave_fabric::Domain::byte_counts(&**domain))
            .collect();
        let known = state.watch.connections[side.connection].wire.usable;
        if known != 0 && known != usable {
            let text = format!("{}: usable rails are {usable:#b} here, {known:#b} at the peer", side.who());
            state.watch.violate(now_ns, Checker::Wire, text);
        }
        let wire = &mut state.watch.connections[side.connection].wire;
        wire.rails = plan.pairs.len() as u32;
        wire.usable = usable;
        wire.lanes = [plan.lanes.0.min(plan.lanes.1); 8];
        wire.striped = plan.striped;
        wire.byte_counts = receiving.iter().all(|counts| *counts);
        wire.adaptive_above = plan.adaptive_above;
    }

    /// Closes an end, whatever it is doing.
    pub(super) fn handle_close(&mut self, side: Side, early: bool) {
        let connection = side.connection;
        let state_ns = self.now_ns();
        if self.processes[self.process_of(side)].dead || self.is_closed(side) {
            return;
        }
        let unfinished = !self.is_finished(side);
        let mut state = self.world.lock();
        state.watch.connections[connection].discards |= !side.sender && !ONE_SIDED;
        state.record(Kind::Close, side.who(), [0; 4]);
        if unfinished {
            state.watch.harm(state_ns, connection, "an end was closed although there was more to do");
            if early {
                state.saw(Seen::ClosedEarly);
            }
        }
        drop(state);
        self.send(connection, !side.sender, Message::Bye);
        let memory_first = self.chance.permille(500);
        let session = &mut self.connections[connection];
        let lingers = if side.sender {
            match std::mem::replace(&mut session.sender.stage, Stage::Over) {
                Stage::Up(mut made, app) => {
                    let kept = if memory_first { None } else { Some(app) };
                    made.start_linger();
                    drop(kept);
                    session.sender.stage = Stage::Lingering(made);
                    true
                }
                _ => false,
            }
        } else {
            match std::mem::replace(&mut session.receiver.stage, Stage::Over) {
                Stage::Up(mut made, app) => {
                    let kept = if memory_first { None } else { Some(app) };
                    made.start_linger();
                    drop(kept);
                    session.receiver.stage = Stage::Lingering(made);
                    true
                }
                _ => false,
            }
        };
        let deadline_ns = state_ns + LINGER_LIMIT_NS;
        self.connections[connection].linger_until_ns[usize::from(side.sender)] = deadline_ns;
        if lingers {
            self.handle_linger(side);
        } else {
            self.over(side);
        }
    }

    pub(super) fn handle_linger(&mut self, side: Side) {
        let session = &mut self.connections[side.connection];
        let (drained, said) = match (side.sender, &mut session.sender.stage, &mut session.receiver.stage) {
            (true, Stage::Lingering(made), _) => (made.linger(), session.sender.peer_said_bye),
            (false, _, Stage::Lingering(made)) => (made.linger(), session.receiver.peer_said_bye),
            _ => return,
        };
        let said = said || session.session_over;
        let late = session.linger_until_ns[usize::from(side.sender)] <= self.now_ns();
        if drained && said || late {
            self.over(side);
        } else {
            let task = Task::Linger { connection: side.connection, sender: side.sender };
            self.world.lock().later(LINGER_STEP_NS, task);
        }
    }

    pub(super) fn handle_lose(&mut self, side: Side) {
        let session = &self.connections[side.connection];
        let link = match (side.sender, &session.sender.stage, &session.receiver.stage) {
            (true, Stage::Up(made, _), _) => made.link(),
            (false, _, Stage::Up(made, _)) => made.link(),
            _ => return,
        };
        link.set_lost(Error::peer("the peer is gone: its session is over"));
        self.world.lock().record(Kind::LinkLost, side.who(), [0; 4]);
    }

    /// The session is over for both ends: nothing is said on it any more.
    pub(super) fn end_session(&mut self, connection: usize) {
        self.connections[connection].session_over = true;
        let mut state = self.world.lock();
        let detect_ns = state.faults.detect_ns;
        for sender in [true, false] {
            let at_ns = state.chance.below(detect_ns + 1);
            state.later(at_ns, Task::SessionOver { connection, sender });
        }
    }

    pub(super) fn handle_session_over(&mut self, side: Side) {
        let connection = side.connection;
        if self.processes[self.process_of(side)].dead {
            return;
        }
        let session = &self.connections[connection];
        let stage = if side.sender { session.sender.stage.name() } else { session.receiver.stage.name() };
        match stage {
            "up" => self.lose_later(connection, side.sender),
            "handshake" | "waiting" => {
                self.world.lock().record(Kind::Over, side.who(), [1, 0, 0, 0]);
                self.world.lock().saw(Seen::Refused);
                self.over(side);
            }
            _ => {}
        }
    }
}
