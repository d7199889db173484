//! What there is once per process, and once per context: NCCL's `init` and `finalize` count users here.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use railweave_options::Options;
use railweave_topology::{DialAddress, NetworkAddress, dial_order};
use railweave_transport::{ConnectionConfig, Error, Handle, HandleAddress, Hello};

use crate::control::{Control, ControlConfig, Outcome};
use crate::fabrics;
use crate::identity;
use crate::log;
use crate::network::Network;

/// Everything that all connections of this process share.
pub(crate) struct Process {
    pub(crate) options: Options,
    pub(crate) network: Arc<dyn Network>,
    pub(crate) hello: Hello,
    out_of_band: Option<HandleAddress>,
    control: Mutex<Option<Arc<Control>>>,
}

/// A connect that is under way: NCCL polls it, the control thread ends it.
#[derive(Default)]
pub(crate) struct PendingConnect {
    state: Mutex<Pending>,
}

#[derive(Default)]
enum Pending {
    #[default]
    Waiting,
    Over(Outcome),
    /// Nobody will ask any more.
    Abandoned,
}

impl PendingConnect {
    /// Gives the outcome to whoever polls; hands it back when nobody will.
    pub(crate) fn give(&self, outcome: Outcome) -> Option<Outcome> {
        let mut state = lock(&self.state);
        if matches!(*state, Pending::Abandoned) {
            return Some(outcome);
        }
        *state = Pending::Over(outcome);
        None
    }

    /// The outcome, once there is one.
    pub(crate) fn take(&self) -> Option<Outcome> {
        self.replace(Pending::Waiting)
    }

    fn abandon(&self) -> Option<Outcome> {
        self.replace(Pending::Abandoned)
    }

    fn replace(&self, with: Pending) -> Option<Outcome> {
        match std::mem::replace(&mut *lock(&self.state), with) {
            Pending::Over(outcome) => Some(outcome),
            Pending::Waiting | Pending::Abandoned => None,
        }
    }
}

/// What one `init` made: from v11 on each communicator has one, before that there is one for all.
pub(crate) struct Context {
    pub(crate) process: Arc<Process>,
    pub(crate) traffic_class: Option<u8>,
    /// Connects under way, by device and the listener's nonce: NCCL's handle memory says nothing about who asks.
    pub(crate) connects: Mutex<HashMap<(usize, u64), Arc<PendingConnect>>>,
}

struct State {
    /// The process that this state belongs to: a forked child must not touch its parent's.
    pid: u32,
    users: usize,
    process: Option<Arc<Process>>,
}

static STATE: Mutex<State> = Mutex::new(State { pid: 0, users: 0, process: None });

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic is caught at the edge and reported; what it left behind is whole, or not used.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn state() -> MutexGuard<'static, State> {
    let mut state = lock(&STATE);
    let pid = std::process::id();
    if state.pid != pid {
        // After a fork: the parent's threads do not exist here, so its state can only be left alone.
        std::mem::forget(state.process.take());
        (state.pid, state.users) = (pid, 0);
    }
    state
}

impl Process {
    fn start() -> Result<Self, Error> {
        let (options, warnings) = Options::from_env().map_err(|errors| {
            errors.iter().for_each(|error| log::warn(&error.to_string()));
            let count = errors.iter().count();
            Error::configuration(format!("{count} setting(s) cannot be used; the lines before this one name each"))
        })?;
        warnings.iter().for_each(|warning| log::warn(&warning.to_string()));
        let found = fabrics::find(&options)?;
        let hello = identity::hello(found.mode, found.fabrics);
        Ok(Self { options, network: found.network, hello, out_of_band: found.out_of_band, control: Mutex::new(None) })
    }

    /// The control thread, started when it is first needed.
    pub(crate) fn control(&self) -> Result<Arc<Control>, Error> {
        let mut control = lock(&self.control);
        if let Some(control) = &*control {
            return Ok(Arc::clone(control));
        }
        let config = ControlConfig {
            hello: self.hello.clone(),
            ports: self.options.control_port.value,
            handshake_timeout: self.options.handshake_timeout.value,
        };
        let started = Arc::new(Control::start(config)?);
        *control = Some(Arc::clone(&started));
        Ok(started)
    }

    /// The handle of a new listener of a device.
    pub(crate) fn handle(&self, device: usize, nonce: u64, control_port: u16) -> Handle {
        let ports = self.network.devices()[device].ports.iter().enumerate();
        let addresses = ports
            .map(|(place, index)| {
                let facts = &self.network.ports()[*index].facts;
                HandleAddress { address: facts.address, prefix_len: facts.prefix_len, port: place as u8 }
            })
            .chain(self.out_of_band);
        Handle { process: self.hello.process, nonce, control_port, addresses: addresses.collect() }
    }

    /// The addresses of a handle in the order in which a connect from `device` tries them.
    pub(crate) fn dial_order(&self, device: usize, handle: &Handle) -> Vec<IpAddr> {
        let theirs: Vec<_> = handle
            .addresses
            .iter()
            .map(|entry| DialAddress {
                address: entry.address,
                prefix_len: entry.prefix_len,
                out_of_band: entry.port == HandleAddress::OUT_OF_BAND,
            })
            .collect();
        let ports = self.network.devices()[device].ports.iter();
        let own: Vec<_> = ports
            .map(|index| &self.network.ports()[*index].facts)
            .map(|facts| NetworkAddress::new(facts.address, facts.prefix_len))
            .collect();
        dial_order(&theirs, &own).into_iter().map(|index| handle.addresses[index].address).collect()
    }

    /// What connections are to be, but for what differs from one to the next.
    pub(crate) fn connection_config(&self, traffic_class: Option<u8>) -> ConnectionConfig {
        ConnectionConfig {
            split_min: self.options.split_min.value,
            striped: self.options.split_data_on_lanes.value,
            adaptive_routing_above: None,
            traffic_class: self.options.traffic_class.value.or(traffic_class),
        }
    }
}

/// Takes part in the process's state, which the first user makes.
///
/// # Errors
/// When a setting is wrong or there is no usable port.
pub(crate) fn acquire(traffic_class: Option<u8>) -> Result<Context, Error> {
    let mut state = state();
    let process = match &state.process {
        Some(process) => Arc::clone(process),
        None => Arc::new(Process::start()?),
    };
    state.process = Some(Arc::clone(&process));
    state.users += 1;
    Ok(Context { process, traffic_class, connects: Mutex::default() })
}

/// Ends a context's part. The last one ends the control thread, and does not return before it is gone.
pub(crate) fn release(context: Context) {
    // What NCCL began to connect and never asked for again is closed like any other connection.
    for (_, pending) in context.connects.into_inner().unwrap_or_else(PoisonError::into_inner) {
        if let (Some(Ok((established, route))), Ok(control)) = (pending.abandon(), context.process.control()) {
            control.close(route, established.end);
        }
    }
    drop(context.process);
    let mut state = state();
    state.users = state.users.saturating_sub(1);
    if state.users > 0 {
        return;
    }
    let last = state.process.take();
    drop(state);
    if let Some(control) = last.and_then(|process| lock(&process.control).take()) {
        control.stop();
    }
}

/// The process's state, once `init` made it.
pub(crate) fn current() -> Result<Arc<Process>, Error> {
    state()
        .process
        .clone()
        .ok_or_else(|| Error::protocol("a net function was called before init, or after the last finalize"))
}
