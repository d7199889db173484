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
//!    [`Session::handle_lost`] when it has ended, and [`Session::handle_timeout`] at [`Session::timeout_ns`].
//! 3. After each of these, and after each call about a connection: [`Session::poll_event`] and [`Session::poll_action`]
//!    until they return `None`.
//! 4. A connection goes from [`Session::begin`] or [`SessionAction::Offer`] and [`Session::accept_offer`] to
//!    [`Session::opened`] or [`Session::failed`], and from there to [`Session::close`].
//! 5. The session may be dropped once [`Session::is_over`].
//!
//! Times are in nanoseconds of one clock of the caller's, which never goes back.

mod action;
mod config;
mod connections;
mod ended;
mod greeting;
mod heartbeat;
mod proof;
mod reach;
mod redials;
mod side;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use railweave_fabric::Fault;

pub use self::action::SessionAction;
pub use self::config::SessionConfig;
use self::connections::{Connection, Connections, State};
pub use self::ended::{Ended, HelloFault, Limit, Lost, LostCause, SocketEnd, SocketEndKind, Unreachable, Unwelcome};
use self::heartbeat::{Beat, Heartbeat};
use self::proof::Hellos;
pub use self::proof::Prover;
use self::reach::Reach;
pub use self::redials::Redials;
pub use self::side::Side;
use crate::{Event, Frame, Hello, Message, Offer, ProcessId};

/// The most connections that one session may have.
const MOST_CONNECTIONS: usize = 65_536;

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
    /// Connections may be begun.
    Up(Box<Hello>),
    /// The session ended, for this reason. `peer` is set if it was up.
    Over { ended: Arc<Ended>, peer: Option<Box<Hello>> },
}

// tidy: Session's methods call each other across files: greeting.rs has the steps before the session is up, and ends
// or goes on as this file says.
/// One end of a session: a state machine without I/O.
#[derive(Debug)]
pub struct Session {
    config: Arc<SessionConfig>,
    side: Side,
    wanted: ProcessId,
    address: SocketAddr,
    stage: Stage,
    reach: Reach,
    /// The number of the last connection that this end began.
    last_number: u32,
    /// The time at which the last connection ended, or the session last took a step towards having one.
    idle_since_ns: u64,
    /// True if the peer has asked if this process is there, and has no answer yet.
    asked: bool,
    heartbeat: Heartbeat,
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
        let reach = Reach::new(addresses, now_ns.saturating_add(config.handshake_ns));
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut session = Self::new(config, Side::Opener, nowhere, reach, Stage::Dialling { deadline_ns: 0 }, now_ns);
        session.wanted = wanted;
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
            reach,
            last_number: config.first_connection.wrapping_sub(1),
            idle_since_ns: now_ns,
            asked: false,
            heartbeat: Heartbeat::new(config.peer_timeout_ns, now_ns),
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
        matches!(self.stage, Stage::Up(_))
    }

    /// Returns why the session ended, once it has.
    pub fn ended(&self) -> Option<&Arc<Ended>> {
        match &self.stage {
            Stage::Over { ended, .. } => Some(ended),
            _ => None,
        }
    }

    /// Returns true if the session has ended and nothing of its connections is left.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over { .. }) && self.connections.is_empty() && self.actions.is_empty()
    }

    /// Returns the peer's HELLO, once the session is up.
    pub fn peer(&self) -> Option<&Hello> {
        match &self.stage {
            Stage::Up(hello) => Some(hello),
            Stage::Over { peer, .. } => peer.as_deref(),
            _ => None,
        }
    }

    /// Returns the peer's name, for messages.
    pub fn peer_name(&self) -> String {
        match &self.stage {
            Stage::Proof { theirs: hello, .. } | Stage::Up(hello) | Stage::Over { peer: Some(hello), .. } => {
                format!("{} at {}", hello.peer_name(), self.address)
            }
            _ => self.address.to_string(),
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
            | Stage::Dialling { deadline_ns: at_ns }
            | Stage::Hello { deadline_ns: at_ns, .. }
            | Stage::Proof { deadline_ns: at_ns, .. } => Some(*at_ns),
            Stage::Up(_) if self.connections.need_peer() => Some(self.heartbeat.next_ns()),
            Stage::Up(_) => self.idle_deadline_ns(),
            Stage::Over { .. } => None,
        };
        stage.into_iter().chain(self.connections.first_due().map(|(at_ns, _)| at_ns)).min()
    }

    /// Returns the time since anything came from the peer, in nanoseconds, if its answer is overdue. The next
    /// [`Self::handle_timeout`] then ends the session, so the caller must first handle what waits in the socket: this
    /// process may be the one that stood still.
    pub fn overdue_ns(&self, now_ns: u64) -> Option<u64> {
        match self.beat(now_ns) {
            Beat::Silent { for_ns } => Some(for_ns),
            Beat::Wait | Beat::Ask => None,
        }
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
            Stage::Dialling { deadline_ns } | Stage::Hello { deadline_ns, .. } | Stage::Proof { deadline_ns, .. }
                if *deadline_ns <= now_ns =>
            {
                if self.side == Side::Acceptor {
                    self.unwelcome(Unwelcome::Late { address: self.address });
                }
                self.end(Ended::Late, now_ns);
            }
            Stage::Up(_) => match self.beat(now_ns) {
                Beat::Ask => {
                    self.heartbeat.asked(now_ns);
                    self.send(0, Message::Ping);
                }
                Beat::Silent { for_ns } => {
                    self.end(Ended::Silent { for_ns, limit_ns: self.config.peer_timeout_ns }, now_ns);
                }
                Beat::Wait if self.idle_deadline_ns().is_some_and(|at_ns| at_ns <= now_ns) => {
                    self.end(Ended::Idle, now_ns);
                }
                Beat::Wait => {}
            },
            _ => {}
        }
        for number in self.connections.due(now_ns) {
            self.connection_due(number);
        }
    }

    /// Notes that the dialled socket is connected. `nonce` must be freshly random.
    pub fn handle_connected(&mut self, nonce: [u8; 32]) {
        if let Stage::Dialling { deadline_ns } = self.stage {
            self.say_hello(nonce, deadline_ns);
        }
    }

    /// Notes that the session's socket has ended, or could not be dialled.
    pub fn handle_lost(&mut self, end: SocketEnd, now_ns: u64) {
        self.give_up_socket(Ended::Socket(end.text), end.kind, now_ns);
    }

    /// Gives the socket up for a reason that the caller knows, such as a limit that the peer has broken. That ends the
    /// session, except an opener's that is not up yet, which dials the next address. If the peer is to blame,
    /// [`Self::poll_event`] says so.
    pub fn end(&mut self, why: Ended, now_ns: u64) {
        if matches!(self.stage, Stage::Over { .. }) {
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
    /// them.
    pub fn handle_all_read(&mut self) {
        if std::mem::take(&mut self.asked) {
            self.send(0, Message::Pong);
        }
    }

    /// Handles a frame from the peer.
    pub fn handle_frame(&mut self, frame: Frame, now_ns: u64) {
        self.heartbeat.heard(now_ns);
        let Frame { connection, message } = frame;
        match (&self.stage, message) {
            (Stage::Over { .. } | Stage::Dialling { .. } | Stage::Pausing { .. }, _) => {}
            (Stage::Hello { .. }, Message::Hello(bytes)) => self.handle_hello(bytes, now_ns),
            (Stage::Proof { .. }, Message::Proof(proof)) => self.handle_proof(&proof, now_ns),
            (Stage::Up(_), Message::Offer(offer)) if self.side == Side::Acceptor => {
                self.handle_offer(connection, offer);
            }
            (Stage::Up(_), Message::Ping) => self.asked = true,
            (Stage::Up(_), Message::Pong) => {}
            (Stage::Up(_), Message::Hello(_) | Message::Offer(_) | Message::Proof(_))
            | (Stage::Hello { .. } | Stage::Proof { .. }, _) => self.end(Ended::OutOfTurn, now_ns),
            (Stage::Up(_), message) => self.handle_message(connection, message, now_ns),
        }
    }

    /// Handles a message about a connection. If it came while another thread had the connection's handshake, and the
    /// connection is [open](Self::opened) afterwards, the caller passes the message here again.
    pub fn handle_message(&mut self, connection: u32, message: Message, now_ns: u64) {
        match (self.connections.state(connection), message) {
            (Some(State::SetUp), Message::Wait) => self.actions.push_back(SessionAction::Waits(connection)),
            (Some(State::SetUp), message) => {
                self.actions.push_back(SessionAction::Message { connection, message });
            }
            (Some(State::Offered), Message::Bye | Message::Refuse { .. }) => {
                self.touch(now_ns);
                self.connections.set(connection, None);
                self.actions.push_back(SessionAction::Withdrawn(connection));
            }
            (Some(State::Open { .. }), Message::Bye) => {
                self.touch(now_ns);
                self.peer_left(connection, LostCause::Bye, now_ns.saturating_add(self.config.grace_ns));
            }
            // The connection came up on this side and not on the peer's, for example because READY came too late. The
            // peer will send no BYE for it.
            (Some(State::Open { .. }), Message::Refuse { reason, .. }) => {
                self.peer_left(connection, LostCause::GaveUp(reason), now_ns);
            }
            (
                Some(State::Closed { peer_left: false, .. } | State::ByeAwaited),
                Message::Bye | Message::Refuse { .. },
            ) => {
                self.touch(now_ns);
                self.closed_by_peer(connection, now_ns);
            }
            _ => {}
        }
    }

    /// Begins a connection. Returns its number, `None` if the session is not [up](Self::is_up), or this end is not its
    /// opener.
    pub fn begin(&mut self, now_ns: u64) -> Option<u32> {
        if !self.is_up() || self.side != Side::Opener {
            return None;
        }
        self.touch(now_ns);
        self.last_number = self.next_number();
        self.connections.set(self.last_number, Some(State::SetUp.into()));
        Some(self.last_number)
    }

    /// Returns the number of the next connection. Numbers go round after 2^32 connections: 0, which is the session's
    /// own, and those that are still in use are left out.
    fn next_number(&self) -> u32 {
        let mut number = self.last_number;
        loop {
            number = number.wrapping_add(1);
            if number != 0 && self.connections.state(number).is_none() {
                return number;
            }
        }
    }

    /// Begins to set up the connection that the peer offers.
    pub fn accept_offer(&mut self, connection: u32, now_ns: u64) {
        if let Some(State::Offered) = self.connections.state(connection) {
            self.touch(now_ns);
            self.connections.set(connection, Some(State::SetUp.into()));
        }
    }

    /// Refuses the connection that the peer offers, or that is being set up, with this reason.
    pub fn refuse(&mut self, connection: u32, fault: Fault, reason: String, now_ns: u64) {
        self.send(connection, Message::Refuse { fault, of_rails: false, reason });
        self.failed(connection, now_ns);
    }

    /// Sends a message about a connection, while the session is up.
    pub fn send(&mut self, connection: u32, message: Message) {
        if self.is_up() {
            self.send_now(connection, message);
        }
    }

    fn send_now(&mut self, connection: u32, message: Message) {
        self.actions.push_back(SessionAction::Send(Frame { connection, message }));
    }

    /// Notes that the connection that was being set up is open. Returns false, and changes nothing, if it was not being
    /// set up.
    pub fn opened(&mut self, connection: u32, now_ns: u64) -> bool {
        if !matches!(self.connections.state(connection), Some(State::SetUp)) {
            return false;
        }
        self.touch(now_ns);
        self.connections.set(connection, Some(State::Open { peer_left: None }.into()));
        if let Some(ended) = self.ended().cloned() {
            self.peer_left(connection, LostCause::Session(ended), now_ns.saturating_add(self.config.grace_ns));
        }
        true
    }

    /// Notes that a connection that was offered or being set up has failed.
    pub fn failed(&mut self, connection: u32, now_ns: u64) {
        match self.connections.state(connection) {
            Some(State::SetUp) => self.touch(now_ns),
            // A refused offer does not keep the session from being idle.
            Some(State::Offered) => {}
            _ => return,
        }
        self.connections.set(connection, None);
    }

    /// Closes an open connection from this side. It lingers from now on: [`SessionAction::Linger`]. Returns false, and
    /// changes nothing, if it was not open: then there will be no [`SessionAction::Over`] for it.
    pub fn close(&mut self, connection: u32, now_ns: u64) -> bool {
        let Some(State::Open { peer_left }) = self.connections.state(connection) else {
            return false;
        };
        // The end of the session is one way in which the peer leaves.
        let peer_left = peer_left.is_some();
        self.touch(now_ns);
        let state = State::Closed {
            peer_left,
            pause_ns: self.config.linger_pause_ns.0,
            until_ns: now_ns.saturating_add(self.config.linger_ns),
        };
        self.connections.set(connection, Some(Connection { state, due_ns: Some(now_ns) }));
        self.send(connection, Message::Bye);
        true
    }

    /// Notes that a closed connection has lingered. `is_drained` is true if everything of it is out and acknowledged.
    pub fn handle_lingered(&mut self, connection: u32, is_drained: bool, now_ns: u64) {
        let Some(State::Closed { peer_left, pause_ns, until_ns }) = self.connections.state(connection).cloned() else {
            return;
        };
        if is_drained && peer_left || until_ns <= now_ns {
            let awaited = (!peer_left).then(|| State::ByeAwaited.into());
            self.connections.set(connection, awaited);
            self.actions.push_back(SessionAction::Over(connection));
            return;
        }
        // Checks fall on multiples of their pause, so that the caller wakes up once for many connections that were
        // closed together.
        let due_ns = now_ns.saturating_add(pause_ns).checked_next_multiple_of(pause_ns.max(1));
        let pause_ns = (pause_ns * 2).min(self.config.linger_pause_ns.1);
        let state = State::Closed { peer_left, pause_ns, until_ns };
        self.connections.set(connection, Some(Connection { state, due_ns }));
    }

    fn handle_offer(&mut self, connection: u32, offer: Offer) {
        if let Some(State::Closed { peer_left: true, .. }) = self.connections.state(connection) {
            // Both ends have closed the connection that had this number: nobody needs it to linger on.
            self.connections.set(connection, None);
            self.actions.push_back(SessionAction::Over(connection));
        }
        let refusal = if self.connections.state(connection).is_some() {
            "the connection's number is already in use"
        } else if self.connections.len() >= MOST_CONNECTIONS {
            "the session has 65536 connections, the most allowed"
        } else {
            // This is no step towards a connection: the offer has not been judged yet, and a stranger may offer
            // anything.
            self.connections.set(connection, Some(State::Offered.into()));
            self.actions.push_back(SessionAction::Offer { connection, offer });
            return;
        };
        self.send(connection, Message::Refuse { fault: Fault::Protocol, of_rails: false, reason: refusal.to_owned() });
    }

    /// Ends the session. Every connection that is being set up ends with it, and every open one after its grace, unless
    /// its rails end it earlier.
    fn over(&mut self, why: Ended, now_ns: u64) {
        let ended = Arc::new(why);
        let stage = std::mem::replace(&mut self.stage, Stage::Over { ended: Arc::clone(&ended), peer: None });
        if let (Stage::Up(theirs), Stage::Over { peer, .. }) = (stage, &mut self.stage) {
            *peer = Some(theirs);
        }
        self.asked = false;
        self.actions.push_back(SessionAction::Ended(Arc::clone(&ended)));
        for number in self.connections.numbers() {
            match self.connections.state(number) {
                Some(State::Offered) => {
                    self.connections.set(number, None);
                    self.actions.push_back(SessionAction::Withdrawn(number));
                }
                Some(State::SetUp) => self.actions.push_back(SessionAction::Interrupted(number)),
                Some(State::Open { .. }) => {
                    let at_ns = now_ns.saturating_add(self.config.grace_ns);
                    self.peer_left(number, LostCause::Session(Arc::clone(&ended)), at_ns);
                }
                Some(State::Closed { .. } | State::ByeAwaited) => self.closed_by_peer(number, now_ns),
                None => {}
            }
        }
    }

    /// Notes that the peer of an open connection has left it, or is gone; only the first report counts. The connection
    /// is lost at `at_ns`.
    fn peer_left(&mut self, number: u32, cause: LostCause, at_ns: u64) {
        if let Some(State::Open { peer_left: None }) = self.connections.state(number) {
            let state = State::Open { peer_left: Some(cause) };
            self.connections.set(number, Some(Connection { state, due_ns: Some(at_ns) }));
            self.actions.push_back(SessionAction::PeerLeft(number));
        }
    }

    fn closed_by_peer(&mut self, number: u32, now_ns: u64) {
        match self.connections.state(number).cloned() {
            Some(State::Closed { peer_left: false, pause_ns, until_ns }) => {
                let state = State::Closed { peer_left: true, pause_ns, until_ns };
                self.connections.set(number, Some(Connection { state, due_ns: Some(now_ns) }));
            }
            Some(State::ByeAwaited) => self.connections.set(number, None),
            _ => {}
        }
    }

    /// Does whatever is due for a connection.
    fn connection_due(&mut self, number: u32) {
        let state = self.connections.state(number).cloned();
        if let Some(state) = state.clone() {
            self.connections.set(number, Some(state.into()));
        }
        match state {
            Some(State::Open { peer_left: Some(cause) }) => {
                let lost = Lost { peer: self.peer_name(), cause };
                self.actions.push_back(SessionAction::Lost { connection: number, lost });
            }
            Some(State::Closed { .. }) => self.actions.push_back(SessionAction::Linger(number)),
            _ => {}
        }
    }
}
