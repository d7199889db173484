//! The policy in force, which may change between two messages.

use railweave_fabric::{MAX_RAILS, PolicyName, RailId, RailSet};

use crate::Shares;
use crate::adaptive::Adaptive;
use crate::policy::{Policy, Sent};
use crate::weighted::Weighted;

/// The split that somebody wants: a policy, and what it needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// The policy.
    pub policy: PolicyName,
    /// The weight of each rail, for every policy but [`PolicyName::Adaptive`]; 0 means that the rail is unused while
    /// another one is usable.
    pub weights: [u32; MAX_RAILS],
    /// The rails that may be used while one of them is usable. If none is, the others are.
    pub allowed: RailSet,
}

impl Order {
    /// Returns the order for a policy with these weights over all rails.
    pub fn new(policy: PolicyName, weights: [u32; MAX_RAILS]) -> Self {
        Self { policy, weights, allowed: RailSet::ALL }
    }
}

/// The policy in force for the messages of one connection, in one direction.
///
/// The rates of the rails are measured under every policy while messages are split, so that [`PolicyName::Adaptive`]
/// knows them when its turn comes.
#[derive(Debug, Clone)]
pub struct Splitter {
    adapts: bool,
    allowed: RailSet,
    weighted: Weighted,
    adaptive: Adaptive,
    name: PolicyName,
}

impl Splitter {
    /// Returns the policy of this order. Messages of fewer than `split_min` bytes, or of at most [`crate::GRANULE`],
    /// travel whole on one rail. A second has `second` ticks of the fabric's clock.
    pub fn new(order: &Order, split_min: u64, second: u64) -> Self {
        Self {
            adapts: order.policy == PolicyName::Adaptive,
            allowed: order.allowed,
            weighted: Weighted::new(order.weights, split_min),
            adaptive: Adaptive::new(split_min, second),
            name: order.policy,
        }
    }

    /// Returns the policy in force.
    pub fn name(&self) -> PolicyName {
        self.name
    }

    /// Follows another order, from the next message on.
    pub fn follow(&mut self, order: &Order) {
        if self.adapts {
            // Messages that travelled whole meanwhile are not due to the weights.
            self.weighted.forget_small();
        }
        (self.name, self.adapts, self.allowed) = (order.policy, order.policy == PolicyName::Adaptive, order.allowed);
        self.weighted.set_weights(order.weights);
    }

    /// Returns what the rails have shown of themselves.
    pub fn rails(&mut self) -> &mut Adaptive {
        &mut self.adaptive
    }

    /// Returns those of these usable rails that may be used: all of them if none is allowed.
    #[inline]
    pub fn of_allowed(&self, usable: RailSet) -> RailSet {
        let allowed = usable & self.allowed;
        if allowed.is_empty() { usable } else { allowed }
    }
}

impl Policy for Splitter {
    #[inline]
    fn whole(&self, bytes: u64, usable: RailSet) -> Option<RailId> {
        let usable = usable & self.allowed;
        if self.adapts { self.adaptive.whole(bytes, usable) } else { self.weighted.whole(bytes, usable) }
    }

    #[inline]
    fn count_whole(&mut self, bytes: u64) {
        self.weighted.count_whole(bytes);
    }

    #[inline]
    fn split(&mut self, now: u64, bytes: u64, usable: RailSet, shares: &mut Shares) {
        let usable = self.of_allowed(usable);
        if self.adapts {
            self.adaptive.split(now, bytes, usable, shares);
        } else {
            *shares = self.weighted.split(bytes, usable);
        }
    }

    #[inline]
    fn posted(&mut self, now: u64, rail: RailId, bytes: u64) -> u64 {
        self.adaptive.posted(now, rail, bytes)
    }

    #[inline]
    fn sent(&mut self, now: u64, rail: RailId, sent: &Sent) -> u64 {
        self.adaptive.sent(now, rail, sent)
    }
}
