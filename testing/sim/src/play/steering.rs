//! The control thread's part in the split: it gives orders to ends that are up.

use railweave_fabric::{MAX_RAILS, PolicyName};
use railweave_transport::Order;

use super::game::{Game, Side};
use super::orders::OrderPlan;
use super::plan::ConnectionPlan;
use super::stage::Stage;
use crate::Seen;
use crate::history::Kind;
use crate::sabotage::Sabotage;
use crate::task::Task;
use crate::watch::Split;
use crate::witness::Note;

impl ConnectionPlan {
    /// Returns the rules for what an end does under a policy, over the rails in the mask `usable`; `weights` are those
    /// of an agent.
    pub(super) fn rules(&self, sender: bool, policy: PolicyName, weights: [u32; MAX_RAILS], usable: u8) -> Split {
        match policy {
            PolicyName::Adaptive => Split::free(usable, self.split_min),
            PolicyName::Agent => Split::new(weights.map(u64::from), usable, self.split_min),
            PolicyName::Speed | PolicyName::Static => Split::new(self.rail_weights(sender), usable, self.split_min),
        }
    }
}

impl<const O: bool> Game<O> {
    /// Schedules the orders to an end that has come up.
    pub(super) fn schedule_orders(&self, side: Side) {
        let orders = self.connections[side.connection].plan.orders.iter().enumerate();
        let mut state = self.world.lock();
        for (number, order) in orders.filter(|(_, order)| order.sender == side.sender) {
            state.later(order.after_ns, Task::Order { connection: side.connection, number });
        }
    }

    /// Lets the control thread give an order, unless the end is closed.
    pub(super) fn handle_order(&self, connection: usize, number: usize) {
        let pair = &self.connections[connection];
        let OrderPlan { sender, policy, weights, allowed, .. } = pair.plan.orders[number];
        let side = Side { connection, sender };
        let steering = match (sender, &pair.sender.stage, &pair.receiver.stage) {
            (true, Stage::Up(comm, _), _) => comm.steering(),
            (false, _, Stage::Up(comm, _)) => comm.steering(),
            _ => None,
        };
        let Some(steering) = steering.filter(|_| !self.processes[self.process_of(side)].dead) else { return };
        let order = match policy {
            PolicyName::Agent => Order::new(policy, weights),
            other => steering.own_weights().order(other),
        };
        if !self.plot.is(Sabotage::OrdersIgnored) {
            steering.order(&Order { allowed, ..order });
        }
        let mut state = self.world.lock();
        state.record(Kind::Order, side.who(), [policy as u64, u64::from(allowed.bits()), 0, 0]);
        state.observer.history.remark(&format!("{policy:?}, weights of an agent {weights:?}"));
        let watched = &mut state.observer.watch.connections[connection];
        let usable = watched.wire.usable;
        let left = usable & allowed.bits();
        let rules = pair.plan.rules(sender, policy, weights, if left == 0 { usable } else { left });
        let rules = rules.allowing(allowed.bits());
        let is_void = rules.is_void;
        watched.ordered(sender, rules);
        if is_void {
            state.saw(Seen::OrderVoid);
        }
    }
}
