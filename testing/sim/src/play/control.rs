//! The control threads of the processes: each end of a session is the protocol's own state machine, and the sockets
//! between them delay frames, break, fall silent, or cannot be dialled.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use railweave_transport::{
    Cause, Error, Event, Fate, Frame, Hello, Lost, LostCause, Message, PROTOCOL_VERSION, Probe, ProcessId, Resume,
    Session, SessionAction, SessionId, Side as SessionSide, SocketEnd, SocketEndKind,
};

use super::game::{Game, Side};
use super::sessions::Socket;
use super::stage::Stage;
use crate::history::{Kind, Who};
use crate::sabotage::Sabotage;
use crate::task::Task;
use crate::watch::Strike;
use crate::witness::Note;
use crate::{Blow, Checker, Seen};

/// The TCP port of every process's control socket.
const PORT: u16 = 7;

/// Returns the index of an end in its [`Socket`].
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
            // It may have waited for a session that was away, and was closed meanwhile.
            return self.strike(connection, &[false], Strike::PeerClosed);
        }
        if self.is_closed(Side { connection, sender: true }) {
            return;
        }
        if let Some(end) = self.sessions.current.get(&(from, to)).copied() {
            self.world.lock().saw(Seen::SessionShared);
            if self.sessions.is_dead(end) {
                self.strike(connection, &[true, false], Strike::SessionBroke);
            }
            let found = &mut self.sessions.ends[end];
            if found.protocol.is_up() {
                return self.begin(end, connection);
            }
            return found.waiting.push(connection);
        }
        let (now_ns, config) = (self.now_ns(), Arc::clone(&self.sessions.configs[from]));
        let addresses = (0..self.processes[to].addresses).map(|number| {
            let address = Ipv4Addr::new(10, 0, to as u8, number);
            SocketAddr::new(IpAddr::V4(address), PORT)
        });
        let protocol = Session::open(config, ProcessId([to as u8 + 1; 16]), addresses, now_ns);
        let end = self.sessions.add(from, protocol, None, Some(to));
        self.sessions.ends[end].waiting.push(connection);
        self.sessions.current.insert((from, to), end);
        self.drive(end);
    }

    /// Begins a connection at the opener's end of a session that is up.
    fn begin(&mut self, end: usize, connection: usize) {
        let now_ns = self.now_ns();
        let number = self.sessions.ends[end].protocol.begin(now_ns).expect("it is up");
        if number < self.faults.first_connection {
            self.world.lock().saw(Seen::ConnectionsWrapped);
        }
        self.sessions.ends[end].connections.insert(number, connection);
        self.connections[connection].sender.route = Some((end, number));
        self.begin_connecting(connection);
        self.drive(end);
    }

    /// Tells an end's session something about the end's connection, then carries out the session's actions.
    pub(super) fn tell(&mut self, side: Side, say: impl FnOnce(&mut Session, u32, u64)) {
        let pair = &self.connections[side.connection];
        let route = if side.sender { pair.sender.route } else { pair.receiver.route };
        let Some((end, number)) = route else { return };
        let now_ns = self.now_ns();
        say(&mut self.sessions.ends[end].protocol, number, now_ns);
        self.drive(end);
    }

    /// Returns true if a connection waits for its session.
    pub(super) fn waits_for_session(&self, connection: usize) -> bool {
        self.sessions.ends.iter().any(|end| end.waiting.contains(&connection))
    }

    /// Carries out all actions of a session's end, and schedules its timer.
    pub(super) fn drive(&mut self, end: usize) {
        if std::mem::replace(&mut self.sessions.ends[end].is_driven, true) {
            return;
        }
        loop {
            let protocol = &mut self.sessions.ends[end].protocol;
            if let Some(Event::Unwelcome(_)) = protocol.poll_event() {
                self.world.lock().saw(Seen::Unwelcome);
            }
            match protocol.poll_action() {
                Some(action) => self.carry(end, action),
                None => break,
            }
        }
        let found = &mut self.sessions.ends[end];
        found.is_driven = false;
        if let Some(at_ns) = found.protocol.timeout_ns()
            && found.timer_ns.is_none_or(|timer_ns| at_ns < timer_ns)
        {
            found.timer_ns = Some(at_ns);
            self.world.lock().at(at_ns, Task::Timer { end });
        }
    }

    /// Handles the expired timer of a session's end.
    pub(super) fn handle_timer(&mut self, end: usize) {
        let now_ns = self.now_ns();
        let found = &mut self.sessions.ends[end];
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
        self.drive(end);
        self.check_kept();
    }

    /// Carries out one action of a session's end.
    fn carry(&mut self, end: usize, action: SessionAction) {
        let side_of = |number: u32, game: &Self| {
            let found = &game.sessions.ends[end];
            let sender = found.protocol.side() == SessionSide::Opener;
            found.connections.get(&number).map(|connection| Side { connection: *connection, sender })
        };
        match action {
            SessionAction::Dial { to, .. } => self.dial(end, to),
            SessionAction::Send(frame) => self.send_frame(end, frame),
            SessionAction::HangUp { .. } => self.hang_up(end),
            SessionAction::Up => {
                for connection in std::mem::take(&mut self.sessions.ends[end].waiting) {
                    self.begin(end, connection);
                }
            }
            SessionAction::Unreachable(why) => {
                let (error, has_failed_dial) = (Error::from(why), self.sessions.ends[end].has_failed_dial);
                for connection in std::mem::take(&mut self.sessions.ends[end].waiting) {
                    self.world.lock().saw(Seen::Unreachable);
                    self.set_up_failed(Side { connection, sender: true }, &error, has_failed_dial);
                }
            }
            SessionAction::Ended(_) => self.forget(end),
            SessionAction::Away(why) => self.handle_away(end, &why),
            // A connect that waits for a session has no time of its own here.
            SessionAction::StillAway => {}
            SessionAction::Back { .. } => self.world.lock().saw(Seen::SessionResumed),
            SessionAction::Resume(resume) => self.resume(end, &resume),
            SessionAction::Judge { connection: number, is_due, insists } => {
                let side = side_of(number, self);
                if let (Some(side), true) = (side.filter(|side| side.sender), is_due) {
                    self.world.lock().observer.watch.connections[side.connection].probes += 1;
                }
                let fate = side.and_then(|side| self.fate(side));
                let probe = fate.map_or(Probe::Broken, |fate| self.plot.probe(fate.judge(is_due, insists)));
                self.world.lock().saw(match probe {
                    Probe::Unposted => Seen::ProbeUnposted,
                    Probe::Unseen => Seen::ProbeUnseen,
                    Probe::Outstanding { .. } | Probe::Blocked { .. } | Probe::CutOff => Seen::ProbeOut,
                    Probe::Carried => Seen::ProbeCarried,
                    Probe::Broken => Seen::ProbeBroken,
                });
                let now_ns = self.now_ns();
                self.sessions.ends[end].protocol.handle_judged(number, probe, now_ns);
            }
            SessionAction::Received { connection: number, received } => {
                let fate = side_of(number, self).and_then(|side| self.fate(side));
                if let Some(fate) = fate.filter(|_| !self.plot.is(Sabotage::ReceivedForgotten)) {
                    fate.set_received(received);
                }
            }
            SessionAction::Rail { connection: number, news } => {
                if let Some(side) = side_of(number, self) {
                    self.handle_rail_news(side, news);
                }
            }
            SessionAction::Offer { connection: number, offer } => {
                let connection = offer.nonce as usize;
                self.sessions.ends[end].connections.insert(number, connection);
                self.connections[connection].receiver.route = Some((end, number));
                self.offer_arrived(end, number, offer);
            }
            SessionAction::Message { connection: number, message } => {
                if let Some(side) = side_of(number, self) {
                    self.handle_message(side, message);
                }
            }
            SessionAction::Interrupted(number) => {
                if let Some(side) = side_of(number, self) {
                    let error = self.session_ended(end);
                    let progress = self.set_up(side).map(|(_, progress)| progress);
                    if let Err(error) = progress.map_or(Err(error.clone()), |progress| progress.interrupt(error)) {
                        self.set_up_failed(side, &error, false);
                    }
                }
            }
            SessionAction::PeerLeft(number) => {
                if let Some(side) = side_of(number, self).filter(|_| self.plot.is(Sabotage::LossEndsFlush)) {
                    self.lose(side, Lost { peer: "its peer".to_owned(), cause: LostCause::Bye }.into());
                }
            }
            SessionAction::Lost { connection: number, lost } => {
                self.note_gone(end, &lost.cause);
                if let Some(side) = side_of(number, self) {
                    self.lose(side, lost.into());
                }
            }
            SessionAction::Linger(number) => {
                if let Some(side) = side_of(number, self) {
                    self.linger(side);
                }
            }
            SessionAction::Over(number) => {
                if let Some(side) = side_of(number, self).filter(|_| !self.plot.is(Sabotage::OverForgotten)) {
                    self.over(side);
                }
            }
            SessionAction::Withdrawn(number) => self.handle_withdrawn(end, number),
            SessionAction::Waits(number) => side_of(number, self).into_iter().for_each(|side| self.handle_waits(side)),
        }
    }

    /// Forgets a session that has ended. Connections that waited for it are interrupted.
    fn forget(&mut self, end: usize) {
        self.sessions.current.retain(|_, current| *current != end);
        let found = &mut self.sessions.ends[end];
        let waiting = std::mem::take(&mut found.waiting);
        if found.protocol.ended().is_some_and(|why| **why == railweave_transport::Ended::Idle) {
            self.world.lock().saw(Seen::SessionIdle);
        }
        if self.sessions.ends[end].protocol.peer().is_some() {
            // They waited for a session that was away: another may be opened.
            return waiting.into_iter().for_each(|connection| self.handle_connect(connection));
        }
        let error = self.session_ended(end);
        for connection in waiting {
            self.set_up_failed(Side { connection, sender: true }, &error, false);
        }
    }

    /// Returns the error of a set-up whose session has ended, at this end.
    fn session_ended(&self, end: usize) -> Error {
        let protocol = &self.sessions.ends[end].protocol;
        let ended = Arc::clone(protocol.ended().expect("it has ended"));
        Cause::SessionEnded { peer: protocol.peer_name(), ended }.into()
    }

    /// Draws the delay of a frame, or of another event of a socket.
    fn delay_ns(&self) -> u64 {
        let mut state = self.world.lock();
        let extra_ns = state.chance.below(self.faults.session_jitter_ns + 1);
        if extra_ns > 0 {
            state.saw(Seen::SlowControl);
        }
        self.faults.session_delay_ns + extra_ns
    }

    /// Dials an address for the opener's end of a session.
    fn dial(&mut self, end: usize, address: SocketAddr) {
        let IpAddr::V4(host) = address.ip() else { return };
        let to = usize::from(host.octets()[2]);
        let delay_ns = self.delay_ns();
        let socket = self.sessions.sockets.len();
        self.sessions.sockets.push(Socket {
            ends: [Some(end), None],
            last_ns: [0; 2],
            has_spoken: [false; 2],
            is_dead: false,
        });
        self.sessions.ends[end].socket = Some(socket);
        if self.sessions.ends[end].dialled.contains(&address) {
            self.world.lock().saw(Seen::Redialled);
        }
        self.sessions.ends[end].dialled.push(address);
        let (from, dead) = (self.sessions.ends[end].process, self.processes[to].dead);
        let is_away = self.sessions.is_away(from, to, self.now_ns());
        let (is_mute, is_refused) = (self.faults.is_mute, self.faults.is_refused);
        let mut state = self.world.lock();
        if !dead && !is_away && !state.chance.permille(self.faults.dial_fails_permille) {
            // The acceptor's frames arrive after the news that the socket is connected.
            self.sessions.sockets[socket].last_ns[end_of(true)] = state.now_ns + 2 * delay_ns;
            state.later(delay_ns, Task::Arrive { socket, to });
            return state.later(2 * delay_ns, Task::Connected { socket });
        }
        state.saw(Seen::DialFailed);
        self.sessions.ends[end].has_failed_dial = true;
        let kind = match () {
            // The host of a process that has ended answers, unless the host is gone too.
            () if dead && !is_mute || !dead && is_away && is_refused => SocketEndKind::Refused,
            () if dead => SocketEndKind::Other,
            () => state.chance.pick(&[SocketEndKind::NoRoute, SocketEndKind::Mute, SocketEndKind::Other]),
        };
        match kind {
            SocketEndKind::NoRoute | SocketEndKind::Refused => {
                drop(state);
                let text = if kind == SocketEndKind::Refused { "Connection refused" } else { "Network is unreachable" };
                self.lose_socket(end, SocketEnd { kind, text: text.to_owned() });
            }
            // A host that is gone never answers.
            SocketEndKind::Other if dead => {}
            // Nothing answers, and the end of the socket is never reported.
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
        let opener = self.sessions.sockets[socket].ends[0].map(|end| self.sessions.ends[end].process);
        let host = opener.map_or(255, |process| process as u8);
        let address = SocketAddr::from(([10, 0, host, 0], 1024 + (socket % 60_000) as u16));
        let protocol = Session::accept(config, nonce, address, now_ns);
        let end = self.sessions.add(to, protocol, Some(socket), None);
        self.sessions.sockets[socket].ends[1] = Some(end);
        self.drive(end);
    }

    /// Tells a session that its dialled socket is connected.
    pub(super) fn handle_connected(&mut self, socket: usize) {
        let Some(end) = self.owner(socket, true) else { return };
        let (nonce, now_ns) = (self.sessions.nonce(), self.now_ns());
        if self.sessions.ends[end].protocol.is_checking() {
            self.world.lock().saw(Seen::OpenerChecked);
        }
        self.sessions.ends[end].protocol.handle_connected(nonce, now_ns);
        self.drive(end);
    }

    /// Returns the end of a session that owns the opener's or the acceptor's end of this socket; `None` if it no longer
    /// does, or if its process is dead.
    fn owner(&self, socket: usize, opener: bool) -> Option<usize> {
        let end = self.sessions.sockets[socket].ends[end_of(opener)]?;
        let found = &self.sessions.ends[end];
        (found.socket == Some(socket) && !self.processes[found.process].dead).then_some(end)
    }

    fn send_frame(&mut self, end: usize, frame: Frame) {
        let found = &self.sessions.ends[end];
        let (Some(socket), Some(frame)) = (found.socket, self.plot.carried(end, frame)) else { return };
        let to_opener = found.protocol.side() == SessionSide::Acceptor;
        let delay_ns = self.delay_ns();
        let mut state = self.world.lock();
        // A session is a stream, so frames keep their order.
        let last_ns = &mut self.sessions.sockets[socket].last_ns[end_of(to_opener)];
        *last_ns = (state.now_ns + delay_ns).max(*last_ns);
        for _ in 0..self.plot.copies(&frame) {
            let bytes = self.plot.carried_bytes(frame.encode());
            state.at(*last_ns, Task::Frame { socket, to_opener, bytes });
        }
        let cuts = frame.message.is_about_connection() && state.chance.permille(self.faults.cut_permille);
        drop(state);
        if cuts {
            self.strike_served(socket);
            self.break_socket(socket);
            let [from, to] =
                self.sessions.sockets[socket].ends.map(|end| end.map(|end| self.sessions.ends[end].process));
            if let (Some(from), Some(to)) = (from, to) {
                self.stay_away(from, to);
            }
        }
    }

    /// Hands a frame to the end of the session at which it arrives.
    pub(super) fn handle_frame(&mut self, socket: usize, to_opener: bool, bytes: &[u8]) {
        if self.sessions.sockets[socket].is_dead {
            return;
        }
        let Some(end) = self.owner(socket, to_opener) else { return };
        self.sessions.sockets[socket].has_spoken[end_of(to_opener)] = true;
        let frame = match Frame::decode(bytes) {
            Ok(Some((frame, length))) if length == bytes.len() => frame,
            other => {
                let text = format!("a frame was decoded from its bytes as {other:?}");
                return self.violate(Checker::Wire, text);
            }
        };
        let connection = self.sessions.ends[end].connections.get(&frame.connection).copied();
        let who = match connection {
            Some(connection) => Who::End { connection, sender: to_opener },
            None => Who::Process(self.sessions.ends[end].process),
        };
        let mut state = self.world.lock();
        state.record(Kind::Control, who, [u64::from(frame.message.kind()), u64::from(to_opener), 0, 0]);
        if matches!(frame.message, Message::Ping(_)) {
            state.saw(Seen::Asked);
        }
        let now_ns = state.now_ns;
        if let Some(watched) = connection.and_then(|number| state.observer.watch.connections.get_mut(number)) {
            match frame.message {
                Message::Bye(_) => watched.blame.bye_arrived(now_ns, to_opener),
                Message::Refuse { .. } => watched.blame.refuse_arrived(now_ns, to_opener),
                _ => {}
            }
        }
        drop(state);
        let protocol = &mut self.sessions.ends[end].protocol;
        protocol.handle_frame(frame, now_ns);
        protocol.handle_all_read(now_ns);
        self.drive(end);
    }

    /// Closes an end's socket. The other end sees that after everything that was sent before.
    fn hang_up(&mut self, end: usize) {
        let found = &mut self.sessions.ends[end];
        let to_opener = found.protocol.side() == SessionSide::Acceptor;
        let Some(socket) = found.socket.take() else { return };
        let delay_ns = self.delay_ns();
        let mut state = self.world.lock();
        let last_ns = self.sessions.sockets[socket].last_ns[end_of(to_opener)];
        let at_ns = (state.now_ns + delay_ns).max(last_ns);
        state.at(at_ns, Task::SocketEnd { socket, to_opener });
    }

    /// Handles the end of a socket at one of its ends.
    pub(super) fn handle_socket_end(&mut self, socket: usize, to_opener: bool) {
        let Some(end) = self.owner(socket, to_opener) else { return };
        let is_mute = !self.sessions.sockets[socket].has_spoken[end_of(to_opener)];
        let kind = match is_mute {
            true => SocketEndKind::Mute,
            false if socket.is_multiple_of(2) => SocketEndKind::NoAnswer,
            false => SocketEndKind::Other,
        };
        self.lose_socket(end, SocketEnd { kind, text: "the peer closed the session".to_owned() });
    }

    /// Tells a session's end that its socket is gone, and why.
    fn lose_socket(&mut self, end: usize, cause: SocketEnd) {
        let now_ns = self.now_ns();
        self.sessions.ends[end].socket = None;
        self.sessions.ends[end].protocol.handle_lost(cause, now_ns);
        self.drive(end);
    }

    /// Breaks a socket. Its ends are notified after a while, or must find out by themselves.
    fn break_socket(&mut self, number: usize) {
        self.sessions.sockets[number].is_dead = true;
        let mut state = self.world.lock();
        for to_opener in [true, false] {
            if !self.faults.is_mute {
                let after_ns = state.chance.below(self.faults.detect_ns + 1);
                state.later(after_ns, Task::SocketEnd { socket: number, to_opener });
            }
        }
    }

    /// Breaks the sessions of a killed process: its peers are notified after a while, or must find out by themselves.
    pub(super) fn kill_sessions(&mut self, process: usize) {
        self.sessions.current.retain(|(from, _), _| *from != process);
        for number in 0..self.sessions.sockets.len() {
            let mut ends = self.sessions.sockets[number].ends.iter().flatten();
            if ends.any(|end| self.sessions.ends[*end].process == process) {
                self.break_socket(number);
            }
        }
    }

    /// Breaks the sockets of the sessions that one process has opened to another, which strikes the connections on
    /// them. Returns false if there is none.
    pub(super) fn break_session(&mut self, from: usize, to: usize) -> bool {
        let sockets: Vec<usize> =
            (0..self.sessions.sockets.len()).filter(|socket| self.sessions.is_open(*socket, from, to)).collect();
        for socket in &sockets {
            self.strike_served(*socket);
            self.break_socket(*socket);
        }
        if !sockets.is_empty() {
            self.stay_away(from, to);
        }
        !sockets.is_empty()
    }

    /// Lets no session come up between two processes for a while.
    fn stay_away(&mut self, from: usize, to: usize) {
        if self.faults.away_ns > 0 {
            let until_ns = self.now_ns() + self.chance.between(1, self.faults.away_ns);
            self.sessions.away_until_ns.insert((from.min(to), from.max(to)), until_ns);
        }
    }

    /// Notes that the sessions of a socket break, for the connections on them.
    fn strike_served(&self, socket: usize) {
        self.world.lock().saw(Seen::SessionBroke);
        for connection in self.sessions.served(socket).into_iter().collect::<BTreeSet<_>>() {
            self.count_blow(Blow::SessionBreaks, connection, &[true, false], None);
            self.strike(connection, &[true, false], Strike::SessionBroke);
            self.world.lock().record(Kind::Death, Who::End { connection, sender: true }, [1, 0, 0, 0]);
        }
    }

    /// Gives the socket of a newcomer to the session with which its peer wants to go on, if it may.
    fn resume(&mut self, newcomer: usize, resume: &Resume) {
        let now_ns = self.now_ns();
        let process = self.sessions.ends[newcomer].process;
        let peer = self.sessions.ends[newcomer].protocol.peer().expect("it is up").clone();
        let ends = 0..self.sessions.ends.len();
        let old = ends.into_iter().find(|end| {
            let found = &self.sessions.ends[*end];
            found.process == process && *end != newcomer && found.protocol.check_resume(resume, &peer).is_ok()
        });
        let Some(old) = old else {
            self.world.lock().saw(Seen::ResumeRefused);
            return self.sessions.ends[newcomer].protocol.refuse_resume(now_ns);
        };
        self.hang_up(old);
        let socket = self.sessions.ends[newcomer].socket.take().expect("it has just come from it");
        let address = self.sessions.ends[newcomer].protocol.address();
        self.sessions.sockets[socket].ends[1] = Some(old);
        self.sessions.ends[old].socket = Some(socket);
        self.sessions.ends[old].protocol.resume(resume, address, now_ns);
        // It was only the socket's way in.
        self.sessions.ends[newcomer].protocol.discard();
        self.drive(old);
    }

    /// Lets a stranger dial a process and try to go on with one of its sessions: under a name that is its own, or with
    /// a session's name that is guessed. Nothing may come of it.
    pub(super) fn handle_stranger(&mut self) {
        let accepted: Vec<usize> = (0..self.sessions.ends.len())
            .filter(|end| {
                let found = &self.sessions.ends[*end];
                !self.processes[found.process].dead && found.wanted.is_none() && found.protocol.peer().is_some()
            })
            .collect();
        if accepted.is_empty() {
            return;
        }
        let target = self.chance.pick(&accepted);
        let (process, id) = (self.sessions.ends[target].process, self.sessions.ends[target].protocol.id());
        let peer = self.sessions.ends[target].protocol.peer().map_or(ProcessId::default(), |hello| hello.process);
        let is_guess = self.chance.permille(500);
        let hello = Hello {
            protocol_min: PROTOCOL_VERSION,
            protocol_max: PROTOCOL_VERSION,
            features: self.sessions.configs[process].hello.features,
            process: if is_guess { peer } else { ProcessId([0xee; 16]) },
            nonce: [0xee; 32],
            ..self.sessions.configs[process].hello.clone()
        };
        let session = if is_guess { SessionId([self.chance.below(256) as u8; 16]) } else { id };
        let resume = Resume { session, attempt: 1 + self.chance.below(9) as u32, received: self.chance.below(9) };
        self.world.lock().saw(Seen::Stranger);
        let number = self.sessions.sockets.len();
        self.sessions.sockets.push(Socket {
            ends: [None, None],
            last_ns: [0; 2],
            has_spoken: [false; 2],
            is_dead: false,
        });
        self.handle_arrival(number, process);
        for message in [Message::Hello(hello.encode()), Message::Resume(resume)] {
            let bytes = Frame { connection: 0, message }.encode();
            self.handle_frame(number, false, &bytes);
        }
        self.handle_socket_end(number, false);
    }

    /// Returns the fate of an end, while it is up.
    pub(super) fn fate(&self, side: Side) -> Option<Arc<Fate>> {
        let pair = &self.connections[side.connection];
        match (side.sender, &pair.sender.stage, &pair.receiver.stage) {
            (true, Stage::Up(comm, _), _) => comm.fate(),
            (false, _, Stage::Up(comm, _)) => comm.fate(),
            _ => None,
        }
    }

    /// Checks that no session of a living process is left over.
    pub(super) fn check_sessions(&self) {
        for end in &self.sessions.ends {
            if !self.processes[end.process].dead && !end.protocol.is_over() {
                let text = format!("a session of process {} is left over: {:?}", end.process, end.protocol);
                return self.violate(Checker::Leaks, text);
            }
        }
    }
}
