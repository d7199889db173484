//! The link of an end of a rail: its rate, and its outages.

/// The rate of an end's writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// The rate at the beginning, in Mbit/s.
    pub(super) base_mbps: u64,
    /// The present rate, in Mbit/s.
    pub(super) mbps: u64,
    /// True while it is a thousandth of that.
    pub(super) stands_still: bool,
    /// The time of the next change.
    pub(super) until_ns: u64,
}

impl Pace {
    /// Returns a pace at this rate, in Mbit/s.
    pub(crate) fn new(mbps: u64) -> Self {
        Self { base_mbps: mbps.max(1), mbps: mbps.max(1), stands_still: false, until_ns: 0 }
    }

    /// Returns the present rate, in Mbit/s.
    pub(super) fn now_mbps(self) -> u64 {
        if self.stands_still { (self.mbps / 1000).max(1) } else { self.mbps }
    }
}

/// The outages of an end of a rail.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outages {
    pub(super) writes: Span,
    pub(super) acknowledgements: Span,
    /// True if the last outage concerned both ends alike.
    pub(super) is_both: bool,
    /// The time from which the next outage may begin.
    pub(super) calm_from_ns: u64,
}

/// The time from one moment up to another.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    pub(super) from_ns: u64,
    pub(super) until_ns: u64,
}

impl Span {
    fn contains(self, at_ns: u64) -> bool {
        (self.from_ns..self.until_ns).contains(&at_ns)
    }
}

impl Outages {
    /// Returns true if this end's writes do not reach the peer at that time.
    pub(crate) fn stop_writes(self, at_ns: u64) -> bool {
        self.writes.contains(at_ns)
    }

    /// Returns true if acknowledgements do not reach this end at that time.
    pub(crate) fn stop_acknowledgements(self, at_ns: u64) -> bool {
        self.acknowledgements.contains(at_ns)
    }
}
