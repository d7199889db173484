//! Events of devices: said in the log, and told to the connections whose parts failed.

use railweave_fabric::{Part, Piece, PortEvent};
use railweave_transport::Error;

use super::Route;
use super::connections::Connection;
use super::thread::{Entry, Thread};
use crate::log;

/// Events taken from a source before others are looked at again.
const MOST_EVENTS_AT_ONCE: usize = 64;

/// A part of this host that failed, and what was said of it.
struct Failure {
    part: Part,
    message: String,
    /// It may concern handshakes that were given to the set-up thread before this one: what they are made of is known
    /// when they are back. What is made later is new, whatever number it got.
    until: u64,
}

impl Failure {
    /// A device that failed does not come back to this process.
    fn is_for_ever(&self) -> bool {
        self.part.piece == Piece::Device
    }

    fn error(&self) -> Error {
        Error::local(format!("{}; this connection uses it and is lost", self.message))
    }
}

/// What failed and may concern connections that are not known by it yet.
#[derive(Default)]
pub(super) struct Failures {
    known: Vec<Failure>,
}

impl Failures {
    /// Keeps a failure while it may concern anyone. `oldest` is the number of the oldest handshake that is away.
    fn keep(&mut self, failure: Failure, oldest: u64) {
        self.known.retain(|known| known.part != failure.part);
        self.known.push(failure);
        self.forget(oldest);
    }

    /// Forgets the failures that concern none of the handshakes from this number on.
    pub(super) fn forget(&mut self, oldest: u64) {
        self.known.retain(|failure| failure.is_for_ever() || failure.until > oldest);
    }

    /// Why a handshake that is made of these parts cannot go on, by its number at the set-up thread.
    pub(super) fn of(&self, parts: &[Part], number: u64) -> Option<Error> {
        let concerns = |failure: &&Failure| failure.is_for_ever() || failure.until > number;
        self.known.iter().filter(concerns).find(|failure| are_hit(parts, &failure.part)).map(Failure::error)
    }
}

pub(super) fn are_hit(parts: &[Part], failed: &Part) -> bool {
    parts.iter().any(|part| part.fails_with(failed))
}

impl Thread {
    /// Takes events of a source. One that may have more is looked at again in the thread's next round, for the kernel
    /// tells of what is there only once.
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
            if let Some(part) = failed.filter(|_| self.return_events) {
                let until = self.workers.next_number();
                self.handle_failure(Failure { part, message, until });
            }
        }
        self.more_events.push(token);
    }

    /// Connections that use the part are lost: nothing else may ever say so, as a device that is gone completes no
    /// work.
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
                        link.set_failed(failure.error());
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
        // What is neither known nor away is that of a connection that is closed, and concerns nobody.
        if !is_known || failure.is_for_ever() {
            self.failures.keep(failure, self.workers.oldest_number());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(piece: Piece) -> Part {
        Part { device: "mlx5_0".into(), piece }
    }

    fn failure(piece: Piece, until: u64) -> Failure {
        Failure { part: part(piece), message: format!("{piece:?} failed"), until }
    }

    #[test]
    fn a_failure_concerns_handshakes_that_were_away_when_it_came_and_none_after_them() {
        let pair = [part(Piece::QueuePair(7))];
        let mut failures = Failures::default();
        // Handshakes 3 and 5 are away, 6 is the next one.
        failures.keep(failure(Piece::QueuePair(7), 6), 3);
        for (number, is_hit) in [(3, true), (5, true), (6, false), (7, false)] {
            assert_eq!(failures.of(&pair, number).is_some(), is_hit, "{number}");
        }
        assert!(failures.of(&[part(Piece::QueuePair(8))], 3).is_none());
        // 3 is back, then 5, while 6 was given: the number may be another queue pair's from now on.
        failures.forget(5);
        assert!(failures.of(&pair, 5).is_some());
        failures.forget(6);
        assert!(failures.known.is_empty());
    }

    #[test]
    fn without_a_handshake_that_is_away_only_a_device_is_remembered() {
        let mut failures = Failures::default();
        failures.keep(failure(Piece::CompletionQueue(9), 4), 4);
        assert!(failures.known.is_empty());
        for until in [4, 5] {
            failures.keep(failure(Piece::Device, until), 4);
        }
        failures.forget(u64::MAX);
        assert_eq!(failures.known.len(), 1);
        assert!(failures.of(&[part(Piece::CompletionQueue(9))], 1_000).is_some(), "its device failed");
    }
}
