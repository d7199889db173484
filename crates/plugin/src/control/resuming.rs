//! Sessions that have lost their sockets: what is said about them, the sockets by which they go on, and the judging of
//! their connections.

use std::collections::VecDeque;
use std::sync::Weak;

use railweave_telemetry::EventKind;
use railweave_transport::{
    Cause, Ended, Error, Event, Probe, Resume, ResumeFault, Session as Protocol, Side, Unwelcome,
};

use super::connection::{Connection, Target};
use super::control_loop::ControlLoop;
use crate::comm::Route;
use crate::log;

/// The shortest time between two lines about one session: a peer may close its socket as often as it likes.
const SAID_AGAIN_NS: u64 = 1_000_000_000;

impl ControlLoop {
    /// Handles a session that is up, perhaps again.
    pub(super) fn session_up(&mut self, token: usize) {
        if let Some(session) = self.session(token)
            && session.protocol.side() == Side::Acceptor
        {
            let id = session.protocol.id();
            // A name that is taken stays with the session that has it: a stranger may have copied it.
            self.sessions_by_id.entry(id).or_insert(token);
        }
        self.begin_queued_connects(token);
    }

    /// Forgets a session of which nothing is left.
    pub(super) fn forget_session(&mut self, token: usize) {
        if let Some(session) = self.session(token) {
            let id = session.protocol.id();
            if self.sessions_by_id.get(&id) == Some(&token) {
                self.sessions_by_id.remove(&id);
            }
        }
        self.entries.remove(&token);
    }

    /// Handles the loss of a session's socket: says it, and lets the connects that wait for their turn wait for the
    /// session from now on.
    pub(super) fn session_away(&mut self, token: usize, why: &Ended) {
        let until_ns = self.now_ns().saturating_add(self.handshake_ns());
        if let Some(session) = self.session(token) {
            for request in &mut session.setups.queued_connects {
                request.until_ns = until_ns;
            }
        }
        self.say_away(token, why);
    }

    /// Says that a session has lost its socket.
    fn say_away(&mut self, token: usize, why: &Ended) {
        let now = self.now_ns();
        let Some(session) = self.session(token) else {
            return;
        };
        session.is_away_said = session.away_said_ns.is_none_or(|at_ns| at_ns + SAID_AGAIN_NS <= now);
        if !session.is_away_said {
            return;
        }
        session.away_said_ns = Some(now);
        let next = match session.protocol.side() {
            Side::Opener => "it is dialled again",
            Side::Acceptor => "the peer will dial again",
        };
        let text = format!(
            "the control session with {} has lost its socket: {why}; its connections go on, and {next}",
            session.protocol.peer_name()
        );
        log::info(&text);
        self.note(EventKind::SESSION, None, || text);
    }

    /// Says that a session goes on over another socket, if it was said that it had lost one.
    pub(super) fn say_back(&mut self, token: usize, after_ns: u64) {
        let Some(session) = self.session(token) else {
            return;
        };
        session.is_left = false;
        if !std::mem::take(&mut session.is_away_said) {
            return;
        }
        let text = format!(
            "the control session with {} goes on over another socket, after {:.3} s without one",
            session.protocol.peer_name(),
            after_ns as f64 / 1e9
        );
        log::info(&text);
        self.note(EventKind::SESSION, None, || text);
    }

    /// Handles a session that is away for longer: fails the connects that have waited for a handshake timeout, and
    /// after that time counts its connections that nobody has accepted as left.
    pub(super) fn wait_for_session(&mut self, token: usize) {
        let now = self.now_ns();
        let late_ns = now.saturating_sub(self.handshake_ns());
        let Some(session) = self.session(token) else {
            return;
        };
        let (Some(why), Some(since_ns)) = (session.protocol.away_why().cloned(), session.protocol.away_since_ns())
        else {
            return;
        };
        if since_ns + SAID_AGAIN_NS <= now && !session.is_away_said {
            self.say_away(token, &why);
        }
        let Some(session) = self.session(token) else {
            return;
        };
        let (peer, for_ns) = (session.protocol.peer_name(), now.saturating_sub(since_ns));
        let error = Error::from(Cause::SessionAway { peer, why, for_ns });
        let (late, waiting): (VecDeque<_>, _) =
            session.setups.take_queued_connects().into_iter().partition(|request| request.until_ns <= now);
        session.setups.queued_connects = waiting;
        let mut unaccepted = Vec::new();
        if since_ns <= late_ns && !std::mem::replace(&mut session.is_left, true) {
            unaccepted.extend(session.connections.iter().filter_map(|(number, connection)| match connection {
                Connection::Open { listener, .. } => Some((*number, Weak::clone(listener))),
                _ => None,
            }));
        }
        for (connection, listener) in unaccepted {
            self.queue_left_connection(Route { session: token, connection }, listener);
        }
        for request in late {
            self.look_at_debts();
            self.report_failed_setup(&Target::Connect(Box::new(request)), error.clone());
        }
    }

    /// Gives the socket of a newcomer to the session with which its peer wants to go on, if it may.
    pub(super) fn resume_session(&mut self, newcomer: usize, resume: &Resume) {
        let Some((peer, name)) = self.session(newcomer).and_then(|session| {
            let protocol = &session.protocol;
            protocol.peer().map(|hello| (hello.clone(), protocol.peer_name()))
        }) else {
            return;
        };
        let old = self.sessions_by_id.get(&resume.session).copied().filter(|old| *old != newcomer);
        let checked = match old.and_then(|old| self.session(old)) {
            Some(session) => session.protocol.check_resume(resume, &peer),
            None => Err(ResumeFault::Unknown),
        };
        match (checked, old) {
            (Ok(()), Some(old)) => self.move_socket(newcomer, old, resume),
            (checked, _) => {
                let fault = checked.err().unwrap_or(ResumeFault::Unknown);
                // An attempt that a later one has overtaken is an honest peer's.
                if fault != ResumeFault::Old {
                    let refused = Event::Unwelcome(Unwelcome::Resume { peer: name.clone(), fault });
                    self.log_event(&refused, &name, true);
                }
                self.with_session(newcomer, Protocol::refuse_resume);
            }
        }
    }

    fn move_socket(&mut self, newcomer: usize, old: usize, resume: &Resume) {
        let Some(mut socket) = self.session(newcomer).and_then(|session| session.socket.take()) else {
            return;
        };
        let address = self.session(newcomer).map(|session| session.protocol.address());
        // It was only the socket's way in.
        self.forget_session(newcomer);
        let before = self.session(old).and_then(|session| session.socket.take());
        if let Some(mut before) = before {
            before.stream.deregister(self.registry());
        }
        socket.stream.deregister(self.registry());
        let registered = socket.stream.register(self.registry(), mio::Token(old));
        let Some((session, address)) = self.session(old).zip(address) else {
            return;
        };
        session.take_socket(socket.stream, false);
        self.with_session(old, |session, now| session.resume(resume, address, now));
        if let Err(error) = registered {
            return self.lose_socket(old, &error);
        }
        // More of its input may have been read already.
        self.handle_session(old);
    }

    /// Tells a session if the rails of one of its open connections carry anything.
    pub(super) fn judge_connection(&mut self, route: Route, is_due: bool, insists: bool) {
        let probe = self.fate(route).map_or(Probe::Broken, |fate| fate.judge(is_due, insists));
        let probe = self.seen_from_here(route, probe);
        self.with_session(route.session, |session, now| session.handle_judged(route.connection, probe, now));
    }

    /// Returns the state of a connection's probe, as far as it says anything of the peer.
    fn seen_from_here(&mut self, route: Route, probe: Probe) -> Probe {
        match probe {
            Probe::Outstanding { .. } | Probe::Blocked { .. } if self.is_cut_off(route) => Probe::CutOff,
            _ => probe,
        }
    }

    /// Returns true if a connection has no rail, and the links of all its ports are down on this host: so it says
    /// nothing of the peer that none of them carries anything. The kernel is asked while calls of the application go
    /// on.
    fn is_cut_off(&mut self, route: Route) -> bool {
        let connection = self.session(route.session).and_then(|it| it.connections.get(&route.connection));
        match connection {
            Some(Connection::Open { heard, registrar, .. }) => heard.are_all_down() && registrar.are_links_down(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use railweave_fabric::{Memory, RegisterError};
    use railweave_transport::{RailCounters, RailInfo, RailName};

    use super::*;
    use crate::comm::{MemoryHandle, Registrar};
    use crate::control::recovery::tests::{ROUTE, control_loop, open};

    /// The ports of rails whose links are down, or not.
    struct Ports {
        are_down: bool,
    }

    impl Registrar for Ports {
        fn register(&self, memory: &Memory) -> Result<MemoryHandle, RegisterError> {
            Err(RegisterError::Range { address: memory.address(), length: memory.length() })
        }

        fn are_links_down(&self) -> bool {
            self.are_down
        }
    }

    #[test]
    fn a_probe_says_nothing_of_the_peer_only_if_no_rail_is_left_and_all_links_are_down_here() {
        let usable = RailInfo {
            index: 0,
            local_port: 0,
            name: RailName { local: "mlx5_0".to_owned(), remote: "mlx5_1".to_owned() },
            speed_mbps: None,
            lanes: 1,
            counters: Arc::new(RailCounters::default()),
        };
        let on_its_way = [Probe::Outstanding { by_adapter: true }, Probe::Blocked { by_adapter: true }];
        for (rails, are_down, is_cut_off) in [
            (Vec::new(), true, true),
            (Vec::new(), false, false),
            (vec![usable.clone()], true, false),
            (vec![usable], false, false),
        ] {
            let mut thread = control_loop();
            open(&mut thread);
            let connection = thread.session(ROUTE.session).and_then(|it| it.connections.get_mut(&ROUTE.connection));
            let Some(Connection::Open { heard, registrar, .. }) = connection else { panic!("it is open") };
            let left = rails.len();
            heard.rails = rails;
            *registrar = Arc::new(Ports { are_down });
            for probe in on_its_way {
                let seen = if is_cut_off { Probe::CutOff } else { probe };
                assert_eq!(thread.seen_from_here(ROUTE, probe), seen, "{left} rails, links down: {are_down}");
            }
            for probe in [Probe::Unposted, Probe::Unseen, Probe::Carried, Probe::Broken] {
                assert_eq!(thread.seen_from_here(ROUTE, probe), probe);
            }
        }
    }
}
