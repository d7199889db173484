//! Failed parts of this host, kept while a handshake on the set-up thread may use them.

use railweave_fabric::{Part, Piece};
use railweave_transport::Error;

/// A part of this host that failed, and the event's message.
#[derive(Clone)]
pub(super) struct Failure {
    pub(super) part: Part,
    pub(super) message: String,
    /// Handshakes on the set-up thread whose numbers are below this one may use the part: their parts are not known
    /// until they are back. A part made later is a new one, even if it has the same number.
    pub(super) until: u64,
}

impl Failure {
    /// Returns true if the part is a device: a failed one never comes back to this process.
    pub(super) fn is_permanent(&self) -> bool {
        self.part.piece == Piece::Device
    }

    pub(super) fn error(&self) -> Error {
        Error::local(format!("{}; this connection uses it and is lost", self.message))
    }
}

/// Failures that may concern connections whose parts are not known yet.
#[derive(Default)]
pub(super) struct Failures {
    known: Vec<Failure>,
}

impl Failures {
    /// Keeps a failure while it may concern a handshake. `oldest` is the number of the oldest handshake on the set-up
    /// thread.
    pub(super) fn keep(&mut self, failure: Failure, oldest: u64) {
        self.known.retain(|known| known.part != failure.part);
        self.known.push(failure);
        self.forget(oldest);
    }

    /// Forgets the failures that concern none of the handshakes from this number on.
    pub(super) fn forget(&mut self, oldest: u64) {
        self.known.retain(|failure| failure.is_permanent() || failure.until > oldest);
    }

    /// Returns the failures that hit a handshake with these parts and this number on the set-up thread.
    pub(super) fn of(&self, parts: &[Part], number: u64) -> Vec<Failure> {
        let concerns = |failure: &&Failure| failure.is_permanent() || failure.until > number;
        self.known.iter().filter(concerns).filter(|failure| are_hit(parts, &failure.part)).cloned().collect()
    }
}

/// Failures of parts that new lanes of open connections may use. Nobody knows the parts of lanes that are being made,
/// and once these are up, only their silence would show the failure.
#[derive(Default)]
pub(super) struct MakingFailures {
    known: Vec<(Part, String)>,
}

impl MakingFailures {
    /// Keeps the failure of a part, with its message.
    pub(super) fn keep(&mut self, part: &Part, message: &str) {
        if self.known.iter().all(|(known, _)| known != part) {
            self.known.push((part.clone(), message.to_owned()));
        }
    }

    /// Forgets the ports: some are there again.
    pub(super) fn forget_ports(&mut self) {
        self.known.retain(|(part, _)| !matches!(part.piece, Piece::Port(_)));
    }

    /// Returns true if there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Forgets everything: no lanes are being made.
    pub(super) fn clear(&mut self) {
        self.known.clear();
    }

    /// Returns the failures that hit a connection with these parts and that did not before its new lanes.
    pub(super) fn of_new(&self, before: &[Part], after: &[Part]) -> Vec<(Part, String)> {
        let hits = |(part, _): &&(Part, String)| are_hit(after, part) && !are_hit(before, part);
        self.known.iter().filter(hits).cloned().collect()
    }
}

pub(super) fn are_hit(parts: &[Part], failed: &Part) -> bool {
    parts.iter().any(|part| part.fails_with(failed))
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
        // Handshakes 3 and 5 are on the set-up thread, 6 is the next one.
        failures.keep(failure(Piece::QueuePair(7), 6), 3);
        for (number, is_hit) in [(3, true), (5, true), (6, false), (7, false)] {
            assert_eq!(!failures.of(&pair, number).is_empty(), is_hit, "{number}");
        }
        assert!(failures.of(&[part(Piece::QueuePair(8))], 3).is_empty());
        // 3 is back, then 5, while 6 is on the set-up thread: its queue pair may have the failed one's number.
        failures.forget(5);
        assert_eq!(failures.of(&pair, 5).len(), 1);
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
        assert_eq!(failures.of(&[part(Piece::CompletionQueue(9))], 1_000).len(), 1, "its device failed");
    }

    #[test]
    fn a_failure_while_lanes_are_made_hits_the_connection_that_has_them_afterwards() {
        let [device, port, pair] = [Piece::Device, Piece::Port(1), Piece::QueuePair(7)].map(part);
        let mut failures = MakingFailures::default();
        for _ in 0..2 {
            failures.keep(&port, "it is down");
            failures.keep(&pair, "it failed");
        }
        let down = [device.clone()];
        let up = [device, port.clone(), pair.clone()];
        assert_eq!(
            failures.of_new(&down, &up),
            [(port, "it is down".to_owned()), (pair.clone(), "it failed".to_owned())]
        );
        assert_eq!(failures.of_new(&up, &up), [], "it was told of these as they happened");
        failures.forget_ports();
        assert_eq!(failures.of_new(&down, &up), [(pair, "it failed".to_owned())]);
        failures.clear();
        assert_eq!(failures.of_new(&down, &up), []);
    }
}
