//! A session, without its socket: the control link between two processes, and the connections on it.
//!
//! The process that wants a connection opens the session: it dials the peer's addresses in turn, and both ends say
//! HELLO and, if there is a key, prove that they have it. From then on only the opener begins connections, any number
//! on one session. The session asks a quiet peer if it is still there, ends when no connection uses it, and reports
//! what becomes of its connections when the peer has closed them or is gone.
//!
//! [`Session`] takes frames, the time and reports on its socket, and returns [`SessionAction`]s. The caller does the
//! rest: sockets and bytes, limits for strangers, the handshakes of connections ([`crate::Connector`],
//! [`crate::Acceptor`]), and the ends that they make.
//!
//! # Order of calls
//! 1. [`Session::open`], then [`Session::handle_connected`] once the address of [`SessionAction::Dial`] is connected;
//!    or [`Session::accept`].
//! 2. [`Session::handle_frame`] for each frame, [`Session::handle_all_read`] when the socket has no more for now,
//!    [`Session::handle_lost`] when it has ended, and [`Session::handle_timeout`] at [`Session::timeout_ns`]. While the
//!    session [is away](Session::is_away), it may have a socket, or dial, or wait.
//! 3. After each of these, and after each call about a connection: [`Session::poll_event`] and [`Session::poll_action`]
//!    until they return `None`.
//! 4. A connection goes from [`Session::begin`] or [`SessionAction::Offer`] and [`Session::accept_offer`] to
//!    [`Session::opened`] or [`Session::failed`], and from there to [`Session::close`].
//! 5. The session may be dropped once [`Session::is_over`].
//!
//! Times are in nanoseconds of one clock of the caller's, which never goes back.

mod action;
mod away;
mod config;
mod connections;
mod doubt;
mod ended;
mod greeting;
mod heartbeat;
mod lives;
mod numbered;
mod peer_clock;
mod proof;
mod reach;
mod redial;
mod redials;
mod side;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

pub use self::action::SessionAction;
pub use self::config::SessionConfig;
use self::connections::{Connections, State};
use self::doubt::Away;
pub use self::ended::{
    Ended, Gone, HelloFault, Limit, Lost, LostCause, ResumeFault, SocketEnd, SocketEndKind, Unreachable, Unwelcome,
};
use self::heartbeat::{Beat, Heartbeat};
use self::numbered::Numbered;
pub use self::peer_clock::PeerClock;
use self::proof::Hellos;
pub use self::proof::Prover;
use self::reach::Reach;
use self::redial::Redial;
pub use self::redials::Redials;
pub use self::side::Side;
use crate::{Event, Frame, Hello, Message, ProcessId, Pulse, SessionId};

/// The stage of a session.
#[derive(Debug)]
enum Stage {
    /// The opener waits before it dials again.
    Pausing { until_ns: u64 },
    /// The opener dials.
    Dialling { deadline_ns: u64 },
    /// The peer's HELLO is awaited.
    Hello { deadline_ns: u64, ours: Vec<u8> },
    /// The peer's proof that it has the key is awaited.
    Proof { deadline_ns: u64, hellos: Hellos, theirs: Box<Hello> },
    /// The opener of a session that was away awaits the answer to RESUME.
    Resuming { deadline_ns: u64 },
    /// The acceptor of a session that is away waits for its opener, and looks for its process at this time.
    Waiting { check_ns: u64 },
    /// It dials the opener's control port, to see if its process is there.
    Checking { deadline_ns: u64 },
    /// Connections may be begun.
    Up,
    /// The session ended, for this reason.
    Over(Arc<Ended>),
}

// tidy: Session's methods call each other across files: greeting.rs has the steps before the session is up, away.rs
// those without a socket, lives.rs those of connections; all of them end or go on as this file says.
/// One end of a session: a state machine without I/O.
#[derive(Debug)]
pub struct Session {
    config: Arc<SessionConfig>,
    side: Side,
    wanted: ProcessId,
    address: SocketAddr,
    stage: Stage,
    /// The peer's HELLO, once the session has been up.
    peer: Option<Box<Hello>>,
    /// Its name, once it has been up.
    id: SessionId,
    /// The nonce of this end's last HELLO.
    nonce: [u8; 32],
    reach: Reach,
    redial: Redial,
    /// The next pause of an acceptor that looks for its opener.
    check_pause_ns: u64,
    /// The number of such looks so far, and the address of the last one.
    checks: usize,
    checked_at: IpAddr,
    /// Set while the session has lost its socket and may find another.
    away: Option<Away>,
    /// The number of the last RESUME.
    attempt: u32,
    numbered: Numbered,
    /// The number of the last connection that this end began.
    last_number: u32,
    /// The time at which the last connection ended, or the session last took a step towards having one.
    idle_since_ns: u64,
    /// The number of the peer's last PING, while it has no answer.
    asked: Option<u64>,
    heartbeat: Heartbeat,
    peer_clock: Option<PeerClock>,
    connections: Connections,
    actions: VecDeque<SessionAction>,
    /// There is never more than one: an unwelcome peer ends the session.
    event: Option<Event>,
}

impl Session {
    /// Returns the opener's end of a session to a process that may be found at these addresses, and dials the first.
    pub fn open(
        config: Arc<SessionConfig>,
        wanted: ProcessId,
        addresses: impl IntoIterator<Item = SocketAddr>,
        now_ns: u64,
    ) -> Self {
        let addresses: Vec<SocketAddr> = addresses.into_iter().collect();
        let reach = Reach::new(addresses.iter().copied(), now_ns.saturating_add(config.handshake_ns));
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut session = Self::new(config, Side::Opener, nowhere, reach, Stage::Dialling { deadline_ns: 0 }, now_ns);
        session.wanted = wanted;
        session.learn(addresses);
        session.dial_next(now_ns);
        session
    }

    /// Returns the acceptor's end of a session that a peer at this address has dialled. `nonce` must be freshly random.
    pub fn accept(config: Arc<SessionConfig>, nonce: [u8; 32], address: SocketAddr, now_ns: u64) -> Self {
        let deadline_ns = now_ns.saturating_add(config.handshake_ns);
        let reach = Reach::new([], now_ns);
        let mut session = Self::new(config, Side::Acceptor, address, reach, Stage::Dialling { deadline_ns }, now_ns);
        session.say_hello(nonce, deadline_ns);
        session
    }

    fn new(
        config: Arc<SessionConfig>,
        side: Side,
        address: SocketAddr,
        reach: Reach,
        stage: Stage,
        now_ns: u64,
    ) -> Self {
        Self {
            side,
            wanted: ProcessId::default(),
            address,
            stage,
            peer: None,
            id: SessionId::default(),
            nonce: [0; 32],
            reach,
            redial: Redial::default(),
            check_pause_ns: 0,
            checks: 0,
            checked_at: Ipv4Addr::UNSPECIFIED.into(),
            away: None,
            attempt: 0,
            numbered: Numbered::default(),
            last_number: config.first_connection.wrapping_sub(1),
            idle_since_ns: now_ns,
            asked: None,
            heartbeat: Heartbeat::new(config.peer_timeout_ns, now_ns),
            peer_clock: None,
            connections: Connections::default(),
            actions: VecDeque::new(),
            event: None,
            config,
        }
    }

    /// Returns the next action.
    pub fn poll_action(&mut self) -> Option<SessionAction> {
        let action = self.actions.pop_front();
        if action.is_none() {
            // Most sessions are quiet most of the time, and then keep no memory.
            self.actions = VecDeque::new();
        }
        action
    }

    /// Returns the event, if there is one. Must be called before [`Self::poll_action`], so that the event is logged
    /// before the socket is closed.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.event.take()
    }

    /// Returns the side of this end.
    pub fn side(&self) -> Side {
        self.side
    }

    /// Returns the peer's address: the one that an opener dials, or from which a peer dialled.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns true if connections may be begun.
    pub fn is_up(&self) -> bool {
        matches!(self.stage, Stage::Up)
    }

    /// Returns why the session ended, once it has.
    pub fn ended(&self) -> Option<&Arc<Ended>> {
        match &self.stage {
            Stage::Over(ended) => Some(ended),
            _ => None,
        }
    }

    /// Returns true if the session has ended and nothing of its connections is left.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over { .. }) && self.connections.is_empty() && self.actions.is_empty()
    }

    /// Returns the peer's HELLO, once the session has been up.
    pub fn peer(&self) -> Option<&Hello> {
        self.peer.as_deref()
    }

    /// Returns how much the peer's clock is ahead of this process's, once a PING was answered.
    pub fn peer_clock(&self) -> Option<PeerClock> {
        self.peer_clock
    }

    /// Returns the peer's name, for messages.
    pub fn peer_name(&self) -> String {
        let theirs = match &self.stage {
            Stage::Proof { theirs, .. } => Some(theirs),
            _ => None,
        };
        match self.peer.as_ref().or(theirs) {
            Some(hello) => format!("{} at {}", hello.peer_name(), self.address),
            None => self.address.to_string(),
        }
    }

    /// Returns true if a connection was begun on it, and has not ended for the peer. An offer that waits does not
    /// count.
    pub fn has_connections(&self) -> bool {
        self.connections.are_begun()
    }

    /// Returns the time, in nanoseconds, from which the session counts as idle if it has no connection.
    pub fn idle_since_ns(&self) -> u64 {
        self.idle_since_ns
    }

    /// Notes that the session took a step towards having a connection.
    pub fn touch(&mut self, now_ns: u64) {
        self.idle_since_ns = now_ns;
    }

    /// Returns when [`Self::handle_timeout`] must be called, in nanoseconds of the caller's clock.
    pub fn timeout_ns(&self) -> Option<u64> {
        let stage = match &self.stage {
            Stage::Pausing { until_ns: at_ns }
            | Stage::Waiting { check_ns: at_ns }
            | Stage::Checking { deadline_ns: at_ns }
            | Stage::Resuming { deadline_ns: at_ns }
            | Stage::Dialling { deadline_ns: at_ns }
            | Stage::Hello { deadline_ns: at_ns, .. }
            | Stage::Proof { deadline_ns: at_ns, .. } => Some(*at_ns),
            Stage::Up if self.connections.need_peer() => Some(self.heartbeat.next_ns()),
            Stage::Up => self.idle_deadline_ns(),
            Stage::Over(_) => None,
        };
        let connection = self.connections.first_due().map(|(at_ns, _)| at_ns);
        [stage, connection, self.judging_from_ns(), self.give_up_ns()].into_iter().flatten().min()
    }

    /// Returns the time since anything came from the peer, in nanoseconds, if its answer is overdue. The next
    /// [`Self::handle_timeout`] then gives the socket up, so the caller must first handle what waits in it: this
    /// process may be the one that stood still.
    pub fn overdue_ns(&self, now_ns: u64) -> Option<u64> {
        match self.beat(now_ns) {
            Beat::Silent { for_ns } => Some(for_ns),
            Beat::Wait | Beat::Ask => None,
        }
    }

    fn ask(&mut self, now_ns: u64) {
        let number = self.heartbeat.asked(now_ns);
        self.send(0, Message::Ping(Pulse { number, clock_ns: now_ns }));
    }

    /// Notes that something says that the path of the session's socket may be gone, such as rails that are silent. The
    /// peer is asked, and another socket is looked for unless it answers within `answer_ns`.
    pub fn doubt(&mut self, answer_ns: u64, now_ns: u64) {
        if self.is_up() && self.connections.need_peer() && self.heartbeat.doubt(answer_ns, now_ns) {
            self.ask(now_ns);
        }
    }

    /// Returns the time at which anything last came from the peer.
    pub fn heard_ns(&self) -> u64 {
        self.heartbeat.heard_ns()
    }

    fn beat(&self, now_ns: u64) -> Beat {
        if self.is_up() && self.connections.need_peer() { self.heartbeat.beat(now_ns) } else { Beat::Wait }
    }

    fn idle_deadline_ns(&self) -> Option<u64> {
        let patience_ns = match self.side {
            Side::Opener => self.config.idle_ns,
            Side::Acceptor => self.config.accepted_idle_ns,
        };
        let is_idle = self.is_up() && !self.connections.are_used();
        is_idle.then(|| self.idle_since_ns.saturating_add(patience_ns))
    }

    /// Does whatever is due.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        match &self.stage {
            Stage::Pausing { until_ns } if *until_ns <= now_ns => {
                self.reach.again();
                self.dial_next(now_ns);
            }
            Stage::Waiting { check_ns } if *check_ns <= now_ns => self.check_opener(now_ns),
            Stage::Dialling { deadline_ns }
            | Stage::Hello { deadline_ns, .. }
            | Stage::Proof { deadline_ns, .. }
            | Stage::Resuming { deadline_ns }
            | Stage::Checking { deadline_ns }
                if *deadline_ns <= now_ns =>
            {
                if self.is_away() && !matches!(self.stage, Stage::Dialling { .. } | Stage::Checking { .. }) {
                    self.redial.unanswered();
                }
                if self.side == Side::Acceptor && !self.is_away() {
                    self.unwelcome(Unwelcome::Late { address: self.address });
                }
                self.end(Ended::Late, now_ns);
            }
            Stage::Up => match self.beat(now_ns) {
                Beat::Ask => self.ask(now_ns),
                Beat::Silent { for_ns } => self.end(Ended::Silent { for_ns }, now_ns),
                Beat::Wait if self.idle_deadline_ns().is_some_and(|at_ns| at_ns <= now_ns) => {
                    self.end(Ended::Idle, now_ns);
                }
                Beat::Wait => {}
            },
            _ => {}
        }
        if self.judging_from_ns().is_some_and(|at_ns| at_ns <= now_ns) {
            self.begin_judging(now_ns);
        }
        for number in self.connections.due(now_ns) {
            self.connection_due(number, now_ns);
        }
        self.end_if_unneeded(now_ns);
    }

    /// Notes that the dialled socket is connected. `nonce` must be freshly random.
    pub fn handle_connected(&mut self, nonce: [u8; 32], now_ns: u64) {
        match self.stage {
            Stage::Checking { .. } => self.checked(now_ns),
            Stage::Dialling { deadline_ns } => {
                let patience_ns = if self.is_away() { self.answer_ns() } else { 0 };
                self.forget_sign();
                self.say_hello(nonce, deadline_ns.max(now_ns.saturating_add(patience_ns)));
            }
            _ => {}
        }
    }

    /// Notes that the session's socket has ended, or could not be dialled.
    pub fn handle_lost(&mut self, end: SocketEnd, now_ns: u64) {
        self.give_up_socket(Ended::Socket(end.text), end.kind, now_ns);
    }

    /// Gives the socket up for a reason that the caller knows, such as a limit that the peer has broken. That ends the
    /// session, unless it can go on over another socket: an opener that is not up yet dials the next address, and a
    /// session with connections looks for another socket if the peer is only silent. If the peer is to blame,
    /// [`Self::poll_event`] says so.
    pub fn end(&mut self, why: Ended, now_ns: u64) {
        if matches!(self.stage, Stage::Over(_) | Stage::Waiting { .. } | Stage::Pausing { .. }) {
            return;
        }
        let peer = self.peer_name();
        match &why {
            Ended::OutOfTurn => self.unwelcome(Unwelcome::OutOfTurn { peer }),
            Ended::Garbled(error) => self.unwelcome(Unwelcome::Garbled { peer, error: error.clone() }),
            Ended::Limit(limit) => self.unwelcome(Unwelcome::Limit { peer, limit: *limit }),
            _ => {}
        }
        self.actions.push_back(SessionAction::HangUp { flush: false });
        self.give_up_socket(why, SocketEndKind::Other, now_ns);
    }

    /// Notes that all frames that have come so far were handled. The peer gets one answer, however often it asked in
    /// them, and is told once how many messages have come.
    pub fn handle_all_read(&mut self, now_ns: u64) {
        if !self.is_up() {
            return;
        }
        if let Some(number) = self.asked.take() {
            self.send(0, Message::Pong(Pulse { number, clock_ns: now_ns }));
        }
        if let Some(received) = self.numbered.untold() {
            self.send(0, Message::Have(received));
        }
    }

    /// Handles a frame from the peer.
    pub fn handle_frame(&mut self, frame: Frame, now_ns: u64) {
        if !self.is_away() {
            self.heartbeat.heard(now_ns);
        }
        let Frame { connection, message } = frame;
        match (&self.stage, message) {
            (
                Stage::Over(_)
                | Stage::Dialling { .. }
                | Stage::Pausing { .. }
                | Stage::Waiting { .. }
                | Stage::Checking { .. },
                _,
            ) => {}
            (Stage::Hello { .. }, Message::Hello(bytes)) => self.handle_hello(bytes, now_ns),
            (Stage::Proof { .. }, Message::Proof(proof)) => self.handle_proof(&proof, now_ns),
            (Stage::Resuming { .. }, Message::Resumed(received)) => self.handle_resumed(received, now_ns),
            (Stage::Up, Message::Resume(resume)) if self.may_be_resumption() => {
                self.actions.push_back(SessionAction::Resume(resume));
            }
            (Stage::Up, Message::Offer(offer)) if self.side == Side::Acceptor => {
                self.numbered.handle_received();
                self.handle_offer(connection, offer);
            }
            (Stage::Up, Message::Ping(pulse)) => self.asked = Some(pulse.number),
            (Stage::Up, Message::Pong(pulse)) => self.handle_pong(pulse, now_ns),
            (Stage::Up, Message::Have(received)) if self.numbered.handle_has(received) => {}
            (
                Stage::Up,
                Message::Hello(_)
                | Message::Offer(_)
                | Message::Proof(_)
                | Message::Have(_)
                | Message::Resume(_)
                | Message::Resumed(_),
            )
            | (Stage::Hello { .. } | Stage::Proof { .. } | Stage::Resuming { .. }, _) => {
                self.end(Ended::OutOfTurn, now_ns);
            }
            (Stage::Up, message) => {
                self.numbered.handle_received();
                self.handle_message(connection, message, now_ns);
            }
        }
    }

    /// Returns true if nothing has come on this socket yet that makes it a session of its own.
    fn may_be_resumption(&self) -> bool {
        self.side == Side::Acceptor && self.connections.is_empty() && self.numbered.is_new()
    }

    fn handle_pong(&mut self, pulse: Pulse, now_ns: u64) {
        if let Some(sent_ns) = self.heartbeat.asked_at_ns(pulse.number) {
            let told = PeerClock::of_answer(sent_ns, pulse.clock_ns, now_ns);
            self.peer_clock = Some(PeerClock::better(self.peer_clock, told));
        }
    }

    /// Sends a message about a connection, while the session is up; while it is away, once it is up again.
    pub fn send(&mut self, connection: u32, message: Message) {
        if matches!(message, Message::Probe { .. }) {
            self.peer_may_have(connection);
        }
        if message.is_about_connection() && (self.is_up() || self.is_away()) {
            if self.connections.are_offers() {
                // The peer may be a stranger, for whom nothing is kept. No connection needs the session yet.
                self.numbered.pass();
            } else {
                self.numbered.keep(Frame { connection, message: message.clone() }, self.connections.len());
            }
        }
        if self.is_up() {
            self.send_now(connection, message);
        }
    }

    pub(super) fn send_now(&mut self, connection: u32, message: Message) {
        self.actions.push_back(SessionAction::Send(Frame { connection, message }));
    }

    /// Ends the session. Every connection that is being set up ends with it, and every open one after its grace, unless
    /// its rails end it earlier.
    fn over(&mut self, why: Ended, now_ns: u64) {
        let ended = Arc::new(why);
        self.stage = Stage::Over(Arc::clone(&ended));
        (self.asked, self.away, self.numbered) = (None, None, Numbered::default());
        self.actions.push_back(SessionAction::Ended(Arc::clone(&ended)));
        for number in self.connections.numbers() {
            match self.connections.state(number) {
                Some(State::Offered) => {
                    self.connections.set(number, None);
                    self.actions.push_back(SessionAction::Withdrawn(number));
                }
                Some(State::SetUp { .. }) => self.actions.push_back(SessionAction::Interrupted(number)),
                Some(State::Open { .. }) => {
                    let at_ns = now_ns.saturating_add(self.config.grace_ns);
                    self.peer_left(number, LostCause::Session(Arc::clone(&ended)), at_ns);
                }
                Some(State::Closed { .. } | State::ByeAwaited) => self.closed_by_peer(number, now_ns),
                None => {}
            }
        }
    }
}
