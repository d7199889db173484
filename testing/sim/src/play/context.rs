//! Everything that an application needs besides its connection.

use std::sync::Arc;

use railweave_fabric_sim::Chance;
use railweave_transport::Error;

use super::habits::Order;
use super::plan::ConnectionPlan;
use crate::Seen;
use crate::history::{Kind, Who};
use crate::watch::Strike;
use crate::witness::{Note, World};

/// The result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing moved.
    Idle,
    /// Something moved.
    Moved,
    /// The process is killed after its last call.
    Killed,
}

/// The result of one more call: its name, and its error; `None` if it succeeded although it must not.
pub(crate) type Insisted = (&'static str, Option<Error>);

/// An application's surroundings during its turn.
pub(crate) struct Context<'a> {
    pub(crate) world: &'a Arc<World>,
    pub(crate) chance: &'a mut Chance,
    pub(crate) connection: usize,
    pub(crate) who: Who,
    pub(crate) plan: &'a ConnectionPlan,
    /// The number of calls so far, by all applications.
    pub(crate) calls: &'a mut u64,
    /// The number of the call after which its process is killed.
    pub(crate) killed_at: Option<u64>,
}

impl Context<'_> {
    /// Counts a call. Returns true if the process is killed right after it.
    pub(crate) fn called(&mut self) -> bool {
        *self.calls += 1;
        self.killed_at == Some(*self.calls)
    }

    /// Chooses the one of the requests with these numbers that an end's application tests next, by its habit. Returns
    /// its place among them.
    pub(crate) fn choose(&mut self, sender: bool, numbers: impl ExactSizeIterator<Item = u64>) -> usize {
        let order = self.plan.habits.orders[usize::from(sender)];
        match order {
            Order::Any => {}
            Order::OldestFirst => self.world.lock().saw(Seen::TestedOldest),
            Order::NewestFirst => self.world.lock().saw(Seen::TestedNewest),
        }
        order.pick(self.chance, numbers)
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.world.lock().now_ns
    }

    /// Notes that a call broke the contract, or that a peer broke the protocol, which strikes these ends (true for the
    /// sender).
    pub(crate) fn trespassed(&mut self, what: &str, strike: Strike, ends: &[bool]) {
        self.broke_contract(what);
        let mut state = self.world.lock();
        let now_ns = state.now_ns;
        for sender in ends {
            state.observer.watch.strike(now_ns, self.connection, *sender, strike);
        }
    }

    /// Notes that a call broke the contract in a way that the connection must survive.
    pub(crate) fn broke_contract(&mut self, what: &str) {
        let mut state = self.world.lock();
        state.saw(Seen::ContractBroken);
        state.record(Kind::Trespass, self.who, [0; 4]);
        state.observer.history.remark(what);
    }
}
