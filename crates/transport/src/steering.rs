//! Orders by which the rest of the process steers the split of an open connection.

use railweave_fabric::{MAX_RAILS, PolicyName, RailSet};
use railweave_policy::Order;

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The weights that an end of a connection knows of itself, by the numbers of its rails. A rail that did not come up
/// has weight 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnWeights {
    /// Those of [`PolicyName::Speed`], and what the other policies begin with.
    pub speed: [u32; MAX_RAILS],
    /// Those of [`PolicyName::Static`]; `None` if the user has set none.
    pub fixed: Option<[u32; MAX_RAILS]>,
}

impl OwnWeights {
    /// Returns the order for a policy of the settings. Without weights of the user, the speeds take their place.
    pub fn order(&self, policy: PolicyName) -> Order {
        let fixed = self.fixed.filter(|_| policy == PolicyName::Static);
        Order::new(policy, fixed.unwrap_or(self.speed))
    }
}

/// The policy of one end of a connection, which one thread may change at any time, without a lock, while another uses
/// the connection; and what that thread has to know of the end.
///
/// The end looks at the number of changes with each message, and reads the order if there was one. If an order changes
/// while it is read, the next look sees that, and the message in between may be split by parts of both.
#[derive(Debug)]
pub struct Steering {
    changes: AtomicU32,
    /// The policy's place in [`PolicyName::ALL`] in the low 8 bits, and the rails that may be used in the next 8.
    policy: AtomicU32,
    weights: [AtomicU32; MAX_RAILS],
    own: OwnWeights,
    waited_for_cts: AtomicU64,
}

impl Steering {
    /// Returns the steering of an end that begins with this order, and knows these weights.
    pub fn new(order: &Order, own: OwnWeights) -> Self {
        Self {
            changes: AtomicU32::new(0),
            policy: AtomicU32::new(encode(order)),
            weights: order.weights.map(AtomicU32::new),
            own,
            waited_for_cts: AtomicU64::new(0),
        }
    }

    /// Orders another split, from the next message on. Only one thread at a time may call this, or
    /// [`Self::ask_for_sample`].
    pub fn order(&self, order: &Order) {
        for (place, weight) in self.weights.iter().zip(order.weights) {
            place.store(weight, Ordering::Relaxed);
        }
        self.policy.store(encode(order), Ordering::Relaxed);
        self.change();
    }

    /// Asks for the time that the next message takes. The answer is in the `RailCounters` of the rails that carry it.
    pub fn ask_for_sample(&self) {
        self.change();
    }

    /// Returns the order in force.
    pub fn current(&self) -> Order {
        let policy = self.policy.load(Ordering::Relaxed);
        Order {
            policy: PolicyName::ALL.get((policy & 0xff) as usize).copied().unwrap_or(PolicyName::Adaptive),
            weights: std::array::from_fn(|rail| self.weights[rail].load(Ordering::Relaxed)),
            allowed: RailSet::from_bits((policy >> 8) as u8),
        }
    }

    /// Returns the weights that the end knows of itself.
    pub fn own_weights(&self) -> &OwnWeights {
        &self.own
    }

    /// Returns the number of messages that the application had ready before their CTS came.
    pub fn waited_for_cts(&self) -> u64 {
        self.waited_for_cts.load(Ordering::Relaxed)
    }

    /// Counts a message that the application has ready before its CTS has come.
    pub(crate) fn count_wait(&self) {
        // One writer.
        self.waited_for_cts.store(self.waited_for_cts.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    fn change(&self) {
        // One writer: a load and a store are enough. Whoever sees the new number sees the order.
        self.changes.store(self.changes.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Returns the number of changes so far, modulo 2^32. Every change comes with a wish for a sample.
    #[inline(always)]
    pub(crate) fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }
}

fn encode(order: &Order) -> u32 {
    let place = PolicyName::ALL.iter().position(|policy| *policy == order.policy).unwrap_or_default();
    place as u32 | u32::from(order.allowed.bits()) << 8
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: OwnWeights = OwnWeights { speed: [3, 1, 0, 0, 0, 0, 0, 0], fixed: Some([1, 4, 0, 0, 0, 0, 0, 0]) };

    #[test]
    fn an_order_is_read_as_it_was_given() {
        for policy in PolicyName::ALL {
            for allowed in [0, 1, 0x80, 0xff] {
                let order = Order { allowed: RailSet::from_bits(allowed), ..OWN.order(*policy) };
                let steering = Steering::new(&order, OWN);
                assert_eq!((steering.current(), steering.changes()), (order, 0));
                let other = OWN.order(PolicyName::Speed);
                steering.order(&other);
                assert_eq!((steering.current(), steering.changes()), (other, 1));
            }
        }
    }

    #[test]
    fn only_the_policy_static_takes_the_users_weights() {
        let fixed = OWN.fixed.expect("they are given");
        assert_eq!((OWN.order(PolicyName::Static).weights, OWN.order(PolicyName::Speed).weights), (fixed, OWN.speed));
        let none = OwnWeights { fixed: None, ..OWN };
        assert_eq!(none.order(PolicyName::Static).weights, OWN.speed);
    }
}
