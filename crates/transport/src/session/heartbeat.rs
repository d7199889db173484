//! Heartbeats find out if the process at the other end of a session is still alive. The process is asked only if it has
//! been quiet while connections need it.
//!
//! Its sockets do not show its death: a child that it forked holds copies of them, and a socket ends only with its last
//! copy.

/// The quiet time after which a peer is asked is the time that it has for its answer, divided by this. So the quiet
/// time is only a small share of the time until a dead peer is noticed, and in a job of a thousand processes each is
/// still asked only every few seconds.
const QUIET_PART: u64 = 8;

/// The times at which the other end of a session was last heard and last asked.
#[derive(Debug)]
pub(super) struct Heartbeat {
    timeout_ns: u64,
    heard_ns: u64,
    /// The time at which it was asked, if it has not been heard since.
    asked_ns: Option<u64>,
}

/// The next step of a heartbeat.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Beat {
    /// Nothing is due.
    Wait,
    /// Ask the peer.
    Ask,
    /// The peer was asked, has not answered in time, and was last heard this long ago.
    Silent { for_ns: u64 },
}

impl Heartbeat {
    /// Returns the heartbeat of a session whose peer has `timeout_ns` for an answer.
    pub(super) fn new(timeout_ns: u64, now_ns: u64) -> Self {
        Self { timeout_ns, heard_ns: now_ns, asked_ns: None }
    }

    /// Notes that the peer is asked now.
    pub(super) fn asked(&mut self, now_ns: u64) {
        self.asked_ns = Some(now_ns);
    }

    /// Notes that something came from the peer, whatever it was.
    pub(super) fn heard(&mut self, now_ns: u64) {
        self.heard_ns = now_ns;
        self.asked_ns = None;
    }

    /// Returns when there is something to do. Peers are asked at full multiples of the quiet time, so that the caller
    /// wakes up once for all sessions.
    pub(super) fn next_ns(&self) -> u64 {
        let quiet_ns = (self.timeout_ns / QUIET_PART).max(1);
        match self.asked_ns {
            Some(asked_ns) => asked_ns.saturating_add(self.timeout_ns),
            None => self.heard_ns.saturating_add(quiet_ns).checked_next_multiple_of(quiet_ns).unwrap_or(u64::MAX),
        }
    }

    /// Returns the step that is due now.
    pub(super) fn beat(&self, now_ns: u64) -> Beat {
        match self.asked_ns {
            _ if now_ns < self.next_ns() => Beat::Wait,
            None => Beat::Ask,
            Some(_) => Beat::Silent { for_ns: now_ns - self.heard_ns },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Asks at the time that is due, and returns this time.
    fn ask(heartbeat: &mut Heartbeat) -> u64 {
        let at = heartbeat.next_ns();
        assert_eq!(heartbeat.beat(at), Beat::Ask);
        heartbeat.asked(at);
        at
    }

    #[test]
    fn a_quiet_peer_is_asked_and_one_that_is_heard_is_not() {
        let mut heartbeat = Heartbeat::new(8 * SECOND, 5 * SECOND / 2);
        assert_eq!(heartbeat.next_ns(), 4 * SECOND, "a second of quiet, then the next full one");
        assert_eq!(heartbeat.beat(4 * SECOND - 1), Beat::Wait);
        heartbeat.heard(7 * SECOND / 2);
        assert_eq!(heartbeat.beat(4 * SECOND), Beat::Wait);
        assert_eq!(ask(&mut heartbeat), 5 * SECOND);
        assert_eq!(heartbeat.beat(12 * SECOND), Beat::Wait, "once is enough");
        heartbeat.heard(12 * SECOND);
        assert_eq!(ask(&mut heartbeat), 13 * SECOND);
    }

    #[test]
    fn a_peer_that_does_not_answer_is_dead_when_its_time_is_over_and_not_before() {
        let mut heartbeat = Heartbeat::new(8 * SECOND, 3 * SECOND);
        let asked = ask(&mut heartbeat);
        assert_eq!(asked, 4 * SECOND);
        assert_eq!(heartbeat.beat(asked + 8 * SECOND - 1), Beat::Wait);
        assert_eq!(heartbeat.beat(asked + 8 * SECOND), Beat::Silent { for_ns: 9 * SECOND }, "since it was heard");
        assert_eq!(heartbeat.beat(asked + 10 * SECOND), Beat::Silent { for_ns: 11 * SECOND });
    }

    #[test]
    fn the_quiet_time_is_an_eighth_of_the_time_for_an_answer() {
        for (timeout_ns, quiet_ns) in [(8 * SECOND, SECOND), (30 * SECOND, 15 * SECOND / 4), (7, 1), (0, 1)] {
            assert_eq!(Heartbeat::new(timeout_ns, 0).next_ns(), quiet_ns, "{timeout_ns}");
        }
    }

    #[test]
    fn a_time_for_an_answer_without_end_never_ends() {
        let mut heartbeat = Heartbeat::new(u64::MAX, SECOND);
        heartbeat.asked(2 * SECOND);
        assert_eq!(heartbeat.next_ns(), u64::MAX);
        heartbeat.heard(u64::MAX - 1);
        assert_eq!(heartbeat.next_ns(), u64::MAX);
    }

    #[test]
    fn a_peer_that_was_not_asked_in_time_is_asked_first() {
        let heartbeat = Heartbeat::new(8 * SECOND, 0);
        assert_eq!(heartbeat.beat(1000 * SECOND), Beat::Ask, "it was this process that stood still");
    }
}
