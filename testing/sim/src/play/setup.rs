//! Set-up and closing of a connection: the handshakes of its ends over a session, and how an end is brought up, closed
//! and lost.

use std::net::Ipv6Addr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use railweave_fabric::{Fault, LinkLayer, MemoryKind, RailSet};
use railweave_fabric_sim::Opening;
use railweave_transport::{
    AcceptPairing, Acceptor, Action, ConnectionConfig, ConnectionEnd, Connector, Error, Event, Handshake,
    HandshakePort, MakesConnection, Message, Offer, PortOffer, RailInfo, RecvConnection, SendConnection, Session,
    Token,
};

use super::comm::Comm;
use super::game::{Game, Side};
use super::habits::Kinds;
use super::memory::Memory;
use super::net::Net;
use super::receiver::RecvApp;
use super::sender::SendApp;
use super::stage::Stage;
use crate::history::Kind;
use crate::sabotage::{Sabotage, SaboteurDomain};
use crate::task::Task;
use crate::watch::{SetUp, Split, Strike};
use crate::witness::{Note, SimDomain};
use crate::{Checker, Seen};

/// A deadline before this one may be missed by a set-up in which nothing fails.
const SHORT_DEADLINE_NS: u64 = 50_000_000;

impl<const ONE_SIDED: bool> Game<ONE_SIDED> {
    fn config(&self, connection: usize) -> ConnectionConfig {
        let plan = &self.connections[connection].plan;
        ConnectionConfig {
            split_min: self.plot.split_min(plan.split_min),
            striped: plan.striped,
            adaptive_routing_above: plan.adaptive_above,
            traffic_class: None,
            first_number: self.faults.first_number,
        }
    }

    /// Returns the ports of a process, as one end of a connection offers them.
    fn ports(&self, process: usize, connection: usize, sender: bool) -> Vec<HandshakePort<Net<ONE_SIDED>>> {
        let plan = &self.connections[connection].plan;
        let lanes = if sender { plan.lanes.0 } else { plan.lanes.1 };
        let port = |(index, domain): (usize, &Arc<SimDomain<ONE_SIDED>>)| HandshakePort {
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
            domain: SaboteurDomain::new(domain, &self.plot),
            weight: self.plot.weight(sender, plan.weights[index]),
        };
        self.processes[process].domains.iter().enumerate().map(port).collect()
    }

    /// Begins the connector's handshake of a connection, whose session is up.
    pub(super) fn begin_connecting(&mut self, connection: usize) {
        let plan = &self.connections[connection].plan;
        let (from, deadline_ns) = (plan.from, self.now_ns() + plan.deadline_ns);
        let ports = self.ports(from, connection, true);
        let (config, nonce) = (self.config(connection), connection as u64);
        let connector =
            Connector::new(config, ports, nonce, format!("c{connection}r"), deadline_ns, self.plot.counters());
        let end = &mut self.connections[connection].sender;
        (end.stage, end.deadline_ns) = (Stage::Handshake(connector), deadline_ns);
        self.world.lock().at(deadline_ns, Task::Deadline { connection, sender: true });
        self.drive_connector(connection);
    }

    fn send(&mut self, side: Side, message: Message) {
        self.tell(side, |session, number, _| session.send(number, message));
    }

    /// Returns the handshake of an end, while it has one.
    pub(super) fn handshake(&mut self, side: Side) -> Option<&mut dyn Handshake> {
        let pair = &mut self.connections[side.connection];
        match (side.sender, &mut pair.sender.stage, &mut pair.receiver.stage) {
            (true, Stage::Handshake(connector), _) => Some(connector),
            (false, _, Stage::Handshake(acceptor)) => Some(acceptor),
            _ => None,
        }
    }

    /// Carries out the actions of an end's handshake.
    fn drive_handshake(&mut self, side: Side) {
        if side.sender { self.drive_connector(side.connection) } else { self.drive_acceptor(side.connection) }
    }

    /// Handles a message for the handshake of an end.
    pub(super) fn handle_message(&mut self, side: Side, message: Message) {
        if !self.keeps(side, &message) {
            self.deliver(side, message);
        }
    }

    /// Passes a message to the handshake of an end.
    pub(super) fn deliver(&mut self, side: Side, message: Message) {
        self.opening(side.connection, side.sender);
        if let Some(handshake) = self.handshake(side) {
            handshake.handle_message(message);
            self.drive_handshake(side);
        }
    }

    /// Drops an end whose session has ended while it was not up yet; leaves other ends alone.
    pub(super) fn interrupted(&mut self, side: Side) {
        let pair = &self.connections[side.connection];
        let stage = if side.sender { pair.sender.stage.name() } else { pair.receiver.stage.name() };
        if matches!(stage, "handshake" | "waiting") {
            let mut state = self.world.lock();
            state.record(Kind::Over, side.who(), [1, 0, 0, 0]);
            state.saw(Seen::Refused);
            let blame = &state.observer.watch.connections[side.connection].blame;
            let is_due = blame.may_interrupt(side.sender);
            drop(state);
            if !is_due {
                let text = format!("{}: its session ended during set-up", side.who());
                self.violate(Checker::Errors, text);
            }
            self.strike(side.connection, &[!side.sender], Strike::PeerFailed);
            self.over(side);
        }
    }

    /// Notes, for the observer and the saboteur, that the rails of an end are opened next.
    fn opening(&mut self, connection: usize, sender: bool) {
        self.world.lock().opening = Some(Opening { connection, sender, next_rail: 0 });
        self.plot.opening(self.connections[connection].plan.pairs.len());
    }

    pub(super) fn handle_offer(&mut self, connection: usize, offer: &Offer) {
        let side = Side { connection, sender: false };
        if !matches!(self.connections[connection].receiver.stage, Stage::Waiting) {
            let reason = "there is no such listener".to_owned();
            return self.tell(side, |session, number, now_ns| session.refuse(number, Fault::Protocol, reason, now_ns));
        }
        self.tell(side, Session::accept_offer);
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
            self.plot.counters(),
        );
        let end = &mut self.connections[connection].receiver;
        (end.stage, end.deadline_ns) = (Stage::Handshake(acceptor), deadline_ns);
        self.world.lock().at(deadline_ns, Task::Deadline { connection, sender: false });
        self.drive_acceptor(connection);
    }

    /// Retries connecting the rails of an end in set-up.
    pub(super) fn handle_go_on(&mut self, side: Side) {
        if self.processes[self.process_of(side)].dead || self.is_blocked(side) {
            return;
        }
        self.opening(side.connection, side.sender);
        if let Some(handshake) = self.handshake(side).filter(|handshake| handshake.pause().is_some()) {
            handshake.go_on();
            self.drive_handshake(side);
        }
    }

    /// Schedules a retry for a handshake that could not connect all of its rails, after its pause.
    fn go_on_later(&mut self, connection: usize, sender: bool, pause: Option<Duration>) {
        if let Some(pause) = pause {
            self.world.lock().later(pause.as_nanos() as u64, Task::GoOn { connection, sender });
        }
    }

    pub(super) fn handle_deadline(&mut self, side: Side) {
        let now_ns = self.now_ns();
        if self.is_blocked(side) {
            return;
        }
        let is_due = |handshake: &&mut dyn Handshake| handshake.timeout_ns().is_some_and(|at_ns| at_ns <= now_ns);
        if let Some(handshake) = self.handshake(side).filter(is_due) {
            handshake.handle_timeout(now_ns);
            self.world.lock().saw(Seen::TimedOut);
            self.drive_handshake(side);
        }
    }

    fn drive_connector(&mut self, connection: usize) {
        loop {
            let end = &mut self.connections[connection].sender;
            let Stage::Handshake(connector) = &mut end.stage else { return };
            take_events(connector, &mut end.left_out);
            let Some(action) = connector.poll_action() else {
                let pause = connector.pause();
                return self.go_on_later(connection, true, pause);
            };
            match action {
                Action::Send(message) => self.send(Side { connection, sender: true }, message),
                Action::Dial(_) => self.violate(Checker::Wire, "the connector dials, but no lane is a socket".into()),
                Action::Failed(error) => self.set_up_failed(Side { connection, sender: true }, &error, false),
                Action::Ready(made) => self.sender_up(connection, *made),
            }
        }
    }

    fn drive_acceptor(&mut self, connection: usize) {
        loop {
            let end = &mut self.connections[connection].receiver;
            let Stage::Handshake(acceptor) = &mut end.stage else { return };
            take_events(acceptor, &mut end.left_out);
            let Some(action) = acceptor.poll_action() else {
                let pause = acceptor.pause();
                return self.go_on_later(connection, false, pause);
            };
            match action {
                Action::Send(message) => self.send(Side { connection, sender: false }, message),
                Action::Dial(_) => self.violate(Checker::Wire, "the acceptor dials".into()),
                Action::Failed(error) => self.set_up_failed(Side { connection, sender: false }, &error, false),
                Action::Ready(made) => self.receiver_up(connection, *made),
            }
        }
    }

    /// Handles the failure of an end's set-up. `has_failed_dial` is true if a dial has failed for it.
    pub(super) fn set_up_failed(&mut self, side: Side, error: &Error, has_failed_dial: bool) {
        let Side { connection, sender } = side;
        let mut state = self.world.lock();
        state.record(Kind::Over, side.who(), [0; 4]);
        state.observer.history.remark(&error.to_string());
        state.saw(Seen::Refused);
        let pair = &self.connections[connection];
        let deadline_ns = if sender { pair.sender.deadline_ns } else { pair.receiver.deadline_ns };
        let missed = deadline_ns <= state.now_ns;
        let set_up = SetUp {
            has_failed_dial,
            missed,
            missed_short: missed && pair.plan.deadline_ns < SHORT_DEADLINE_NS,
            planned: RailSet::first_of(pair.plan.pairs.len()).bits(),
        };
        let judged = state.observer.watch.connections[connection].blame.judge_set_up(sender, error, set_up);
        drop(state);
        if let Err((checker, text)) = judged {
            self.violate(checker, format!("{}: {text}", side.who()));
        }
        if error.to_string().len() < 10 {
            self.violate(Checker::Errors, format!("{}: an error without a text: {:?}", side.who(), error));
        }
        self.strike(connection, &[!sender], Strike::PeerFailed);
        self.over(side);
        self.tell(side, Session::failed);
    }

    /// Returns an end that is up, as the threads of its process hold it.
    fn comm<E: ConnectionEnd>(&self, side: Side, made: E) -> Rc<Comm<E, ONE_SIDED>> {
        Comm::new(made, side.who(), &self.processes[self.process_of(side)].threads)
    }

    fn memory(&mut self, side: Side, kind: MemoryKind) -> Memory<ONE_SIDED> {
        let plan = &self.connections[side.connection].plan;
        let process = &mut self.processes[if side.sender { plan.from } else { plan.to }];
        let number = side.connection * 2 + usize::from(side.sender);
        let kinds = if plan.habits.mixes_kinds { Kinds::Mixed } else { Kinds::Only(kind) };
        let free = match process.shared.upgrade() {
            Some(shared) if plan.habits.shares_buffers => shared,
            _ => Arc::default(),
        };
        if plan.habits.shares_buffers {
            process.shared = Arc::downgrade(&free);
        }
        Memory::new(&self.world, &process.domains, side.who(), (number, kinds), free)
    }

    fn sender_up(&mut self, connection: usize, made: SendConnection<Net<ONE_SIDED>>) {
        let side = Side { connection, sender: true };
        let rails = made.rails();
        self.bind(side, &rails);
        let memory = self.memory(side, MemoryKind::Host);
        let app = SendApp::new(&self.connections[connection].plan, memory, rails);
        self.connections[connection].sender.stage = Stage::Up(self.comm(side, made), Box::new(app));
        self.tell(side, |session, number, now_ns| {
            assert!(session.opened(number, now_ns), "it was being set up");
        });
        self.apply_failures(side);
        self.wake(self.connections[connection].plan.from);
    }

    fn receiver_up(&mut self, connection: usize, made: RecvConnection<Net<ONE_SIDED>>) {
        let side = Side { connection, sender: false };
        let rails = made.rails();
        self.bind(side, &rails);
        let kind = if self.connections[connection].plan.cuda { MemoryKind::Cuda } else { MemoryKind::Host };
        let memory = self.memory(side, kind);
        let app = RecvApp::new(&self.connections[connection].plan, memory, rails);
        self.connections[connection].receiver.stage = Stage::Up(self.comm(side, made), Box::new(app));
        self.tell(side, |session, number, now_ns| {
            assert!(session.opened(number, now_ns), "it was being set up");
        });
        self.apply_failures(side);
        self.wake(self.connections[connection].plan.to);
    }

    /// Tells the checkers the result of an end's handshake, and checks what both ends must agree on.
    fn bind(&mut self, side: Side, rails: &[RailInfo]) {
        let usable = rails.iter().fold(0u8, |mask, rail| mask | 1 << rail.index);
        let plan = &self.connections[side.connection].plan;
        let pair = &self.connections[side.connection];
        let left_out = self.plot.left_out(if side.sender { pair.sender.left_out } else { pair.receiver.left_out });
        let planned = RailSet::first_of(plan.pairs.len()).bits();
        if usable ^ planned != left_out.bits() {
            let text = format!("{}: it lacks rails {:#b}, but reported {left_out:#b}", side.who(), usable ^ planned);
            self.violate(Checker::Errors, text);
        }
        let mut state = self.world.lock();
        let now_ns = state.now_ns;
        state.record(Kind::Up, side.who(), [u64::from(usable), 0, 0, 0]);
        let receiving: Vec<bool> = self.processes[plan.to]
            .domains
            .iter()
            .map(|domain| railweave_fabric::Domain::byte_counts(&**domain))
            .collect();
        if self.sessions.keys_differ(plan.from, plan.to) {
            let text = format!("{}: it is up, but the keys of its processes differ", side.who());
            state.observer.watch.violate(now_ns, Checker::Errors, text);
        }
        let known = state.observer.watch.connections[side.connection].wire.usable;
        if known != 0 && known != usable {
            let text = format!("{}: usable rails are {usable:#b} here, but {known:#b} at the peer", side.who());
            state.observer.watch.violate(now_ns, Checker::Wire, text);
        }
        let blame = &state.observer.watch.connections[side.connection].blame;
        // Rails of a peer that is gone cannot be connected; others may not be connected by the deadline.
        let is_excused = blame.may_never_begin(side.sender)
            || pair.sender.deadline_ns <= now_ns
            || pair.receiver.deadline_ns <= now_ns;
        let unopened = blame.unopened();
        if planned & !usable & !unopened != 0 && !is_excused {
            let text = format!("{}: its rails are {usable:#b}, but only {unopened:#b} did not open", side.who());
            state.observer.watch.violate(now_ns, Checker::Errors, text);
        }
        let wire = &mut state.observer.watch.connections[side.connection].wire;
        wire.rails = plan.pairs.len() as u32;
        wire.usable = usable;
        wire.lanes = [plan.lanes.0.min(plan.lanes.1); 8];
        wire.striped = plan.striped;
        wire.byte_counts = receiving.iter().all(|counts| *counts);
        wire.adaptive_above = plan.adaptive_above;
        let split = Split::new(plan.rail_weights(side.sender), usable, plan.split_min);
        let watched = &mut state.observer.watch.connections[side.connection];
        if side.sender {
            watched.split = split;
        } else {
            watched.cts_rails = split.cts_rails();
        }
    }

    /// Closes an end, whatever its stage, unless its process is dead or it is closed already. `early` is true for a
    /// close that the plan makes before everything is done.
    pub(super) fn handle_close(&mut self, side: Side, early: bool) {
        let connection = side.connection;
        let now_ns = self.now_ns();
        if self.processes[self.process_of(side)].dead || self.is_closed(side) {
            return;
        }
        let unfinished = !self.is_finished(side);
        let mut state = self.world.lock();
        state.observer.watch.connections[connection].discards |= !side.sender && !ONE_SIDED;
        state.record(Kind::Close, side.who(), [0; 4]);
        if unfinished {
            state.observer.watch.strike(now_ns, connection, !side.sender, Strike::PeerClosed);
            if early {
                state.saw(Seen::ClosedEarly);
            }
        }
        drop(state);
        if !unfinished {
            self.check_finished(side);
        }
        let memory_first = self.chance.permille(500);
        let pair = &mut self.connections[connection];
        let was_up =
            if side.sender { pair.sender.stage.close(memory_first) } else { pair.receiver.stage.close(memory_first) };
        if was_up {
            let late_ns = self.faults.close_late_ns;
            let wait_ns = if late_ns > 0 { self.chance.below(late_ns) } else { 0 };
            let at_ns = self.processes[self.process_of(side)].threads.closes_at_ns(now_ns, wait_ns);
            let mut state = self.world.lock();
            if wait_ns > 0 {
                state.saw(Seen::CloseLate);
            }
            return state.at(at_ns, Task::Closed { connection, sender: side.sender });
        }
        self.over(side);
        self.wait_no_more(connection);
        self.tell(side, |session, number, now_ns| {
            session.send(number, Message::Bye);
            session.failed(number, now_ns);
        });
    }

    /// Lets the control thread handle a close: the end lingers from now on, and its peer is told.
    pub(super) fn handle_closed(&mut self, side: Side) {
        let pair = &mut self.connections[side.connection];
        let lingers = if side.sender { pair.sender.stage.linger() } else { pair.receiver.stage.linger() };
        if lingers {
            self.tell(side, |session, number, now_ns| {
                assert!(session.close(number, now_ns), "it was open");
            });
        }
    }

    /// Checks an end that is closed after everything is done.
    fn check_finished(&self, side: Side) {
        let pair = &self.connections[side.connection];
        let rails = match (side.sender, &pair.sender.stage, &pair.receiver.stage) {
            (true, Stage::Up(comm, _), _) => comm.rails(),
            (false, _, Stage::Up(comm, _)) => comm.rails(),
            _ => return,
        };
        let mut state = self.world.lock();
        let now_ns = state.now_ns;
        state.observer.watch.finished(now_ns, side.connection, side.sender, &rails);
    }

    /// Handles the report of an end's session that the connection is lost: sets the connection's `Fate`.
    pub(super) fn lose(&mut self, side: Side, error: Error) {
        let pair = &self.connections[side.connection];
        let fate = match (side.sender, &pair.sender.stage, &pair.receiver.stage) {
            (true, Stage::Up(comm, _), _) => comm.fate(),
            (false, _, Stage::Up(comm, _)) => comm.fate(),
            _ => None,
        };
        let Some(fate) = fate else { return };
        if self.plot.is(Sabotage::LossEndsFlush) {
            fate.set_failed(error);
        } else if self.plot.is(Sabotage::LossUnexplained) {
            fate.set_lost(Error::peer(""));
        } else if !self.plot.is(Sabotage::LossIgnored) {
            fate.set_lost(error);
        }
        self.world.lock().record(Kind::ConnectionLost, side.who(), [0; 4]);
    }

    /// Lets a closed end linger on. Returns true once it has sent everything.
    pub(super) fn linger(&mut self, side: Side) -> bool {
        let pair = &mut self.connections[side.connection];
        match (side.sender, &mut pair.sender.stage, &mut pair.receiver.stage) {
            (true, Stage::Lingering(made), _) => made.linger(),
            (false, _, Stage::Lingering(made)) => made.linger(),
            _ => true,
        }
    }
}

/// Takes a handshake's events: it must report each rail that it leaves out once.
fn take_events(handshake: &mut impl Handshake, left_out: &mut RailSet) {
    while let Some(event) = handshake.poll_event() {
        let Event::RailLeftOut { rail, .. } = event else { panic!("{event:?} is no event of a handshake") };
        assert!(!left_out.contains(rail), "rail {rail} is left out once");
        left_out.insert(rail);
    }
}
