//! The orders of one connection, by which the control thread steers its ends while they are up.

use railweave_fabric::{MAX_RAILS, PolicyName, RailSet};
use railweave_fabric_sim::Chance;

/// The longest times from the moment that an end is up until it is given an order, of which each connection has one.
const SPANS_NS: [u64; 4] = [20_000, 100_000, 500_000, 3_000_000];

/// The longest time between two orders in quick succession.
const QUICK_NS: u64 = 1_500;

/// An order to one end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OrderPlan {
    /// The end: true for the sender.
    pub(super) sender: bool,
    /// The time since the end came up.
    pub(super) after_ns: u64,
    pub(super) policy: PolicyName,
    /// The weights under [`PolicyName::Agent`]; the end knows those of the other policies.
    pub(super) weights: [u32; MAX_RAILS],
    pub(super) allowed: RailSet,
}

impl OrderPlan {
    /// Draws the orders of one connection: none in three quarters of them.
    pub(crate) fn draw_all(chance: &mut Chance) -> Vec<Self> {
        if !chance.permille(250) {
            return Vec::new();
        }
        let span_ns = chance.pick(&SPANS_NS);
        let mut orders: Vec<Self> = (0..chance.between(1, 6)).map(|_| Self::draw(chance, span_ns)).collect();
        if chance.permille(300) {
            let mut at_ns = orders[0].after_ns;
            for order in &mut orders {
                order.after_ns = at_ns;
                at_ns += chance.below(QUICK_NS);
            }
        }
        orders
    }

    fn draw(chance: &mut Chance, span_ns: u64) -> Self {
        use PolicyName::{Adaptive, Agent, Speed, Static};
        let mut weights = [0; MAX_RAILS];
        match chance.below(6) {
            0 => {}
            1 => weights = [1; MAX_RAILS],
            2 => weights[chance.index(2)] = 5,
            3 => weights[chance.index(MAX_RAILS)] = 1,
            4 => weights.iter_mut().for_each(|weight| *weight = chance.pick(&[0, 1, 3])),
            _ => weights.iter_mut().for_each(|weight| *weight = chance.between(1, 100) as u32),
        }
        Self {
            sender: chance.permille(600),
            after_ns: chance.below(span_ns),
            policy: chance.pick(&[Agent, Agent, Agent, Agent, Adaptive, Adaptive, Speed, Static]),
            weights,
            allowed: if chance.permille(800) { RailSet::ALL } else { RailSet::from_bits(chance.below(256) as u8) },
        }
    }
}
