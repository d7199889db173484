//! The pairing of the connector's ports with the acceptor's. Only the acceptor decides it, so that the ends cannot
//! disagree.

use railweave_fabric::{LinkLayer, MAX_RAILS, Route, Step};
use std::collections::BTreeSet;

use crate::NetworkAddress;
use crate::bond::{Bond, Obstacle, bond, share_a_subnet};
use crate::endpoint::{Endpoint, Side};

/// The longest refusal in bytes: a message for the peer has room for 1,024 (docs/wire.md, REFUSE), and the remedy is at
/// its end.
const MOST_REFUSAL: usize = 1024;

/// One rail: a port of each end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pair {
    /// Index of the connector's port.
    pub connector: usize,
    /// Index of the acceptor's port.
    pub acceptor: usize,
}

/// A port without a partner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpaired {
    /// The end that has the port.
    pub side: Side,
    /// Its index.
    pub index: usize,
    /// Its address, as `address/length`.
    pub port: NetworkAddress,
    /// The reason, as a clause.
    pub reason: String,
    obstacle: Obstacle,
}

/// The ports of one end.
#[derive(Clone, Copy, Debug)]
pub struct Ports<'a> {
    /// The ports of the device that NCCL chose, then the host's others.
    pub all: &'a [Endpoint],
    /// The number of others at the end of the list.
    pub others: usize,
}

impl<'a> Ports<'a> {
    /// Returns the ports of a device, without others.
    pub fn of_device(all: &'a [Endpoint]) -> Self {
        Self { all, others: 0 }
    }

    fn device_count(&self) -> usize {
        self.all.len() - self.others
    }
}

/// The knowledge of the ways between two processes.
#[derive(Clone, Copy)]
pub struct Between<'a> {
    /// True if both are in one network namespace of one host, so that equal addresses are the same address.
    pub same_network: bool,
    /// The first step of the ladder to try.
    pub first_step: Step,
    /// The knowledge of both hosts together of the way between two ports, both ways.
    pub route: &'a dyn Fn(Pair) -> Route,
    /// True for two ports between which a rail was left out a moment ago.
    pub has_failed: &'a dyn Fn(Pair) -> bool,
}

/// The rails of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairing {
    /// The step of the ladder that gave the rails; `None` if there are none.
    pub step: Option<Step>,
    /// The rails, at most [`MAX_RAILS`], in the order of the connector's ports (weights are given in that order), then
    /// of the acceptor's. Empty if no port of one end can reach any port of the other.
    pub pairs: Vec<Pair>,
    /// The ports without a pair: the connector's, then the acceptor's.
    pub unpaired: Vec<Unpaired>,
}

impl Pairing {
    /// Returns the message for both ends if there is no rail: each port with the obstacle to a rail, and a remedy.
    pub fn refusal(&self) -> Option<String> {
        if !self.pairs.is_empty() {
            return None;
        }
        // The ports that came closest to a rail determine the remedy.
        let closest = self.unpaired.iter().map(|unpaired| unpaired.obstacle).max();
        let remedy = closest.map_or_else(share_a_subnet, Obstacle::remedy);
        let mut text = "No local NIC found that reaches the peer: ".to_owned();
        let room = MOST_REFUSAL.saturating_sub(text.len() + remedy.len());
        text += &self.obstacles(Side::Connector, room / 2);
        text += &self.obstacles(Side::Acceptor, room / 2);
        text += &remedy;
        Some(text)
    }

    /// Returns the obstacle to each port of one end, as far as they fit into this number of bytes.
    fn obstacles(&self, side: Side, room: usize) -> String {
        let ports: Vec<&Unpaired> = self.unpaired.iter().filter(|unpaired| unpaired.side == side).collect();
        let mut text = String::new();
        for (shown, Unpaired { port, reason, .. }) in ports.iter().enumerate() {
            let one = format!("the {side}'s {port}: {reason}; ");
            let rest = format!("{} more of the {side}'s ports; ", ports.len() - shown);
            let is_last = shown + 1 == ports.len();
            if text.len() + one.len() + if is_last { 0 } else { rest.len() } > room {
                return text + &rest;
            }
            text += &one;
        }
        text
    }
}

/// Pairs the ports of two processes by the steps of the ladder: the first step that gives a pair gives them all.
///
/// * Ports of different link layers or of different planes never pair.
/// * With `same_network`, equal addresses pair first. Otherwise they never pair, because every host has docker0's
///   address. Neither do loopback addresses, nor IPv6 link-local addresses on TCP, which also need an interface.
/// * IPv6 link-local GIDs of RoCE with the same prefix count as on one subnet: they are offered only if the user names
///   them or the host's ports have no others, and adapters on one Ethernet segment reach each other by them. They reach
///   nothing beyond it.
/// * A GID of InfiniBand is not an IP address: it contains the adapter's own identifier, so equal ones are the same
///   port anywhere. Its prefix names the subnet, and routers may connect all subnets.
/// * [`Step::Subnet`]: ports of the devices on a common subnet pair one to one, as many as can: first those of equal
///   rail id, then those nearest in speed, then in order. A port that is left over shares a partner that already has a
///   rail: one of the same rail id if possible, then the one with the most speed left. A loopback port is not shared.
/// * [`Step::Routed`]: ports of the devices pair across routers, one to one, unless a host says that packets would
///   leave by another port. What no host knows is tried, except on InfiniBand.
/// * [`Step::OtherPort`]: ports on a common subnet pair though they are not the devices', as many as a device has
///   ports; one that belongs to its device comes first, then those of equal place among their hosts' addresses.
/// * [`Step::Forwarded`]: so do any ports between which both hosts say that packets leave by them, and those of
///   InfiniBand. Without any, those of TCP pair whatever the hosts say: its packets may leave by another port.
/// * Ports between which a rail was left out a moment ago do not pair.
///
/// Ports with which a port cannot pair do not affect its pairs, except through the limit of [`MAX_RAILS`].
pub fn pair(connector: Ports<'_>, acceptor: Ports<'_>, between: &Between<'_>) -> Pairing {
    let mut plan = Plan { connector, acceptor, between, pairs: Vec::new() };
    let steps = Step::ALL.iter().copied().filter(|step| *step >= between.first_step);
    let step = steps.into_iter().find(|step| {
        plan.take(*step);
        !plan.pairs.is_empty()
    });
    plan.pairs.sort_unstable();
    let mut unpaired = plan.unpaired(Side::Connector);
    unpaired.extend(plan.unpaired(Side::Acceptor));
    Pairing { step, pairs: plan.pairs, unpaired }
}

struct Plan<'a> {
    connector: Ports<'a>,
    acceptor: Ports<'a>,
    between: &'a Between<'a>,
    pairs: Vec<Pair>,
}

impl Plan<'_> {
    fn ports(&self, side: Side) -> &[Endpoint] {
        match side {
            Side::Connector => self.connector.all,
            Side::Acceptor => self.acceptor.all,
        }
    }

    /// Makes the pairs of a step.
    fn take(&mut self, step: Step) {
        // Each of them takes the place of a port of the device.
        let most_others = self.connector.device_count().max(self.acceptor.device_count());
        match step {
            Step::Subnet => {
                self.match_one_to_one(MAX_RAILS, |plan, pair| {
                    plan.outsiders(pair) == 0 && plan.bond(pair) == Ok(Bond::SameAddress)
                });
                self.match_one_to_one(MAX_RAILS, |plan, pair| plan.outsiders(pair) == 0 && plan.is_near(pair));
                self.share_partners();
            }
            Step::Routed => self.match_one_to_one(MAX_RAILS, |plan, pair| {
                // The kernel is asked last: each question costs two messages.
                plan.outsiders(pair) == 0
                    && plan.bond(pair) == Ok(Bond::Routed)
                    && match (plan.between.route)(pair) {
                        Route::Leaves => true,
                        Route::Unknown => !plan.is_infiniband(pair),
                        Route::Elsewhere | Route::Failed => false,
                    }
            }),
            Step::OtherPort => {
                self.match_one_to_one(most_others, |plan, pair| plan.outsiders(pair) > 0 && plan.is_near(pair));
            }
            Step::Forwarded => {
                self.match_one_to_one(most_others, |plan, pair| {
                    plan.bond(pair) == Ok(Bond::Routed)
                        && (plan.is_infiniband(pair) || (plan.between.route)(pair) == Route::Leaves)
                });
                // A packet of TCP may leave by another port than that of its address.
                if self.pairs.is_empty() {
                    self.match_one_to_one(MAX_RAILS, |plan, pair| {
                        let is_tcp = plan.connector.all[pair.connector].link_layer == LinkLayer::Tcp;
                        plan.outsiders(pair) == 0 && plan.bond(pair) == Ok(Bond::Routed) && is_tcp
                    });
                }
            }
            // Its ports come in an offer of their own.
            Step::Tcp => {}
        }
    }

    fn bond(&self, pair: Pair) -> Result<Bond, Obstacle> {
        bond(&self.connector.all[pair.connector], &self.acceptor.all[pair.acceptor], self.between.same_network)
    }

    /// Returns true if the ports reach each other without a router.
    fn is_near(&self, pair: Pair) -> bool {
        matches!(self.bond(pair), Ok(Bond::SameAddress | Bond::SameSubnet))
    }

    fn is_infiniband(&self, pair: Pair) -> bool {
        self.connector.all[pair.connector].link_layer == LinkLayer::InfiniBand
    }

    /// Returns the number of the pair's ports that do not belong to their end's device.
    fn outsiders(&self, pair: Pair) -> usize {
        let is_other = |ports: Ports<'_>, index: usize| usize::from(index >= ports.device_count());
        is_other(self.connector, pair.connector) + is_other(self.acceptor, pair.acceptor)
    }

    /// Returns the difference of the places of a pair's ports among all of their hosts' by address, if one of them does
    /// not belong to its device: on hosts that are alike, equal places mean the same switch. An offer has the device's
    /// ports first, so that the places there mean nothing.
    fn rank_distance(&self, pair: Pair) -> usize {
        let rank = |side: Side| {
            let ports = self.ports(side);
            ports.iter().filter(|port| port.address < ports[pair.port(side)].address).count()
        };
        if self.outsiders(pair) == 0 { 0 } else { rank(Side::Connector).abs_diff(rank(Side::Acceptor)) }
    }

    fn has_partner(&self, side: Side, index: usize) -> bool {
        self.pairs.iter().any(|pair| pair.port(side) == index)
    }

    /// Returns the end whose ports look for partners first, in their order. It is the same end for connections both
    /// ways, so that these use the same pairs of ports.
    fn first_side(&self) -> Side {
        // Addresses that both have, such as docker0's, do not tell the ends apart.
        let addresses = |ports: Ports<'_>| ports.all.iter().map(|port| port.address).collect::<BTreeSet<_>>();
        if addresses(self.acceptor) < addresses(self.connector) { Side::Acceptor } else { Side::Connector }
    }

    /// Pairs as many ports as can be that have no partner yet, at most `most` in all, the best matches first.
    fn match_one_to_one(&mut self, most: usize, is_candidate: impl Fn(&Self, Pair) -> bool) {
        let first_side = self.first_side();
        let mut candidates = Vec::new();
        for (connector, ours) in self.connector.all.iter().enumerate() {
            for (acceptor, theirs) in self.acceptor.all.iter().enumerate() {
                let pair = Pair { connector, acceptor };
                let is_free = |side: Side| !self.has_partner(side, pair.port(side));
                let is_free = is_free(Side::Connector) && is_free(Side::Acceptor);
                if is_free && !(self.between.has_failed)(pair) && is_candidate(self, pair) {
                    let distance = ours.speed_mbps.abs_diff(theirs.speed_mbps);
                    let distance = (rail_distance(ours, theirs), distance, self.rank_distance(pair));
                    let ends = [pair.port(first_side), pair.port(first_side.other())];
                    candidates.push((self.outsiders(pair), distance, ends));
                }
            }
        }
        candidates.sort_unstable();
        let candidates: Vec<[usize; 2]> = candidates.into_iter().map(|(.., ends)| ends).collect();
        let mut matched: Vec<[usize; 2]> = Vec::new();
        for ends in &candidates {
            if matched.iter().all(|other| other[0] != ends[0] && other[1] != ends[1]) {
                matched.push(*ends);
            }
        }
        for first in 0..self.ports(first_side).len() {
            if matched.iter().all(|ends| ends[0] != first) {
                augment(&candidates, &mut matched, first, &mut Vec::new());
            }
        }
        // The search has changed the order.
        matched.sort_by_key(|ends| candidates.iter().position(|other| other == ends));
        matched.truncate(most.min(MAX_RAILS).saturating_sub(self.pairs.len()));
        self.pairs.extend(matched.into_iter().map(|[first, second]| Pair::new(first_side, first, second)));
    }

    /// Pairs each port of a device that has no partner with one that already has a rail.
    fn share_partners(&mut self) {
        for side in [self.first_side(), self.first_side().other()] {
            let left_over = (0..self.ports(side).len()).filter(|&index| !self.has_partner(side, index));
            for index in left_over.collect::<Vec<_>>() {
                if self.pairs.len() < MAX_RAILS
                    && let Some(pair) = self.shared_partner(side, index)
                {
                    self.pairs.push(pair);
                }
            }
        }
    }

    fn shared_partner(&self, side: Side, index: usize) -> Option<Pair> {
        let (other, ours) = (side.other(), &self.ports(side)[index]);
        // Two rails over one loopback address would be one path with twice the work.
        if ours.network().is_loopback() {
            return None;
        }
        // Each of them has a rail: two ports without one would have been matched.
        let candidates = (0..self.ports(other).len()).filter_map(|partner| {
            let pair = Pair::new(side, index, partner);
            let is_candidate = self.is_near(pair) && self.outsiders(pair) == 0 && !(self.between.has_failed)(pair);
            let theirs = &self.ports(other)[partner];
            is_candidate.then(|| (rail_distance(ours, theirs), -self.speed_left(other, partner), pair))
        });
        candidates.min().map(|(.., pair)| pair)
    }

    /// Returns a port's speed minus that of the rails over it, in Mbit/s; negative if they could use more.
    fn speed_left(&self, side: Side, index: usize) -> i64 {
        let speed = |side: Side, index: usize| i64::from(self.ports(side)[index].speed_mbps);
        let rails = self.pairs.iter().filter(|pair| pair.port(side) == index);
        let assigned = |pair: &Pair| speed(side, index).min(speed(side.other(), pair.port(side.other())));
        speed(side, index) - rails.map(assigned).sum::<i64>()
    }

    fn unpaired(&self, side: Side) -> Vec<Unpaired> {
        let lone = (0..self.ports(side).len()).filter(|&index| !self.has_partner(side, index));
        lone.map(|index| {
            let port = self.ports(side)[index].network();
            let obstacle = self.obstacle(side, index);
            let reason = obstacle.describe(&self.ports(side)[index], side.other());
            Unpaired { side, index, port, reason, obstacle }
        })
        .collect()
    }

    /// Returns the obstacle to the closest candidate on the other side.
    fn obstacle(&self, side: Side, index: usize) -> Obstacle {
        let others = self.ports(side.other());
        let obstacles = (0..others.len()).map(|partner| match self.bond(Pair::new(side, index, partner)) {
            Err(obstacle) => obstacle,
            Ok(_) if (self.between.has_failed)(Pair::new(side, index, partner)) => Obstacle::Failed,
            _ if self.pairs.len() == MAX_RAILS => Obstacle::Limit,
            // Routed pairs exist only if there are no others, so one pair shows the kind of all.
            Ok(Bond::Routed) if self.pairs.iter().any(|pair| self.bond(*pair) != Ok(Bond::Routed)) => Obstacle::Subnet,
            Ok(Bond::Routed) if self.pairs.is_empty() => Obstacle::Route,
            Ok(_) => Obstacle::Taken,
        });
        obstacles.max().unwrap_or(Obstacle::NoPort)
    }
}

/// Gives a port of the first end without a partner one, if others can move to partners of theirs that are free: a step
/// of the search for a maximum matching (Kuhn's algorithm). `seen` has the ports of the second end that were tried.
/// Returns true if it has a partner now.
fn augment(candidates: &[[usize; 2]], matched: &mut Vec<[usize; 2]>, port: usize, seen: &mut Vec<usize>) -> bool {
    for ends in candidates.iter().filter(|ends| ends[0] == port) {
        if seen.contains(&ends[1]) {
            continue;
        }
        seen.push(ends[1]);
        let holder = matched.iter().find(|other| other[1] == ends[1]).copied();
        if holder.is_none_or(|[holder, _]| augment(candidates, matched, holder, seen)) {
            matched.retain(|other| other[0] != port);
            matched.push(*ends);
            return true;
        }
    }
    false
}

/// Returns 0 for the same rail id, 2 for different ones, 1 if one end has none.
fn rail_distance(ours: &Endpoint, theirs: &Endpoint) -> u8 {
    match (ours.rail_id, theirs.rail_id) {
        (ours, theirs) if ours < 0 || theirs < 0 => 1,
        (ours, theirs) if ours == theirs => 0,
        _ => 2,
    }
}

impl Pair {
    fn new(side: Side, index: usize, partner: usize) -> Self {
        match side {
            Side::Connector => Self { connector: index, acceptor: partner },
            Side::Acceptor => Self { connector: partner, acceptor: index },
        }
    }

    /// Returns the index of this side's port.
    pub fn port(&self, side: Side) -> usize {
        match side {
            Side::Connector => self.connector,
            Side::Acceptor => self.acceptor,
        }
    }
}
