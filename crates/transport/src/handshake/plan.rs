//! A rail as both ends have agreed on it, and the weights of a connection's rails.

use std::net::IpAddr;
use std::sync::Arc;

use railweave_fabric::{MAX_RAILS, RailId};

use crate::rail_info::{RailCounters, RailInfo, RailName};
use crate::{OwnWeights, PortOffer};

/// A rail as both ends have agreed on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RailPlan {
    pub(super) local_port: u8,
    pub(super) remote_port: u8,
    pub(super) local: PortOffer,
    pub(super) remote: PortOffer,
    pub(super) weight: Option<u32>,
    pub(super) fixed: Option<u32>,
    pub(super) lanes: u8,
}

impl RailPlan {
    pub(super) fn local_address(&self) -> IpAddr {
        self.local.address.to_canonical()
    }

    pub(super) fn remote_address(&self) -> IpAddr {
        self.remote.address.to_canonical()
    }

    pub(super) fn name(&self) -> RailName {
        RailName { local: self.local_address().to_string(), remote: self.remote_address().to_string() }
    }

    pub(super) fn info(&self, rail: RailId, counters: &CounterSource) -> RailInfo {
        let name = self.name();
        let speed_mbps = self.local.speed_mbps.min(self.remote.speed_mbps);
        RailInfo {
            index: rail.index(),
            local_port: usize::from(self.local_port),
            speed_mbps: Some(speed_mbps).filter(|speed_mbps| *speed_mbps > 0),
            lanes: self.lanes,
            counters: counters(&name),
            name,
        }
    }
}

/// The source of a rail's counters: the process adds up the counts of its connections.
pub(super) type CounterSource = Box<dyn Fn(&RailName) -> Arc<RailCounters> + Send>;

/// Returns the weights that this end knows of its rails.
pub(super) fn own_weights(rails: &[RailPlan]) -> OwnWeights {
    let has_fixed = rails.iter().any(|rail| rail.fixed.is_some());
    OwnWeights {
        speed: weights(rails, |rail| rail.weight),
        fixed: has_fixed.then(|| weights(rails, |rail| rail.fixed.or(rail.weight))),
    }
}

/// Returns the weights of the rails: the local port's weight if it is given, otherwise the slower of both ports'
/// speeds, shared evenly among the rails of one port. They are scaled by 840, which every number up to 8 divides, so
/// that sharing loses nothing.
fn weights(rails: &[RailPlan], given: impl Fn(&RailPlan) -> Option<u32>) -> [u32; MAX_RAILS] {
    let mut out = [0; MAX_RAILS];
    for (weight, rail) in out.iter_mut().zip(rails) {
        let sharing = |key: fn(&RailPlan) -> u8| rails.iter().filter(|other| key(other) == key(rail)).count() as u64;
        let by_local = |value: u64| value * 840 / sharing(|plan| plan.local_port);
        let full = match given(rail) {
            Some(weight) => by_local(u64::from(weight)),
            None => by_local(u64::from(rail.local.speed_mbps.max(1)))
                .min(u64::from(rail.remote.speed_mbps.max(1)) * 840 / sharing(|plan| plan.remote_port)),
        };
        *weight = u32::try_from(full).unwrap_or(u32::MAX);
    }
    out
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use railweave_fabric::LinkLayer;

    use super::*;

    fn plan(local_port: u8, local: u32, remote_port: u8, remote: u32, weight: Option<u32>) -> RailPlan {
        let port = |speed_mbps| PortOffer {
            link_layer: LinkLayer::Tcp,
            prefix_len: 24,
            lanes: 1,
            speed_mbps,
            mtu: 1500,
            rail_id: -1,
            plane_id: -1,
            address: Ipv6Addr::LOCALHOST,
        };
        RailPlan { local_port, remote_port, local: port(local), remote: port(remote), weight, fixed: None, lanes: 1 }
    }

    fn weights(rails: &[RailPlan]) -> [u32; MAX_RAILS] {
        own_weights(rails).speed
    }

    #[test]
    fn the_weights_of_the_user_and_the_speeds_are_both_known() {
        let fixed = |plan: RailPlan, weight| RailPlan { fixed: Some(weight), ..plan };
        let plain = [plan(0, 300, 0, 300, None), plan(1, 100, 1, 100, None)];
        let own = own_weights(&[fixed(plain[0], 1), fixed(plain[1], 4)]);
        assert_eq!(own.speed[..2], [300 * 840, 100 * 840]);
        assert_eq!(own.fixed.expect("they are given")[..2], [840, 4 * 840]);
        assert_eq!(own_weights(&plain), OwnWeights { speed: own.speed, fixed: None });
    }

    #[test]
    fn weights_follow_the_slower_end_unless_they_are_given() {
        let by_speed = weights(&[plan(0, 100_000, 0, 25_000, None), plan(1, 10_000, 1, 10_000, None)]);
        assert_eq!(by_speed[0] * 10, by_speed[1] * 25);
        let given = weights(&[plan(0, 1, 0, 1, Some(3)), plan(1, 9, 1, 9, Some(1)), plan(2, 9, 2, 9, Some(0))]);
        assert_eq!((given[0], given[2]), (3 * given[1], 0));
    }

    #[test]
    fn rails_of_one_port_share_its_weight() {
        let shared = weights(&[plan(0, 200, 0, 100, None), plan(0, 200, 1, 100, None), plan(1, 50, 2, 100, None)]);
        assert_eq!((shared[0], shared[1]), (2 * shared[2], 2 * shared[2]));
        // Two ports of this end share one of the peer's, three one of this end's.
        let remote = weights(&[plan(0, 200, 0, 100, None), plan(1, 200, 0, 100, None), plan(2, 50, 1, 100, None)]);
        assert_eq!(remote[..3], [50 * 840; 3]);
        let given = weights(&[plan(0, 1, 0, 1, Some(6)), plan(0, 1, 1, 1, Some(6)), plan(0, 1, 2, 1, Some(6))]);
        assert_eq!(given, [2 * 840, 2 * 840, 2 * 840, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_rail_of_unknown_speed_carries_something_and_none_is_too_fast() {
        let odd = weights(&[plan(0, 0, 0, 100, None), plan(1, 100, 1, 0, None), plan(2, u32::MAX, 2, u32::MAX, None)]);
        assert_eq!(odd[..3], [840, 840, u32::MAX]);
    }
}
