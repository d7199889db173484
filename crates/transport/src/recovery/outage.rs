//! The time that a connection spends without any rail.

use std::time::Duration;

use railweave_fabric::{MAX_RAILS, RailId};

use crate::sequence::Sequence;

/// The outage of a connection. It ends once the oldest message has come through, or a rail is steady: rails that come
/// back, carry nothing and fail again do not end it.
pub(crate) struct Outage {
    /// The time after which it ends the connection; 0 for never.
    most_ns: u64,
    /// The time for which a rail must be there to be steady.
    steady_ns: u64,
    /// The time since when there is no rail, or none that has carried anything.
    since_ns: Option<u64>,
    /// The oldest message that was on its way then.
    stuck: Option<Sequence>,
    /// The time since when there is a rail, if there is one.
    back_ns: Option<u64>,
    /// The reason why each rail went down last.
    reasons: [Option<String>; MAX_RAILS],
}

impl Outage {
    /// Returns the outages of a connection that ends after one of length `most`, unless that is zero, and whose rails
    /// are steady after another time.
    pub(crate) fn new(most: Duration, steady: Duration) -> Self {
        let [most_ns, steady_ns] = [most, steady].map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let reasons = [const { None }; MAX_RAILS];
        Self { most_ns, steady_ns, since_ns: None, stuck: None, back_ns: Some(0), reasons }
    }

    /// Notes why a rail went down.
    pub(crate) fn note_down(&mut self, rail: RailId, reason: String) {
        self.reasons[rail] = Some(reason);
    }

    /// Notes if there is a rail now, and the oldest message that is on its way. Returns the length of the outage in
    /// nanoseconds once it has lasted too long.
    pub(crate) fn check(&mut self, has_rail: bool, oldest: Option<Sequence>, now_ns: u64) -> Option<u64> {
        let has_moved = self.stuck.is_some() && self.stuck != oldest;
        let was_steady = self.back_ns.is_some_and(|back_ns| now_ns.saturating_sub(back_ns) >= self.steady_ns);
        if has_moved || was_steady || has_rail && self.stuck.is_none() {
            (self.since_ns, self.stuck) = (None, None);
        }
        if has_rail {
            self.back_ns.get_or_insert(now_ns);
            return None;
        }
        self.back_ns = None;
        self.stuck = self.stuck.or(oldest);
        let for_ns = now_ns.saturating_sub(*self.since_ns.get_or_insert(now_ns));
        (self.most_ns > 0 && for_ns >= self.most_ns).then_some(for_ns)
    }

    /// Returns the longest time for which messages wait for what nobody may send, in nanoseconds; `None` forever.
    pub(crate) fn limit_ns(&self) -> Option<u64> {
        Some(self.most_ns).filter(|most_ns| *most_ns > 0)
    }

    /// Returns the time at which the outage has lasted too long, if there is one that may.
    pub(crate) fn until_ns(&self) -> Option<u64> {
        let since_ns = self.since_ns.filter(|_| self.most_ns > 0 && self.back_ns.is_none());
        since_ns.map(|since_ns| since_ns.saturating_add(self.most_ns))
    }

    /// Returns why the rails went down.
    pub(crate) fn history(&self) -> String {
        self.reasons.iter().flatten().cloned().collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_ends_the_connection_after_its_time_and_not_before() {
        let mut outage = Outage::new(Duration::from_nanos(100), Duration::from_nanos(500));
        assert_eq!((outage.check(true, None, 5), outage.until_ns()), (None, None));
        assert_eq!((outage.check(false, None, 10), outage.until_ns()), (None, Some(110)));
        assert_eq!((outage.check(true, None, 60), outage.until_ns()), (None, None));
        assert_eq!(outage.check(false, None, 70), None);
        assert_eq!((outage.check(false, None, 169), outage.check(false, None, 171)), (None, Some(101)));
        let mut endless = Outage::new(Duration::ZERO, Duration::ZERO);
        let checks = [0, u64::MAX].map(|now_ns| endless.check(false, None, now_ns));
        assert_eq!((checks, endless.until_ns()), ([None; 2], None));
    }

    #[test]
    fn rails_that_come_back_and_carry_nothing_do_not_end_an_outage() {
        let oldest = |number| Some(Sequence::new(number));
        let mut outage = Outage::new(Duration::from_nanos(100), Duration::from_nanos(500));
        assert_eq!(outage.check(false, oldest(7), 10), None);
        assert_eq!((outage.check(true, oldest(7), 60), outage.until_ns()), (None, None));
        assert_eq!(outage.check(true, oldest(7), 200), None, "this rail may carry it yet");
        assert_eq!(outage.check(false, oldest(7), 201), Some(191));
        for moved in [oldest(8), None] {
            let mut outage = Outage::new(Duration::from_nanos(100), Duration::from_nanos(500));
            assert_eq!((outage.check(false, oldest(7), 10), outage.check(true, oldest(7), 60)), (None, None));
            assert_eq!(outage.check(false, moved, 201), None, "message 7 came through");
            assert_eq!(outage.check(false, moved, 301), Some(100));
        }
        let mut steady = Outage::new(Duration::from_nanos(100), Duration::from_nanos(500));
        assert_eq!((steady.check(false, oldest(7), 10), steady.check(true, oldest(7), 60)), (None, None));
        assert_eq!(steady.check(false, oldest(7), 560), None, "the peer may have had nothing to send");
        assert_eq!(steady.check(false, oldest(7), 660), Some(100));
        let mut late = Outage::new(Duration::from_nanos(100), Duration::from_nanos(500));
        assert_eq!((late.check(false, None, 10), late.check(false, oldest(7), 50)), (None, None));
        assert_eq!(late.check(false, oldest(7), 110), Some(100), "work that comes meanwhile does not prolong it");
    }

    #[test]
    fn the_history_has_the_last_reason_of_each_rail() {
        let mut outage = Outage::new(Duration::ZERO, Duration::ZERO);
        let rail = |number| RailId::new(number).unwrap();
        outage.note_down(rail(1), "b".to_owned());
        outage.note_down(rail(0), "a".to_owned());
        outage.note_down(rail(1), "c".to_owned());
        assert_eq!(outage.history(), "a; c");
    }
}
