//! Heartbeats: whether the process at the other end of a session is still there. It is asked only when it has been quiet
//! while connections need it.
//!
//! The end of its sockets does not tell. A child that it forked holds copies of them, and they end with the last copy.

use std::time::Duration;

use railweave_transport::Message;

use super::Route;
use super::thread::Thread;

/// A peer is asked once it has been quiet for this part of the time that it has for its answer. Of the time that passes
/// before a peer is known to be dead, this is the smaller share; in a job of a thousand processes each is asked every few
/// seconds.
const QUIET_PART: u64 = 8;

/// When the other end of a session was heard, and when it was asked.
pub(super) struct Heartbeat {
    timeout_ns: u64,
    heard_ns: u64,
    /// It was asked then, and has not been heard since.
    asked_ns: Option<u64>,
}

/// What a heartbeat wants done.
#[derive(Debug, PartialEq, Eq)]
enum Beat {
    /// Nothing yet.
    Wait,
    /// The peer is to be asked.
    Ask,
    /// It was asked, has not answered in time, and was heard so long ago.
    Silent { for_ns: u64 },
}

impl Heartbeat {
    /// The heartbeat of a session whose peer has this long for an answer.
    pub(super) fn new(timeout: Duration, now_ns: u64) -> Self {
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        Self { timeout_ns, heard_ns: now_ns, asked_ns: None }
    }

    /// Something came from the peer, whatever it was.
    pub(super) fn heard(&mut self, now_ns: u64) {
        self.heard_ns = now_ns;
        self.asked_ns = None;
    }

    /// When there is something to do. Peers are asked at full multiples of the quiet time, so that one waking of the thread
    /// serves all sessions.
    pub(super) fn next_ns(&self) -> u64 {
        let quiet_ns = (self.timeout_ns / QUIET_PART).max(1);
        match self.asked_ns {
            Some(asked_ns) => asked_ns.saturating_add(self.timeout_ns),
            None => self.heard_ns.saturating_add(quiet_ns).checked_next_multiple_of(quiet_ns).unwrap_or(u64::MAX),
        }
    }

    fn beat(&self, now_ns: u64) -> Beat {
        match self.asked_ns {
            _ if now_ns < self.next_ns() => Beat::Wait,
            None => Beat::Ask,
            Some(_) => Beat::Silent { for_ns: now_ns - self.heard_ns },
        }
    }
}

impl Thread {
    /// Asks the peer of a session that has been quiet, and ends the session when it has not answered in time.
    pub(super) fn beat(&mut self, token: usize, now_ns: u64) {
        if matches!(self.due(token, now_ns), Beat::Silent { .. }) {
            // If it was this process that stood still, the answer lies in the socket, also where that is read from in turns.
            if let Some(session) = self.session(token) {
                session.resting = false;
            }
            self.handle_ready(token);
        }
        match self.due(token, now_ns) {
            Beat::Wait => {}
            Beat::Ask => {
                if let Some(session) = self.session(token) {
                    session.heartbeat.asked_ns = Some(now_ns);
                }
                let _ = self.send(Route { session: token, connection: 0 }, Message::Ping);
            }
            Beat::Silent { for_ns } => {
                let (seconds, limit) = (for_ns as f64 / 1e9, self.peer_timeout.as_secs_f64());
                let why = match self.session(token).and_then(|session| session.left_unread()) {
                    // What it says is not read then, so nothing is known of its silence.
                    Some(unsent) => format!(
                        "it has not read what was sent to it for {seconds:.1} s, longer than RAILWEAVE_PEER_TIMEOUT \
                         ({limit} s): {unsent} bytes wait for it; it is stopped, or cannot be reached, or its program is \
                         not Railweave"
                    ),
                    None => format!(
                        "it has been silent for {seconds:.1} s and did not answer within RAILWEAVE_PEER_TIMEOUT ({limit} s): \
                         it was killed while a child that it forked lives on, or is stopped, or cannot be reached"
                    ),
                };
                self.end_session(token, &why);
            }
        }
    }

    fn due(&mut self, token: usize, now_ns: u64) -> Beat {
        match self.session(token) {
            Some(session) if session.needs_peer() => session.heartbeat.beat(now_ns),
            _ => Beat::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Asks when it is due, and tells when that was.
    fn ask(heartbeat: &mut Heartbeat) -> u64 {
        let at = heartbeat.next_ns();
        assert_eq!(heartbeat.beat(at), Beat::Ask);
        heartbeat.asked_ns = Some(at);
        at
    }

    #[test]
    fn a_quiet_peer_is_asked_and_one_that_is_heard_is_not() {
        let mut heartbeat = Heartbeat::new(Duration::from_secs(8), 5 * SECOND / 2);
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
        let mut heartbeat = Heartbeat::new(Duration::from_secs(8), 0);
        let asked = ask(&mut heartbeat);
        assert_eq!(heartbeat.beat(asked + 8 * SECOND - 1), Beat::Wait);
        assert_eq!(heartbeat.beat(asked + 8 * SECOND), Beat::Silent { for_ns: 9 * SECOND });
    }

    #[test]
    fn one_that_was_not_asked_in_time_is_asked_first() {
        let heartbeat = Heartbeat::new(Duration::from_secs(8), 0);
        assert_eq!(heartbeat.beat(1000 * SECOND), Beat::Ask, "it was this process that stood still");
    }
}
