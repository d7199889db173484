//! Sessions: one control socket to each process that this one connects to, its input, and the actions of the session's
//! state machine ([`railweave_transport::Session`]).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use mio::Token as PollToken;
use railweave_identity::random;
use railweave_telemetry::EventKind;
use railweave_transport::{
    Cause, Ended, Error, Event, Fate, Frame, Hello, Limit, Lost, LostCause, Preface, Session as Protocol,
    SessionAction, SocketEnd, SocketEndKind, Unwelcome,
};

use super::connection::{Connection, Target};
use super::control_loop::{ControlLoop, Entry};
use super::rail_inbox::Input;
use super::session::{Closing, MOST_FROM_STRANGERS, Session, Socket};
use super::strangers::Kind;
use super::stream::{Fill, Stream, is_closed};
use crate::comm::Route;
use crate::descriptors;
use crate::log;

/// The number of reads from a session that can no longer send. A correct peer has left less input than these reads
/// take.
const MOST_LAST_READS: usize = 4;

impl ControlLoop {
    /// Takes a socket on which a peer opens a session.
    pub(super) fn accept_session(&mut self, token: usize, stream: Stream, address: SocketAddr) {
        let now = self.now_ns();
        let mut session = Box::new(Session::new(Protocol::accept(self.sessions.clone(), random(), address, now), None));
        session.take_socket(stream, false);
        self.entries.insert(token, Entry::Session(session));
        self.drive_session(token);
        self.handle_session(token);
    }

    /// Returns a session. After changing it, call [`Self::drive_session`] to carry out its state machine's actions.
    pub(super) fn session(&mut self, token: usize) -> Option<&mut Session> {
        self.touch(token);
        match self.entries.get_mut(&token) {
            Some(Entry::Session(session)) => Some(session),
            _ => None,
        }
    }

    /// Calls `act` with a session's state machine and the time, then carries out the actions of the state machine.
    pub(super) fn with_session<R>(&mut self, token: usize, act: impl FnOnce(&mut Protocol, u64) -> R) -> Option<R> {
        let now = self.now_ns();
        let result = act(&mut self.session(token)?.protocol, now);
        self.drive_session(token);
        Some(result)
    }

    /// Carries out a session's actions, and forgets the session once nothing of it is left.
    pub(super) fn drive_session(&mut self, token: usize) {
        match self.session(token) {
            // The call in progress carries out the added actions too.
            Some(session) if session.is_driven => return,
            Some(session) => session.is_driven = true,
            None => return,
        }
        while let Some(session) = self.session(token) {
            let (event, action) = (session.protocol.poll_event(), session.protocol.poll_action());
            if let Some(event) = event {
                let peer = session.protocol.peer_name();
                self.log_event(&event, &peer, true);
            }
            let Some(action) = action else {
                break;
            };
            self.look_at_debts();
            self.carry_out_session_action(token, action);
        }
        let Some(session) = self.session(token) else {
            return;
        };
        session.is_driven = false;
        if session.protocol.is_over() {
            self.forget_session(token);
        } else if let Some(error) = session.socket_error.take() {
            self.break_socket(token, &error);
        }
    }

    /// Logs an event. `by_stranger`: a stranger can cause it, so the number of such lines is limited.
    pub(super) fn log_event(&mut self, event: &Event, peer: &str, by_stranger: bool) {
        let line = log::line(event, peer);
        if !by_stranger {
            log::warn(&line);
            return self.note_event(event, None, line);
        }
        let kind = match event {
            Event::Unwelcome(
                Unwelcome::Hello { .. } | Unwelcome::Late { .. } | Unwelcome::Limit { limit: Limit::Place { .. }, .. },
            ) => Kind::Hello,
            Event::Unwelcome(
                Unwelcome::OutOfTurn { .. }
                | Unwelcome::Garbled { .. }
                | Unwelcome::Limit { .. }
                | Unwelcome::Resume { .. },
            ) => Kind::Session,
            Event::Unwelcome(Unwelcome::OtherKey { .. }) => Kind::Key,
            Event::RailLeftOut { .. }
            | Event::RailDown { .. }
            | Event::RailAway { .. }
            | Event::RailUp { .. }
            | Event::MessageTruncated(_) => Kind::Rail,
        };
        if self.strangers.report(self.now_ns(), kind, &line) {
            self.note_event(event, None, line);
        }
    }

    fn carry_out_session_action(&mut self, token: usize, action: SessionAction) {
        let route = |connection| Route { session: token, connection };
        match action {
            SessionAction::Dial { from, to } => self.dial_session(token, from, to),
            SessionAction::Send(frame) => self.send_frame(token, &frame),
            SessionAction::HangUp { flush } => self.hang_up(token, flush),
            SessionAction::Up => self.session_up(token),
            SessionAction::Away(why) => self.session_away(token, &why),
            SessionAction::StillAway => self.wait_for_session(token),
            SessionAction::Back { after_ns } => self.say_back(token, after_ns),
            SessionAction::Resume(resume) => self.resume_session(token, &resume),
            SessionAction::Judge { connection, is_due, insists } => {
                self.judge_connection(route(connection), is_due, insists);
            }
            SessionAction::Received { connection, received } => {
                if let Some(fate) = self.fate(route(connection)) {
                    fate.set_received(received);
                }
            }
            SessionAction::Rail { connection, news } => self.recover(route(connection), Input::News(news)),
            SessionAction::Unreachable(unreachable) => self.fail_queued_connects(token, &unreachable),
            SessionAction::Ended(ended) => self.handle_session_end(token, &ended),
            SessionAction::Offer { connection, offer } => self.handle_offer(token, connection, offer),
            SessionAction::Withdrawn(connection) => self.forget_offer(route(connection)),
            SessionAction::Message { connection, message } => self.handshake_message(route(connection), message),
            SessionAction::Waits(connection) => self.handle_wait(route(connection)),
            SessionAction::Interrupted(connection) => self.interrupt_setup(route(connection)),
            SessionAction::PeerLeft(connection) => self.handle_peer_left(route(connection)),
            SessionAction::Lost { connection, lost } => self.mark_connection_lost(route(connection), &lost),
            SessionAction::Linger(connection) => self.linger_connection(route(connection)),
            SessionAction::Over(connection) => self.free_lingered_connection(route(connection)),
        }
    }

    /// Dials an address of a session's process, from this one of this host if it is given.
    fn dial_session(&mut self, token: usize, from: Option<IpAddr>, to: SocketAddr) {
        let dialled = Stream::dial(from, to).and_then(|mut stream| {
            stream.register(self.registry(), PollToken(token))?;
            Ok(stream)
        });
        let Some(session) = self.session(token) else {
            return;
        };
        match dialled {
            Ok(stream) => session.take_socket(stream, true),
            Err(error) => {
                let text = format!("{error}{}", descriptors::hint(&error));
                let kind = kind_of(&error, false);
                self.with_session(token, |session, now| session.handle_lost(SocketEnd { kind, text }, now));
            }
        }
    }

    fn send_frame(&mut self, token: usize, frame: &Frame) {
        let Some(session) = self.session(token) else {
            return;
        };
        if let Some(socket) = session.socket.as_mut().filter(|socket| !socket.is_broken)
            && let Err(error) = socket.stream.send(&frame.encode())
        {
            socket.is_broken = true;
            session.socket_error = Some(error);
        }
    }

    /// Closes the socket of a session; with `flush`, once its output has gone out.
    fn hang_up(&mut self, token: usize, flush: bool) {
        let since_ns = self.now_ns();
        let Some(Socket { mut stream, .. }) = self.session(token).and_then(|session| session.socket.take()) else {
            return;
        };
        stream.deregister(self.registry());
        if flush && stream.has_unsent() {
            let token = self.fresh_token();
            if stream.register(self.registry(), PollToken(token)).is_ok() {
                self.entries.insert(token, Entry::Closing(Closing { stream, since_ns }));
                self.touch(token);
            }
        }
    }

    /// Sends what is left of a socket's output, and closes the socket afterwards.
    pub(super) fn handle_closing(&mut self, token: usize, mut closing: Closing) {
        if closing.stream.flush().is_ok() && closing.stream.has_unsent() {
            self.entries.insert(token, Entry::Closing(closing));
        } else {
            closing.stream.deregister(self.registry());
        }
    }

    /// Writes a session's output and reads its input.
    pub(super) fn handle_session(&mut self, token: usize) {
        let Some(session) = self.session(token) else {
            return;
        };
        let Some(socket) = &mut session.socket else {
            return;
        };
        if socket.is_dialled {
            match socket.stream.is_connected() {
                Ok(true) => {
                    socket.is_dialled = false;
                    // Before, the kernel would hardly repeat its first packet.
                    if session.protocol.is_away() {
                        socket.stream.insist_on_acknowledgements();
                    }
                }
                Ok(false) => return,
                Err(error) => return self.lose_socket(token, &error),
            }
            // One that is only to show that the peer's process is there carries nothing.
            if !session.protocol.is_checking() {
                // A new socket has room for it; an error shows at the next write.
                let _ = socket.stream.send(&Preface::Session.encode());
            }
            self.with_session(token, |session, now| session.handle_connected(random(), now));
        }
        let Some(session) = self.session(token) else {
            return;
        };
        let flushed = session.socket.as_mut().map_or(Ok(()), |socket| socket.stream.flush());
        match flushed {
            // Once the peer reads, the socket becomes writable, and this is called again.
            Ok(()) if session.is_resting || session.unsent_if_left_unread().is_some() => {}
            Ok(()) => drop(self.read_session(token)),
            Err(error) => {
                if let Some(socket) = &mut session.socket {
                    socket.is_broken = true;
                }
                self.break_socket(token, &error);
            }
        }
    }

    /// Handles a session's socket that can no longer send. Input that the peer sent before is read first.
    fn break_socket(&mut self, token: usize, error: &io::Error) {
        for _ in 0..MOST_LAST_READS {
            match self.session(token) {
                Some(session) => session.is_resting = false,
                None => return,
            }
            if !self.read_session(token) {
                return;
            }
            if self.session(token).is_some_and(|session| !session.is_resting) {
                break;
            }
        }
        self.lose_socket(token, error);
    }

    /// Reads as much of a session's input as is read at once. Returns false if the session has lost the socket.
    fn read_session(&mut self, token: usize) -> bool {
        let Some(session) = self.session(token) else {
            return false;
        };
        let most = session.most_unread();
        let Some(Socket { stream, number, .. }) = &mut session.socket else {
            return false;
        };
        let number = *number;
        let filled = stream.fill(most);
        while let Some(session) = self.session(token)
            && let Some(socket) = session.socket.as_mut().filter(|socket| socket.number == number)
        {
            match Frame::decode(socket.stream.input()) {
                // HELLO and PROOF are shorter, so this frame is out of turn.
                Ok(None) if !session.protocol.is_up() && socket.stream.input().len() >= most => {
                    self.with_session(token, |session, now| session.end(Ended::OutOfTurn, now));
                }
                Ok(None) => break,
                Ok(Some((frame, length))) => {
                    socket.stream.consume(length);
                    if session.is_of_stranger() && session.count_stranger_bytes(length) {
                        let limit = Limit::Unconnected { most: MOST_FROM_STRANGERS };
                        self.with_session(token, |session, now| session.end(limit.into(), now));
                        continue;
                    }
                    self.look_at_debts();
                    self.with_session(token, |session, now| session.handle_frame(frame, now));
                }
                Err(error) => {
                    self.with_session(token, |session, now| session.end(error.into(), now));
                }
            }
        }
        self.with_session(token, Protocol::handle_all_read);
        let Some(session) = self.session(token) else {
            return false;
        };
        if session.socket.as_ref().is_none_or(|socket| socket.number != number) {
            return false;
        }
        match filled {
            Ok(Fill::Open) => return true,
            Ok(Fill::Full) => {
                session.is_resting = true;
                let is_last = session.socket.as_ref().is_some_and(|socket| socket.is_broken);
                if !is_last {
                    self.rest_session(token);
                }
                return true;
            }
            Ok(Fill::Closed) => {
                let closed = io::Error::new(io::ErrorKind::UnexpectedEof, "the peer closed the session");
                self.lose_socket(token, &closed);
            }
            Err(error) => self.lose_socket(token, &error),
        }
        false
    }

    /// Handles a session's socket that failed or that the peer closed.
    pub(super) fn lose_socket(&mut self, token: usize, error: &io::Error) {
        let Some(Socket { mut stream, .. }) = self.session(token).and_then(|session| session.socket.take()) else {
            return;
        };
        stream.deregister(self.registry());
        let is_mute = stream.input().is_empty() && is_closed(error);
        let end = SocketEnd { kind: kind_of(error, is_mute), text: error.to_string() };
        self.with_session(token, |session, now| session.handle_lost(end, now));
    }

    /// Closes a session to make room for others.
    pub(super) fn close_session_for_others(&mut self, token: usize, others: usize) {
        self.with_session(token, |session, now| session.end(Limit::Place { others }.into(), now));
    }

    /// Returns true if the peer of a session shares this process's network namespace, so that packets between the two
    /// never leave the host.
    pub(super) fn is_inside_host(&mut self, token: usize) -> bool {
        let ours = self.sessions.hello.network;
        self.session(token).and_then(|session| session.protocol.peer()).is_some_and(|peer: &Hello| peer.network == ours)
    }

    /// Handles the end of a session: forgets it as a way to its process, and fails the connects that wait on it.
    fn handle_session_end(&mut self, token: usize, why: &Ended) {
        let Some(session) = self.session(token) else {
            return;
        };
        let error =
            Error::from(Cause::SessionEnded { peer: session.protocol.peer_name(), ended: Arc::new(why.clone()) });
        let has_open = session.connections.values().any(|connection| matches!(connection, Connection::Open { .. }));
        if has_open {
            self.note(EventKind::SESSION, None, || error.to_string());
        }
        let Some(session) = self.session(token) else {
            return;
        };
        let has_been_up = session.protocol.peer().is_some();
        if let Some(process) = session.wanted_process
            && self.sessions_by_process.get(&process) == Some(&token)
        {
            self.sessions_by_process.remove(&process);
        }
        for request in self.forget_waiting(token) {
            self.look_at_debts();
            match has_been_up {
                // It waited for a session that was away: another may be opened.
                true => self.connect(request),
                false => self.report_failed_setup(&Target::Connect(Box::new(request)), error.clone()),
            }
        }
    }

    /// Returns the fate of an open connection.
    pub(super) fn fate(&mut self, route: Route) -> Option<&Fate> {
        match self.session(route.session)?.connections.get(&route.connection)? {
            Connection::Open { fate, .. } => Some(fate),
            _ => None,
        }
    }

    /// Marks an open connection as lost, because its session says so.
    fn mark_connection_lost(&mut self, route: Route, lost: &Lost) {
        if let Some(fate) = self.fate(route) {
            fate.set_lost(lost.clone().into());
        }
        if matches!(lost.cause, LostCause::Gone(_)) {
            self.peer_is_gone(route.session);
        }
    }

    /// Tells all sessions with the process of this session's peer that it is gone.
    fn peer_is_gone(&mut self, token: usize) {
        let Some(process) = self.session(token).and_then(|session| session.protocol.peer()).map(|peer| peer.process)
        else {
            return;
        };
        let is_with_it = |entry: &Entry| match entry {
            Entry::Session(session) => session.protocol.peer().is_some_and(|peer| peer.process == process),
            _ => false,
        };
        let sessions = self.entries.iter().filter(|(_, entry)| is_with_it(entry));
        for token in sessions.map(|(token, _)| *token).collect::<Vec<_>>() {
            self.with_session(token, Protocol::peer_is_gone);
        }
    }

    /// Handles an expired deadline of a session, or of a connection that is set up on it.
    pub(super) fn handle_session_deadline(&mut self, token: usize, now_ns: u64) {
        let Some(session) = self.session(token) else {
            return;
        };
        // Usually no connection is in set-up, and thousands may be up.
        let connections = if session.setups.has_any() { Some(session.connections.iter()) } else { None };
        let late: Vec<u32> = connections
            .into_iter()
            .flatten()
            .filter_map(|(number, connection)| match connection {
                Connection::Setup(setup) if setup.next_ns().is_some_and(|at| at <= now_ns) => Some(*number),
                _ => None,
            })
            .collect();
        if session.protocol.overdue_ns(now_ns).is_some() {
            // If this process was stopped, the answer may already be in the socket, even if the session rests.
            session.is_resting = false;
            self.handle_session(token);
        }
        // This end does not read from a peer that does not read, so it cannot call the peer silent.
        if let Some(session) = self.session(token)
            && let (Some(for_ns), Some(unsent)) = (session.protocol.overdue_ns(now_ns), session.unsent_if_left_unread())
        {
            self.with_session(token, |session, now| session.end(Ended::NotReading { for_ns, unsent }, now));
        }
        self.with_session(token, Protocol::handle_timeout);
        if self.session(token).and_then(|session| session.connects_late_ns()).is_some_and(|at_ns| at_ns <= now_ns) {
            self.wait_for_session(token);
        }
        for connection in late {
            self.look_at_debts();
            self.handle_setup_deadline(Route { session: token, connection }, now_ns);
        }
    }
}

/// Returns the meaning of a socket's error for the next attempt to reach its peer. `is_mute`: the peer has closed it
/// without having sent a byte.
fn kind_of(error: &io::Error, is_mute: bool) -> SocketEndKind {
    match error {
        _ if is_no_way(error) => SocketEndKind::NoRoute,
        _ if error.kind() == io::ErrorKind::ConnectionRefused => SocketEndKind::Refused,
        _ if is_path_gone(error) => SocketEndKind::NoAnswer,
        _ if is_mute => SocketEndKind::Mute,
        _ => SocketEndKind::Other,
    }
}

/// Returns true if this end's interface is down, or if the kernel gives a socket up because nobody acknowledges its
/// packets, and perhaps says why.
fn is_path_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkDown)
}

/// Returns true if the kernel has no route to the address. Two similar errors have other causes: EHOSTUNREACH comes
/// from firewalls and hosts that are down (a packet is rejected, or a neighbour does not answer), and EADDRNOTAVAIL
/// means that source ports have run out.
fn is_no_way(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NetworkUnreachable
}

#[cfg(test)]
mod tests {
    use railweave_transport::Gone;

    use super::*;
    use crate::control::events::tests::Site;
    use crate::control::recovery::tests::ROUTE;

    #[test]
    fn a_process_that_is_gone_is_gone_for_all_its_sessions() {
        let ended = LostCause::Gone(Gone::Ended { sign: "refused".to_owned(), for_ns: 1_000_000_000 });
        for (cause, is_over) in [(ended, true), (LostCause::Bye, false)] {
            let mut site = Site::new();
            let (route, other) = (site.add_session(), Site::new().into_session());
            let stranger = route.session + 1;
            site.thread.entries.insert(stranger, other);
            for session in [ROUTE.session, route.session, stranger] {
                site.thread.lose_socket(session, &io::Error::other("a test"));
            }
            site.thread.mark_connection_lost(ROUTE, &Lost { peer: "host1".to_owned(), cause });
            let now = site.thread.now_ns();
            for (session, is_over) in [(route.session, is_over), (stranger, false)] {
                let protocol = &mut site.thread.session(session).expect("it is there").protocol;
                assert!(protocol.close(route.connection, None, now), "from here on it lingers, unless nobody is there");
                protocol.handle_lingered(route.connection, false, now);
                let actions: Vec<_> = std::iter::from_fn(|| protocol.poll_action()).collect();
                assert_eq!(actions.contains(&SessionAction::Over(route.connection)), is_over, "{session}: {actions:?}");
            }
        }
    }

    #[test]
    fn only_a_network_that_is_unreachable_has_no_way() {
        assert!(is_no_way(&io::Error::from_raw_os_error(libc::ENETUNREACH)));
        for other in [libc::EHOSTUNREACH, libc::EADDRNOTAVAIL, libc::ECONNREFUSED] {
            assert!(!is_no_way(&io::Error::from_raw_os_error(other)), "{other}");
        }
    }
}
