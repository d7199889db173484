//! The time that a connection spends without any rail.

use std::time::Duration;

use railweave_fabric::{MAX_RAILS, RailId};

/// The outage of a connection.
pub(crate) struct Outage {
    /// The time after which it ends the connection; 0 for never.
    most_ns: u64,
    /// The time since when there is no rail.
    since_ns: Option<u64>,
    /// The reason why each rail went down last.
    reasons: [Option<String>; MAX_RAILS],
}

impl Outage {
    /// Returns the outages of a connection that ends after one of this length, unless it is zero.
    pub(crate) fn new(most: Duration) -> Self {
        let most_ns = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        Self { most_ns, since_ns: None, reasons: [const { None }; MAX_RAILS] }
    }

    /// Notes why a rail went down.
    pub(crate) fn note_down(&mut self, rail: RailId, reason: String) {
        self.reasons[rail] = Some(reason);
    }

    /// Notes if there is a rail now. Returns the length of the outage in nanoseconds once it has lasted too long.
    pub(crate) fn check(&mut self, has_rail: bool, now_ns: u64) -> Option<u64> {
        if has_rail {
            self.since_ns = None;
            return None;
        }
        let for_ns = now_ns.saturating_sub(*self.since_ns.get_or_insert(now_ns));
        (self.most_ns > 0 && for_ns >= self.most_ns).then_some(for_ns)
    }

    /// Returns the time at which the outage has lasted too long, if there is one that may.
    pub(crate) fn until_ns(&self) -> Option<u64> {
        self.since_ns.filter(|_| self.most_ns > 0).map(|since_ns| since_ns.saturating_add(self.most_ns))
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
        let mut outage = Outage::new(Duration::from_nanos(100));
        assert_eq!((outage.check(true, 5), outage.until_ns()), (None, None));
        assert_eq!((outage.check(false, 10), outage.until_ns()), (None, Some(110)));
        assert_eq!(outage.check(true, 60), None);
        assert_eq!(outage.check(false, 70), None);
        assert_eq!((outage.check(false, 169), outage.check(false, 171)), (None, Some(101)));
        let mut endless = Outage::new(Duration::ZERO);
        assert_eq!((endless.check(false, 0), endless.check(false, u64::MAX), endless.until_ns()), (None, None, None));
    }

    #[test]
    fn the_history_has_the_last_reason_of_each_rail() {
        let mut outage = Outage::new(Duration::ZERO);
        let rail = |number| RailId::new(number).unwrap();
        outage.note_down(rail(1), "b".to_owned());
        outage.note_down(rail(0), "a".to_owned());
        outage.note_down(rail(1), "c".to_owned());
        assert_eq!(outage.history(), "a; c");
    }
}
