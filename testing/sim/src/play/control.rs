//! The control threads of the processes: each end of a session is the protocol's own state machine, and the sockets
//! between them delay frames, break, fall silent, or cannot be dialled.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use railweave_transport::{
    Error, Event, Frame, ProcessId, Session, SessionAction, Side as SessionSide, SocketEnd, SocketEndKind,
};

use super::game::{Game, Side, Stage};
use super::sessions::Socket;
use crate::history::{Kind, Who};
use crate::task::Task;
use crate::witness::Note;
use crate::{Checker, Seen};

/// The port of every process's control socket.
const PORT: u16 = 7;

fn end_of(to_opener: bool) -> usize {
    usize::from(!to_opener)
}

impl<const ONE_SIDED: bool> Game<ONE_SIDED> {
    /// Handles an application's request for a connection.
    pub(super) fn handle_connect(&mut self, connection: usize) {
        let plan = &self.connections[connection].plan;
        let (from, to) = (plan.from, plan.to);
        if self.processes[from].dead || self.processes[from].aborted {
            self.connections[connection].sender.stage = Stage::Over;
            return;
        }
        if self.is_closed(Side { connection, sender: true }) {
            return;
        }
        if let Some(talk) = self.sessions.current.get(&(from, to)).copied() {
            self.world.lock().saw(Seen::SessionShared);
            let found = &mut self.sessions.talks[talk];
            if found.protocol.is_up() {
                return self.begin(talk, connection);
            }
            return found.waiting.push(connection);
        }
        let (now_ns, config) = (self.now_ns(), Arc::clone(&self.sessions.configs[from]));
        let addresses = (0..self.processes[to].addresses).map(|number| {
            let address = Ipv4Addr::new(10, 0, to as u8, number);
            SocketAddr::new(IpAddr::V4(address), PORT)
        });
        let protocol = Session::open(config, ProcessId([to as u8 + 1; 16]), addresses, now_ns);
        let talk = self.sessions.add(from, protocol, None, Some(to));
        self.sessions.talks[talk].waiting.push(connection);
        self.sessions.current.insert((from, to), talk);
        self.drive(talk);
    }

    /// Begins a connection on a session that is up.
    fn begin(&mut self, talk: usize, connection: usize) {
        let now_ns = self.now_ns();
        let number = self.sessions.talks[talk].protocol.begin(now_ns).expect("it is up");
        self.sessions.talks[talk].connections.insert(number, connection);
        self.connections[connection].sender.route = Some((talk, number));
        self.begin_connecting(connection);
        self.drive(talk);
    }

    /// Tells an end's session something about the end's connection, then carries out the session's actions.
    pub(super) fn tell(&mut self, side: Side, say: impl FnOnce(&mut Session, u32, u64)) {
        let pair = &self.connections[side.connection];
        let route = if side.sender { pair.sender.route } else { pair.receiver.route };
        let Some((talk, number)) = route else { return };
        let now_ns = self.now_ns();
        say(&mut self.sessions.talks[talk].protocol, number, now_ns);
        self.drive(talk);
    }

    /// Removes a connection from those that wait for a session, because its application gives up.
    pub(super) fn wait_no_more(&mut self, connection: usize) {
        self.sessions.talks.iter_mut().for_each(|talk| talk.waiting.retain(|waiting| *waiting != connection));
    }

    /// Carries out a session's actions.
    fn drive(&mut self, talk: usize) {
        if std::mem::replace(&mut self.sessions.talks[talk].is_driven, true) {
            return;
        }
        loop {
            let protocol = &mut self.sessions.talks[talk].protocol;
            if let Some(Event::Unwelcome(_)) = protocol.poll_event() {
                self.world.lock().saw(Seen::Unwelcome);
            }
            match protocol.poll_action() {
                Some(action) => self.carry(talk, action),
                None => break,
            }
        }
        let found = &mut self.sessions.talks[talk];
        found.is_driven = false;
        if let Some(at_ns) = found.protocol.timeout_ns()
            && found.timer_ns.is_none_or(|timer_ns| at_ns < timer_ns)
        {
            found.timer_ns = Some(at_ns);
            self.world.lock().at(at_ns, Task::Timer { talk });
        }
    }

    /// Handles an expired timer of a session.
    pub(super) fn handle_timer(&mut self, talk: usize) {
        let now_ns = self.now_ns();
        let found = &mut self.sessions.talks[talk];
        if self.processes[found.process].dead {
            return;
        }
        if found.timer_ns.is_some_and(|timer_ns| timer_ns <= now_ns) {
            found.timer_ns = None;
        }
        if found.protocol.timeout_ns().is_some_and(|at_ns| at_ns <= now_ns) {
            if found.protocol.overdue_ns(now_ns).is_some() {
                self.world.lock().saw(Seen::PeerSilent);
            }
            found.protocol.handle_timeout(now_ns);
        }
        self.drive(talk);
        self.check_kept();
    }

    fn carry(&mut self, talk: usize, action: SessionAction) {
        let side_of = |number: u32, game: &Self| {
            let found = &game.sessions.talks[talk];
            let sender = found.protocol.side() == SessionSide::Opener;
            found.connections.get(&number).map(|connection| Side { connection: *connection, sender })
        };
        match action {
            SessionAction::Dial(address) => self.dial(talk, address),
            SessionAction::Send(frame) => self.send_frame(talk, frame),
            SessionAction::HangUp { .. } => self.hang_up(talk),
            SessionAction::Up => {
                for connection in std::mem::take(&mut self.sessions.talks[talk].waiting) {
                    self.begin(talk, connection);
                }
            }
            SessionAction::Unreachable(why) => {
                let error = Error::from(why);
                for connection in std::mem::take(&mut self.sessions.talks[talk].waiting) {
                    self.world.lock().saw(Seen::Unreachable);
                    self.set_up_failed(connection, true, &error);
                }
            }
            SessionAction::Ended(_) => {
                self.sessions.current.retain(|_, current| *current != talk);
                if self.sessions.talks[talk]
                    .protocol
                    .ended()
                    .is_some_and(|why| **why == railweave_transport::Ended::Idle)
                {
                    self.world.lock().saw(Seen::SessionIdle);
                }
                for connection in std::mem::take(&mut self.sessions.talks[talk].waiting) {
                    self.interrupted(Side { connection, sender: true });
                }
            }
            SessionAction::Offer { connection: number, offer } => {
                let connection = offer.nonce as usize;
                self.sessions.talks[talk].connections.insert(number, connection);
                self.connections[connection].receiver.route = Some((talk, number));
                self.handle_offer(connection, &offer);
            }
            SessionAction::Message { connection: number, message } => {
                if let Some(side) = side_of(number, self) {
                    self.handle_message(side, message);
                }
            }
            SessionAction::Interrupted(number) => {
                if let Some(side) = side_of(number, self) {
                    self.interrupted(side);
                    self.tell(side, Session::failed);
                }
            }
            SessionAction::PeerLeft(number) => {
                if let Some(side) = side_of(number, self) {
                    self.peer_left(side);
                }
            }
            SessionAction::Lost { connection: number, lost } => {
                if let Some(side) = side_of(number, self) {
                    self.lose(side, lost.into());
                }
            }
            SessionAction::Linger(number) => {
                if let Some(side) = side_of(number, self) {
                    let is_drained = self.linger(side);
                    self.tell(side, |session, number, now_ns| session.handle_lingered(number, is_drained, now_ns));
                }
            }
            SessionAction::Over(number) => {
                if let Some(side) = side_of(number, self) {
                    self.over(side);
                }
            }
            SessionAction::Withdrawn(_) | SessionAction::Waits(_) => {}
        }
    }

    fn delay_ns(&self) -> u64 {
        let mut state = self.world.lock();
        let extra_ns = state.chance.below(self.faults.session_jitter_ns + 1);
        if extra_ns > 0 {
            state.saw(Seen::SlowControl);
        }
        self.faults.session_delay_ns + extra_ns
    }

    fn dial(&mut self, talk: usize, address: SocketAddr) {
        let IpAddr::V4(host) = address.ip() else { return };
        let to = usize::from(host.octets()[2]);
        let delay_ns = self.delay_ns();
        let socket = self.sessions.sockets.len();
        self.sessions.sockets.push(Socket {
            talks: [Some(talk), None],
            last_ns: [0; 2],
            has_spoken: [false; 2],
            is_dead: false,
        });
        self.sessions.talks[talk].socket = Some(socket);
        let dead = self.processes[to].dead;
        let mut state = self.world.lock();
        if !dead && !state.chance.permille(self.faults.dial_fails_permille) {
            // The acceptor's frames arrive after the news that the socket is connected.
            self.sessions.sockets[socket].last_ns[end_of(true)] = state.now_ns + 2 * delay_ns;
            state.later(delay_ns, Task::Arrive { socket, to });
            return state.later(2 * delay_ns, Task::Connected { socket });
        }
        state.saw(Seen::DialFailed);
        let kind = state.chance.pick(&[SocketEndKind::NoRoute, SocketEndKind::Mute, SocketEndKind::Other]);
        match kind {
            SocketEndKind::NoRoute => {
                drop(state);
                let end = SocketEnd { kind, text: "Network is unreachable".to_owned() };
                self.lose_socket(talk, end);
            }
            // A dead process does not answer, or its host reports that it is dead.
            SocketEndKind::Other if state.chance.permille(300) => {}
            _ => state.later(2 * delay_ns, Task::SocketEnd { socket, to_opener: true }),
        }
    }

    /// Accepts a dialled socket at the process that it was dialled to.
    pub(super) fn handle_arrival(&mut self, socket: usize, to: usize) {
        if self.processes[to].dead {
            return self.world.lock().later(1000, Task::SocketEnd { socket, to_opener: true });
        }
        let (now_ns, nonce, config) = (self.now_ns(), self.sessions.nonce(), Arc::clone(&self.sessions.configs[to]));
        let address = SocketAddr::from(([10, 0, 255, 255], 1024 + socket as u16));
        let protocol = Session::accept(config, nonce, address, now_ns);
        let talk = self.sessions.add(to, protocol, Some(socket), None);
        self.sessions.sockets[socket].talks[1] = Some(talk);
        self.drive(talk);
    }

    /// Tells a session that its dialled socket is connected.
    pub(super) fn handle_connected(&mut self, socket: usize) {
        let Some(talk) = self.owner(socket, true) else { return };
        let nonce = self.sessions.nonce();
        self.sessions.talks[talk].protocol.handle_connected(nonce);
        self.drive(talk);
    }

    /// Returns the end of a session that owns one end of this socket, if it still does.
    fn owner(&self, socket: usize, opener: bool) -> Option<usize> {
        let talk = self.sessions.sockets[socket].talks[end_of(opener)]?;
        let found = &self.sessions.talks[talk];
        (found.socket == Some(socket) && !self.processes[found.process].dead).then_some(talk)
    }

    fn send_frame(&mut self, talk: usize, frame: Frame) {
        let found = &self.sessions.talks[talk];
        let (Some(socket), Some(frame)) = (found.socket, self.plot.carried(frame)) else { return };
        let to_opener = found.protocol.side() == SessionSide::Acceptor;
        let delay_ns = self.delay_ns();
        let mut state = self.world.lock();
        // A session is a stream, so frames keep their order.
        let last_ns = &mut self.sessions.sockets[socket].last_ns[end_of(to_opener)];
        *last_ns = (state.now_ns + delay_ns).max(*last_ns);
        state.at(*last_ns, Task::Frame { socket, to_opener, bytes: frame.encode() });
    }

    pub(super) fn handle_frame(&mut self, socket: usize, to_opener: bool, bytes: &[u8]) {
        if self.sessions.sockets[socket].is_dead {
            return;
        }
        let Some(talk) = self.owner(socket, to_opener) else { return };
        self.sessions.sockets[socket].has_spoken[end_of(to_opener)] = true;
        let frame = match Frame::decode(bytes) {
            Ok(Some((frame, length))) if length == bytes.len() => frame,
            other => {
                let text = format!("a frame was decoded from its bytes as {other:?}");
                return self.violate(Checker::Wire, text);
            }
        };
        let connection = self.sessions.talks[talk].connections.get(&frame.connection).copied();
        let who = match connection {
            Some(connection) => Who::End { connection, sender: to_opener },
            None => Who::Process(self.sessions.talks[talk].process),
        };
        let mut state = self.world.lock();
        state.record(Kind::Control, who, [u64::from(frame.message.kind()), u64::from(to_opener), 0, 0]);
        if matches!(frame.message, railweave_transport::Message::Ping) {
            state.saw(Seen::Asked);
        }
        let now_ns = state.now_ns;
        drop(state);
        let protocol = &mut self.sessions.talks[talk].protocol;
        protocol.handle_frame(frame, now_ns);
        protocol.handle_all_read();
        self.drive(talk);
    }

    /// Closes an end's socket. The other end sees that after everything that was sent.
    fn hang_up(&mut self, talk: usize) {
        let found = &mut self.sessions.talks[talk];
        let to_opener = found.protocol.side() == SessionSide::Acceptor;
        let Some(socket) = found.socket.take() else { return };
        let delay_ns = self.delay_ns();
        let mut state = self.world.lock();
        let last_ns = self.sessions.sockets[socket].last_ns[end_of(to_opener)];
        let at_ns = (state.now_ns + delay_ns).max(last_ns);
        state.at(at_ns, Task::SocketEnd { socket, to_opener });
    }

    /// Tells an end that its socket has ended.
    pub(super) fn handle_socket_end(&mut self, socket: usize, to_opener: bool) {
        let Some(talk) = self.owner(socket, to_opener) else { return };
        let is_mute = !self.sessions.sockets[socket].has_spoken[end_of(to_opener)];
        let kind = if is_mute { SocketEndKind::Mute } else { SocketEndKind::Other };
        self.lose_socket(talk, SocketEnd { kind, text: "the peer closed the session".to_owned() });
    }

    fn lose_socket(&mut self, talk: usize, end: SocketEnd) {
        let now_ns = self.now_ns();
        self.sessions.talks[talk].socket = None;
        self.sessions.talks[talk].protocol.handle_lost(end, now_ns);
        self.drive(talk);
    }

    /// Breaks the sockets for which `which` returns true. Their ends see it after a while, or must find out.
    fn break_sockets(&mut self, which: impl Fn(&Self, &Socket) -> bool) {
        for number in 0..self.sessions.sockets.len() {
            if !which(self, &self.sessions.sockets[number]) {
                continue;
            }
            self.sessions.sockets[number].is_dead = true;
            let mut state = self.world.lock();
            let (detect_ns, is_told) = (self.faults.detect_ns, !self.faults.is_mute);
            for to_opener in [true, false] {
                if is_told {
                    let after_ns = state.chance.below(detect_ns + 1);
                    state.later(after_ns, Task::SocketEnd { socket: number, to_opener });
                }
            }
        }
    }

    /// Breaks the sessions of a process that was killed: its peers see it after a while, or must find out.
    pub(super) fn kill_sessions(&mut self, process: usize) {
        self.sessions.current.retain(|(from, _), _| *from != process);
        self.break_sockets(|game, socket| {
            socket.talks.iter().flatten().any(|talk| game.sessions.talks[*talk].process == process)
        });
    }

    /// Breaks the sessions that one process has opened to another.
    pub(super) fn break_sessions(&mut self, from: usize, to: usize) {
        self.break_sockets(|game, socket| {
            let opener = socket.talks[0].map(|talk| &game.sessions.talks[talk]);
            opener.is_some_and(|talk| talk.process == from && talk.wanted == Some(to))
        });
    }

    /// Checks that no session of a living process is left over.
    pub(super) fn check_sessions(&self) {
        for talk in &self.sessions.talks {
            if !self.processes[talk.process].dead && !talk.protocol.is_over() {
                let text = format!("a session of process {} is left over: {:?}", talk.process, talk.protocol);
                return self.violate(Checker::Leaks, text);
            }
        }
    }
}
