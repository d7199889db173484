//! Events of devices: said in the log, and told to the connections whose parts failed.

use railweave_fabric::{Part, Piece, PortEvent};
use railweave_transport::Error;

use super::Route;
use super::connections::Connection;
use super::thread::{Entry, Thread};
use crate::log;

/// A part of this host that failed, and what was said of it.
pub(super) struct Failure {
    part: Part,
    message: String,
}

impl Failure {
    fn error(&self) -> Error {
        Error::local(format!("{}; this connection uses it and is lost", self.message))
    }
}

fn are_hit(parts: &[Part], failed: &Part) -> bool {
    parts.iter().any(|part| part.fails_with(failed))
}

impl Thread {
    /// Takes the events of a source.
    pub(super) fn take_events(&mut self, token: usize) {
        while let Some(event) = self.port_events.get(&token).and_then(|source| source.take_event()) {
            let PortEvent { is_fault, failed, message } = event;
            if is_fault {
                log::warn(&message);
            } else {
                log::info(&message);
            }
            if let Some(part) = failed.filter(|_| self.return_events) {
                self.handle_failure(Failure { part, message });
            }
        }
    }

    /// Connections that use the part are lost: nothing else may ever say so, as a device that is gone completes no work.
    fn handle_failure(&mut self, failure: Failure) {
        let mut in_setup = Vec::new();
        let mut is_known = false;
        for (session, entry) in &self.entries {
            let Entry::Session(state) = entry else {
                continue;
            };
            for (connection, state) in &state.connections {
                match state {
                    Connection::Open { link, parts, .. } if are_hit(parts, &failure.part) => {
                        is_known = true;
                        link.set_lost(failure.error());
                    }
                    Connection::Setup(setting) => {
                        let parts = setting.handshake.as_ref().map(|handshake| handshake.parts());
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
            self.refuse_setting(route, failure.error());
        }
        // A device that failed does not come back to this process. Whose queue it is may be known only when a handshake is
        // back; otherwise it is that of a connection that is closed, and concerns nobody.
        let is_device = failure.part.piece == Piece::Device;
        if !self.workers.is_busy() {
            self.failures.retain(|known| known.part.piece == Piece::Device);
        }
        if is_device && self.failures.iter().any(|known| known.part == failure.part) {
            return;
        }
        if is_device || !is_known && self.workers.is_busy() {
            self.failures.push(failure);
        }
    }

    /// Why a connection that is made of these parts cannot be.
    pub(super) fn failure_of(&self, parts: &[Part]) -> Option<Error> {
        self.failures.iter().find(|failure| are_hit(parts, &failure.part)).map(Failure::error)
    }
}
