//! The peers' ports that the kernel does not find.
//!
//! ibv_modify_qp blocks for about a second while the kernel asks for a neighbour that does not answer. A job brings up
//! hundreds of queue pairs, so one of them asks for each port, and the others wait for what it finds.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// An attempt that took less than this costs nobody anything.
const QUICK: Duration = Duration::from_millis(100);

/// The time after which another queue pair asks, if the one that did has not asked again: more than its longest pause.
const OVER_AFTER: Duration = Duration::from_secs(4);

/// The last attempt to find a port.
struct Attempt {
    /// The number of the queue pair.
    pair: u32,
    ended: Instant,
}

/// The peers' ports that one port of this host has not found, by their GIDs.
#[derive(Default)]
pub(crate) struct Unfound(Mutex<HashMap<[u8; 16], Attempt>>);

impl Unfound {
    /// Returns true if another queue pair than this one looks for the port now.
    pub(crate) fn is_looked_for(&self, gid: [u8; 16], pair: u32, now: Instant) -> bool {
        let is_current = |attempt: &Attempt| now.saturating_duration_since(attempt.ended) < OVER_AFTER;
        self.attempts().get(&gid).is_some_and(|attempt| attempt.pair != pair && is_current(attempt))
    }

    /// Notes the outcome of a queue pair's attempt, which took this long.
    pub(crate) fn note(&self, gid: [u8; 16], pair: u32, outcome: &io::Result<()>, took: Duration, now: Instant) {
        let mut attempts = self.attempts();
        attempts.retain(|_, attempt| now.saturating_duration_since(attempt.ended) < OVER_AFTER);
        let is_unfound = outcome.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ETIMEDOUT));
        if is_unfound && took >= QUICK {
            attempts.insert(gid, Attempt { pair, ended: now });
        } else {
            attempts.remove(&gid);
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
        let (unfound, start) = (Unfound::default(), Instant::now());
        unfound.note(GID, 1, &refused(libc::ETIMEDOUT), SECOND, start);
        assert!(!unfound.is_looked_for(GID, 1, start));
        assert!(unfound.is_looked_for(GID, 2, start));
        assert!(!unfound.is_looked_for([8; 16], 2, start), "another port");
        assert!(unfound.is_looked_for(GID, 2, start + OVER_AFTER - Duration::from_nanos(1)));
        assert!(!unfound.is_looked_for(GID, 2, start + OVER_AFTER));
        unfound.note(GID, 1, &Ok(()), SECOND, start);
        assert!(!unfound.is_looked_for(GID, 2, start));
    }

    #[test]
    fn what_is_refused_at_once_or_for_another_reason_keeps_nobody_waiting() {
        for (code, took) in [(libc::ETIMEDOUT, QUICK - Duration::from_nanos(1)), (libc::EINVAL, SECOND)] {
            let (unfound, now) = (Unfound::default(), Instant::now());
            unfound.note(GID, 1, &refused(code), took, now);
            assert!(!unfound.is_looked_for(GID, 2, now));
        }
    }
}
