//! A stage: hosts, the wires between them, and flows of messages, in one world.

use std::sync::Arc;

use railweave_fabric::{MAX_RAILS, PolicyName};
use railweave_fabric_sim::{Faults, Wire};
use railweave_transport::{ConnectionEnd, Order};

use crate::flow::{Flow, Load, Message};
use crate::host::{Host, World, connect};
use crate::traffic::{Call, Traffic};

/// The split of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// The policy `adaptive`.
    Adaptive,
    /// Fixed weights, one for each rail.
    Weights([u32; MAX_RAILS]),
}

impl Split {
    /// Returns fixed weights like these rates.
    pub fn right(rates_kbps: &[u64]) -> Self {
        let mut weights = [0; MAX_RAILS];
        for (weight, rate) in weights.iter_mut().zip(rates_kbps) {
            *weight = u32::try_from(*rate).expect("a rate in kbit/s is a weight");
        }
        Self::Weights(weights)
    }

    /// Returns equal weights, as the policy `speed` has them if all ports report the same.
    pub const EQUAL: Self = Self::Weights([1; MAX_RAILS]);
}

/// Hosts and flows in a world of their own. Times are in nanoseconds since the stage was set up.
pub struct Stage {
    world: Arc<World>,
    hosts: Vec<Host>,
    flows: Vec<Flow>,
    /// The time at which the stage was set up.
    begin_ns: u64,
}

impl Stage {
    /// Returns a stage of this many hosts with the same number of rails each.
    pub fn new(seed: u64, hosts: usize, rails: usize) -> Self {
        let world = World::observed(seed, Faults::none(), Traffic::default());
        let hosts = (0..hosts).map(|_| Host::new(&world, rails)).collect();
        Self { world, hosts, flows: Vec::new(), begin_ns: 0 }
    }

    /// Adds a flow from one host to another before anything else happens. Returns its number.
    pub fn connect(&mut self, from: usize, to: usize, split: Split, load: Load) -> usize {
        let number = self.flows.len();
        let (sender, receiver) = connect(&self.world, number, &self.hosts[from], &self.hosts[to]);
        let memory = [from, to].map(|host| self.hosts[host].memory(load.longest()));
        self.flows.push(Flow::new(number, sender, receiver, memory, load));
        if split != Split::Adaptive {
            self.steer(number, split);
        }
        self.begin_ns = self.world.lock().now_ns;
        number
    }

    /// Changes the split of a flow, from its next message on.
    pub fn steer(&mut self, flow: usize, split: Split) {
        let order = match split {
            Split::Adaptive => Order::new(PolicyName::Adaptive, [1; MAX_RAILS]),
            Split::Weights(weights) => Order::new(PolicyName::Static, weights),
        };
        self.flows[flow].sender.steering().order(&order);
    }

    /// Gives a host's port a wire, or changes it.
    pub fn set_wire(&mut self, host: usize, rail: usize, wire: Wire) {
        let port = self.hosts[host].port(rail);
        self.world.lock().set_wire(port, wire);
    }

    /// Returns the time.
    pub fn now_ns(&self) -> u64 {
        self.world.lock().now_ns - self.begin_ns
    }

    /// Returns the messages of a flow that are sent, in their order.
    pub fn sent(&self, flow: usize) -> &[Message] {
        &self.flows[flow].sent
    }

    /// Lets a flow send no more than this many messages in all.
    pub fn limit(&mut self, flow: usize, messages: u64) {
        self.flows[flow].load.messages = messages;
        self.call(Call { flow, sender: true });
    }

    /// Lets time pass until then.
    pub fn run_until(&mut self, until_ns: u64) {
        self.start();
        let until_ns = self.begin_ns + until_ns;
        while self.world.lock().next_at().is_some_and(|at_ns| at_ns <= until_ns) {
            self.step();
        }
        self.world.lock().pass_until(until_ns);
    }

    /// Lets time pass until a flow has sent this many messages.
    ///
    /// # Panics
    /// If nothing moves any more.
    pub fn run_messages(&mut self, flow: usize, messages: usize) {
        self.start();
        while self.flows[flow].sent.len() < messages {
            let sent = self.flows[flow].sent.len();
            assert!(self.step(), "flow {flow} stands still after {sent} of {messages} messages");
        }
    }

    /// Begins the flows that have not begun.
    fn start(&mut self) {
        for flow in 0..self.flows.len() {
            if !std::mem::replace(&mut self.flows[flow].has_begun, true) {
                self.call(Call { flow, sender: false });
                let at_ns = self.begin_ns + self.flows[flow].load.start_ns;
                self.world.lock().at(at_ns, Call { flow, sender: true });
            }
        }
    }

    /// Carries out the next event, and the calls that it leads to. Returns false if there is none.
    fn step(&mut self) -> bool {
        let mut state = self.world.lock();
        if state.next_at().is_none() {
            return false;
        }
        let task = state.step();
        let woken = state.woken.take();
        drop(state);
        if let Some(call) = task {
            self.call(call);
        }
        if let Some((flow, sender)) = woken {
            self.wake(Call { flow, sender });
        }
        true
    }

    /// Makes a call, at once or when the application looks the next time.
    fn wake(&mut self, call: Call) {
        let mut state = self.world.lock();
        match self.flows[call.flow].next_look(call.sender, state.now_ns) {
            Some(at_ns) => state.at(at_ns, call),
            None => {
                drop(state);
                if self.flows[call.flow].looks_at_once() {
                    self.call(call);
                }
            }
        }
    }

    fn call(&mut self, call: Call) {
        let now_ns = self.world.lock().now_ns;
        if !call.sender {
            if self.flows[call.flow].receive() {
                let after = |other: &usize| self.flows[*other].load.after.is_some_and(|after| after.flow == call.flow);
                let waiting: Vec<usize> = (0..self.flows.len()).filter(after).collect();
                waiting.into_iter().for_each(|flow| self.wake(Call { flow, sender: true }));
            }
            return;
        }
        let received = self.flows[call.flow].load.after.map_or(u64::MAX, |after| self.flows[after.flow].received);
        self.flows[call.flow].send(&self.world, now_ns - self.begin_ns, received);
    }
}
