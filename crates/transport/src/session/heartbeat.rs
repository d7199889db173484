//! Heartbeats find out if the socket of a session still leads to a process that answers. The process is asked only if
//! it has been quiet while connections need it. Without an answer the socket is given up, and the session looks for
//! another.
//!
//! A socket does not show by itself that its network is away, or that its peer's process was killed while a child that
//! it had forked holds copies of it.

/// The quiet time after which a peer is asked is the time for which it may be silent, divided by this. So in a job of a
/// thousand processes each is asked only every few seconds.
const QUIET_PART: u64 = 8;

/// The time for an answer is the time for which a peer may be silent, divided by this. So another socket is looked for
/// before half of that time is over.
const ANSWER_PART: u64 = 4;

/// The times at which the other end of a session was last heard and last asked.
#[derive(Debug)]
pub(super) struct Heartbeat {
    timeout_ns: u64,
    heard_ns: u64,
    /// The time by which it must have answered, if it was asked and has not been heard since.
    answer_by_ns: Option<u64>,
    /// The number of the last question, and its time.
    last: (u64, u64),
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
    /// Returns the heartbeat of a session whose peer may be silent for `timeout_ns`.
    pub(super) fn new(timeout_ns: u64, now_ns: u64) -> Self {
        Self { timeout_ns, heard_ns: now_ns, answer_by_ns: None, last: (0, 0) }
    }

    /// Notes that the peer is asked now. Returns the number of the question.
    pub(super) fn asked(&mut self, now_ns: u64) -> u64 {
        let by_ns = now_ns.saturating_add(self.timeout_ns / ANSWER_PART);
        self.answer_by_ns = Some(self.answer_by_ns.map_or(by_ns, |known_ns| known_ns.min(by_ns)));
        self.last = (self.last.0 + 1, now_ns);
        self.last.0
    }

    /// Notes that something says that the socket's path may be gone: the peer has at most `answer_ns` from now to
    /// answer. Returns true if it has to be asked: it was not, since it was last heard.
    pub(super) fn doubt(&mut self, answer_ns: u64, now_ns: u64) -> bool {
        let was_asked = self.answer_by_ns.is_some();
        let by_ns = now_ns.saturating_add(answer_ns);
        self.answer_by_ns = Some(self.answer_by_ns.map_or(by_ns, |known_ns| known_ns.min(by_ns)));
        !was_asked
    }

    /// Returns the time of the question with this number, if it is the last one.
    pub(super) fn asked_at_ns(&self, number: u64) -> Option<u64> {
        (number > 0 && self.last.0 == number).then_some(self.last.1)
    }

    /// Returns the time at which the peer was last heard.
    pub(super) fn heard_ns(&self) -> u64 {
        self.heard_ns
    }

    /// Notes that something came from the peer, whatever it was.
    pub(super) fn heard(&mut self, now_ns: u64) {
        self.heard_ns = now_ns;
        self.answer_by_ns = None;
    }

    /// Returns when there is something to do. Peers are asked at full multiples of the quiet time, so that the caller
    /// wakes up once for all sessions.
    pub(super) fn next_ns(&self) -> u64 {
        let quiet_ns = (self.timeout_ns / QUIET_PART).max(1);
        match self.answer_by_ns {
            Some(answer_by_ns) => answer_by_ns,
            None => self.heard_ns.saturating_add(quiet_ns).checked_next_multiple_of(quiet_ns).unwrap_or(u64::MAX),
        }
    }

    /// Returns the step that is due now.
    pub(super) fn beat(&self, now_ns: u64) -> Beat {
        match self.answer_by_ns {
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
        assert_eq!(heartbeat.beat(6 * SECOND), Beat::Wait, "once is enough");
        heartbeat.heard(6 * SECOND);
        assert_eq!(ask(&mut heartbeat), 7 * SECOND);
        let at = |number| heartbeat.asked_at_ns(number);
        assert_eq!([at(0), at(1), at(2), at(3)], [None, None, Some(7 * SECOND), None]);
    }

    #[test]
    fn a_peer_that_does_not_answer_is_silent_when_its_time_is_over_and_not_before() {
        let mut heartbeat = Heartbeat::new(8 * SECOND, 3 * SECOND);
        let asked = ask(&mut heartbeat);
        assert_eq!(asked, 4 * SECOND);
        assert_eq!(heartbeat.beat(asked + 2 * SECOND - 1), Beat::Wait);
        assert_eq!(heartbeat.beat(asked + 2 * SECOND), Beat::Silent { for_ns: 3 * SECOND }, "since it was heard");
        assert_eq!(heartbeat.beat(asked + 10 * SECOND), Beat::Silent { for_ns: 11 * SECOND });
    }

    #[test]
    fn a_peer_that_is_doubted_has_little_time_to_answer() {
        let mut heartbeat = Heartbeat::new(8 * SECOND, 0);
        assert!(heartbeat.doubt(SECOND / 2, 100));
        heartbeat.asked(100);
        assert!(!heartbeat.doubt(SECOND / 2, 100));
        assert_eq!(heartbeat.beat(99 + SECOND / 2), Beat::Wait);
        assert!(!heartbeat.doubt(SECOND / 2, 200), "it was asked already");
        assert_eq!(heartbeat.beat(100 + SECOND / 2), Beat::Silent { for_ns: 100 + SECOND / 2 });
        heartbeat.heard(SECOND);
        assert_eq!(heartbeat.next_ns(), 2 * SECOND, "it has answered");
        ask(&mut heartbeat);
        assert!(!heartbeat.doubt(SECOND, 2 * SECOND), "it has to answer sooner");
        assert_eq!(heartbeat.next_ns(), 3 * SECOND);
    }

    #[test]
    fn the_quiet_time_is_an_eighth_of_the_peers_time() {
        for (timeout_ns, quiet_ns) in [(8 * SECOND, SECOND), (30 * SECOND, 15 * SECOND / 4), (7, 1), (0, 1)] {
            assert_eq!(Heartbeat::new(timeout_ns, 0).next_ns(), quiet_ns, "{timeout_ns}");
        }
    }

    #[test]
    fn a_time_at_the_end_of_the_clock_does_not_overflow() {
        let mut heartbeat = Heartbeat::new(u64::MAX, SECOND);
        heartbeat.asked(u64::MAX - 2);
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
