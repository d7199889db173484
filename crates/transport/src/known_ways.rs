//! The ways to a session's peer over which rails were left out.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use railweave_fabric::Step;

use crate::LeftOut;

/// The time for which no connection tries a way again over which a rail was left out: each try costs seconds, and
/// cables come back.
const AVOIDED_NS: u64 = 60_000_000_000;

/// A failure that came in less time is no reason to do without a rail: the next try costs little, and may succeed.
const QUICK_NS: u64 = 300_000_000;

/// The way of a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Way {
    /// True for TCP in place of RDMA: it may pass between two addresses where RDMA does not.
    pub(crate) is_tcp: bool,
    /// Its ends: an address of this host, and one of the peer's.
    pub(crate) ends: [IpAddr; 2],
}

/// A session's knowledge of the ways to its peer.
#[derive(Debug, Default)]
pub struct KnownWays {
    /// The furthest step of the ladder that was named; `None` for none.
    named: Option<Step>,
    /// The times at which rails between an address of this host and one of the peer's were left out.
    failed: HashMap<Way, u64>,
}

impl KnownWays {
    /// Notes that a rail over this way was left out, after its set-up had taken this time. Packets that did not come
    /// through speak against the way, and nothing else does.
    pub(crate) fn note_failed(&mut self, way: Way, reason: &LeftOut, took_ns: u64, now_ns: u64) {
        if took_ns >= QUICK_NS && reason.is_of_way() {
            self.failed.insert(way, now_ns);
        }
    }

    /// Returns the ways that no connection should try now.
    pub(crate) fn avoided(&mut self, now_ns: u64) -> BTreeSet<Way> {
        self.failed.retain(|_, at_ns| now_ns.saturating_sub(*at_ns) < AVOIDED_NS);
        self.failed.keys().copied().collect()
    }

    /// Forgets the ways of TCP, or those of RDMA, that have failed, except these.
    pub(crate) fn forget_others(&mut self, is_tcp: bool, kept: &BTreeSet<Way>) {
        self.failed.retain(|way, _| way.is_tcp != is_tcp || kept.contains(way));
    }

    /// Notes the step by which a connection was reached. Returns true if neither this step nor a further one was noted
    /// before.
    pub fn note_step(&mut self, step: Step) -> bool {
        let is_new = self.named < Some(step);
        self.named = self.named.max(Some(step));
        is_new
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use railweave_fabric::{SettingId, SetupError};

    use super::*;

    fn way(last: u8) -> Way {
        Way { is_tcp: false, ends: [IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, last])] }
    }

    #[test]
    fn a_way_whose_failure_costs_time_is_avoided_for_a_minute() {
        let mut ways = KnownWays::default();
        ways.note_failed(way(2), &LeftOut::PeerSilent, QUICK_NS, 0);
        ways.note_failed(way(3), &LeftOut::PeerSilent, u64::MAX, 30_000_000_000);
        ways.note_failed(way(4), &LeftOut::PeerSilent, QUICK_NS - 1, 30_000_000_000);
        assert_eq!(ways.avoided(59_999_999_999), BTreeSet::from([way(2), way(3)]));
        assert_eq!(ways.avoided(60_000_000_000), BTreeSet::from([way(3)]));
        ways.note_failed(way(3), &LeftOut::PeerSilent, QUICK_NS, 80_000_000_000);
        assert_eq!(ways.avoided(139_999_999_999), BTreeSet::from([way(3)]));
        ways.note_failed(way(2), &LeftOut::PeerSilent, QUICK_NS, 80_000_000_000);
        ways.forget_others(true, &BTreeSet::new());
        assert_eq!(ways.avoided(139_999_999_999), BTreeSet::from([way(2), way(3)]));
        ways.forget_others(false, &BTreeSet::from([way(2)]));
        assert_eq!(ways.avoided(139_999_999_999), BTreeSet::from([way(2)]));
    }

    #[test]
    fn only_packets_that_do_not_come_through_speak_against_a_way() {
        let says = |is_of_way| LeftOut::PeerSays { reason: "no".to_owned(), is_of_way };
        let broke = |is_of_way| LeftOut::Broke { reason: "no".to_owned(), is_of_way };
        let full = SetupError::Unreachable("no".to_owned());
        for (reason, is_avoided) in [
            (LeftOut::TooLate { last: None, limit: SettingId::ProbeTimeout }, true),
            (LeftOut::Silent { bytes: 1500, timeout: Duration::from_secs(10) }, true),
            (LeftOut::Undialled("it cannot be reached".to_owned()), true),
            (says(true), true),
            (broke(true), true),
            (says(false), false),
            (broke(false), false),
            (LeftOut::NotReady, false),
            (LeftOut::Failed(full), false),
        ] {
            let mut ways = KnownWays::default();
            ways.note_failed(way(2), &reason, u64::MAX, 0);
            assert_eq!(!ways.avoided(0).is_empty(), is_avoided, "{reason:?}");
        }
    }

    #[test]
    fn a_step_is_new_unless_it_or_a_further_one_was_noted() {
        let mut ways = KnownWays::default();
        let steps = [Step::OtherPort, Step::OtherPort, Step::Tcp, Step::Forwarded, Step::Tcp];
        assert_eq!(steps.map(|step| ways.note_step(step)), [true, false, true, false, false]);
    }
}
