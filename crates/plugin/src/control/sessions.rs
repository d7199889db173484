//! Sessions: one control socket to each process that this one connects to, and the connections that are set up on it.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use railweave_fabric::Fault;
use railweave_transport::{
    Error, Frame, Hello, HelloError, Link, MAX_FRAME_BYTES, Message, Offer, Preface, ProcessId, Token,
};

use super::heartbeat::Heartbeat;
use super::proof::Expected;
use super::stream::{Fill, Stream};
use super::thread::{Entry, Thread};
use super::{ConnectRequest, Outcome, Route};
use crate::identity::random;
use crate::listener::Listener;
use crate::log;
use crate::network::{Handshake, Setup, Step};
use crate::process::PendingConnect;

/// How long a session without connections is kept by its opener, and by the other end, which only needs to see to it
/// that strangers do not keep sessions for ever.
const IDLE_NS: u64 = 1_000_000_000;
const ACCEPTED_IDLE_NS: u64 = 60_000_000_000;

/// Sessions that peers may have opened at once: more than any job has processes that connect to one.
const MOST_ACCEPTED: usize = 16_384;

/// Connections that a peer may have in set-up at once on one session.
const MOST_CONNECTIONS: usize = 65_536;

/// What a session without connections may have waiting to be written: its peer asks, and does not read the answers.
const MOST_UNSENT_WITHOUT_CONNECTIONS: usize = 64 << 10;

/// Where a connection goes once it is there.
pub(super) enum Target {
    Connect(Arc<PendingConnect>),
    Accept(Arc<Listener>),
}

impl Target {
    /// Hands the outcome on; gives it back when nobody waits for it any more.
    fn give(&self, outcome: Outcome) -> Option<Outcome> {
        match self {
            Self::Connect(pending) => pending.give(outcome),
            Self::Accept(listener) => listener.give(outcome),
        }
    }

    pub(super) fn fail(&self, error: Error) {
        // An error that nobody waits for concerns nobody.
        let _ = self.give(Err(error));
    }
}

/// A connection of a session.
pub(super) enum Connection {
    /// Being set up.
    Setup(Setting),
    /// Up.
    Open { link: Arc<Link>, peer_said_bye: bool },
    /// Closed by this side; the peer's BYE is awaited.
    Closed,
}

/// A connection that is being set up.
pub(super) struct Setting {
    /// None while the set-up worker has it.
    pub(super) handshake: Option<Box<dyn Handshake>>,
    /// What came from the peer meanwhile.
    pub(super) waiting: VecDeque<Message>,
    target: Target,
    token: Option<Token>,
}

impl Setting {
    fn new(handshake: Box<dyn Handshake>, target: Target, token: Option<Token>) -> Self {
        Self { handshake: Some(handshake), waiting: VecDeque::new(), target, token }
    }

    /// When its time is over. One that the worker has is looked at when it is back.
    fn timeout_ns(&self) -> Option<u64> {
        self.handshake.as_ref()?.timeout_ns()
    }
}

pub(super) enum Stage {
    /// The peer's HELLO is awaited.
    Hello {
        deadline_ns: u64,
    },
    /// The peer's proof that it has the key is awaited.
    Proof {
        deadline_ns: u64,
        theirs: Box<Hello>,
        expected: Expected,
    },
    Up(Box<Hello>),
    /// What is left goes out, then the socket is closed.
    Closing {
        deadline_ns: u64,
    },
}

/// A session.
pub(super) struct Session {
    stream: Stream,
    /// The HELLO that this end sent, encoded.
    pub(super) our_hello: Vec<u8>,
    address: SocketAddr,
    pub(super) stage: Stage,
    /// This side opened it: it alone sends offers. The process that it wants to reach.
    pub(super) wanted: Option<ProcessId>,
    next_connection: u32,
    idle_since_ns: u64,
    pub(super) heartbeat: Heartbeat,
    pub(super) connections: HashMap<u32, Connection>,
}

impl Session {
    /// A session that a peer opened.
    pub(super) fn accepted(stream: Stream, address: SocketAddr, deadline_ns: u64, heartbeat: Heartbeat) -> Self {
        Self {
            stream,
            our_hello: Vec::new(),
            address,
            stage: Stage::Hello { deadline_ns },
            wanted: None,
            next_connection: 0,
            idle_since_ns: 0,
            heartbeat,
            connections: HashMap::new(),
        }
    }

    pub(super) fn touch(&mut self, now_ns: u64) {
        self.idle_since_ns = now_ns;
    }

    /// When a session that no connection uses is closed.
    fn idle_deadline(&self) -> Option<u64> {
        let idle = self.connections.is_empty() && matches!(self.stage, Stage::Up(_));
        let patience = if self.wanted.is_some() { IDLE_NS } else { ACCEPTED_IDLE_NS };
        idle.then(|| self.idle_since_ns + patience)
    }

    pub(super) fn next_deadline(&self) -> Option<u64> {
        let stage = match self.stage {
            Stage::Hello { deadline_ns } | Stage::Proof { deadline_ns, .. } | Stage::Closing { deadline_ns } => {
                Some(deadline_ns)
            }
            Stage::Up(_) if self.needs_peer() => Some(self.heartbeat.next_ns()),
            Stage::Up(_) => self.idle_deadline(),
        };
        let settings = self.connections.values().filter_map(|connection| match connection {
            Connection::Setup(setting) => setting.timeout_ns(),
            _ => None,
        });
        settings.chain(stage).min()
    }

    pub(super) fn peer_name(&self) -> String {
        match &self.stage {
            Stage::Up(hello) | Stage::Proof { theirs: hello, .. } => {
                format!("{} at {}", hello.peer_name(), self.address)
            }
            _ => self.address.to_string(),
        }
    }

    /// Whether nobody has proved to be welcome on it: a peer opened it, and no listener of ours has a connection on it.
    fn is_strangers(&self) -> bool {
        self.wanted.is_none() && self.connections.is_empty()
    }

    fn is_open(&self, connection: u32) -> bool {
        matches!(self.connections.get(&connection), Some(Connection::Open { .. }))
    }

    /// Whether a connection needs the peer to be there: it is open, or the peer has still to say that it is over.
    pub(super) fn needs_peer(&self) -> bool {
        self.connections.values().any(|connection| match connection {
            Connection::Setup(_) => false,
            Connection::Open { peer_said_bye, .. } => !peer_said_bye,
            Connection::Closed => true,
        })
    }

    fn send(&mut self, connection: u32, message: Message) -> io::Result<()> {
        let unsent = self.stream.unsent_bytes();
        if self.is_strangers() && unsent > MOST_UNSENT_WITHOUT_CONNECTIONS {
            return Err(io::Error::other(format!("the peer does not read: {unsent} bytes wait to be sent")));
        }
        self.stream.send(&Frame { connection, message }.encode())
    }
}

impl Thread {
    /// Sends what comes first on a session, and keeps it.
    pub(super) fn begin_session(&mut self, token: usize, mut session: Session) {
        let mut hello = self.hello.clone();
        hello.nonce = random();
        hello.wanted = session.wanted.unwrap_or_default();
        session.our_hello = hello.encode();
        let accepted = |entry: &Entry| matches!(entry, Entry::Session(session) if session.wanted.is_none());
        if session.wanted.is_none() && self.entries.values().filter(|entry| accepted(entry)).count() >= MOST_ACCEPTED {
            let now = self.now_ns();
            let text = format!("{MOST_ACCEPTED} sessions are open already; that of {} was closed", session.address);
            self.strangers.report(now, &text);
            return self.session_over(token, session, "too many sessions");
        }
        let mut first = Vec::new();
        if session.wanted.is_some() {
            first.extend_from_slice(&Preface::Session.encode());
        }
        first.extend(Frame { connection: 0, message: Message::Hello(session.our_hello.clone()) }.encode());
        match session.stream.send(&first) {
            Ok(()) => self.handle_session(token, session),
            Err(error) => self.session_over(token, session, &error.to_string()),
        }
    }

    /// Reads and writes what a session has.
    pub(super) fn handle_session(&mut self, token: usize, mut session: Session) {
        match session.stream.is_connected() {
            Ok(true) => {}
            Ok(false) => {
                self.entries.insert(token, Entry::Session(session));
                return;
            }
            Err(error) => return self.session_over(token, session, &error.to_string()),
        }
        if let Err(error) = session.stream.flush() {
            return self.session_over(token, session, &error.to_string());
        }
        loop {
            let filled = session.stream.fill(MAX_FRAME_BYTES);
            loop {
                match Frame::decode(session.stream.input()) {
                    Ok(None) => break,
                    Ok(Some((frame, length))) => {
                        session.stream.consume(length);
                        session.heartbeat.heard(self.now_ns());
                        self.entries.insert(token, Entry::Session(session));
                        self.handle_frame(token, frame);
                        match self.entries.remove(&token) {
                            Some(Entry::Session(back)) => session = back,
                            _ => return,
                        }
                    }
                    Err(error) => {
                        let text = format!("{} broke the control protocol: {error}", session.peer_name());
                        let now = self.now_ns();
                        self.strangers.report(now, &text);
                        return self.session_over(token, session, &error.to_string());
                    }
                }
            }
            match filled {
                Ok(Fill::Closed) => return self.session_over(token, session, "the peer closed the session"),
                Err(error) => return self.session_over(token, session, &error.to_string()),
                Ok(Fill::Full) => {}
                Ok(Fill::Open) => break,
            }
        }
        if matches!(session.stage, Stage::Closing { .. }) && !session.stream.has_unsent() {
            return self.session_over(token, session, "closed");
        }
        self.entries.insert(token, Entry::Session(session));
    }

    pub(super) fn session(&mut self, token: usize) -> Option<&mut Session> {
        match self.entries.get_mut(&token) {
            Some(Entry::Session(session)) => Some(session),
            _ => None,
        }
    }

    fn handle_frame(&mut self, token: usize, frame: Frame) {
        let Some(session) = self.session(token) else {
            return;
        };
        match (&session.stage, frame.message) {
            (Stage::Hello { .. }, Message::Hello(bytes)) => self.handle_hello(token, &bytes),
            (Stage::Proof { .. }, Message::Proof(proof)) => self.handle_proof(token, &proof),
            (Stage::Up(_), Message::Offer(offer)) if session.wanted.is_none() => {
                self.handle_offer(token, frame.connection, &offer);
            }
            (Stage::Up(_), Message::Refuse { reason, .. }) if session.is_open(frame.connection) => {
                self.handle_late_refusal(token, frame.connection, &reason);
            }
            (Stage::Up(_), Message::Bye) => self.handle_bye(Route { session: token, connection: frame.connection }),
            (Stage::Up(_), Message::Ping) => {
                let _ = self.send(Route { session: token, connection: 0 }, Message::Pong);
            }
            (Stage::Up(_), Message::Pong) => {}
            (Stage::Up(_), Message::Hello(_) | Message::Offer(_) | Message::Proof(_))
            | (Stage::Hello { .. } | Stage::Proof { .. }, _) => {
                let peer = session.peer_name();
                let now = self.now_ns();
                self.strangers
                    .report(now, &format!("{peer} sent a control message out of turn; its session was closed"));
                self.end_session(token, "a control message came out of turn");
            }
            (Stage::Up(_), message) => {
                let route = Route { session: token, connection: frame.connection };
                self.handshake_message(route, message);
            }
            (Stage::Closing { .. }, _) => {}
        }
    }

    fn handle_hello(&mut self, token: usize, bytes: &[u8]) {
        let (ours, key) = (self.hello.clone(), self.key.clone());
        let now = self.now_ns();
        let Some(session) = self.session(token) else {
            return;
        };
        let wanted = session.wanted;
        let ours = Hello { wanted: wanted.unwrap_or_default(), ..ours };
        let checked = match Hello::decode(bytes) {
            Ok(theirs) => ours.check(&theirs).map(|()| theirs).map_err(|error| (error.to_string(), Some(error))),
            Err(error) => Err((error.to_string(), None)),
        };
        let address = session.address;
        match checked {
            Ok(theirs) => match &key {
                None => self.session_up(token, Box::new(theirs)),
                Some(key) => self.ask_for_proof(token, key, Box::new(theirs), bytes),
            },
            Err((text, error)) => {
                match wanted {
                    Some(process) => {
                        let wrong_process = matches!(error, Some(HelloError::WrongProcess { .. }));
                        self.session_refused(process, &format!("{address}: {text}"), wrong_process);
                    }
                    None => self.strangers.report(now, &format!("{address}: {text}; its session was refused")),
                }
                // Our HELLO is on its way: the peer names the difference itself.
                let deadline_ns = now + IDLE_NS;
                if let Some(session) = self.session(token) {
                    session.stage = Stage::Closing { deadline_ns };
                    session.wanted = None;
                }
            }
        }
    }

    pub(super) fn session_up(&mut self, token: usize, theirs: Box<Hello>) {
        let now = self.now_ns();
        let Some(session) = self.session(token) else {
            return;
        };
        session.stage = Stage::Up(theirs);
        session.touch(now);
        if let Some(process) = session.wanted {
            self.reached(process, token);
        }
    }

    /// Offers a connection on the session to its process.
    pub(super) fn offer(&mut self, token: usize, request: ConnectRequest) {
        let (now, deadline_ns) = (self.now_ns(), self.deadline_ns());
        let Some(session) = self.session(token) else {
            Target::Connect(request.result)
                .fail(Error::peer("the session to the peer has just ended; it closed or died"));
            return;
        };
        session.next_connection += 1;
        session.touch(now);
        let connection = session.next_connection;
        let setup = Setup { config: request.config, peer: session.peer_name(), deadline_ns };
        let handshake = request.network.connect(request.device, request.handle.nonce, setup);
        let setting = Setting::new(handshake, Target::Connect(request.result), None);
        session.connections.insert(connection, Connection::Setup(setting));
        self.with_handshake(Route { session: token, connection }, |_| ());
    }

    fn handle_offer(&mut self, token: usize, connection: u32, offer: &Offer) {
        let listener = super::lock(&self.listeners).get(&offer.nonce).cloned();
        let (network, deadline_ns, lane_token) = (self.hello.network, self.deadline_ns(), Token(random()));
        let route = Route { session: token, connection };
        let Some(session) = self.session(token) else {
            return;
        };
        let Stage::Up(hello) = &session.stage else {
            return;
        };
        let refusal = if session.connections.contains_key(&connection) {
            Some("the connection's number is in use already")
        } else if session.connections.len() >= MOST_CONNECTIONS {
            Some("the session has 65536 connections, which is all that it can have")
        } else if listener.is_none() {
            Some("there is no such listener: it was closed, or the handle is from another run")
        } else {
            None
        };
        let same_network = hello.network == network;
        match (listener, refusal) {
            (Some(listener), None) => {
                let setup = Setup { config: listener.config.clone(), peer: session.peer_name(), deadline_ns };
                let handshake = listener.network.accept(listener.device, offer, same_network, lane_token, setup);
                let setting = Setting::new(handshake, Target::Accept(listener), Some(lane_token));
                session.connections.insert(connection, Connection::Setup(setting));
                self.lanes.insert(lane_token, route);
                self.with_handshake(route, |_| ());
            }
            (_, refusal) => {
                let reason = refusal.unwrap_or_default().to_owned();
                let _ = self.send(route, Message::Refuse { fault: Fault::Protocol, reason });
            }
        }
    }

    /// The acceptor gave up on a connection that is up on this side, as when READY came too late for it.
    fn handle_late_refusal(&mut self, token: usize, connection: u32, reason: &str) {
        let Some(session) = self.session(token) else {
            return;
        };
        let text = format!("{} gave the connection up: {reason}", session.peer_name());
        if let Some(Connection::Open { link, peer_said_bye }) = session.connections.get_mut(&connection) {
            *peer_said_bye = true;
            link.set_lost(Error::peer(text));
        }
    }

    fn handle_bye(&mut self, route: Route) {
        let now = self.now_ns();
        let Some(session) = self.session(route.session) else {
            return;
        };
        // What names no connection does not keep the session either.
        if session.connections.contains_key(&route.connection) {
            session.touch(now);
        }
        let peer = session.peer_name();
        match session.connections.get_mut(&route.connection) {
            Some(Connection::Open { peer_said_bye, link }) => {
                *peer_said_bye = true;
                // What the peer sent before is there, or will never be: what is still stuck then has nothing to wait for.
                let link = Arc::clone(link);
                let text = format!("{peer} has closed the connection; look at that process's own log for the reason");
                self.begin_losing(link, Error::peer(text));
            }
            Some(Connection::Closed) => {
                session.connections.remove(&route.connection);
                self.peer_said_bye(route);
            }
            Some(Connection::Setup(_)) => {
                self.handshake_message(route, Message::Bye);
            }
            None => {}
        }
    }

    /// Sends a message about a connection; a session that cannot send is over.
    pub(super) fn send(&mut self, route: Route, message: Message) -> Result<(), ()> {
        let Some(session) = self.session(route.session) else {
            return Err(());
        };
        let Err(error) = session.send(route.connection, message) else {
            return Ok(());
        };
        if session.is_strangers() {
            let text = format!("{}: {error}; its session was closed", session.peer_name());
            let now = self.now_ns();
            self.strangers.report(now, &text);
        }
        self.end_session(route.session, &error.to_string());
        Err(())
    }

    /// Lets `act` do something with a connection's handshake, then carries out what the handshake wants. None when the
    /// connection is not being set up.
    pub(super) fn with_handshake<R>(&mut self, route: Route, act: impl FnOnce(&mut dyn Handshake) -> R) -> Option<R> {
        let session = self.session(route.session)?;
        let Some(Connection::Setup(setting)) = session.connections.get_mut(&route.connection) else {
            return None;
        };
        let result = act(setting.handshake.as_mut()?.as_mut());
        self.carry_out(route);
        Some(result)
    }

    fn carry_out(&mut self, route: Route) {
        loop {
            let Some(session) = self.session(route.session) else {
                return;
            };
            let peer = session.peer_name();
            let port = session.address.port();
            let Some(Connection::Setup(setting)) = session.connections.get_mut(&route.connection) else {
                return;
            };
            match setting.handshake.as_mut().and_then(|handshake| handshake.poll_step()) {
                None => return,
                Some(Step::Send(message)) => {
                    let _ = self.send(route, message);
                }
                Some(Step::Dial(dial)) => {
                    if let Err(reason) = self.dial_lane(route, dial, port) {
                        self.with_handshake(route, |h| h.handle_dialed(dial.rail, dial.lane, Err(reason)));
                    }
                }
                Some(Step::RailDropped { rail, reason }) => {
                    log::warn(&format!("rail {rail} to {peer} is left out: {reason}"));
                }
                Some(Step::Ready(established)) => {
                    let open = Connection::Open { link: Arc::clone(&established.link), peer_said_bye: false };
                    let Some(Connection::Setup(setting)) = session.connections.insert(route.connection, open) else {
                        return;
                    };
                    self.forget_lanes(&setting);
                    if let Some(Ok((unwanted, route))) = setting.target.give(Ok((established, route))) {
                        self.close(route, unwanted.end);
                    }
                    return;
                }
                Some(Step::Failed(error)) => return self.fail_setting(route, error),
            }
        }
    }

    /// There will be no such connection.
    pub(super) fn fail_setting(&mut self, route: Route, error: Error) {
        let removed = self.session(route.session).and_then(|session| session.connections.remove(&route.connection));
        if let Some(Connection::Setup(setting)) = removed {
            self.forget_lanes(&setting);
            setting.target.fail(error);
        }
    }

    fn forget_lanes(&mut self, setting: &Setting) {
        if let Some(token) = setting.token {
            self.lanes.remove(&token);
        }
    }

    pub(super) fn end_session(&mut self, token: usize, why: &str) {
        if let Some(Entry::Session(session)) = self.entries.remove(&token) {
            self.session_over(token, session, why);
        }
    }

    /// A session ended: with it all that is being set up, and, unless its data says so first, all that is open.
    fn session_over(&mut self, token: usize, mut session: Session, why: &str) {
        session.stream.deregister(self.registry());
        let peer = session.peer_name();
        if let Some(process) = session.wanted {
            let up = matches!(session.stage, Stage::Up(_));
            let ours = self.reaching.get(&process).is_some_and(|reaching| reaching.session == token);
            match (ours, up) {
                (true, true) => drop(self.reaching.remove(&process)),
                (true, false) => self.session_refused(process, &format!("{}: {why}", session.address), true),
                (false, _) => {}
            }
        }
        for (connection, state) in session.connections.drain() {
            let route = Route { session: token, connection };
            match state {
                Connection::Setup(setting) => {
                    self.forget_lanes(&setting);
                    let text = format!("the session to {peer} ended while a connection was set up: {why}");
                    setting.target.fail(Error::peer(text));
                }
                Connection::Open { link, peer_said_bye: false } => {
                    let text = format!("{peer} is gone: {why}; look at that process's own log for the reason");
                    self.begin_losing(link, Error::peer(text));
                }
                Connection::Open { .. } | Connection::Closed => {}
            }
            self.peer_said_bye(route);
        }
    }

    /// The time has come for something of a session.
    pub(super) fn session_deadline(&mut self, token: usize, mut session: Session, now_ns: u64) {
        match session.stage {
            Stage::Hello { deadline_ns } | Stage::Proof { deadline_ns, .. } if deadline_ns <= now_ns => {
                if session.wanted.is_none() {
                    let text = format!(
                        "{} opened a session but did not say who it is in time; it was closed",
                        session.address
                    );
                    self.strangers.report(now_ns, &text);
                }
                let why = "Handshake timeout: no HELLO or proof came in time; check that no firewall blocks TCP between the hosts";
                return self.session_over(token, session, why);
            }
            Stage::Closing { deadline_ns } if deadline_ns <= now_ns => {
                return self.session_over(token, session, "closed");
            }
            Stage::Up(_) if session.idle_deadline().is_some_and(|at| at <= now_ns) => {
                return self.session_over(token, session, "no connection uses it");
            }
            _ => {}
        }
        let late: Vec<u32> = session
            .connections
            .iter()
            .filter_map(|(number, connection)| match connection {
                Connection::Setup(s) if s.timeout_ns().is_some_and(|at| at <= now_ns) => Some(*number),
                _ => None,
            })
            .collect();
        session.touch(now_ns);
        self.entries.insert(token, Entry::Session(session));
        self.beat(token, now_ns);
        for connection in late {
            self.with_handshake(Route { session: token, connection }, |handshake| handshake.handle_timeout(now_ns));
        }
    }
}
