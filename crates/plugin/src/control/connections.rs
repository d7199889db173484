//! The connections of a session: offers, set-up and their end.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use railweave_fabric::{LinkLayer, Route as FabricRoute, Step};
use railweave_identity::random;
use railweave_telemetry::EventKind;
use railweave_transport::progress::Due;
use railweave_transport::{Action, Cause, Error, Event, Failed, Handshake, HandshakeFailure, Message, Offer, Token};

use super::clock::nanoseconds;
use super::command::ConnectRequest;
use super::connection::{Connection, ConnectionSetup, Place, Target};
use super::control_loop::ControlLoop;
use super::failures::Failure;
use super::hearing::Heard;
use super::numa;
use super::offers::TOO_MANY_UNACCEPTED;
use super::publishing::peer_of;
use super::rail_inbox::{Input, Recovery};
use super::strangers::Kind;
use crate::comm::{Established, Route};
use crate::log;
use crate::network::{AnyHandshake, HandshakeParams, Network, To};

/// Begins a handshake with memory from the NUMA node of its device, if the fabric has adapters. Returns its place too,
/// for the later steps.
fn placed(
    network: &Arc<dyn Network>,
    device: usize,
    begin: impl FnOnce(&dyn Network, usize) -> Box<dyn AnyHandshake>,
) -> (Box<dyn AnyHandshake>, Place) {
    let node = if network.may_block() { numa::node_of(&**network, device) } else { None };
    let _placed = numa::Placed::on(node);
    (begin(&**network, device), Place { network: Arc::clone(network), device, node })
}

/// Returns true if the acceptor found no rail in the offer.
fn is_unpaired(error: &Error) -> bool {
    matches!(**error, Cause::Handshake { failure: HandshakeFailure::Unpaired(_), .. })
}

impl ControlLoop {
    /// Offers a connection on the session with the peer's process.
    pub(super) fn begin_connecting(&mut self, token: usize, mut request: ConnectRequest) {
        let (now, timeout_ns, deadline_ns) = (self.now_ns(), self.handshake_ns(), self.deadline_ns());
        let begun = self.session(token).and_then(|session| {
            let (connection, peer) = (session.protocol.begin(now)?, session.protocol.peer_name());
            Some((connection, peer, request.climb.begin(&mut session.ways, now)))
        });
        let Some((connection, peer, avoided)) = begun else {
            let error = Error::peer("the session with the peer has just ended: the peer closed it or died");
            return self.report_failed_setup(&Target::Connect(Box::new(request)), error);
        };
        let first_step = request.climb.first_step();
        let route = Route { session: token, connection };
        let params = HandshakeParams { config: request.config.clone(), peer, deadline_ns };
        let (network, device) = match &request.fallback {
            Some(fallback) if first_step == Step::Tcp => (fallback, 0),
            _ => (&request.network, request.device),
        };
        let to = To { handle: &request.handle, first_step, avoided: &avoided };
        let (handshake, place) = placed(network, device, |it, device| it.connect(device, to, params));
        let setup = ConnectionSetup::new(handshake, Target::Connect(Box::new(request)), None, place, (timeout_ns, now));
        self.begin_setup(route, setup);
        self.with_handshake(route, |_| ());
    }

    /// Answers a peer's offer.
    pub(super) fn begin_accepting(&mut self, token: usize, connection: u32, offer: &Offer, deadline_ns: u64) {
        let listener = super::lock(&self.listeners).get(&offer.nonce).cloned();
        let (now, timeout_ns, lane_token) = (self.now_ns(), self.handshake_ns(), Token(random()));
        let same_network = self.is_inside_host(token);
        let route = Route { session: token, connection };
        let Some(session) = self.session(token) else {
            return;
        };
        session.protocol.accept_offer(connection, now);
        let peer = session.protocol.peer_name();
        let Some(listener) = listener else {
            return self.refuse(route, "there is no such listener: it was closed, or the handle is from another run");
        };
        let is_tcp = offer.ports.iter().all(|port| port.link_layer == LinkLayer::Tcp);
        // Without a network of the offer's kind, the pairing says which kinds there are.
        let known = listener.network_for(is_tcp).unwrap_or((&listener.network, listener.device));
        let params = HandshakeParams { config: listener.config.clone(), peer, deadline_ns };
        let (handshake, place) =
            placed(known.0, known.1, |it, device| it.accept(device, offer, same_network, lane_token, params));
        let follows = offer.ways.first_step > Step::default() || offer.ways.routes.contains(&FabricRoute::Failed);
        let target = Target::Accept(Arc::clone(&listener), follows);
        let setup = ConnectionSetup::new(handshake, target, Some(lane_token), place, (timeout_ns, now));
        self.begin_setup(route, setup);
        self.lane_routes.insert(lane_token, route);
        self.with_handshake(route, |_| ());
    }

    /// Handles a peer that has left an open connection.
    pub(super) fn handle_peer_left(&mut self, route: Route) {
        if let Some(Connection::Open { listener, .. }) =
            self.session(route.session).and_then(|session| session.connections.get(&route.connection))
        {
            let listener = Weak::clone(listener);
            self.queue_left_connection(route, listener);
        }
    }

    /// Calls `act` with a connection's handshake, then carries out the handshake's actions. Returns `None` if the
    /// connection is not being set up here.
    pub(super) fn with_handshake<R>(&mut self, route: Route, act: impl FnOnce(&mut dyn Handshake) -> R) -> Option<R> {
        let session = self.session(route.session)?;
        let Some(Connection::Setup(setup)) = session.connections.get_mut(&route.connection) else {
            return None;
        };
        let result = act(setup.handshake.as_mut()?.get_mut());
        self.carry_out_handshake_actions(route);
        Some(result)
    }

    fn carry_out_handshake_actions(&mut self, route: Route) {
        loop {
            let now = self.now_ns();
            let Some(session) = self.session(route.session) else {
                return;
            };
            let peer = session.protocol.peer_name();
            let port = session.protocol.address().port();
            let Some(Connection::Setup(setup)) = session.connections.get_mut(&route.connection) else {
                return;
            };
            let Some(handshake) = &mut setup.handshake else {
                return;
            };
            if let Some(event) = handshake.poll_event() {
                if let Event::RailLeftOut { rail, name, .. } = &event {
                    setup.left_out.push((*rail, name.clone()));
                }
                if let Target::Connect(request) = &mut setup.target {
                    let took_ns = now.saturating_sub(setup.begun_ns);
                    request.climb.handle_event(&mut session.ways, &event, took_ns, now);
                }
                // A stranger could cause any number of these events.
                let by_stranger = matches!(setup.target, Target::Accept(..));
                self.log_event(&event, &peer, by_stranger);
                continue;
            }
            match handshake.poll_action() {
                None => return,
                Some(Action::Send(message)) => {
                    self.send(route, message);
                }
                Some(Action::Dial(dial)) => {
                    if let Err(reason) = self.dial_lane(route, dial, port) {
                        self.with_handshake(route, |h| h.handle_dialled(dial.rail, dial.lane, Err(reason)));
                    }
                }
                Some(Action::Ready(established)) => return self.open(route, established),
                Some(Action::Failed(error)) => return self.fail_setup(route, error),
            }
        }
    }

    /// Opens a connection whose handshake has finished.
    fn open(&mut self, route: Route, mut established: Box<Established>) {
        let now = self.now_ns();
        for lane in established.end.describe_lanes() {
            log::detail(self.log_lanes, &format!("to {}, {lane}", established.peer));
        }
        let parts = std::mem::take(&mut established.parts);
        // A part may have failed while the set-up thread had the last step, when the connection's parts were not known.
        let number = self.setup(route).and_then(|setup| setup.last_task).unwrap_or(self.workers.next_task_number());
        let failures = self.failures.of(&parts, number);
        if let Some(failure) = failures.first().filter(|_| !self.recovers) {
            established.fate.set_failed(failure.error());
        }
        let Some(session) = self.session(route.session) else {
            return;
        };
        let Some(Connection::Setup(setup)) = session.connections.remove(&route.connection) else {
            return;
        };
        let fate = Arc::clone(&established.fate);
        let listener = match &setup.target {
            Target::Accept(listener, _) => Arc::downgrade(listener),
            Target::Connect(_) => Weak::new(),
        };
        let open = Connection::Open {
            fate: Arc::clone(&fate),
            parts,
            listener,
            comm: None,
            recovery: Recovery::new(setup.place.node),
            heard: Heard::new(established.rails.clone()),
            registrar: Arc::clone(&established.registrar),
        };
        session.connections.insert(route.connection, open);
        let peer = session.protocol.peer().map(peer_of).unwrap_or_default();
        let is_known = session.protocol.opened(route.connection, now);
        debug_assert!(is_known, "what was being set up here was being set up there");
        self.listen_to_rails(route, &fate);
        self.listening.begin(now);
        let recovers = self.recovers;
        for Failure { part, message, .. } in failures.into_iter().filter(|_| recovers) {
            self.recover(route, Input::PartFailed(part, message));
        }
        self.end_setup(route, &setup);
        established.trace = self.publish_opened(route, &setup, &established, peer);
        if let Target::Accept(listener, _) = &setup.target
            && listener.unaccepted() >= self.setups.most_unaccepted
        {
            // Other connections of this listener came up after this one was offered.
            let text = format!("a connection was closed, because {TOO_MANY_UNACCEPTED}: {}", established.peer);
            self.strangers.report(self.now_ns(), Kind::Setup, &text);
            self.close(route, established.end);
        } else {
            if let (Target::Connect(request), Some(step)) = (&setup.target, established.step) {
                self.reached(route.session, request, step, &established.rails);
            }
            match (setup.target.give((established, route)), setup.target) {
                (Some((unwanted, route)), _) => self.close(route, unwanted.end),
                (None, Target::Connect(request)) => self.watch_connect(route, request.result),
                (None, Target::Accept(..)) => {}
            }
        }
        // The peer's messages that came while the set-up thread had the last step are for the open connection.
        for message in setup.progress.into_kept() {
            self.with_session(route.session, |session, now| session.handle_message(route.connection, message, now));
        }
        self.drive_session(route.session);
    }

    /// Handles a deadline of a connection in set-up.
    pub(super) fn handle_setup_deadline(&mut self, route: Route, now_ns: u64) {
        let Some(setup) = self.setup(route) else {
            return;
        };
        let Due { says_wait, step } = setup.progress.due(setup.timeout_ns(), now_ns);
        if says_wait {
            let is_away = setup.progress.is_away();
            if is_away && let Some(text) = self.stuck_kernel(now_ns) {
                return self.refuse_setup(route, Error::local(text));
            }
            self.send(route, Message::Wait);
        }
        if let Some(step) = step {
            self.take_step(route, step);
        }
    }

    /// Returns an error text if the set-up thread has been in one call of the kernel for a handshake timeout.
    pub(super) fn stuck_kernel(&mut self, now_ns: u64) -> Option<String> {
        let seconds = self.handshake_timeout.as_secs_f64();
        self.workers.is_stuck(now_ns).then(|| {
            format!(
                "a call of the kernel that sets up a connection has not returned for {seconds} s; look at the kernel \
                 log, and at the port's link"
            )
        })
    }

    /// Returns the time that a handshake has for each step.
    pub(super) fn handshake_ns(&self) -> u64 {
        nanoseconds(self.handshake_timeout)
    }

    /// Handles WAIT: the peer still works on a connection's set-up. WAIT is not a step, so the set-ups of a peer that
    /// says nothing else make room for others.
    pub(super) fn handle_wait(&mut self, route: Route) {
        let now = self.now_ns();
        if let Some(setup) = self.setup(route)
            && let Some(deadline_ns) = setup.progress.handle_wait(now)
            && let Some(handshake) = &mut setup.handshake
        {
            handshake.set_deadline(deadline_ns);
        }
    }

    /// Sends a message about a connection.
    pub(super) fn send(&mut self, route: Route, message: Message) {
        self.with_session(route.session, |session, _| session.send(route.connection, message));
    }

    /// Handles the end of a session while one of its connections is being set up.
    pub(super) fn interrupt_setup(&mut self, route: Route) {
        let Some(session) = self.session(route.session) else {
            return;
        };
        let Some(ended) = session.protocol.ended() else {
            return;
        };
        let error = Error::from(Cause::SessionEnded { peer: session.protocol.peer_name(), ended: ended.clone() });
        let Some(Connection::Setup(setup)) = session.connections.get_mut(&route.connection) else {
            return;
        };
        match setup.progress.interrupt(error) {
            Ok(()) => {
                let (token, task) = (setup.token, setup.last_task);
                self.release_setup_place(route, token, task);
            }
            Err(error) => self.fail_setup(route, error),
        }
    }

    /// Fails a set-up and tells the peer why.
    pub(super) fn refuse_setup(&mut self, route: Route, error: Error) {
        self.refuse_setup_for(route, error, false);
    }

    /// Leaves the rails of a set-up out that use a failed part of this host.
    pub(super) fn leave_out_failed(&mut self, route: Route, failure: &Failure) {
        let left_out = |handshake: &mut dyn Handshake| handshake.handle_part_failed(&failure.part, &failure.message);
        if self.with_handshake(route, left_out) == Some(false) {
            self.refuse_setup_for(route, failure.error(), true);
        }
    }

    fn refuse_setup_for(&mut self, route: Route, error: Error, of_rails: bool) {
        self.send(route, Message::Refuse { fault: error.fault(), of_rails, reason: error.to_string() });
        self.fail_setup(route, error);
    }

    /// Fails a set-up and reports the error. A connect goes on with the next step of the ladder, if there is one.
    pub(super) fn fail_setup(&mut self, route: Route, error: Error) {
        let Some(session) = self.session(route.session) else {
            return;
        };
        if !matches!(session.connections.get(&route.connection), Some(Connection::Setup(_))) {
            return;
        }
        if let Some(Connection::Setup(setup)) = session.connections.remove(&route.connection) {
            setup.is_wanted.store(false, Ordering::Relaxed);
            self.end_setup(route, &setup);
            self.trace_failed_setup(route, &setup, &error);
            let failed = match &setup.handshake {
                Some(handshake) => Failed::new(handshake.get(), error),
                None => Failed { step: None, is_of_rails: false, error },
            };
            let again = match setup.target {
                Target::Connect(request) => self.next_attempt(route.session, request, failed),
                target @ Target::Accept(..) => {
                    self.report_failed_setup(&target, failed.error);
                    None
                }
            };
            if let Some(handshake) = setup.handshake {
                self.free(handshake);
            }
            self.with_session(route.session, |session, now| session.failed(route.connection, now));
            if let Some(request) = again {
                self.begin_or_queue_connect(route.session, *request);
            }
        }
    }

    /// Ends a set-up, and gives back its place unless the end of its session has already done so.
    fn end_setup(&mut self, route: Route, setup: &ConnectionSetup) {
        if setup.progress.orphaned().is_none() {
            self.release_setup_place(route, setup.token, setup.current_task());
        }
    }

    /// Reports a failed set-up to `connect`, or in the log for a listener: `accept` does not wait for one connection in
    /// particular, and another may still come.
    pub(super) fn report_failed_setup(&mut self, target: &Target, error: Error) {
        match target {
            // Nobody needs the error if connect is not called again.
            Target::Connect(request) => {
                self.note(EventKind::FAILED, None, || error.to_string());
                drop(request.result.give(Err(error)));
            }
            // The first failure is in the log already.
            Target::Accept(_, true) if is_unpaired(&error) => {}
            Target::Accept(listener, _) if listener.is_open() => {
                let now = self.now_ns();
                let text = format!("a connection that a peer began was not set up, and accept keeps waiting: {error}");
                self.strangers.report(now, Kind::Setup, &text);
            }
            Target::Accept(..) => {}
        }
    }
}
