//! Device events: logged, and reported to the connections whose parts failed.

use std::collections::BTreeSet;
use std::io;

use railweave_discovery::interface_addresses;
use railweave_fabric::{Effect, Part, PortEvent};
use railweave_telemetry::EventKind;
use railweave_transport::Session as Protocol;

use super::connection::Connection;
use super::control_loop::{ControlLoop, Entry};
use super::failures::{Failure, are_hit};
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
            if is_fault {
                log::warn(&message);
            } else {
                log::info(&message);
            }
            self.note(EventKind::PORT, None, || message.clone());
            match effect {
                // A connection that recovers goes by what its own work tells the peer, which counts refusals.
                Effect::Refused(_) if self.recovers => {}
                Effect::Failed(part) | Effect::Refused(part) if self.return_events => {
                    let until = self.workers.next_task_number();
                    self.handle_failure(Failure { part, message, until });
                }
                Effect::Down(part) if self.return_events && self.recovers => {
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
        let answer_ns = self.listening.timeout_ns;
        let addresses = interface_addresses(&part.device);
        let sessions: BTreeSet<usize> = self.open_routes().into_iter().map(|route| route.session).collect();
        for token in sessions {
            let socket = self.session(token).and_then(|session| session.socket.as_ref());
            let local = socket.and_then(|socket| socket.stream.local());
            if local.is_some_and(|local| addresses.contains(&local)) {
                self.lose_socket(token, &io::Error::other(message));
            } else if answer_ns > 0 {
                self.with_session(token, |session, now| session.doubt(answer_ns, now));
            }
        }
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
