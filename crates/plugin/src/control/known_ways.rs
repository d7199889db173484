//! The ways to a session's peer over which rails were left out.

use std::collections::HashMap;
use std::net::IpAddr;

use railweave_fabric::Step;

/// The time for which no connection tries a way again over which a rail was left out: each try costs seconds, and
/// cables come back.
const AVOIDED_NS: u64 = 60_000_000_000;

/// A failure that came in less time is no reason to do without a rail: the next try costs little, and may succeed.
const QUICK_NS: u64 = 300_000_000;

/// A session's knowledge of the ways to its peer.
#[derive(Default)]
pub(super) struct KnownWays {
    /// The furthest step of the ladder that the log has named; `None` for none.
    said: Option<Step>,
    /// The times at which rails between an address of this host and one of the peer's were left out.
    failed: HashMap<[IpAddr; 2], u64>,
}

impl KnownWays {
    /// Notes that a rail between these addresses, of this host and of the peer, was left out after its set-up had taken
    /// this time.
    pub(super) fn note_failed(&mut self, ends: [IpAddr; 2], took_ns: u64, now_ns: u64) {
        if took_ns >= QUICK_NS {
            self.failed.insert(ends, now_ns);
        }
    }

    /// Returns the ways that no connection should try now.
    pub(super) fn avoided(&mut self, now_ns: u64) -> Vec<[IpAddr; 2]> {
        self.failed.retain(|_, at_ns| now_ns.saturating_sub(*at_ns) < AVOIDED_NS);
        let mut avoided: Vec<_> = self.failed.keys().copied().collect();
        avoided.sort_unstable();
        avoided
    }

    /// Forgets the ways that have failed.
    pub(super) fn forget(&mut self) {
        self.failed.clear();
    }

    /// Returns true if the log has named neither this step nor a further one; it does now.
    pub(super) fn is_new(&mut self, step: Step) -> bool {
        let is_new = self.said < Some(step);
        self.said = self.said.max(Some(step));
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_whose_failure_costs_time_is_avoided_for_a_minute() {
        let ends = |last: u8| [IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, last])];
        let mut ways = KnownWays::default();
        ways.note_failed(ends(2), QUICK_NS, 0);
        ways.note_failed(ends(3), u64::MAX, 30_000_000_000);
        ways.note_failed(ends(4), QUICK_NS - 1, 30_000_000_000);
        assert_eq!(ways.avoided(59_999_999_999), [ends(2), ends(3)]);
        assert_eq!(ways.avoided(60_000_000_000), [ends(3)]);
        ways.note_failed(ends(3), QUICK_NS, 80_000_000_000);
        assert_eq!(ways.avoided(139_999_999_999), [ends(3)]);
        ways.forget();
        assert!(ways.avoided(139_999_999_999).is_empty());
    }
}
