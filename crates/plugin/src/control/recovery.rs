//! Rails that fail, and connections that go on: the control thread hands the recovery of each end what it needs, and
//! does what it asks for.
//!
//! The control thread uses an end between two of the application's calls ([`Comm::with_end`]). Whatever comes for an
//! end waits in its inbox until then, in order.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use railweave_fabric::{Part, RailId};
use railweave_telemetry::EventKind;
use railweave_transport::{Dial, Error, Event, Message, RailMessage, RailNews, RecoveryAction};

use super::connection::Connection;
use super::control_loop::ControlLoop;
use super::rail_inbox::{Flood, Input, Recovery};
use super::rail_lines::{News, Subject, Sum};
use super::rail_threads::{RailDone, RailJob};
use super::strangers::Kind;
use crate::comm::{Comm, End, NoTurn, Route};
use crate::log;

/// The pause before the next attempt if the application is in a call, and before an end is asked again that has
/// something due now.
const AGAIN_NS: u64 = 1_000_000;

impl ControlLoop {
    /// Lets an open connection call this thread when a rail fails.
    pub(super) fn listen_to_rails(&self, route: Route, fate: &railweave_transport::Fate) {
        let called = Arc::clone(&self.called);
        fate.on_recovery(move || called.call(route));
    }

    /// Notes that NCCL has an open connection. What has come for its recovery before has waited for this.
    pub(super) fn handle_opened(&mut self, route: Route, new: Weak<Comm>) {
        let connection = self.session(route.session).and_then(|it| it.connections.get_mut(&route.connection));
        if let Some(Connection::Open { comm, .. }) = connection {
            *comm = Some(new);
            self.serve_recovery(route);
        }
    }

    /// Looks after the connections that have called, and those that have something due.
    pub(super) fn look_after_rails(&mut self) {
        for route in self.called.take() {
            self.recover(route, Input::Due);
        }
        while let Some(RailDone { owner, work, pause, .. }) = self.workers.take_rail_done() {
            let route = owner.route;
            match (work, pause) {
                // Its route may be another connection's by now.
                (work, _) if !owner.is_open() => self.free(work),
                (Some(work), None) => self.recover(route, Input::Worked(work)),
                (Some(work), Some(pause)) => self.workers.give_rail_again(RailJob { owner, work }, pause),
                (None, _) => self.fail_recovery(route, "a bug in Railweave ended the work on a rail; please report it"),
            }
        }
        if !self.making_failures.is_empty() && !self.makes_lanes() {
            self.making_failures.clear();
        }
        let now = self.now_ns();
        let slow = self.workers.take_slow_fences(now);
        self.say_slow(&slow);
        while let Some((_, route)) = self.recoveries.first().filter(|(at, _)| *at <= now) {
            self.recoveries.set(route, None);
            self.recover(route, Input::Due);
        }
    }

    /// Says which fences take far longer than usual, in one line.
    fn say_slow(&mut self, slow: &[(Route, RailId)]) {
        let Some((route, rail)) = slow.first() else { return };
        let peer = self.session(route.session).map(|session| session.protocol.peer_name()).unwrap_or_default();
        let others = match slow.len() - 1 {
            0 => String::new(),
            others => format!(", nor those of {others} more"),
        };
        log::warn(&format!(
            "the kernel has not ended the queue pairs of the failed rail {rail} to {peer} for 5 s{others}; the \
             messages that they carried wait for this; look at the kernel log, and at the adapter"
        ));
    }

    /// Hands the recovery of a connection something. A connection that is not open needs none.
    pub(super) fn recover(&mut self, route: Route, input: Input) {
        let Some(recovery) = self.recovery(route) else {
            return self.free_lanes([input]);
        };
        match recovery.push(input) {
            Ok(()) => self.serve_recovery(route),
            Err(Flood) => self.end_flooded(route),
        }
    }

    /// Ends a connection whose peer sends more steps than an honest one can.
    fn end_flooded(&mut self, route: Route) {
        let peer = self.session(route.session).map(|session| session.protocol.peer_name()).unwrap_or_default();
        let text = format!(
            "{peer} has sent more messages about the recovery of a rail than the protocol allows before an answer; the \
             connection was ended"
        );
        if let Some(fate) = self.fate(route) {
            fate.set_failed(Error::protocol(text.clone()));
        }
        self.strangers.report(self.now_ns(), Kind::Session, &text);
    }

    /// Frees the lanes that come for no end any more. The kernel may take long to destroy them.
    pub(super) fn free_lanes(&mut self, inputs: impl IntoIterator<Item = Input>) {
        for input in inputs {
            if let Input::Worked(work) = input {
                self.free(work);
            }
        }
    }

    /// Returns the recovery of an open connection.
    pub(super) fn recovery(&mut self, route: Route) -> Option<&mut Recovery> {
        match self.session(route.session)?.connections.get_mut(&route.connection)? {
            Connection::Open { recovery, .. } => Some(recovery),
            _ => None,
        }
    }

    /// Uses the end of an open connection between two calls of its application.
    pub(super) fn with_open_end<R>(
        &mut self,
        route: Route,
        use_end: impl FnOnce(&mut (dyn End + 'static)) -> R,
    ) -> Result<R, NoTurn> {
        let session = self.session(route.session).ok_or(NoTurn::Closed)?;
        let Some(Connection::Open { comm, .. }) = session.connections.get(&route.connection) else {
            return Err(NoTurn::Closed);
        };
        let comm: Arc<Comm> = comm.as_ref().ok_or(NoTurn::Early)?.upgrade().ok_or(NoTurn::Closed)?;
        comm.with_end(use_end)
    }

    /// Hands an end everything that waits for it, and carries out its actions.
    fn serve_recovery(&mut self, route: Route) {
        while let Some(recovery) = self.recovery(route).filter(|recovery| recovery.has_any()) {
            let mut inbox = recovery.take();
            let now = self.now_ns();
            let served = self.with_open_end(route, |end| {
                let refused: Vec<_> = inbox.drain(..).filter_map(|input| input.give(end, now).err()).collect();
                let actions: Vec<_> = std::iter::from_fn(|| end.poll_recovery()).collect();
                let is_back = |action: &RecoveryAction| matches!(action, RecoveryAction::Event(Event::RailUp { .. }));
                let rails = actions.iter().any(is_back).then(|| end.rails());
                (actions, end.recovery_timeout_ns(), end.parts(), rails, refused)
            });
            match served {
                Ok((actions, due_ns, parts, rails, refused)) => {
                    let due_ns = due_ns.map(|due_ns| due_ns.max(now.saturating_add(AGAIN_NS)));
                    self.recoveries.set(route, due_ns);
                    self.set_parts(route, parts);
                    self.set_rails(route, rails);
                    for (address, what) in refused {
                        self.refuse_lane(address, &what);
                    }
                    for action in actions {
                        self.carry_out_recovery_action(route, action);
                    }
                }
                Err(why @ (NoTurn::Busy | NoTurn::Early)) => {
                    if let Some(recovery) = self.recovery(route) {
                        recovery.put_back(inbox);
                    }
                    // Without NCCL's connection there is nothing to come back for before `handle_opened`.
                    let again_ns = (why == NoTurn::Busy).then(|| now.saturating_add(AGAIN_NS));
                    return self.recoveries.set(route, again_ns);
                }
                Err(NoTurn::Closed) => return self.free_lanes(inbox),
            }
        }
    }

    /// Returns true if lanes of open connections may be in the making, or wait for their ends.
    pub(super) fn makes_lanes(&mut self) -> bool {
        let mut routes = self.open_routes().into_iter();
        self.workers.has_rail_work()
            || routes.any(|route| self.recovery(route).is_some_and(|recovery| recovery.has_work()))
    }

    /// Notes the parts that a connection uses now, and has it give up new lanes of which a part has failed meanwhile.
    fn set_parts(&mut self, route: Route, new: Vec<Part>) {
        let Some(connection) = self.session(route.session).and_then(|it| it.connections.get_mut(&route.connection))
        else {
            return;
        };
        let Connection::Open { parts, .. } = connection else {
            return;
        };
        let before = std::mem::replace(parts, new.clone());
        for (part, message) in self.making_failures.of_new(&before, &new) {
            self.leave_input(route, Input::PartFailed(part, message));
        }
    }

    fn carry_out_recovery_action(&mut self, route: Route, action: RecoveryAction) {
        match action {
            RecoveryAction::Send(message) => {
                if let Message::Rail(RailNews { rail, message: RailMessage::Down(_), .. }) = &message {
                    self.end_lane_dials(route, *rail);
                }
                // The path of the rail that fails may be that of the session, without which no rail comes back.
                let socket = self.session(route.session).and_then(|session| session.socket.as_ref());
                if let Some(socket) = socket.filter(|socket| !socket.is_dialled) {
                    socket.stream.insist_on_acknowledgements();
                }
                self.send(route, message);
            }
            RecoveryAction::Work(mut work) => {
                if work.may_block() {
                    let Some(owner) = self.recovery(route).map(|recovery| recovery.owner(route)) else {
                        return self.free(work);
                    };
                    if let Err(reason) = self.workers.give_rail(RailJob { owner, work }) {
                        self.fail_recovery(route, &reason);
                    }
                } else {
                    // It only opens or closes sockets.
                    work.run(self.now_ns());
                    self.leave_input(route, Input::Worked(work));
                }
            }
            RecoveryAction::Dial(dial) => {
                let port = self.session(route.session).map_or(0, |session| session.protocol.address().port());
                if let Err(reason) = self.dial_lane_again(route, dial, port) {
                    self.leave_input(route, Input::Dialled(dial, Err(reason)));
                }
            }
            RecoveryAction::Await(token) => {
                self.lane_routes.insert(token, route);
                if let Some(recovery) = self.recovery(route) {
                    recovery.token = Some(token);
                }
            }
            RecoveryAction::Free(lanes) => self.workers.free(lanes),
            RecoveryAction::Event(event) => {
                self.report_rail(route, &event);
                self.leave_silent_path(route, &event);
            }
        }
    }

    /// Fails a connection whose recovery cannot go on: both ends would wait for it.
    fn fail_recovery(&mut self, route: Route, reason: &str) {
        log::warn(reason);
        if let Some(fate) = self.fate(route) {
            fate.set_failed(Error::local(format!("{reason}; this connection is lost")));
        }
    }

    /// Leaves something in an end's inbox, while its actions are being carried out.
    fn leave_input(&mut self, route: Route, input: Input) {
        if let Some(recovery) = self.recovery(route)
            && let Err(Flood) = recovery.push(input)
        {
            self.end_flooded(route);
        }
    }

    fn report_rail(&mut self, route: Route, event: &Event) {
        let Some(session) = self.session(route.session) else {
            return;
        };
        let peer = session.protocol.peer_name();
        let (rail, news) = match event {
            Event::RailUp { rail, .. } => (*rail, News::Back),
            Event::RailAway { rail, .. } => (*rail, News::Away),
            Event::RailDown { rail, .. } => (*rail, News::Down),
            _ => return,
        };
        let Some(Connection::Open { heard, .. }) = session.connections.get(&route.connection) else {
            return;
        };
        let Some(info) = heard.rails.iter().find(|info| info.index == rail.index()) else {
            return;
        };
        let line = log::line(event, &peer);
        let subject = Subject { session: route.session, local: info.name.local.clone(), news };
        if self.rail_lines.take(subject, route.connection, &peer, self.now_ns()) {
            say(news, &line);
            self.note_event(event, Some(route), line);
        } else {
            self.trace_event(event, Some(route), &line);
        }
    }

    /// Says how many lines about rails were left out.
    pub(super) fn sum_up_rails(&mut self) {
        for Sum { news, text } in self.rail_lines.sums(self.now_ns()) {
            say(news, &text);
            match news {
                News::Down => self.note(EventKind::RAIL_DOWN, None, || text),
                News::Away => {}
                News::Back => self.note(EventKind::RAIL_UP, None, || text),
            }
        }
    }

    /// Hands the socket of a lane that was dialled, or the reason why there is none, to its handshake or its
    /// connection.
    pub(super) fn hand_dialled(&mut self, route: Route, dial: Dial, socket: Result<OwnedFd, String>) {
        if self.recovery(route).is_some() {
            self.recover(route, Input::Dialled(dial, socket));
        } else {
            self.with_handshake(route, |handshake| handshake.handle_dialled(dial.rail, dial.lane, socket));
        }
    }

    /// Forgets the recovery of a connection that its application closes.
    pub(super) fn end_recovery(&mut self, route: Route) {
        self.recoveries.set(route, None);
        let Some(recovery) = self.recovery(route) else {
            return;
        };
        recovery.is_open.store(false, Ordering::Relaxed);
        let (token, inbox) = (recovery.token.take(), recovery.take());
        if let Some(token) = token {
            self.lane_routes.remove(&token);
        }
        self.free_lanes(inbox);
        self.workers.cancel_rails();
    }

    /// Has rails that are down opened again soon: something says that paths may be back.
    pub(super) fn hurry_rails(&mut self) {
        for route in self.open_routes() {
            self.recover(route, Input::Hurry);
        }
    }

    /// Returns all open connections.
    pub(super) fn open_routes(&self) -> Vec<Route> {
        let sessions = self.entries.iter().filter_map(|(token, entry)| match entry {
            super::control_loop::Entry::Session(session) => Some((*token, session)),
            _ => None,
        });
        let routes = sessions.flat_map(|(session, state)| {
            let open = state.connections.iter().filter(|(_, it)| matches!(it, Connection::Open { .. }));
            open.map(move |(connection, _)| Route { session, connection: *connection })
        });
        routes.collect()
    }
}

fn say(news: News, line: &str) {
    if news == News::Back { log::info(line) } else { log::warn(line) }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
    use std::sync::mpsc;

    use railweave_fabric::{LaneId, RailId};
    use railweave_fabric_tcp::Tcp;
    use railweave_identity::random;
    use railweave_patience::until;
    use railweave_transport::{Fate, Incarnation, LanePreface, Preface, Redials, Session as Protocol, Token};

    use super::*;
    use crate::comm::RegistrarOf;
    use crate::comm::owing::Owing;
    use crate::control::command::Listeners;
    use crate::control::control_loop::Entry;
    use crate::control::control_loop::tests::config;
    use crate::control::hearing::Heard;
    use crate::control::lane_socket::{Inbound, LaneRedial};
    use crate::control::session::Session;
    use crate::control::stream::{Stream, UNACKNOWLEDGED};
    use crate::control::test_errands::{Errand, HOUR};

    pub(in crate::control) const ROUTE: Route = Route { session: 77, connection: 1 };

    pub(in crate::control) fn control_loop() -> ControlLoop {
        let (_, commands) = mpsc::channel();
        ControlLoop::new(config(), commands, Listeners::default(), Arc::new(Owing::new()), 4096).unwrap()
    }

    /// Opens a connection that NCCL does not have yet.
    pub(in crate::control) fn open(thread: &mut ControlLoop) {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
        let protocol = Protocol::accept(thread.sessions.clone(), random(), address, thread.now_ns());
        open_on(thread, Session::new(protocol, None));
    }

    /// Does the same on this session.
    pub(in crate::control) fn open_on(thread: &mut ControlLoop, mut session: Session) {
        let connection = Connection::Open {
            fate: Arc::new(Fate::default()),
            parts: Vec::new(),
            listener: Weak::new(),
            comm: None,
            recovery: Recovery::new(None),
            heard: Heard::new(Vec::new()),
            registrar: Arc::new(RegistrarOf::<Tcp> { rails: Vec::new() }),
        };
        session.connections.insert(ROUTE.connection, connection);
        thread.entries.insert(ROUTE.session, Entry::Session(Box::new(session)));
    }

    #[test]
    fn lanes_that_come_for_a_closed_connection_are_freed_on_the_freeing_thread() {
        let mut thread = control_loop();
        thread.workers.begin_setups();
        let (lanes, hold) = Errand::idle();
        thread.recover(ROUTE, Input::Worked(lanes));
        assert_eq!(hold.freed_on(|| ()), "railweave-free");
    }

    #[test]
    fn the_kernel_watches_the_socket_of_a_session_whose_rail_has_failed() {
        let mut thread = control_loop();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let protocol = Protocol::accept(thread.sessions.clone(), random(), address, thread.now_ns());
        let mut session = Session::new(protocol, None);
        session.take_socket(Stream::dial(None, address).unwrap(), true);
        open_on(&mut thread, session);
        let watched = |thread: &mut ControlLoop| {
            let session = thread.session(ROUTE.session).expect("it is there");
            session.socket.as_ref().and_then(|socket| socket.stream.unacknowledged())
        };
        let say = |thread: &mut ControlLoop| {
            let rail = RailId::new(0).expect("it is a rail");
            let news = RailNews { rail, incarnation: Incarnation::default(), message: RailMessage::Suspect };
            thread.carry_out_recovery_action(ROUTE, RecoveryAction::Send(Message::Rail(news)));
        };
        say(&mut thread);
        assert_eq!(watched(&mut thread), None, "it is being dialled");
        let session = thread.session(ROUTE.session).expect("it is there");
        session.take_socket(Stream::dial(None, address).unwrap(), false);
        assert_eq!(watched(&mut thread), None, "no rail has failed");
        say(&mut thread);
        assert_eq!(watched(&mut thread), Some(UNACKNOWLEDGED));
    }

    #[test]
    fn lanes_of_no_use_are_freed_on_the_freeing_thread() {
        let mut thread = control_loop();
        thread.workers.begin_setups();
        let (lanes, hold) = Errand::idle();
        thread.carry_out_recovery_action(ROUTE, RecoveryAction::Free(lanes));
        assert_eq!(hold.freed_on(|| ()), "railweave-free");
        let (work, hold) = Errand::idle();
        thread.carry_out_recovery_action(ROUTE, RecoveryAction::Work(work));
        assert_eq!(hold.freed_on(|| ()), "railweave-free", "its connection is closed");
    }

    #[test]
    fn work_of_a_closed_connection_is_freed_though_another_has_its_route() {
        for pause in [None, Some(HOUR)] {
            let mut thread = control_loop();
            thread.workers.begin_setups();
            open(&mut thread);
            let (work, hold) = Errand::new(true, pause);
            thread.carry_out_recovery_action(ROUTE, RecoveryAction::Work(work));
            hold.wait_until_begun();
            thread.end_recovery(ROUTE);
            open(&mut thread);
            hold.let_go_on();
            until("the work is back", || {
                thread.look_after_rails();
                (thread.workers.rail_work_away() == 0).then_some(())
            });
            assert!(!thread.makes_lanes(), "it neither waits nor is with the other: {pause:?}");
            assert_eq!(hold.freed_on(|| ()), "railweave-free", "{pause:?}");
            assert!(thread.recovery(ROUTE).is_some_and(|recovery| !recovery.has_any()), "{pause:?}");
        }
    }

    #[test]
    fn a_connection_that_is_closed_frees_the_work_that_is_back_and_the_work_that_is_paused() {
        let mut thread = control_loop();
        thread.workers.begin_setups();
        open(&mut thread);
        let ((back, back_hold), (paused, paused_hold)) = (Errand::idle(), Errand::idle());
        back_hold.let_go_on();
        thread.carry_out_recovery_action(ROUTE, RecoveryAction::Work(back));
        let owner = thread.recovery(ROUTE).unwrap().owner(ROUTE);
        until("the work is back", || {
            thread.look_after_rails();
            (thread.workers.rail_work_away() == 0).then_some(())
        });
        assert!(thread.recovery(ROUTE).is_some_and(|recovery| recovery.has_work()));
        thread.workers.give_rail_again(RailJob { owner: owner.clone(), work: paused }, HOUR);
        thread.end_recovery(ROUTE);
        assert!(!owner.is_open() && !thread.makes_lanes());
        for hold in [back_hold, paused_hold] {
            assert_eq!(hold.freed_on(|| ()), "railweave-free");
        }
    }

    #[test]
    fn work_that_waits_for_an_end_is_freed_if_the_end_is_gone() {
        for is_over in [false, true] {
            let mut thread = control_loop();
            thread.workers.begin_setups();
            open(&mut thread);
            let (work, hold) = Errand::idle();
            thread.recover(ROUTE, Input::Worked(work));
            assert!(thread.makes_lanes());
            if is_over {
                thread.free_connections();
            } else {
                // NCCL has closed it already.
                thread.handle_opened(ROUTE, Weak::new());
            }
            assert_eq!(hold.freed_on(|| ()), "railweave-free", "at the end: {is_over}");
        }
    }

    #[test]
    fn nothing_is_due_for_a_connection_that_nccl_does_not_have_yet() {
        let mut thread = control_loop();
        open(&mut thread);
        thread.hurry_rails();
        assert!(thread.recovery(ROUTE).is_some_and(|recovery| recovery.has_any()));
        assert_eq!(thread.recoveries.first(), None);
    }

    #[test]
    fn what_has_waited_for_nccl_is_handed_over_once_it_has_the_connection() {
        let mut thread = control_loop();
        open(&mut thread);
        thread.hurry_rails();
        // NCCL has closed it already, so there is no end that would take it.
        thread.handle_opened(ROUTE, Weak::new());
        assert!(thread.recovery(ROUTE).is_some_and(|recovery| !recovery.has_any()));
    }

    /// Returns a dial from an address to this host.
    fn dial_from(local: Ipv4Addr) -> Dial {
        let (rail, lane, local, remote) =
            (RailId::new(0).unwrap(), LaneId::FIRST, local.into(), Ipv4Addr::LOCALHOST.into());
        Dial { rail, lane, local, remote, token: Token([5; 16]), incarnation: Incarnation::default() }
    }

    #[test]
    fn a_dial_that_fails_at_once_goes_back_to_its_end() {
        let mut thread = control_loop();
        open(&mut thread);
        // This host has no such address (RFC 5737).
        let dial = dial_from(Ipv4Addr::new(192, 0, 2, 1));
        thread.carry_out_recovery_action(ROUTE, RecoveryAction::Dial(dial));
        let mut inbox = thread.recovery(ROUTE).unwrap().take();
        assert!(matches!(inbox.pop_front(), Some(Input::Dialled(back, Err(_))) if back == dial));
    }

    #[test]
    fn lanes_of_open_connections_are_dialled_again_until_their_rail_is_given_up() {
        let mut thread = control_loop();
        open(&mut thread);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let dial = dial_from(Ipv4Addr::LOCALHOST);
        let (port, redials) = (listener.local_addr().unwrap().port(), Redials::until(u64::MAX));
        let redial = || LaneRedial { route: ROUTE, dial, port, redials, patience_ns: 1_000_000_000, at_ns: 0 };
        thread.redial_lane(redial());
        assert!(listener.accept().is_ok());
        thread.entries.insert(99, Entry::LaneRedial(redial()));
        for (rail, left) in [(1, 2), (0, 0)] {
            let message = RailMessage::Down(Vec::new());
            let news = RailNews { rail: RailId::new(rail).unwrap(), incarnation: Incarnation::default(), message };
            thread.carry_out_recovery_action(ROUTE, RecoveryAction::Send(Message::Rail(news)));
            let is_dial = |entry: &&Entry| matches!(entry, Entry::LaneDial(_) | Entry::LaneRedial(_));
            assert_eq!(thread.entries.values().filter(is_dial).count(), left, "rail {rail}");
        }
    }

    #[test]
    fn a_lane_waits_unanswered_for_an_end_that_has_no_turn_for_it() {
        let mut thread = control_loop();
        open(&mut thread);
        let token = Token([5; 16]);
        thread.lane_routes.insert(token, ROUTE);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut dialler = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        dialler.write_all(&Preface::Lane(LanePreface { token, rail: 0, lane: 0, proof: [0; 14] }).encode()).unwrap();
        let (socket, address) = listener.accept().unwrap();
        // The first bytes are here.
        socket.peek(&mut [0]).unwrap();
        socket.set_nonblocking(true).unwrap();
        let stream = Stream::new(mio::net::TcpStream::from_std(socket));
        thread.handle_inbound(99, Inbound { stream, address, accepted_ns: 0, deadline_ns: u64::MAX });
        dialler.set_nonblocking(true).unwrap();
        let mut answer = [0; 8];
        // It is neither closed nor told that the lane is taken.
        assert_eq!(dialler.read(&mut answer).map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
        assert!(matches!(thread.recovery(ROUTE).unwrap().take().front(), Some(Input::Lane(_))));
    }
}
