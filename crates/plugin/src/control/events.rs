//! Device events: logged, and reported to the connections whose parts failed.

use railweave_fabric::PortEvent;
use railweave_telemetry::EventKind;

use super::connection::Connection;
use super::control_loop::{ControlLoop, Entry};
use super::failures::{Failure, are_hit};
use crate::comm::Route;
use crate::log;

/// Events taken from a source in one turn.
const MOST_EVENTS_AT_ONCE: usize = 64;

impl ControlLoop {
    /// Takes events from a source. A source that may have more is read again in the thread's next turn, because the
    /// kernel reports its events only once.
    pub(super) fn take_events(&mut self, token: usize) {
        for _ in 0..MOST_EVENTS_AT_ONCE {
            let Some(event) = self.port_events.get(&token).and_then(|source| source.take_event()) else {
                return;
            };
            let PortEvent { is_fault, failed, message } = event;
            if is_fault {
                log::warn(&message);
            } else {
                log::info(&message);
            }
            self.note(EventKind::PORT, None, || message.clone());
            if let Some(part) = failed.filter(|_| self.return_events) {
                let until = self.workers.next_task_number();
                self.handle_failure(Failure { part, message, until });
            }
        }
        self.more_events.push(token);
    }

    /// Fails the connections that use the failed part. Perhaps nothing else ever reports the failure: a device that is
    /// gone completes no work.
    fn handle_failure(&mut self, failure: Failure) {
        let mut in_setup = Vec::new();
        let mut is_known = false;
        for (session, entry) in &self.entries {
            let Entry::Session(state) = entry else {
                continue;
            };
            for (connection, state) in &state.connections {
                match state {
                    Connection::Open { fate, parts, .. } if are_hit(parts, &failure.part) => {
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
