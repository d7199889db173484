//! The looks at open connections for rails that fall silent: when they are due, and which connections need them.

use std::net::IpAddr;

use railweave_fabric::RailId;
use railweave_transport::RailInfo;

use crate::comm::Route;

/// The number of looks in the time for which a rail may be silent, while anything is on its way.
pub(super) const LOOKS: u64 = 2;

/// A connection whose application was in a call is looked at again after this part of the pause between two looks.
const MISSED_PART: u64 = 8;

/// The times of the looks.
pub(super) struct Listening {
    /// The time for which a rail may be silent; 0 if nobody looks.
    pub(super) timeout_ns: u64,
    /// The time of the next look; `None` while no connection is open.
    pub(super) next_ns: Option<u64>,
    /// The connections that could not be looked at, and the time at which they are.
    missed: (Vec<Route>, u64),
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
        Self { timeout_ns, next_ns: None, missed: (Vec::new(), 0) }
    }

    /// Notes a connection that could not be looked at.
    pub(super) fn miss(&mut self, route: Route) {
        self.missed.0.push(route);
    }

    /// Begins the pause before such connections are looked at again, which ends early if a look comes before. It begins
    /// after all of them: looks at many applications in calls take a while.
    pub(super) fn rest(&mut self, now_ns: u64) {
        self.missed.1 = now_ns.saturating_add((self.timeout_ns / LOOKS / MISSED_PART).max(1));
    }

    /// Takes those that are due, and all of them if a look is due.
    pub(super) fn take_missed(&mut self, now_ns: u64) -> Vec<Route> {
        if self.due_ns().is_some_and(|at_ns| at_ns <= now_ns) { std::mem::take(&mut self.missed.0) } else { Vec::new() }
    }

    /// Returns the time at which there is something to do.
    pub(super) fn due_ns(&self) -> Option<u64> {
        let (missed, at_ns) = &self.missed;
        self.next_ns.into_iter().chain((!missed.is_empty()).then_some(*at_ns)).min()
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

    /// Returns the number of ends that a rail shares with a path from the first of these addresses to the second.
    pub(super) fn ends_in_common(&self, rail: RailId, local: Option<IpAddr>, remote: IpAddr) -> usize {
        let is_at = |name: &str, address: Option<IpAddr>| address.is_some_and(|it| name.parse() == Ok(it));
        let found = self.rails.iter().find(|info| info.index == rail.index());
        let ends = found.map(|info| [is_at(&info.name.local, local), is_at(&info.name.remote, Some(remote))]);
        ends.into_iter().flatten().filter(|is_common| *is_common).count()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use railweave_transport::{RailCounters, RailName};

    use super::*;

    #[test]
    fn a_connection_that_could_not_be_looked_at_is_due_before_the_next_look() {
        let route = |connection| Route { session: 1, connection };
        let mut listening = Listening::new(500);
        assert_eq!(listening.due_ns(), None);
        listening.begin(0);
        listening.miss(route(1));
        listening.miss(route(2));
        listening.rest(2);
        assert_eq!(listening.due_ns(), Some(33));
        assert_eq!(listening.take_missed(32), []);
        assert_eq!(listening.take_missed(33), [route(1), route(2)]);
        assert_eq!(listening.due_ns(), Some(500));
        listening.miss(route(1));
        listening.rest(490);
        assert_eq!(listening.due_ns(), Some(500));
        assert_eq!(listening.take_missed(500), [route(1)], "the look takes its place");
    }

    #[test]
    fn a_session_may_have_both_ends_of_its_path_in_common_with_a_rail_or_one_or_none() {
        let info = |index, local: &str, remote: &str| RailInfo {
            index,
            local_port: index,
            name: RailName { local: local.to_owned(), remote: remote.to_owned() },
            speed_mbps: None,
            lanes: 1,
            counters: Arc::new(RailCounters::default()),
        };
        let heard = Heard::new(vec![info(0, "10.0.0.1", "10.0.0.2"), info(1, "fd77::1", "fd77::2")]);
        let common = |rail: usize, local: &str, remote: &str| {
            let rail = RailId::new(rail).expect("it is a rail");
            heard.ends_in_common(rail, Some(local.parse().unwrap()), remote.parse().unwrap())
        };
        assert_eq!(common(0, "10.0.0.1", "10.0.0.2"), 2);
        assert_eq!([common(0, "10.0.0.1", "10.0.9.2"), common(0, "10.0.9.1", "10.0.0.2")], [1, 1]);
        assert_eq!(common(1, "fd77::1", "fd77::9"), 1);
        assert_eq!(
            [common(1, "10.0.0.1", "10.0.0.2"), common(0, "10.0.0.2", "10.0.0.1"), common(2, "::1", "::1")],
            [0; 3]
        );
    }
}
