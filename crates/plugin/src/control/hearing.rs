//! The looks at open connections for rails that fall silent: when they are due, and which connections need them.

use railweave_transport::RailInfo;

/// The times of the looks.
pub(super) struct Listening {
    /// The time for which a rail may be silent; 0 if nobody looks.
    pub(super) timeout_ns: u64,
    /// The time of the next look; `None` while no connection is open.
    pub(super) next_ns: Option<u64>,
}

/// One connection, as the looks know it.
pub(super) struct Heard {
    pub(super) rails: Vec<RailInfo>,
    /// The number of writes that it had posted at the last look, if nothing was on its way then.
    pub(super) idle_since: Option<u64>,
}

impl Listening {
    /// Returns the looks at connections that go on without a rail that has been silent for this time; 0 for none.
    pub(super) fn new(timeout_ns: u64) -> Self {
        Self { timeout_ns, next_ns: None }
    }

    /// Notes that a connection is open.
    pub(super) fn begin(&mut self, now_ns: u64) {
        if self.timeout_ns > 0 {
            self.next_ns.get_or_insert(now_ns.saturating_add(self.timeout_ns));
        }
    }
}

impl Heard {
    /// Returns the looks at a connection of these rails.
    pub(super) fn new(rails: Vec<RailInfo>) -> Self {
        Self { rails, idle_since: Some(0) }
    }

    /// Returns the number of writes that the connection has posted.
    pub(super) fn posted(&self) -> u64 {
        let of_rail = |rail: &RailInfo| rail.counters.data_writes().wrapping_add(rail.counters.cts_writes());
        self.rails.iter().map(of_rail).fold(0, u64::wrapping_add)
    }

    /// Returns true if the connection has no rail that carries messages.
    pub(super) fn are_all_down(&self) -> bool {
        self.rails.iter().all(|rail| rail.counters.is_down())
    }
}
