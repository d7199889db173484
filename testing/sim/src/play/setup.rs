//! Set-up and closing of a connection: the handshakes of its ends over a session, and how an end is brought up, closed
//! and lost.

use std::net::Ipv6Addr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use railweave_fabric::{Fault, LinkLayer, MAX_RAILS, MemoryKind, RailSet, Step};
use railweave_fabric_sim::Opening;
use railweave_transport::progress::Progress;
use railweave_transport::{
    AcceptPairing, Acceptor, Action, ConnectionConfig, ConnectionEnd, Connector, Error, Event, Handshake,
    HandshakePort, MakesConnection, Message, Offer, PortOffer, RailInfo, RecvConnection, SendConnection, Session,
    Side as SessionSide, Token,
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
use crate::watch::{SetUp, Strike};
use crate::witness::{Note, SimDomain};
use crate::{Checker, Seen};

/// A deadline before this one may be missed by a set-up in which nothing fails.
pub(super) const SHORT_DEADLINE_NS: u64 = 50_000_000;

/// The time that the first packets of a rail have.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);

/// The pause before a rail is brought up again, and the time for which a connection waits for one, which is longer than
/// any silence of a port and the pauses that follow.
const RAIL_PAUSE: Duration = Duration::from_micros(200);
pub(super) const OUTAGE: Duration = Duration::from_millis(600);

impl<const ONE_SIDED: bool> Game<ONE_SIDED> {
    fn config(&self, connection: usize) -> ConnectionConfig {
        let plan = &self.connections[connection].plan;
        ConnectionConfig {
            split_min: self.plot.split_min(plan.split_min),
            policy: plan.policy,
            striped: plan.striped,
            adaptive_routing_above: plan.adaptive_above,
            traffic_class: None,
            first_number: self.faults.first_number,
            probe_timeout: PROBE_TIMEOUT,
            rail_timeout: Duration::from_nanos(self.faults.rail_timeout_ns),
            recovers: self.faults.recovers,
            outage: OUTAGE,
            rail_pause: RAIL_PAUSE,
        }
    }

    /// Returns the ports of a process, as one end of a connection offers them.
    fn ports(&self, process: usize, connection: usize, sender: bool) -> Vec<HandshakePort<Net<ONE_SIDED>>> {
        let plan = &self.connections[connection].plan;
        let lanes = if sender { &plan.lanes.0 } else { &plan.lanes.1 };
        let port = |(index, domain): (usize, &Arc<SimDomain<ONE_SIDED>>)| HandshakePort {
            offer: PortOffer {
                link_layer: LinkLayer::InfiniBand,
                prefix_len: 64,
                lanes: lanes[index],
                speed_mbps: plan.speeds[index],
                mtu: 4096,
                rail_id: -1,
                plane_id: -1,
                address: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, process as u16, index as u16),
            },
            domain: SaboteurDomain::new(domain, &self.plot),
            weight: self.plot.weight(sender, index, plan.weights[index]),
            fixed: None,
        };
        self.processes[process].domains.iter().enumerate().map(port).collect()
    }

    /// Begins the connector's handshake of a connection, whose session is up.
    pub(super) fn begin_connecting(&mut self, connection: usize) {
        let plan = &self.connections[connection].plan;
        let (from, timeout_ns, now_ns) = (plan.from, plan.deadline_ns, self.now_ns());
        let deadline_ns = now_ns + timeout_ns;
        let ports = self.ports(from, connection, true);
        let (config, nonce) = (self.config(connection), connection as u64);
        let connector =
            Connector::new(config, ports, nonce, format!("c{connection}r"), deadline_ns, self.plot.counters());
        let progress = Progress::new(SessionSide::Opener, connector.may_block(), timeout_ns, now_ns);
        self.connections[connection].sender.stage = Stage::Handshake(connector, progress);
        self.begin_set_up(Side { connection, sender: true });
    }

    fn send(&mut self, side: Side, message: Message) {
        self.tell(side, |session, number, _| session.send(number, message));
    }

    /// Begins the set-up of an end whose handshake has just been made.
    fn begin_set_up(&mut self, side: Side) {
        self.restart_time(side);
        self.drive_handshake(side);
        self.schedule_set_up(side);
    }

    /// Carries out the actions of an end's handshake.
    pub(super) fn drive_handshake(&mut self, side: Side) {
        if side.sender { self.drive_connector(side.connection) } else { self.drive_acceptor(side.connection) }
    }

    /// Notes, for the observer and the saboteur, that the rails of an end are opened next.
    pub(super) fn opening(&mut self, connection: usize, sender: bool) {
        self.world.lock().opening = Some(Opening { connection, sender, next_rail: 0 });
        self.plot.opening(self.connections[connection].plan.pairs.len());
    }

    /// Begins the acceptor's handshake of a connection, which has this deadline, or refuses the offer.
    pub(super) fn handle_offer(&mut self, connection: usize, offer: &Offer, deadline_ns: u64) {
        let side = Side { connection, sender: false };
        if !matches!(self.connections[connection].receiver.stage, Stage::Waiting) {
            let reason = "there is no such listener".to_owned();
            return self.tell(side, |session, number, now_ns| session.refuse(number, Fault::Protocol, reason, now_ns));
        }
        self.tell(side, Session::accept_offer);
        let plan = &self.connections[connection].plan;
        let (to, timeout_ns, now_ns) = (plan.to, plan.deadline_ns, self.now_ns());
        let pairings: Vec<AcceptPairing> =
            plan.pairs.iter().map(|pair| AcceptPairing { connector_port: pair.0, acceptor_port: pair.1 }).collect();
        let ports = self.ports(to, connection, false);
        let pairings = match &pairings[..] {
            [] => Err("No local NIC found".to_owned()),
            pairings => Ok((Step::default(), pairings)),
        };
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
        let progress = Progress::new(SessionSide::Acceptor, acceptor.may_block(), timeout_ns, now_ns);
        self.connections[connection].receiver.stage = Stage::Handshake(acceptor, progress);
        self.begin_set_up(side);
        // An offer that has waited has waited since its last WAIT.
        self.connections[connection].receiver.step_since_ns = deadline_ns - timeout_ns;
    }

    fn drive_connector(&mut self, connection: usize) {
        loop {
            let end = &mut self.connections[connection].sender;
            let Stage::Handshake(connector, _) = &mut end.stage else { return };
            take_events(connector, &mut end.left_out);
            let Some(action) = connector.poll_action() else { return };
            match action {
                Action::Send(message) => self.send(Side { connection, sender: true }, message),
                Action::Dial(_) => unreachable!("no lane is a socket"),
                Action::Failed(error) => self.set_up_failed(Side { connection, sender: true }, &error, false),
                Action::Ready(made) => self.sender_up(connection, *made),
            }
        }
    }

    fn drive_acceptor(&mut self, connection: usize) {
        loop {
            let end = &mut self.connections[connection].receiver;
            let Stage::Handshake(acceptor, _) = &mut end.stage else { return };
            take_events(acceptor, &mut end.left_out);
            let Some(action) = acceptor.poll_action() else { return };
            match action {
                Action::Send(message) => self.send(Side { connection, sender: false }, message),
                Action::Dial(_) => unreachable!("no lane is a socket"),
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
        let [mut missed, mut peer_missed] = [pair.sender.missed, pair.receiver.missed];
        if !sender {
            std::mem::swap(&mut missed, &mut peer_missed);
        }
        let is_short = pair.plan.deadline_ns < SHORT_DEADLINE_NS;
        let set_up = SetUp {
            has_failed_dial,
            missed,
            missed_short: missed && is_short,
            peer_missed_short: peer_missed && is_short,
            planned: RailSet::first_of(pair.plan.pairs.len()).bits(),
        };
        let judged = state.observer.watch.connections[connection].blame.judge_set_up(sender, error, set_up);
        drop(state);
        if let Err((checker, text)) = judged {
            self.violate(checker, format!("{}: {text}", side.who()));
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
        let end = &mut self.connections[connection].sender;
        end.recovery.listen(made.fate());
        let Stage::Handshake(_, progress) = std::mem::replace(&mut end.stage, Stage::Over) else { return };
        if end.unwanted {
            end.stage = Stage::Closing(Box::new(made), None);
        } else {
            let memory = self.memory(side, MemoryKind::Host);
            let app = SendApp::new(&self.connections[connection].plan, memory, rails);
            self.connections[connection].sender.stage = Stage::Up(self.comm(side, made), Box::new(app));
        }
        self.opened(side, progress);
    }

    fn receiver_up(&mut self, connection: usize, made: RecvConnection<Net<ONE_SIDED>>) {
        let side = Side { connection, sender: false };
        let rails = made.rails();
        self.bind(side, &rails);
        let end = &mut self.connections[connection].receiver;
        end.recovery.listen(made.fate());
        let Stage::Handshake(_, progress) = std::mem::replace(&mut end.stage, Stage::Over) else { return };
        if end.unwanted {
            end.stage = Stage::Closing(Box::new(made), None);
        } else {
            let kind = if self.connections[connection].plan.cuda { MemoryKind::Cuda } else { MemoryKind::Host };
            let memory = self.memory(side, kind);
            let app = RecvApp::new(&self.connections[connection].plan, memory, rails);
            self.connections[connection].receiver.stage = Stage::Up(self.comm(side, made), Box::new(app));
        }
        self.opened(side, progress);
    }

    /// Tells the session of an end that its set-up has made a connection. If its application has given it up, the
    /// control thread closes it.
    fn opened(&mut self, side: Side, progress: Progress) {
        self.tell(side, |session, number, now_ns| {
            assert!(session.opened(number, now_ns), "it was being set up");
        });
        if progress.orphaned().is_some() {
            self.world.lock().saw(Seen::CameUpLate);
            self.strike(side.connection, &[true, false], Strike::CameUpLate);
            if side.sender {
                self.violate(Checker::Errors, format!("{}: it is up, but no peer is left for READY", side.who()));
            }
        }
        let pair = &self.connections[side.connection];
        if if side.sender { pair.sender.unwanted } else { pair.receiver.unwanted } {
            self.world.lock().saw(Seen::CameUpUnwanted);
            self.note_discards(side);
            self.strike(side.connection, &[!side.sender], Strike::PeerClosed);
            self.handle_closed(side);
        } else {
            self.apply_failures(side);
            self.wake(self.process_of(side));
            self.listen_again(side, self.faults.rail_timeout_ns);
        }
        for message in progress.into_kept() {
            self.tell(side, |session, number, now_ns| session.handle_message(number, message, now_ns));
        }
    }

    /// Notes that a closed receiving end discards what arrives, over a two-sided fabric.
    fn note_discards(&self, side: Side) {
        self.world.lock().observer.watch.connections[side.connection].discards |= !side.sender && !ONE_SIDED;
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
        state.observer.watch.connections[side.connection].is_up[usize::from(side.sender)] = true;
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
        let is_excused = blame.may_never_begin(side.sender) || pair.sender.missed || pair.receiver.missed;
        let lost = blame.lost_rails();
        if planned & !usable & !lost != 0 && !is_excused {
            let text = format!("{}: its rails are {usable:#b}, but only {lost:#b} did not open or died", side.who());
            state.observer.watch.violate(now_ns, Checker::Errors, text);
        }
        let wire = &mut state.observer.watch.connections[side.connection].wire;
        wire.rails = plan.pairs.len() as u32;
        wire.usable = usable;
        for (lanes, pair) in wire.lanes.iter_mut().zip(&plan.pairs) {
            *lanes = plan.lanes.0[usize::from(pair.0)].min(plan.lanes.1[usize::from(pair.1)]);
        }
        wire.striped = plan.striped;
        wire.byte_counts = receiving.iter().all(|counts| *counts);
        wire.adaptive_above = plan.adaptive_above;
        let rules = plan.rules(side.sender, plan.policy, [0; MAX_RAILS], usable);
        let watched = &mut state.observer.watch.connections[side.connection];
        if side.sender {
            watched.splits = vec![rules];
        } else {
            watched.cts_rails = rules.cts_rails();
        }
        drop(state);
        self.schedule_orders(side);
    }

    /// Closes an end for its application, whatever its stage, unless its process is dead or it is closed already. As in
    /// the plugin, a set-up in progress goes on, and its connection is closed once it is up. `early` is true if the
    /// plan closes it before everything is done.
    pub(super) fn handle_close(&mut self, side: Side, early: bool) {
        let connection = side.connection;
        let now_ns = self.now_ns();
        if self.processes[self.process_of(side)].dead || self.is_closed(side) {
            return;
        }
        let is_begun = self.set_up(side).is_some() || side.sender && self.waits_for_session(connection);
        let pair = &mut self.connections[connection];
        let unwanted = if side.sender { &mut pair.sender.unwanted } else { &mut pair.receiver.unwanted };
        if is_begun {
            if !std::mem::replace(unwanted, true) {
                let mut state = self.world.lock();
                state.record(Kind::Close, side.who(), [0; 4]);
                if early {
                    state.saw(Seen::ClosedEarly);
                }
            }
            return;
        }
        let unfinished = !self.is_finished(side);
        self.note_discards(side);
        let mut state = self.world.lock();
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
        // There is no connect yet, or the listener is closed and refuses offers from now on.
        self.over(side);
    }

    /// Lets the control thread handle a close: the end lingers from now on, and its peer is told.
    pub(super) fn handle_closed(&mut self, side: Side) {
        let pair = &mut self.connections[side.connection];
        let (sender, receiver) = (&mut pair.sender, &mut pair.receiver);
        let Some((end, number)) = (if side.sender { sender.route } else { receiver.route }) else { return };
        let (now_ns, session) = (self.world.lock().now_ns, &mut self.sessions.ends[end].protocol);
        match side.sender {
            true => sender.stage.begin_linger(session, number, now_ns),
            false => receiver.stage.begin_linger(session, number, now_ns),
        }
        self.drive(end);
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
        let Some(fate) = self.fate(side) else { return };
        if self.plot.is(Sabotage::LossEndsFlush) {
            fate.set_failed(error);
        } else if self.plot.is(Sabotage::LossUnexplained) {
            fate.set_lost(Error::peer(""));
        } else if !self.plot.is(Sabotage::LossIgnored) {
            fate.set_lost(error);
        }
        self.world.lock().record(Kind::ConnectionLost, side.who(), [0; 4]);
    }

    /// Lets a closed end linger on.
    pub(super) fn linger(&mut self, side: Side) {
        let pair = &mut self.connections[side.connection];
        let (sender, receiver) = (&mut pair.sender, &mut pair.receiver);
        let Some((end, number)) = (if side.sender { sender.route } else { receiver.route }) else { return };
        let (now_ns, session) = (self.world.lock().now_ns, &mut self.sessions.ends[end].protocol);
        match side.sender {
            true => sender.stage.linger(session, number, now_ns),
            false => receiver.stage.linger(session, number, now_ns),
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
