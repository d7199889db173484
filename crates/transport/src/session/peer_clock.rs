//! The difference between the clocks of two processes, as PING and PONG tell it.

/// How much the clock of the peer is ahead of this process's, both as their sessions count time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerClock {
    /// The difference in nanoseconds; below 0 if the peer's clock is behind.
    pub ahead_ns: i64,
    /// The most that it may be wrong, in nanoseconds, when it was measured.
    pub within_ns: u64,
    /// The time of the measurement on this process's clock, in nanoseconds.
    pub at_ns: u64,
}

/// Clocks drift apart by less than this part of the time that passes.
const DRIFT_PART: u64 = 10_000;

impl PeerClock {
    /// Returns what a PING that was sent and answered at these times tells, if its answer has this time of the peer's.
    pub(super) fn of_answer(sent_ns: u64, theirs_ns: u64, now_ns: u64) -> Self {
        let half_ns = now_ns.saturating_sub(sent_ns) / 2;
        let ahead = i128::from(theirs_ns) - i128::from(sent_ns) - i128::from(half_ns);
        let ahead_ns = i64::try_from(ahead).unwrap_or(if ahead < 0 { i64::MIN } else { i64::MAX });
        Self { ahead_ns, within_ns: half_ns, at_ns: now_ns }
    }

    /// Returns the more exact of two measurements, of which `new` was made just now.
    pub(super) fn better(old: Option<Self>, new: Self) -> Self {
        let is_better = |old: &Self| old.within_ns.saturating_add((new.at_ns - old.at_ns) / DRIFT_PART) < new.within_ns;
        old.filter(is_better).unwrap_or(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_was_sent_half_way() {
        let clock = PeerClock::of_answer(1000, 5100, 1200);
        assert_eq!(clock, PeerClock { ahead_ns: 4000, within_ns: 100, at_ns: 1200 });
        assert_eq!(PeerClock::of_answer(5000, 1100, 5200).ahead_ns, -4000);
        assert_eq!(PeerClock::of_answer(0, u64::MAX, 0).ahead_ns, i64::MAX, "a peer may say anything");
    }

    #[test]
    fn a_quick_answer_is_kept_until_the_clocks_have_drifted() {
        let quick = PeerClock::of_answer(0, 0, 100);
        let slow = |at_ns| PeerClock::of_answer(at_ns - 2000, 7, at_ns);
        assert_eq!(PeerClock::better(None, quick), quick);
        assert_eq!(PeerClock::better(Some(quick), slow(3000)), quick);
        assert_eq!(PeerClock::better(Some(quick), slow(20_000_000)), slow(20_000_000));
    }
}
