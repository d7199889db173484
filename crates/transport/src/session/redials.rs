//! The times for dialling again after a peer has closed the socket without sending a byte: a peer that has too many
//! newcomers closes the socket that has waited longest, and welcomes the next.

const FIRST_PAUSE_NS: u64 = 10_000_000;
const LONGEST_PAUSE_NS: u64 = 640_000_000;

/// The pauses between the dials of one socket: they grow, and end at a given time.
#[derive(Clone, Copy, Debug)]
pub struct Redials {
    until_ns: u64,
    pause_ns: u64,
}

impl Redials {
    /// Returns the pauses of attempts that end at this time, in nanoseconds of the caller's clock.
    pub fn until(until_ns: u64) -> Self {
        Self { until_ns, pause_ns: FIRST_PAUSE_NS }
    }

    /// Returns when to retry, `None` if that would be too late.
    pub fn next_ns(&mut self, now_ns: u64) -> Option<u64> {
        let at_ns = now_ns.saturating_add(self.pause_ns);
        self.pause_ns = (self.pause_ns * 2).min(LONGEST_PAUSE_NS);
        (at_ns < self.until_ns).then_some(at_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_limit_and_end_in_time() {
        let mut redials = Redials::until(10_000_000_000);
        let (mut now, mut pauses) = (0, Vec::new());
        for _ in 0..1000 {
            let Some(at) = redials.next_ns(now) else { break };
            pauses.push((at - now) / 1_000_000);
            now = at;
        }
        assert_eq!(pauses[..8], [10, 20, 40, 80, 160, 320, 640, 640]);
        assert!(now < 10_000_000_000 && now + LONGEST_PAUSE_NS >= 10_000_000_000, "{now}");
    }

    #[test]
    fn a_redial_at_the_very_end_is_too_late() {
        assert_eq!(Redials::until(FIRST_PAUSE_NS).next_ns(0), None);
        assert_eq!(Redials::until(FIRST_PAUSE_NS + 1).next_ns(0), Some(FIRST_PAUSE_NS));
    }
}
