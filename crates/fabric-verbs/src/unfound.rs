//! The peers' ports that the kernel does not find.
//!
//! ibv_modify_qp blocks for about a second while the kernel asks for a neighbour that does not answer. A job brings up
//! hundreds of queue pairs, so one of them asks for each port, and the others wait for what it finds.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The pause of a queue pair that waits for another one: short next to a second in the kernel, and never 0, as the
/// user's pause between retries may be.
pub(crate) const WAIT: Duration = Duration::from_millis(100);

/// An attempt that took less than this costs nobody anything.
const QUICK: Duration = Duration::from_millis(100);

/// An attempt may end this much later than its pause says: it takes about a second itself, and so may one for another
/// port before it. After that, others look themselves.
const LEEWAY: Duration = Duration::from_secs(3);

/// The last attempt to find a port.
struct Attempt {
    /// The number of the queue pair.
    pair: u32,
    /// The time at which its next attempt is over at the latest.
    next_over: Instant,
}

/// A queue pair that looks for a port. When it is dropped, no other waits for it any more.
pub(crate) struct Looking {
    unfound: Arc<Unfound>,
    gid: [u8; 16],
    pair: u32,
}

impl Drop for Looking {
    fn drop(&mut self) {
        let mut attempts = self.unfound.attempts();
        if attempts.get(&self.gid).is_some_and(|attempt| attempt.pair == self.pair) {
            attempts.remove(&self.gid);
        }
    }
}

/// The peers' ports that one port of this host has not found, by their GIDs.
#[derive(Default)]
pub(crate) struct Unfound(Mutex<HashMap<[u8; 16], Attempt>>);

impl Unfound {
    /// Returns true if another queue pair than this one looks for the port now.
    pub(crate) fn is_looked_for(&self, gid: [u8; 16], pair: u32, now: Instant) -> bool {
        self.attempts().get(&gid).is_some_and(|attempt| attempt.pair != pair && now < attempt.next_over)
    }

    /// Notes the outcome of a queue pair's attempt, which took this long. `next` is the pause before its next attempt
    /// if the kernel refused this one, `None` if there is none: then no other waits for it. The queue pair keeps what
    /// this returns, in place of what it returned before, until it is gone.
    pub(crate) fn note(
        self: &Arc<Self>,
        gid: [u8; 16],
        pair: u32,
        (outcome, took): (&io::Result<()>, Duration),
        next: Option<Duration>,
        now: Instant,
    ) -> Option<Looking> {
        let mut attempts = self.attempts();
        attempts.retain(|_, attempt| now < attempt.next_over);
        let is_unfound = outcome.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ETIMEDOUT));
        match next.filter(|_| is_unfound && took >= QUICK) {
            Some(pause) => {
                attempts.insert(gid, Attempt { pair, next_over: now + pause + LEEWAY });
                Some(Looking { unfound: Arc::clone(self), gid, pair })
            }
            None => {
                attempts.remove(&gid);
                None
            }
        }
    }

    fn attempts(&self) -> MutexGuard<'_, HashMap<[u8; 16], Attempt>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GID: [u8; 16] = [7; 16];
    const SECOND: Duration = Duration::from_secs(1);

    fn refused(code: i32) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(code))
    }

    #[test]
    fn one_queue_pair_looks_and_the_others_wait_until_it_finds_the_port_or_stops() {
        for pause in [Duration::ZERO, SECOND, 60 * SECOND] {
            let (unfound, start) = (Arc::<Unfound>::default(), Instant::now());
            let looking = unfound.note(GID, 1, (&refused(libc::ETIMEDOUT), SECOND), Some(pause), start);
            assert!(looking.is_some() && !unfound.is_looked_for(GID, 1, start));
            assert!(unfound.is_looked_for(GID, 2, start));
            assert!(!unfound.is_looked_for([8; 16], 2, start), "another port");
            let over = start + pause + LEEWAY;
            assert!(unfound.is_looked_for(GID, 2, over - Duration::from_nanos(1)), "{pause:?}");
            assert!(!unfound.is_looked_for(GID, 2, over), "{pause:?}");
            assert!(unfound.note(GID, 1, (&Ok(()), SECOND), Some(pause), start).is_none());
            assert!(!unfound.is_looked_for(GID, 2, start));
        }
    }

    #[test]
    fn nobody_waits_for_a_queue_pair_that_is_gone_or_has_no_attempt_left() {
        let (unfound, now) = (Arc::<Unfound>::default(), Instant::now());
        let look = |pair, next| unfound.note(GID, pair, (&refused(libc::ETIMEDOUT), SECOND), next, now);
        let first = look(1, Some(SECOND));
        assert!(look(1, None).is_none() && !unfound.is_looked_for(GID, 2, now));
        // The first is late, and another looks by now.
        let second = look(2, Some(SECOND));
        drop(first);
        assert!(unfound.is_looked_for(GID, 3, now));
        drop(second);
        assert!(!unfound.is_looked_for(GID, 3, now));
    }

    #[test]
    fn what_is_refused_at_once_or_for_another_reason_keeps_nobody_waiting() {
        for (code, took) in [(libc::ETIMEDOUT, QUICK - Duration::from_nanos(1)), (libc::EINVAL, SECOND)] {
            let (unfound, now) = (Arc::<Unfound>::default(), Instant::now());
            assert!(unfound.note(GID, 1, (&refused(code), took), Some(SECOND), now).is_none());
            assert!(!unfound.is_looked_for(GID, 2, now));
        }
    }
}
