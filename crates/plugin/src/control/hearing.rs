//! The looks at open connections for rails that fall silent: when they are due, and which connections need them.

use std::net::IpAddr;

use railweave_fabric::RailId;
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

    /// Returns true if a rail begins at the first of these addresses, or ends at the second.
    pub(super) fn shares_path(&self, rail: RailId, local: Option<IpAddr>, remote: IpAddr) -> bool {
        let is_at = |name: &str, address: Option<IpAddr>| address.is_some_and(|it| name.parse() == Ok(it));
        let mut found = self.rails.iter().filter(|info| info.index == rail.index());
        found.any(|info| is_at(&info.name.local, local) || is_at(&info.name.remote, Some(remote)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use railweave_transport::{RailCounters, RailName};

    use super::*;

    #[test]
    fn a_session_is_on_the_path_of_a_rail_if_they_have_an_end_in_common() {
        let info = |index, local: &str, remote: &str| RailInfo {
            index,
            local_port: index,
            name: RailName { local: local.to_owned(), remote: remote.to_owned() },
            speed_mbps: None,
            lanes: 1,
            counters: Arc::new(RailCounters::default()),
        };
        let heard = Heard::new(vec![info(0, "10.0.0.1", "10.0.0.2"), info(1, "fd77::1", "fd77::2")]);
        let shares = |rail: usize, local: &str, remote: &str| {
            let rail = RailId::new(rail).expect("it is a rail");
            heard.shares_path(rail, Some(local.parse().unwrap()), remote.parse().unwrap())
        };
        assert!(shares(0, "10.0.0.1", "10.0.0.2"));
        assert!(shares(0, "10.0.0.1", "10.0.9.2") && shares(0, "10.0.9.1", "10.0.0.2"));
        assert!(shares(1, "fd77::1", "fd77::9"));
        assert!(!shares(1, "10.0.0.1", "10.0.0.2") && !shares(0, "10.0.0.2", "10.0.0.1") && !shares(2, "::1", "::1"));
    }
}
