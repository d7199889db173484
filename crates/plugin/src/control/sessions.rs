//! Sessions: one control socket to each process that this one connects to, and what comes over it.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;

use railweave_transport::{
    Error, FRAME_HEADER_BYTES, Frame, Hello, HelloError, MAX_FRAME_BYTES, MAX_HELLO_BYTES, Message, Preface, ProcessId,
};

use super::Route;
use super::connections::{Connection, Target};
use super::heartbeat::Heartbeat;
use super::proof::Expected;
use super::setups::SessionSetups;
use super::strangers::Kind;
use super::stream::{Fill, Stream};
use super::thread::{Entry, Thread};
use crate::identity::random;

/// How long a session without connections is kept by its opener, and by the other end, which only needs to see to it
/// that strangers do not keep sessions for ever.
const IDLE_NS: u64 = 1_000_000_000;
const ACCEPTED_IDLE_NS: u64 = 60_000_000_000;

/// What a peer may send while it has no connection: a connect that fails takes some hundred bytes, and its session is closed
/// a second later.
const MOST_FROM_STRANGERS: usize = 64 << 10;

/// A session that a peer opened is not read from while more than this waits to be written: whoever asks and does not read the
/// answers would have them kept here.
const MOST_UNREAD_BY_PEER: usize = 64 << 10;

/// Tells whether a session is left unread while so many bytes find no room in its socket. Its opener reads at all times, so
/// both ends cannot wait for each other.
fn is_left_unread(is_opener: bool, unsent: usize) -> bool {
    !is_opener && unsent > MOST_UNREAD_BY_PEER
}

/// Added to the times of sessions that make place last: later than any time of the clock.
pub(super) const LAST_NS: u64 = 1 << 62;

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
    pub(super) address: SocketAddr,
    pub(super) stage: Stage,
    /// This side opened it: it alone sends offers. The process that it wants to reach.
    pub(super) wanted: Option<ProcessId>,
    pub(super) next_connection: u32,
    /// When the last connection went, or when it took another step towards having one.
    idle_since_ns: u64,
    /// Bytes that came since it had a connection.
    unwelcome_bytes: usize,
    /// It has more to say than was read at once, and is left alone for a while.
    pub(super) resting: bool,
    /// The peer has asked whether this process is there.
    asked: bool,
    pub(super) heartbeat: Heartbeat,
    pub(super) setups: SessionSetups,
    pub(super) connections: HashMap<u32, Connection>,
}

impl Session {
    /// A session that a peer opened.
    pub(super) fn new(
        stream: Stream,
        address: SocketAddr,
        now_ns: u64,
        deadline_ns: u64,
        heartbeat: Heartbeat,
    ) -> Self {
        Self {
            stream,
            our_hello: Vec::new(),
            address,
            stage: Stage::Hello { deadline_ns },
            wanted: None,
            next_connection: 0,
            idle_since_ns: now_ns,
            unwelcome_bytes: 0,
            resting: false,
            asked: false,
            heartbeat,
            setups: SessionSetups::default(),
            connections: HashMap::new(),
        }
    }

    pub(super) fn touch(&mut self, now_ns: u64) {
        self.idle_since_ns = now_ns;
    }

    /// When a session that no connection uses is closed. One whose offers wait for this process is in use.
    fn idle_deadline(&self) -> Option<u64> {
        let is_used = !self.connections.is_empty() || self.setups.has_offers();
        let idle = !is_used && matches!(self.stage, Stage::Up(_));
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
        // Nearly always there is none, and there may be thousands that are up.
        let connections = if self.setups.has_any() { Some(self.connections.values()) } else { None };
        let settings = connections.into_iter().flatten().filter_map(|connection| match connection {
            Connection::Setup(setting) => setting.next_ns(),
            _ => None,
        });
        settings.chain(stage).min()
    }

    /// What the peer has said of itself, once the session is up.
    pub(super) fn peer(&self) -> Option<&Hello> {
        match &self.stage {
            Stage::Up(hello) => Some(hello),
            _ => None,
        }
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

    /// Counts what came from a stranger; whether it has said more than one may.
    fn has_said_enough(&mut self, bytes: usize) -> bool {
        self.unwelcome_bytes += bytes;
        self.unwelcome_bytes > MOST_FROM_STRANGERS
    }

    /// The peer has begun a connection.
    pub(super) fn is_welcome(&mut self, now_ns: u64) {
        self.unwelcome_bytes = 0;
        self.touch(now_ns);
    }

    /// How much is read at once, and kept until it is whole.
    fn most_unread(&self) -> usize {
        match self.stage {
            Stage::Hello { .. } | Stage::Proof { .. } => MAX_HELLO_BYTES + FRAME_HEADER_BYTES,
            Stage::Up(_) | Stage::Closing { .. } => MAX_FRAME_BYTES,
        }
    }

    fn is_closing(&self) -> bool {
        matches!(self.stage, Stage::Closing { .. })
    }

    /// Whether this end of a connection came up, be it closed since.
    fn was_up(&self, connection: u32) -> bool {
        matches!(self.connections.get(&connection), Some(Connection::Open { .. } | Connection::Closed))
    }

    /// Whether a connection needs the peer to be there: it is open, or the peer has still to say that it is over.
    pub(super) fn needs_peer(&self) -> bool {
        self.connections.values().any(|connection| match connection {
            Connection::Setup(_) => false,
            Connection::Open { peer_said_bye, .. } => !peer_said_bye,
            Connection::Closed => true,
        })
    }

    /// Since when the peer could have begun a connection, and has none. One whose offers wait for this process comes
    /// after all others, at [`LAST_NS`] and more.
    pub(super) fn newcomer_since_ns(&self) -> Option<u64> {
        let class_ns = if self.setups.has_offers() { LAST_NS } else { 0 };
        self.is_strangers().then_some(self.idle_since_ns + class_ns)
    }

    /// The bytes that wait to be sent, where the session is not read from until its peer takes them.
    pub(super) fn left_unread(&self) -> Option<usize> {
        let unsent = self.stream.unsent();
        is_left_unread(self.wanted.is_some(), unsent).then_some(unsent)
    }

    fn send(&mut self, connection: u32, message: Message) -> io::Result<()> {
        self.stream.send(&Frame { connection, message }.encode())
    }
}

impl Thread {
    /// Sends what comes first on a session, and keeps it.
    pub(super) fn begin_session(&mut self, token: usize, mut session: Box<Session>) {
        let mut hello = self.hello.clone();
        hello.nonce = random();
        hello.wanted = session.wanted.unwrap_or_default();
        session.our_hello = hello.encode();
        self.touch(token);
        let mut first = Vec::new();
        if session.wanted.is_some() {
            first.extend_from_slice(&Preface::Session.encode());
        }
        first.extend(Frame { connection: 0, message: Message::Hello(session.our_hello.clone()) }.encode());
        match session.stream.send(&first) {
            Ok(()) => self.handle_session(token, session),
            Err(error) => self.session_broke(token, session, &error),
        }
    }

    /// Reads and writes what a session has.
    pub(super) fn handle_session(&mut self, token: usize, mut session: Box<Session>) {
        match session.stream.is_connected() {
            Ok(true) => {}
            Ok(false) => {
                self.entries.insert(token, Entry::Session(session));
                return;
            }
            Err(error) => return self.session_broke(token, session, &error),
        }
        if let Err(error) = session.stream.flush() {
            return self.session_broke(token, session, &error);
        }
        if session.is_closing() {
            return self.close_when_sent(token, session);
        }
        // Once the peer reads, the socket is writable, and this comes again.
        if session.resting || session.left_unread().is_some() {
            self.entries.insert(token, Entry::Session(session));
            return;
        }
        let filled = session.stream.fill(session.most_unread());
        loop {
            match Frame::decode(session.stream.input()) {
                // HELLO and PROOF are shorter: whatever this is to become, it comes out of turn.
                Ok(None) if session.peer().is_none() && session.stream.input().len() >= session.most_unread() => {
                    return self.session_is_refused(
                        token,
                        session,
                        Kind::Session,
                        "sent a control message out of turn",
                    );
                }
                Ok(None) => break,
                Ok(Some((frame, length))) => {
                    session.stream.consume(length);
                    session.heartbeat.heard(self.now_ns());
                    if session.is_strangers() && session.has_said_enough(length) {
                        let text = format!("sent more than {MOST_FROM_STRANGERS} bytes without a connection");
                        return self.session_is_refused(token, session, Kind::Session, &text);
                    }
                    self.entries.insert(token, Entry::Session(session));
                    self.handle_frame(token, frame);
                    match self.entries.remove(&token) {
                        Some(Entry::Session(back)) => session = back,
                        _ => return,
                    }
                    if session.is_closing() {
                        return self.close_when_sent(token, session);
                    }
                }
                Err(error) => {
                    let text = format!("{} broke the control protocol: {error}", session.peer_name());
                    let now = self.now_ns();
                    self.strangers.report(now, Kind::Session, &text);
                    return self.session_over(token, session, &error.to_string());
                }
            }
        }
        // However often it asked, one answer says that this process is there.
        if std::mem::take(&mut session.asked)
            && let Err(error) = session.send(0, Message::Pong)
        {
            return self.session_over(token, session, &error.to_string());
        }
        match filled {
            Ok(Fill::Closed) => {
                let closed = io::Error::new(io::ErrorKind::UnexpectedEof, "the peer closed the session");
                return self.session_broke(token, session, &closed);
            }
            Err(error) => return self.session_broke(token, session, &error),
            Ok(Fill::Full) => {
                session.resting = true;
                self.rest(token);
            }
            Ok(Fill::Open) => {}
        }
        self.entries.insert(token, Entry::Session(session));
    }

    /// The socket of a session has failed, or the peer has closed it.
    fn session_broke(&mut self, token: usize, session: Box<Session>, error: &io::Error) {
        if let Some(process) = session.wanted
            && matches!(session.stage, Stage::Hello { .. })
        {
            self.dial_failed(process, session.address, session.stream.input().is_empty(), error);
        }
        self.session_over(token, session, &error.to_string());
    }

    /// Closes a session on which nothing is read any more, once what is left has gone out.
    fn close_when_sent(&mut self, token: usize, session: Box<Session>) {
        if session.stream.has_unsent() {
            self.entries.insert(token, Entry::Session(session));
        } else {
            self.session_over(token, session, "closed");
        }
    }

    /// Closes a session that others wait for the place of.
    pub(super) fn session_makes_place(&mut self, token: usize, session: Box<Session>, others: usize) {
        let text = format!("has no connection, as {others} others, while more wait");
        self.session_is_refused(token, session, Kind::Hello, &text);
    }

    fn session_is_refused(&mut self, token: usize, session: Box<Session>, kind: Kind, what: &str) {
        let now = self.now_ns();
        self.strangers.report(now, kind, &format!("{} {what}; its session was closed", session.peer_name()));
        self.session_over(token, session, what);
    }

    /// A session, to look at or to change.
    pub(super) fn session(&mut self, token: usize) -> Option<&mut Session> {
        self.touch(token);
        match self.entries.get_mut(&token) {
            Some(Entry::Session(session)) => Some(session),
            _ => None,
        }
    }

    /// Whether the peer of a session shares this host's network namespace, so that packets between both never leave it.
    pub(super) fn is_inside_host(&mut self, token: usize) -> bool {
        let ours = self.hello.network;
        self.session(token).and_then(|session| session.peer()).is_some_and(|peer| peer.network == ours)
    }

    fn handle_frame(&mut self, token: usize, frame: Frame) {
        self.look_at_debts();
        let Some(session) = self.session(token) else {
            return;
        };
        match (&session.stage, frame.message) {
            (Stage::Hello { .. }, Message::Hello(bytes)) => self.handle_hello(token, &bytes),
            (Stage::Proof { .. }, Message::Proof(proof)) => self.handle_proof(token, &proof),
            (Stage::Up(_), Message::Offer(offer)) if session.wanted.is_none() => {
                self.handle_offer(token, frame.connection, offer);
            }
            (Stage::Up(_), Message::Refuse { reason, .. }) if session.was_up(frame.connection) => {
                self.handle_late_refusal(Route { session: token, connection: frame.connection }, &reason);
            }
            (Stage::Up(_), Message::Bye) => self.handle_bye(Route { session: token, connection: frame.connection }),
            (Stage::Up(_), Message::Ping) => session.asked = true,
            (Stage::Up(_), Message::Pong) => {}
            (Stage::Up(_), Message::Wait) => {
                self.handle_wait(Route { session: token, connection: frame.connection });
            }
            (Stage::Up(_), Message::Hello(_) | Message::Offer(_) | Message::Proof(_))
            | (Stage::Hello { .. } | Stage::Proof { .. }, _) => {
                let peer = session.peer_name();
                let now = self.now_ns();
                let text = format!("{peer} sent a control message out of turn; its session was closed");
                self.strangers.report(now, Kind::Session, &text);
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
                    None => {
                        self.strangers.report(now, Kind::Hello, &format!("{address}: {text}; its session was refused"));
                    }
                }
                // Our HELLO is on its way: the peer names the difference itself.
                self.begin_closing(token);
            }
        }
    }

    /// Reads nothing more on a session, and closes it once what is left has gone out, or a second later.
    pub(super) fn begin_closing(&mut self, token: usize) {
        let deadline_ns = self.now_ns() + IDLE_NS;
        if let Some(session) = self.session(token) {
            session.stage = Stage::Closing { deadline_ns };
            session.wanted = None;
        }
    }

    pub(super) fn session_up(&mut self, token: usize, theirs: Box<Hello>) {
        let now = self.now_ns();
        let Some(session) = self.session(token) else {
            return;
        };
        session.stage = Stage::Up(theirs);
        session.our_hello = Vec::new();
        session.touch(now);
        if let Some(process) = session.wanted {
            self.reached(process, token);
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
        self.end_session(route.session, &error.to_string());
        Err(())
    }

    pub(super) fn end_session(&mut self, token: usize, why: &str) {
        self.touch(token);
        if let Some(Entry::Session(session)) = self.entries.remove(&token) {
            self.session_over(token, session, why);
        }
    }

    /// A session ended: with it all that is being set up, and, unless its data says so first, all that is open.
    fn session_over(&mut self, token: usize, mut session: Box<Session>, why: &str) {
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
        let text = format!("the session to {peer} ended while a connection was set up: {why}");
        for request in self.forget_waiting(token, &mut session.setups) {
            self.look_at_debts();
            self.fail(&Target::Connect(request.result), Error::peer(text.clone()));
        }
        for (connection, state) in session.connections.drain() {
            self.look_at_debts();
            let route = Route { session: token, connection };
            match state {
                Connection::Setup(setting) => self.lose_setting(route, setting, Error::peer(text.clone())),
                Connection::Open { link, peer_said_bye, parts, listener } => {
                    let text = format!("{peer} is gone: {why}; look at that process's own log for the reason");
                    self.begin_losing(link, Error::peer(text), parts);
                    if !peer_said_bye {
                        self.peer_left(route, listener);
                    }
                }
                Connection::Closed => {}
            }
            self.peer_said_bye(route);
        }
    }

    /// The time has come for something of a session.
    pub(super) fn session_deadline(&mut self, token: usize, mut session: Box<Session>, now_ns: u64) {
        match session.stage {
            Stage::Hello { deadline_ns } | Stage::Proof { deadline_ns, .. } if deadline_ns <= now_ns => {
                if session.wanted.is_none() {
                    let text = format!(
                        "{} opened a session but did not say who it is in time; it was closed",
                        session.address
                    );
                    self.strangers.report(now_ns, Kind::Hello, &text);
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
                Connection::Setup(s) if s.next_ns().is_some_and(|at| at <= now_ns) => Some(*number),
                _ => None,
            })
            .collect();
        session.touch(now_ns);
        self.entries.insert(token, Entry::Session(session));
        self.beat(token, now_ns);
        for connection in late {
            self.look_at_debts();
            self.setting_due(Route { session: token, connection }, now_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_that_did_not_open_the_session_stops_reading() {
        let (opener, other) = (true, false);
        for (end, unsent, expected) in [
            (other, MOST_UNREAD_BY_PEER, false),
            (other, MOST_UNREAD_BY_PEER + 1, true),
            // If it stopped too, each end could wait for the other to read.
            (opener, MOST_UNREAD_BY_PEER + 1, false),
            (opener, usize::MAX, false),
        ] {
            assert_eq!(is_left_unread(end, unsent), expected, "{end} {unsent}");
        }
    }
}
