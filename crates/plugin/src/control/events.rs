//! Device events: logged, and reported to the connections whose parts failed.

use std::collections::BTreeSet;
use std::io;

use railweave_discovery::{interface_addresses, interface_of};
use railweave_fabric::{Effect, Part, Piece, PortEvent};
use railweave_telemetry::EventKind;
use railweave_transport::Session as Protocol;

use super::connection::Connection;
use super::control_loop::{ControlLoop, Entry};
use super::failures::{Failure, are_hit};
use super::port_lines::Sum;
use super::rail_inbox::Input;
use crate::comm::Route;
use crate::log;

/// Events taken from a source in one turn.
const MOST_EVENTS_AT_ONCE: usize = 64;

/// The pause before a source is asked again that could not find out what has happened.
const BEHIND_AGAIN_NS: u64 = 100_000_000;

impl ControlLoop {
    /// Takes events from a source. A source that may have more is read again in the thread's next turn, because the
    /// kernel reports its events only once.
    pub(super) fn take_events(&mut self, token: usize) {
        for _ in 0..MOST_EVENTS_AT_ONCE {
            let Some(source) = self.port_events.get(&token) else {
                return;
            };
            let Some(event) = source.take_event() else {
                let again = source.is_behind().then(|| self.now_ns() + BEHIND_AGAIN_NS);
                return self.sources_behind.set(token, again);
            };
            let PortEvent { is_fault, effect, message } = event;
            let is_spared = matches!(&effect, Effect::Down(part) if self.is_spared(part));
            let is_warning = is_fault && !is_spared;
            if self.port_lines.take(is_warning, &message, self.now_ns()) {
                self.say_of_port(is_warning, message.clone());
            }
            match effect {
                // A connection that recovers goes by what its own work tells the peer, which counts refusals.
                Effect::Refused(_) if self.recovers => {}
                Effect::Failed(part) | Effect::Refused(part) if self.return_events => {
                    let until = self.workers.next_task_number();
                    self.handle_failure(Failure { part, message, until });
                }
                Effect::Down(part) if self.return_events && self.recovers && !is_spared => {
                    // First, because each message that goes over them meanwhile has to be repaired.
                    self.give_up_rails(&part, &message);
                    self.doubt_sessions(&part, &message);
                }
                Effect::Back => {
                    self.making_failures.forget_ports();
                    self.hurry_sessions();
                    self.hurry_rails();
                }
                Effect::Failed(_) | Effect::Refused(_) | Effect::Down(_) | Effect::None => {}
            }
        }
        self.more_events.push(token);
    }

    /// Says how many lines about ports were left out.
    pub(super) fn sum_up_ports(&mut self) {
        for Sum { is_warning, text } in self.port_lines.sums(self.now_ns()) {
            self.say_of_port(is_warning, text);
        }
    }

    fn say_of_port(&mut self, is_warning: bool, line: String) {
        if is_warning {
            log::warn(&line);
        } else {
            log::info(&line);
        }
        self.note(EventKind::PORT, None, || line);
    }

    /// Takes events from the sources that could not find out what has happened, if it is time to.
    pub(super) fn ask_sources_behind(&mut self) {
        let now = self.now_ns();
        while let Some((_, token)) = self.sources_behind.first().filter(|(at, _)| *at <= now) {
            self.sources_behind.set(token, None);
            self.take_events(token);
        }
    }

    /// Has each session with open connections dial at once if it has lost its socket: rails need it to come back.
    fn hurry_sessions(&mut self) {
        let sessions: BTreeSet<usize> = self.open_routes().into_iter().map(|route| route.session).collect();
        for session in sessions {
            self.with_session(session, Protocol::hurry);
        }
    }

    /// Has each session with open connections find out soon if its socket still leads to the peer, because this part of
    /// the host is down. A socket of a network interface that is down is given up at once.
    fn doubt_sessions(&mut self, part: &Part, message: &str) {
        let (addresses, answer_ns) = match part.piece {
            // Sessions over other addresses have nothing to do with it.
            Piece::Address(lost) => (vec![lost], 0),
            _ => (interface_addresses(&part.device), self.listening.timeout_ns),
        };
        let sessions: BTreeSet<usize> = self.open_routes().into_iter().map(|route| route.session).collect();
        for token in sessions {
            let socket = self.session(token).and_then(|session| session.socket.as_ref());
            let local = socket.and_then(|socket| socket.stream.local());
            if local.is_some_and(|local| addresses.contains(&local)) {
                self.lose_socket(token, &io::Error::new(io::ErrorKind::NetworkDown, message));
            } else if answer_ns > 0 {
                self.with_session(token, |session, now| session.doubt(answer_ns, now));
            }
        }
    }

    /// Returns true if a part that is gone is an address which nothing uses, or which another interface has now.
    fn is_spared(&mut self, part: &Part) -> bool {
        let Piece::Address(lost) = part.piece else { return false };
        let sessions: BTreeSet<usize> = self.open_routes().into_iter().map(|route| route.session).collect();
        let mut is_there = |token| {
            let socket = self.session(token).and_then(|session| session.socket.as_ref());
            socket.and_then(|socket| socket.stream.local()) == Some(lost)
        };
        let is_used = sessions.into_iter().any(&mut is_there) || !self.routes_over(part).is_empty();
        !is_used || interface_of(lost).is_some()
    }

    /// Gives up the rails of open connections that use this part.
    fn give_up_rails(&mut self, part: &Part, message: &str) {
        if self.makes_lanes() {
            self.making_failures.keep(part, message);
        }
        for route in self.routes_over(part) {
            self.recover(route, Input::PartFailed(part.clone(), message.to_owned()));
        }
    }

    /// Returns the open connections that use this part.
    fn routes_over(&mut self, part: &Part) -> Vec<Route> {
        let mut routes = self.open_routes();
        routes.retain(|route| {
            let connection = self.session(route.session).and_then(|it| it.connections.get(&route.connection));
            matches!(connection, Some(Connection::Open { parts, .. }) if are_hit(parts, part))
        });
        routes
    }

    /// Fails the connections that use the failed part, or their rails that do if connections recover. Perhaps nothing
    /// else ever reports the failure: a device that is gone completes no work.
    fn handle_failure(&mut self, failure: Failure) {
        let mut in_setup = Vec::new();
        let mut is_known = false;
        if self.recovers {
            is_known = !self.routes_over(&failure.part).is_empty();
            self.give_up_rails(&failure.part, &failure.message);
        }
        for (session, entry) in &self.entries {
            let Entry::Session(state) = entry else {
                continue;
            };
            for (connection, state) in &state.connections {
                match state {
                    Connection::Open { fate, parts, .. } if !self.recovers && are_hit(parts, &failure.part) => {
                        is_known = true;
                        fate.set_failed(failure.error());
                    }
                    Connection::Setup(setup) => {
                        let parts = setup.handshake.as_ref().map(|handshake| handshake.parts());
                        if parts.is_some_and(|parts| are_hit(&parts, &failure.part)) {
                            is_known = true;
                            in_setup.push(Route { session: *session, connection: *connection });
                        }
                    }
                    _ => {}
                }
            }
        }
        for route in in_setup {
            self.leave_out_failed(route, &failure);
        }
        // A handshake on the set-up thread may use the part even if no known connection does. If no handshake is there,
        // the part belonged to a closed connection, and `keep` forgets the failure at once unless the part is a device.
        if !is_known || failure.is_permanent() {
            self.failures.keep(failure, self.workers.oldest_task_number());
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::VecDeque;
    use std::net::{Ipv4Addr, SocketAddr, TcpListener};
    use std::os::fd::RawFd;
    use std::sync::{Arc, Mutex, mpsc};

    use mio::Token;
    use railweave_discovery::interface_part;
    use railweave_fabric::EventSource;
    use railweave_identity::{hello, random};
    use railweave_patience::until;
    use railweave_transport::{Hush, Message, Offer, SessionAction, SessionConfig, Side, Ways};

    use super::*;
    use crate::control::rail_threads::RailJob;
    use crate::control::recovery::tests::{ROUTE, control_loop, open_on};
    use crate::control::session::Session;
    use crate::control::stream::{Stream, UNACKNOWLEDGED};
    use crate::control::test_ends::Application;
    use crate::control::test_errands::{Errand, Hold};

    const SOURCE: usize = 5000;

    /// Events for the thread to take.
    #[allow(clippy::disallowed_types, reason = "a test has no fast path")]
    struct Script(Mutex<VecDeque<PortEvent>>);

    impl EventSource for Script {
        fn descriptor(&self) -> RawFd {
            -1
        }

        fn take_event(&self) -> Option<PortEvent> {
            self.0.lock().unwrap().pop_front()
        }
    }

    /// A control thread whose session is up, and has a connection that NCCL does not have yet.
    pub(in crate::control) struct Site {
        pub(in crate::control) thread: ControlLoop,
        /// The peer's, which answers nothing.
        listener: TcpListener,
        peer: Arc<SessionConfig>,
    }

    impl Site {
        pub(in crate::control) fn new() -> Self {
            Self::of(Side::Opener)
        }

        /// Returns the site whose thread has this end of the session.
        pub(in crate::control) fn of(side: Side) -> Self {
            let mut thread = control_loop();
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let address = listener.local_addr().unwrap();
            let peer = Arc::new(SessionConfig { hello: hello(1, 1, false), ..(*thread.sessions).clone() });
            let [opener, acceptor] = up(&thread, address, &peer);
            let protocol = if side == Side::Opener { opener } else { acceptor };
            let session = with_socket(&thread, protocol, address, side);
            open_on(&mut thread, session);
            Self { thread, listener, peer }
        }

        /// Returns the session, which another thread may take over.
        pub(in crate::control) fn into_session(mut self) -> Entry {
            self.thread.entries.remove(&ROUTE.session).expect("it is there")
        }

        /// Adds another session with the same peer, and a connection on it. Returns its route.
        pub(in crate::control) fn add_session(&mut self) -> Route {
            let address = self.listener.local_addr().unwrap();
            let [opener, _] = up(&self.thread, address, &self.peer);
            let session = with_socket(&self.thread, opener, address, Side::Opener);
            let route = Route { session: ROUTE.session + 1, ..ROUTE };
            self.thread.entries.insert(route.session, Entry::Session(Box::new(session)));
            route
        }

        /// Has the thread take an event of a port.
        fn take(&mut self, effect: Effect) {
            let event = PortEvent { is_fault: false, effect, message: "it says so".to_owned() };
            let script: Arc<dyn EventSource> = Arc::new(Script(Mutex::new(VecDeque::from([event]))));
            self.thread.port_events.insert(SOURCE, script);
            self.thread.take_events(SOURCE);
        }

        /// Has new lanes in the making.
        fn make_lanes(&mut self) -> Hold {
            let (work, hold) = Errand::idle();
            let owner = self.thread.recovery(ROUTE).expect("it is open").owner(ROUTE);
            self.thread.workers.give_rail(RailJob { owner, work }).unwrap();
            hold
        }

        /// Returns the failed parts that are kept for new lanes.
        fn kept(&self) -> Vec<Part> {
            self.thread
                .making_failures
                .of_new(&[], &[port(), pair(7), pair(8)])
                .into_iter()
                .map(|(part, _)| part)
                .collect()
        }

        pub(in crate::control) fn session(&mut self) -> &mut Session {
            self.thread.session(ROUTE.session).expect("it does not end")
        }
    }

    /// Returns the ends of a session with a connection, the opener's first, as they are after its set-up.
    fn up(thread: &ControlLoop, address: SocketAddr, peer: &Arc<SessionConfig>) -> [Protocol; 2] {
        let now = thread.now_ns();
        let mut ours = Protocol::open(Arc::clone(&thread.sessions), peer.hello.process, [address], now);
        let mut theirs = Protocol::accept(Arc::clone(peer), random(), address, now);
        ours.handle_connected(random(), now);
        exchange(&mut ours, &mut theirs, now);
        let connection = ours.begin(now).expect("it is up");
        let offer = Offer { nonce: 5, striped: false, traffic_class: None, ports: Vec::new(), ways: Ways::default() };
        ours.send(connection, Message::Offer(offer));
        exchange(&mut ours, &mut theirs, now);
        theirs.accept_offer(connection, now);
        exchange(&mut ours, &mut theirs, now);
        assert!(ours.opened(connection, now) && theirs.opened(connection, now));
        [ours, theirs]
    }

    /// Returns a session with this state machine and a socket that is dialled.
    fn with_socket(thread: &ControlLoop, protocol: Protocol, address: SocketAddr, side: Side) -> Session {
        let mut stream = Stream::dial(None, address).unwrap();
        stream.register(thread.registry(), Token(ROUTE.session)).unwrap();
        let mut session = Session::new(protocol, None);
        session.take_socket(stream, side == Side::Opener);
        session
    }

    /// Carries frames both ways until there are none.
    fn exchange(ours: &mut Protocol, theirs: &mut Protocol, now: u64) {
        while carry(ours, theirs, now) || carry(theirs, ours, now) {}
    }

    /// Carries frames one way. Returns true if there were any.
    fn carry(from: &mut Protocol, to: &mut Protocol, now: u64) -> bool {
        let mut has_any = false;
        while let Some(action) = from.poll_action() {
            if let SessionAction::Send(frame) = action {
                to.handle_frame(frame, now);
                has_any = true;
            }
        }
        to.handle_all_read(now);
        has_any
    }

    #[test]
    fn the_kernel_watches_the_socket_of_a_session_that_goes_on_once_it_is_connected() {
        let mut site = Site::new();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for is_dialled in [true, false] {
            let session = site.thread.session(ROUTE.session).expect("it is there");
            session.take_socket(Stream::dial(None, listener.local_addr().unwrap()).unwrap(), is_dialled);
            let watched = session.socket.as_ref().and_then(|socket| socket.stream.unacknowledged());
            assert_eq!(watched, (!is_dialled).then_some(UNACKNOWLEDGED));
        }
    }

    #[test]
    fn the_kernel_watches_the_new_socket_of_a_session_that_was_away_whichever_end_has_dialled() {
        let mut site = Site::new();
        until("it is away, and dials", || {
            site.thread.lose_socket(ROUTE.session, &io::Error::other("a test"));
            site.session().socket.as_ref().map(|socket| assert!(socket.is_dialled))
        });
        assert!(site.session().protocol.is_away());
        let watched = until("its socket is connected", || {
            site.thread.handle_session(ROUTE.session);
            site.session().socket.as_ref().filter(|socket| !socket.is_dialled).map(|it| it.stream.unacknowledged())
        });
        assert_eq!(watched, Some(UNACKNOWLEDGED));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let session = site.session();
        assert!(session.protocol.is_away());
        session.take_socket(Stream::dial(None, listener.local_addr().unwrap()).unwrap(), false);
        assert_eq!(session.socket.as_ref().and_then(|socket| socket.stream.unacknowledged()), Some(UNACKNOWLEDGED));
    }

    #[test]
    fn a_session_gives_up_the_socket_of_an_interface_that_is_down_and_doubts_others() {
        let mut site = Site::new();
        let before = site.session().protocol.timeout_ns().expect("it asks the peer from time to time");
        site.take(Effect::Down(interface_part("no-such-interface")));
        assert!(!site.session().protocol.is_away());
        let after = site.session().protocol.timeout_ns().expect("it waits for an answer");
        assert!(after < before, "it asks now, and waits for {after} instead of {before}");
        site.take(Effect::Down(interface_part("lo")));
        assert!(site.session().protocol.is_away());
    }

    #[test]
    fn an_address_that_another_interface_has_or_that_no_session_is_at_costs_none_its_socket() {
        let mut site = Site::new();
        let before = site.session().protocol.timeout_ns();
        for address in [Ipv4Addr::LOCALHOST, Ipv4Addr::new(192, 0, 2, 9)] {
            site.take(Effect::Down(Part { device: "eth0".into(), piece: Piece::Address(address.into()) }));
            assert!(!site.session().protocol.is_away());
            assert_eq!(site.session().protocol.timeout_ns(), before, "nor is the peer asked");
        }
    }

    #[test]
    fn a_rail_fails_with_its_address_unless_another_interface_has_that() {
        let mut site = Site::new();
        let at = |address: Ipv4Addr| Part { device: "eth0".into(), piece: Piece::Address(address.into()) };
        let (moved, lost) = (at(Ipv4Addr::LOCALHOST), at(Ipv4Addr::new(192, 0, 2, 9)));
        let connection = site.session().connections.get_mut(&ROUTE.connection);
        let Some(Connection::Open { parts, .. }) = connection else { panic!("it is open") };
        *parts = vec![moved.clone(), lost.clone()];
        for (part, fails) in [(moved, false), (lost, true)] {
            site.take(Effect::Down(part.clone()));
            let inputs = site.thread.recovery(ROUTE).expect("it is open").take();
            assert_eq!(!inputs.is_empty(), fails, "{part:?}");
        }
    }

    #[test]
    fn a_lost_address_costs_its_rails_first_and_then_the_sessions_at_it_their_sockets() {
        let mut site = Site::new();
        // Every address of 127.0.0.0/8 leads to this host, and no interface has this one.
        let lost = Ipv4Addr::new(127, 9, 9, 9);
        let remote = site.session().protocol.address();
        site.session().take_socket(Stream::dial(Some(lost.into()), remote).unwrap(), true);
        let peer = until("the peer has its socket", || {
            let (peer, address) = site.listener.accept().unwrap();
            (address.ip() == lost).then_some(peer)
        });
        peer.set_nonblocking(true).unwrap();
        let application = Application::take_connection(&mut site.thread, Hush::Idle);
        let (told, socket) = mpsc::channel();
        application.script().at_failure =
            Box::new(move || told.send(peer.peek(&mut [0]).map_err(|error| error.kind())).unwrap());
        let part = Part { device: "eth0".into(), piece: Piece::Address(lost.into()) };
        if let Some(Connection::Open { parts, .. }) = site.session().connections.get_mut(&ROUTE.connection) {
            parts.push(part.clone());
        }
        site.take(Effect::Down(part.clone()));
        assert_eq!(application.script().failed, [part]);
        assert_eq!(socket.try_recv(), Ok(Err(io::ErrorKind::WouldBlock)), "the session still had its socket");
        assert!(site.session().protocol.is_away());
    }

    fn port() -> Part {
        Part { device: "mlx5_0".into(), piece: Piece::Port(1) }
    }

    fn pair(number: u32) -> Part {
        Part { device: "mlx5_0".into(), piece: Piece::QueuePair(number) }
    }

    #[test]
    fn failures_are_kept_until_lanes_are_made_and_their_end_has_them() {
        let mut site = Site::new();
        site.take(Effect::Failed(pair(7)));
        assert_eq!(site.kept(), [], "no lanes are being made");
        let hold = site.make_lanes();
        site.take(Effect::Failed(pair(7)));
        site.take(Effect::Down(port()));
        site.thread.look_after_rails();
        assert_eq!(site.kept(), [pair(7), port()]);
        site.take(Effect::Back);
        assert_eq!(site.kept(), [pair(7)], "ports are up again");
        hold.let_go_on();
        until("the lanes are back", || {
            site.thread.look_after_rails();
            (!site.thread.workers.has_rail_work()).then_some(())
        });
        // They wait for NCCL to take the connection.
        site.take(Effect::Failed(pair(8)));
        site.thread.look_after_rails();
        assert_eq!(site.kept(), [pair(7), pair(8)]);
        drop(site.thread.recovery(ROUTE).expect("it is open").take());
        site.thread.look_after_rails();
        assert!(site.thread.making_failures.is_empty());
    }

    #[test]
    fn a_refusal_is_no_failure_for_connections_that_recover() {
        let mut site = Site::new();
        let _hold = site.make_lanes();
        if let Some(Connection::Open { parts, .. }) = site.session().connections.get_mut(&ROUTE.connection) {
            parts.push(pair(7));
        }
        site.take(Effect::Refused(pair(7)));
        assert!(site.thread.making_failures.is_empty());
        assert!(site.thread.recovery(ROUTE).is_some_and(|recovery| !recovery.has_any()));
        site.take(Effect::Failed(pair(7)));
        let inbox = site.thread.recovery(ROUTE).expect("it is open").take();
        assert!(matches!(inbox.front(), Some(Input::PartFailed(part, _)) if *part == pair(7)));
        assert_eq!(site.kept(), [pair(7)]);
    }

    #[test]
    fn a_port_that_is_back_has_rails_and_sessions_tried_at_once() {
        let mut site = Site::new();
        while site.session().socket.is_some() {
            site.thread.lose_socket(ROUTE.session, &io::Error::other("a test"));
        }
        assert!(site.thread.recovery(ROUTE).is_some_and(|recovery| !recovery.has_any()));
        site.take(Effect::Back);
        assert!(site.session().socket.as_ref().is_some_and(|socket| socket.is_dialled));
        assert!(matches!(site.thread.recovery(ROUTE).unwrap().take().front(), Some(Input::Hurry)));
    }
}
