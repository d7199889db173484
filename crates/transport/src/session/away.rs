//! A session that has lost its socket while connections need it: its opener dials the peer again and resumes, its
//! acceptor waits and looks if the opener's process is still there, and what both find out decides the fate of the
//! connections.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::connections::{Connection, State};
use super::doubt::{Away, Probing, Times, Verdict};
use super::ended::ResumeFault;
use super::redial::Next;
use super::{Ended, Lost, LostCause, Session, SessionAction, Side, SocketEndKind, Stage};
use crate::{Frame, Hello, Message, Probe, Resume, SessionId};

impl Session {
    /// Returns true if the session has lost its socket and may find another.
    pub fn is_away(&self) -> bool {
        self.away.is_some()
    }

    /// Returns why the session has lost its socket, while it has none.
    pub fn away_why(&self) -> Option<&Arc<Ended>> {
        self.away.as_ref().map(|away| &away.why)
    }

    /// Returns true while an acceptor dials its opener only to see if the opener's process is there: such a socket
    /// carries nothing, not even a preface.
    pub fn is_checking(&self) -> bool {
        matches!(self.stage, Stage::Checking { .. })
    }

    /// Notes that this address has led to the peer's process, or that it has dialled from there: over a lane, which has
    /// shown that it belongs to a connection of this session. What happens there tells of the process later.
    pub fn prove(&mut self, address: IpAddr) {
        self.redial.prove(address);
    }

    /// Adds addresses at which the peer's process may be found if the session loses its socket.
    pub fn learn(&mut self, addresses: impl IntoIterator<Item = SocketAddr>) {
        self.redial.learn(addresses);
    }

    /// Handles the loss of the socket of a session that is up: goes on without one if connections need the session.
    pub(super) fn lose_socket(&mut self, why: Ended, kind: SocketEndKind, now_ns: u64) {
        let can_resume = matches!(why, Ended::Socket(_) | Ended::Silent { .. } | Ended::NotReading { .. });
        if !can_resume || !self.connections.outlive_socket() || self.numbered.lacks_some() {
            return self.over(why, now_ns);
        }
        self.asked = None;
        let is_path_gone =
            matches!(why, Ended::Silent { .. }) || matches!(kind, SocketEndKind::NoAnswer | SocketEndKind::NoRoute);
        let why = Arc::new(why);
        self.away = Some(Away {
            why: Arc::clone(&why),
            since_ns: now_ns,
            sign: None,
            sign_at: None,
            is_judging: false,
            is_gone: false,
            carried_ns: None,
        });
        self.actions.push_back(SessionAction::Away(why));
        match self.side {
            Side::Opener => {
                self.redial.begin(self.address, is_path_gone, self.config.redial_pause_ns);
                self.redial_next(now_ns);
            }
            Side::Acceptor => {
                self.check_pause_ns = self.config.check_pause_ns.0;
                self.wait_to_check(now_ns);
            }
        }
    }

    /// Returns the time since which the session is away.
    pub fn away_since_ns(&self) -> Option<u64> {
        self.away.as_ref().map(|away| away.since_ns)
    }

    /// Returns true if the peer of an open connection has left it, or is away.
    pub fn has_left(&self, connection: u32) -> bool {
        self.is_away() || !matches!(self.connections.state(connection), Some(State::Open { peer_left: None, .. }))
    }

    /// Dials the next address at which the peer may be.
    pub(super) fn redial_next(&mut self, now_ns: u64) {
        match self.redial.next(&self.config.own) {
            Next::Dial { from, to, is_patient } => {
                self.actions.push_back(SessionAction::StillAway);
                self.address = to;
                let (short_ns, patient_ns) = self.config.redial_ns;
                let ns = if is_patient { patient_ns } else { short_ns };
                self.stage = Stage::Dialling { deadline_ns: now_ns.saturating_add(ns) };
                self.actions.push_back(SessionAction::Dial { from, to });
            }
            Next::Pause { ns } => {
                self.stage = Stage::Pausing { until_ns: now_ns.saturating_add(ns) };
                self.actions.push_back(SessionAction::StillAway);
            }
        }
    }

    /// Begins to dial the peer of a session that is away again, now: something says that paths may be back. Without
    /// this, the pauses have grown meanwhile, or the kernel waits seconds before it repeats a packet that was lost.
    /// The first such word in a round begins it again, further ones only the dial in progress.
    pub fn hurry(&mut self, now_ns: u64) {
        match self.stage {
            Stage::Pausing { .. } if self.is_away() => {}
            Stage::Dialling { .. } if self.is_away() => {
                self.actions.push_back(SessionAction::HangUp { flush: false });
            }
            _ => return,
        }
        if self.redial.restart(self.config.redial_pause_ns) {
            return self.redial_next(now_ns);
        }
        // The same address again, which has no more time for that.
        self.actions.push_back(SessionAction::Dial { from: self.redial.from(), to: self.address });
    }

    /// Lets the acceptor wait until it looks for its opener's process again.
    fn wait_to_check(&mut self, now_ns: u64) {
        self.actions.push_back(SessionAction::StillAway);
        self.stage = Stage::Waiting { check_ns: now_ns.saturating_add(self.check_pause_ns) };
        self.check_pause_ns = (self.check_pause_ns * 2).min(self.config.check_pause_ns.1);
    }

    /// Dials the opener's control port, to see if its process is there.
    pub(super) fn check_opener(&mut self, now_ns: u64) {
        let port = self.peer.as_ref().map_or(0, |hello| hello.control_port);
        if port == 0 {
            return self.wait_to_check(now_ns);
        }
        let proven = self.redial.proven();
        let at = match self.checks % (proven.len() + 1) {
            0 => self.address.ip(),
            number => proven[number - 1],
        };
        self.checks = self.checks.wrapping_add(1);
        self.checked_at = at;
        self.stage = Stage::Checking { deadline_ns: now_ns.saturating_add(self.config.redial_ns.1) };
        self.actions.push_back(SessionAction::Dial { from: None, to: SocketAddr::new(at, port) });
    }

    /// Returns the address at which the peer's process is looked for.
    fn looked_at(&self) -> IpAddr {
        if self.side == Side::Acceptor { self.checked_at } else { self.address.ip() }
    }

    /// Notes that the socket of a check is connected: the process is there, or the kernel still accepts for it.
    pub(super) fn checked(&mut self, now_ns: u64) {
        self.actions.push_back(SessionAction::HangUp { flush: false });
        self.forget_sign();
        self.wait_to_check(now_ns);
    }

    /// Notes that something answers at the address that is dialled. From a port that the kernel has not chosen, it may
    /// be on another host.
    pub(super) fn forget_sign(&mut self) {
        let shows = self.is_at_home() && !self.redial.is_bound();
        if let Some(away) = self.away.as_mut().filter(|_| shows) {
            away.sign = None;
        }
    }

    /// Returns true if the peer's process seems to have ended, or has been silent for longer than its time.
    pub(super) fn insists(&self, now_ns: u64) -> bool {
        // Idle lanes have had their time too, and what is in flight would only put theirs off.
        let longer_ns = self.config.peer_timeout_ns / 4;
        let late_ns = self.heartbeat.heard_ns().saturating_add(self.config.peer_timeout_ns).saturating_add(longer_ns);
        let is_silent = late_ns <= now_ns;
        self.away.as_ref().is_some_and(|away| is_silent || away.sign.is_some())
    }

    /// Returns true if the address that is dialled has led to the peer. Only there can a sign of the process's end
    /// show: others may belong to any host.
    fn is_at_home(&self) -> bool {
        self.side == Side::Acceptor || self.redial.is_home(self.address)
    }

    /// Handles the end of a socket of a session that is away. `text` says what happened at the address.
    pub(super) fn lose_attempt(&mut self, text: &str, kind: SocketEndKind, now_ns: u64) {
        let is_of_sign = self.away.as_ref().is_some_and(|away| away.sign_at == Some(self.looked_at()));
        if kind != SocketEndKind::Refused && kind != SocketEndKind::Mute && is_of_sign {
            // Whatever was there does not answer any more. A port of this host that leads nowhere tells nothing.
            self.forget_sign();
        }
        if kind == SocketEndKind::Refused {
            let at = match self.side {
                Side::Opener => self.address.to_string(),
                Side::Acceptor => format!("its control port at {}", self.checked_at),
            };
            self.note_sign(format!("{at}: {text}"), now_ns);
        }
        self.next_attempt(now_ns);
    }

    /// Goes on after an attempt that led to nothing.
    pub(super) fn next_attempt(&mut self, now_ns: u64) {
        match self.side {
            Side::Opener => self.redial_next(now_ns),
            Side::Acceptor => self.wait_to_check(now_ns),
        }
    }

    /// Notes a sign that the peer's process has ended. A dial from a port that the kernel has not chosen shows none:
    /// its network may have another host at that address, or a firewall that refuses it.
    pub(super) fn note_sign(&mut self, sign: String, now_ns: u64) {
        let (shows, at) = (self.is_at_home() && !self.redial.is_bound(), self.looked_at());
        let Some(away) = self.away.as_mut().filter(|_| shows) else {
            return;
        };
        away.sign_at = Some(at);
        if away.sign.replace(sign).is_none() {
            self.begin_judging(now_ns);
        }
    }

    /// Returns the time from which the connections of a silent peer are judged; `None` if they are already, or the
    /// session has a socket.
    pub(super) fn judging_from_ns(&self) -> Option<u64> {
        let away = self.away.as_ref().filter(|away| !away.is_judging && self.connections.has_open())?;
        let from_ns = self.heartbeat.heard_ns().saturating_add(self.config.peer_timeout_ns / 2);
        Some(from_ns.max(away.since_ns))
    }

    /// Begins to ask the open connections if their rails carry anything.
    pub(super) fn begin_judging(&mut self, now_ns: u64) {
        let Some(away) = &mut self.away else {
            return;
        };
        // A new sign is worth a new look at what was judged by the silence alone.
        away.is_judging = true;
        for number in self.connections.numbers() {
            self.judge_from(number, now_ns);
        }
    }

    /// Judges an open connection from this time on, if the session is away and its connections are judged.
    pub(super) fn judge_from(&mut self, number: u32, at_ns: u64) {
        let is_judging = self.away.as_ref().is_some_and(|away| away.is_judging);
        if let Some(State::Open { peer_left: None, mut probing }) = self.connections.state(number).cloned()
            && is_judging
        {
            probing.hurry();
            let state = State::Open { peer_left: None, probing };
            self.connections.set(number, Some(Connection { state, due_ns: Some(at_ns) }));
        }
    }

    /// Handles the answer to [`SessionAction::Judge`]: the state of the connection's probe.
    pub fn handle_judged(&mut self, connection: u32, probe: Probe, now_ns: u64) {
        let Some(State::Open { peer_left: None, mut probing }) = self.connections.state(connection).cloned() else {
            return;
        };
        let Some(away) = &mut self.away else {
            return;
        };
        if probe == Probe::Carried {
            (away.carried_ns, away.is_gone) = (Some(now_ns), false);
        }
        let times = Times {
            now_ns,
            heard_ns: self.heartbeat.heard_ns().max(away.carried_ns.unwrap_or(0)),
            peer_timeout_ns: self.config.peer_timeout_ns,
            proof_ns: self.config.proof_ns,
        };
        let due_ns = match probing.judge(probe, away.sign.as_deref(), times) {
            Verdict::Again(at_ns) => Some(at_ns),
            Verdict::Rest => None,
            Verdict::Lost(gone) => {
                let cause = LostCause::Gone(gone);
                let state = State::Open { peer_left: Some(cause.clone()), probing };
                self.connections.set(connection, Some(state.into()));
                let lost = Lost { peer: self.peer_name(), cause };
                self.actions.push_back(SessionAction::PeerLeft(connection));
                self.actions.push_back(SessionAction::Lost { connection, lost });
                return self.end_if_unneeded(now_ns);
            }
        };
        let state = State::Open { peer_left: None, probing };
        self.connections.set(connection, Some(Connection { state, due_ns }));
    }

    /// Notes that a connection with the peer's process, on this session or another, is lost because the process is
    /// gone: closed connections linger for it no longer, unless this session still has its socket, or its own rails
    /// have carried something within the peer's time.
    pub fn peer_is_gone(&mut self, now_ns: u64) {
        let timeout_ns = self.config.peer_timeout_ns;
        match &mut self.away {
            Some(away) if away.carried_ns.is_some_and(|at_ns| now_ns < at_ns.saturating_add(timeout_ns)) => return,
            Some(away) => away.is_gone = true,
            None if matches!(self.stage, Stage::Over(_)) => {}
            None => return,
        }
        for number in self.connections.numbers() {
            if let Some(State::Closed { peer_left, pause_ns, .. }) = self.connections.state(number).cloned() {
                let state = State::Closed { peer_left, pause_ns, until_ns: now_ns };
                self.connections.set(number, Some(Connection { state, due_ns: Some(now_ns) }));
            }
        }
    }

    /// Returns when a session that is away and has no open connection any more gives up what is left.
    pub(super) fn give_up_ns(&self) -> Option<u64> {
        let away = self.away.as_ref().filter(|_| !self.connections.has_open() || self.numbered.lacks_some())?;
        if self.numbered.lacks_some() {
            return Some(away.since_ns);
        }
        Some(away.since_ns.max(self.idle_since_ns).saturating_add(self.config.peer_timeout_ns))
    }

    /// Ends a session that is away once nothing needs the peer any more, or no open connection needs a peer that seems
    /// to have ended.
    pub(super) fn end_if_unneeded(&mut self, now_ns: u64) {
        let is_late = self.give_up_ns().is_some_and(|at_ns| at_ns <= now_ns);
        if let Some(away) = &self.away
            && (is_late
                || !self.connections.outlive_socket()
                || self.numbered.lacks_some()
                || away.sign.is_some() && !self.connections.has_open())
        {
            let why = (*away.why).clone();
            if !matches!(self.stage, Stage::Waiting { .. } | Stage::Pausing { .. }) {
                self.actions.push_back(SessionAction::HangUp { flush: false });
            }
            self.over(why, now_ns);
        }
    }

    /// Returns the time that a peer has for its answer once it is connected. Its path may be gone again, so it is short
    /// at first; a kernel accepts for a process that stands still, so it doubles with each attempt in vain, until a
    /// whole round connects none.
    pub(super) fn answer_ns(&self) -> u64 {
        let doubled_ns = self.config.redial_ns.1 << self.redial.count_unanswered().min(16);
        doubled_ns.min(self.config.peer_timeout_ns / 2)
    }

    /// Asks the peer to resume, once its HELLO has come on a new socket.
    pub(super) fn ask_to_resume(&mut self, now_ns: u64) {
        self.attempt = self.attempt.wrapping_add(1);
        let resume = Resume { session: self.id, attempt: self.attempt, received: self.numbered.tell() };
        self.stage = Stage::Resuming { deadline_ns: now_ns.saturating_add(self.answer_ns()) };
        self.send_now(0, Message::Resume(resume));
    }

    /// Handles the answer to RESUME.
    pub(super) fn handle_resumed(&mut self, received: Option<u64>, now_ns: u64) {
        match received {
            // Its ends of the connections are gone, or their applications have closed them long ago.
            None => {
                self.actions.push_back(SessionAction::HangUp { flush: false });
                self.over(Ended::Forgotten, now_ns);
            }
            Some(received) if self.numbered.handle_has(received) => self.resumed(now_ns),
            Some(_) => {
                self.unwelcome_out_of_turn();
                self.actions.push_back(SessionAction::HangUp { flush: false });
                self.next_attempt(now_ns);
            }
        }
    }

    /// Returns the name of a session that this end has accepted.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Checks that a peer, which has said this HELLO on a new socket, may go on with this session there. If so, the
    /// caller closes the socket that the session has, if it has one, gives it the new one, and calls [`Self::resume`].
    ///
    /// # Errors
    /// If it may not: the reason. The session is as it was.
    pub fn check_resume(&self, resume: &Resume, peer: &Hello) -> Result<(), ResumeFault> {
        let is_known = self.side == Side::Acceptor && self.id == resume.session && (self.is_up() || self.is_away());
        match &self.peer {
            Some(known) if is_known && known.process == peer.process && self.connections.are_begun() => {}
            _ => return Err(ResumeFault::Unknown),
        }
        if resume.attempt.wrapping_sub(self.attempt).cast_signed() <= 0 {
            return Err(ResumeFault::Old);
        }
        if !self.numbered.may_have(resume.received) {
            return Err(ResumeFault::Frames { received: resume.received });
        }
        // This end may not have noticed yet that its socket has ended, and the session with it.
        if !self.numbered.is_kept_after(resume.received) {
            return Err(ResumeFault::LetGo);
        }
        Ok(())
    }

    /// Goes on with this session on a new socket, which a peer at this address has dialled, after
    /// [`Self::check_resume`].
    pub fn resume(&mut self, resume: &Resume, address: SocketAddr, now_ns: u64) {
        let is_known = self.numbered.handle_has(resume.received);
        debug_assert!(is_known, "this was checked");
        self.attempt = resume.attempt;
        self.address = address;
        let received = self.numbered.tell();
        self.send_now(0, Message::Resumed(Some(received)));
        self.resumed(now_ns);
    }

    /// Forgets this session, whose socket another has taken over: nothing is said or reported of it.
    pub fn discard(&mut self) {
        self.stage = Stage::Over(Arc::new(Ended::Refused));
        self.actions.clear();
    }

    /// Tells a peer that the session which it wants to resume is not known here, and closes its socket.
    pub fn refuse_resume(&mut self, now_ns: u64) {
        self.send(0, Message::Resumed(None));
        self.actions.push_back(SessionAction::HangUp { flush: true });
        self.over(Ended::Refused, now_ns);
    }

    /// Goes on after both ends have said what they have.
    fn resumed(&mut self, now_ns: u64) {
        self.stage = Stage::Up;
        self.heartbeat.heard(now_ns);
        let again: Vec<Frame> = self.numbered.kept().cloned().collect();
        self.actions.extend(again.into_iter().map(SessionAction::Send));
        if let Some(away) = self.away.take() {
            self.actions.push_back(SessionAction::Back { after_ns: now_ns.saturating_sub(away.since_ns) });
        }
        for number in self.connections.numbers() {
            if let Some(State::Open { peer_left: None, .. }) = self.connections.state(number) {
                let state = State::Open { peer_left: None, probing: Probing::default() };
                self.connections.set(number, Some(state.into()));
            }
        }
        self.actions.push_back(SessionAction::Up);
    }
}
