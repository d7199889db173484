//! The state of the process and of each context. NCCL's `init` and `finalize` count users here.
#![allow(clippy::disallowed_types, reason = "service threads make contexts and connect; the data path does not")]

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use railweave_abi::ProfilerCallback;
use railweave_fabric::{EventSource, LinkLayer};
use railweave_identity::{self as identity, Key};
use railweave_offers::{Offered, handle_addresses, offered, port_offer};
use railweave_options::{self as options, Options};
use railweave_telemetry::{self as telemetry, RunDir};
use railweave_topology::{DialAddress, NetworkAddress, dial_order};
use railweave_transport::{ConnectionConfig, Error, Handle, HandleAddress, Hello, ProcessId};

use crate::callback;
use crate::comm::ControlHandle;
use crate::congestion::LaneCongestion;
use crate::control::{Control, ControlConfig, PendingConnect};
use crate::fabrics;
use crate::forks::ProcessMark;
use crate::listen_comm::ListenComm;
use crate::log;
use crate::network::Network;
use crate::per_process::PerProcess;
use crate::publish::PublishConfig;
use crate::trace::{TraceConfig, Tracer};

/// The state that all connections of this process share.
pub(crate) struct Process {
    pub(crate) options: Options,
    pub(crate) network: Arc<dyn Network>,
    /// TCP for the peers that RDMA does not reach, if it may be used.
    pub(crate) fallback: Option<Arc<dyn Network>>,
    pub(crate) hello: Hello,
    out_of_band: Option<HandleAddress>,
    /// The addresses that the control port listens on; `None` for all.
    listens_on: Option<Vec<IpAddr>>,
    events: Vec<Arc<dyn EventSource>>,
    key: Option<Key>,
    congestion: LaneCongestion,
    control: Mutex<Option<Arc<Control>>>,
    /// The trace of this process, if it is traced.
    tracer: Option<Arc<Tracer>>,
}

/// The context that `init` returns: one per communicator since v11, one for all communicators before.
pub(crate) struct Context {
    /// The process that made it: in a forked child its locks may be held by threads that do not exist there.
    pub(crate) owner: ProcessMark,
    pub(crate) process: Arc<Process>,
    pub(crate) traffic_class: Option<u8>,
    /// NCCL's callback for events; `None` if NCCL has none, or no profiler.
    pub(crate) profiler: Option<ProfilerCallback>,
    /// Connects in progress, by device and the listener's nonce: NCCL passes nothing else that identifies a connect.
    pub(crate) connects: Mutex<HashMap<(usize, u64), Arc<PendingConnect>>>,
    /// The listeners made from it; some may be closed.
    listeners: Mutex<Vec<Weak<ListenComm>>>,
}

impl Context {
    /// Remembers a listener, to close it with the context if NCCL does not: an aborted communicator forgets its
    /// listeners.
    pub(crate) fn remember(&self, listener: &Arc<ListenComm>) {
        let mut listeners = lock(&self.listeners);
        listeners.retain(|other| other.strong_count() > 0);
        listeners.push(Arc::downgrade(listener));
    }
}

/// The process's state, and the number of contexts that use it.
#[derive(Default)]
struct Users {
    count: usize,
    process: Option<Arc<Process>>,
}

static USERS: PerProcess<Mutex<Users>> = PerProcess::new();

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic is caught at the edge and reported. The state that it leaves is consistent or is never used again.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    fn start(forces_flushes: bool) -> Result<Self, Error> {
        let (options, warnings) = Options::from_env().map_err(|errors| {
            // One line for each variable, even if two settings read it. The last one is the error that `init` returns.
            let mut named = HashSet::new();
            let mut errors: Vec<_> = errors.iter().filter(|error| named.insert(error.variable)).collect();
            let last = errors.pop().map(ToString::to_string);
            errors.iter().for_each(|error| log::warn(&format!("init: {error}")));
            Error::configuration(last.unwrap_or_default())
        })?;
        for warning in &warnings {
            let say = if warning.needs_attention() { log::warn } else { log::info };
            say(&warning.to_string());
        }
        let in_use = fabrics::open(&options, forces_flushes)?;
        let key = options.key_file.value.as_deref().map(Key::read).transpose()?;
        if let Some(path) = &options.key_file.value {
            log::info(&format!("sessions require the key in {}", path.display()));
        }
        let congestion = LaneCongestion::new(&options.tcp_congestion)?;
        let mut hello = identity::hello(in_use.mode, in_use.fabrics, key.is_some());
        // A profiler that started first has begun the trace, with an id that no peer knows yet.
        if let Some(tracer) = Tracer::current().filter(|tracer| tracer.claim()) {
            hello.process = ProcessId(tracer.id);
        }
        let tracer = start_tracer(&options, &hello);
        tracer.iter().for_each(|tracer| _ = tracer.claim());
        Ok(Self {
            options,
            network: in_use.network,
            fallback: in_use.fallback,
            hello,
            out_of_band: in_use.out_of_band,
            listens_on: in_use.listens_on,
            events: in_use.events,
            key,
            congestion,
            control: Mutex::new(None),
            tracer,
        })
    }

    /// Returns the control thread, starting it when it is first needed.
    pub(crate) fn control(&self) -> Result<Arc<Control>, Error> {
        let mut control = lock(&self.control);
        if let Some(control) = &*control {
            return Ok(Arc::clone(control));
        }
        let config = ControlConfig {
            hello: self.hello.clone(),
            key: self.key.clone(),
            ports: self.options.control_port.value,
            listens_on: self.listens_on.clone(),
            own: self.own_addresses().map(|own| own.address()).collect(),
            handshake_timeout: self.options.handshake_timeout.value,
            peer_timeout: self.options.peer_timeout.value,
            recovers: self.options.recovery.value,
            rail_timeout: self.options.rail_timeout.value,
            congestion: self.congestion.clone(),
            events: self.events.clone(),
            return_events: self.options.return_events.value,
            publish: self.publish_config(),
            tracer: self.tracer.clone(),
            log_lanes: self.options.log_lanes.value,
        };
        let started = Arc::new(Control::start(config)?);
        *control = Some(Arc::clone(&started));
        Ok(started)
    }

    /// Returns the configuration of the telemetry and the policy files; `None` if the user wants none.
    fn publish_config(&self) -> Option<PublishConfig> {
        let run_dir = &self.options.run_dir.value;
        (*run_dir != options::RunDir::Off).then(|| PublishConfig {
            dir: RunDir::named(run_dir.path()),
            process: facts(&self.hello),
            networks: [&self.network].into_iter().chain(&self.fallback).cloned().collect(),
            reads_policies: fabrics::reads_policies(&self.options),
            tracer: self.tracer.clone(),
        })
    }

    /// Returns the handle of a new listener of a device.
    pub(crate) fn handle(&self, device: usize, nonce: u64, control_port: u16) -> Handle {
        let Offered { ports, others } = offered(&self.network.devices().at(device), self.network.ports());
        let is_heard = |address: IpAddr| self.listens_on.as_ref().is_none_or(|addresses| addresses.contains(&address));
        let ports: Vec<_> = ports.iter().map(|index| port_offer(&self.network.ports()[*index], 1)).collect();
        let mut addresses = handle_addresses(&ports, others, is_heard);
        addresses.extend(self.out_of_band);
        Handle { process: self.hello.process, nonce, control_port, addresses }
    }

    /// Returns the addresses of this host's ports that sockets can use.
    fn own_addresses(&self) -> impl Iterator<Item = NetworkAddress> {
        let facts = self.network.ports().iter().map(|port| &port.facts);
        let of_sockets = facts.filter(|facts| facts.link_layer != LinkLayer::InfiniBand);
        of_sockets.map(|facts| NetworkAddress::new(facts.address, facts.prefix_len))
    }

    /// Returns the addresses of a handle in the order in which a connect tries them.
    pub(crate) fn dial_order(&self, handle: &Handle) -> Vec<IpAddr> {
        let theirs: Vec<_> = handle
            .addresses
            .iter()
            .map(|entry| DialAddress { address: entry.address, prefix_len: entry.prefix_len, purpose: entry.purpose() })
            .collect();
        let own: Vec<_> = self.own_addresses().collect();
        dial_order(&theirs, &own).into_iter().map(|index| handle.addresses[index].address).collect()
    }

    /// Returns the configuration of a device's connections.
    pub(crate) fn connection_config(&self, device: usize, traffic_class: Option<u8>) -> ConnectionConfig {
        ConnectionConfig {
            split_min: self.options.split_min.value,
            policy: fabrics::policy(&self.options),
            striped: self.options.split_data_on_lanes.value,
            adaptive_routing_above: fabrics::adaptive_routing_above(&self.options, &*self.network, device),
            traffic_class,
            first_number: 0,
            probe_timeout: self.options.probe_timeout.value,
            recovers: self.options.recovery.value,
            outage: self.options.outage_timeout.value,
            rail_timeout: self.options.rail_timeout.value,
            ..ConnectionConfig::default()
        }
    }
}

/// Returns the facts about this process.
fn facts(hello: &Hello) -> telemetry::Process {
    let known = |number: i32| u32::try_from(number).ok();
    telemetry::Process::of_this_process(hello.process.0, known(hello.rank), known(hello.world), |name| {
        std::env::var_os(name)
    })
}

/// Returns the trace of this process, if the user wants one.
fn start_tracer(options: &Options, hello: &Hello) -> Option<Arc<Tracer>> {
    let dir = options.trace.value.clone()?;
    let config = TraceConfig { dir, most_bytes: options.trace_max.value };
    Tracer::of_process(&config, hello.process.0, || {
        let facts = facts(hello);
        railweave_trace::Process {
            pid: facts.pid,
            host: facts.host,
            boot_id: facts.boot_id.map_or_else(Vec::new, |id| id.to_vec()),
            rank: facts.rank,
            world: facts.world,
            job: facts.job,
            version: facts.version,
            ..Default::default()
        }
    })
}

/// Returns the trace of this process, if the user wants one. NCCL may use the profiler of this library and another
/// network.
pub(crate) fn tracer() -> Option<Arc<Tracer>> {
    // Held until the trace has begun, so that there is one.
    let users = lock(USERS.get());
    if let Some(process) = &users.process {
        return process.tracer.clone();
    }
    if let Some(tracer) = Tracer::current() {
        return Some(tracer);
    }
    match Options::from_env() {
        Ok((options, _)) => start_tracer(&options, &identity::hello(0, 0, false)),
        Err(errors) => {
            let is_wanted = std::env::var_os("RAILWEAVE_TRACE").is_some();
            let say = |error| log::warn(&format!("nothing is traced: {error}"));
            errors.iter().filter(|_| is_wanted).for_each(say);
            None
        }
    }
}

/// Makes and counts a context. The first context makes the process's state, for its own version of NCCL's API.
///
/// # Errors
/// If a setting is wrong or there is no usable port.
pub(crate) fn acquire(
    traffic_class: Option<u8>,
    forces_flushes: bool,
    profiler: Option<ProfilerCallback>,
) -> Result<Context, Error> {
    let mut users = lock(USERS.get());
    let process = match &users.process {
        Some(process) => Arc::clone(process),
        None => Arc::new(Process::start(forces_flushes)?),
    };
    users.process = Some(Arc::clone(&process));
    users.count += 1;
    Ok(Context {
        owner: ProcessMark::own(),
        process,
        traffic_class,
        profiler: callback::of_nccl(profiler),
        connects: Mutex::default(),
        listeners: Mutex::default(),
    })
}

/// Ends a context. The last one stops the control thread and waits until it has ended.
pub(crate) fn release(context: Context) {
    if !lock(USERS.get()).process.as_ref().is_some_and(|process| Arc::ptr_eq(process, &context.process)) {
        // This is a forked child. The context is its parent's, and another thread may have held its locks.
        return std::mem::forget(context);
    }
    // A connect that NCCL began and never polled again is closed like any other connection.
    for (_, pending) in context.connects.into_inner().unwrap_or_else(PoisonError::into_inner) {
        if let (Some(Ok((established, route))), Ok(control)) = (pending.abandon(), context.process.control()) {
            control.close(route, established.end);
        }
    }
    let listeners = context.listeners.into_inner().unwrap_or_else(PoisonError::into_inner);
    for listener in listeners.iter().filter_map(Weak::upgrade).filter(|listen_comm| listen_comm.listener.is_open()) {
        listener.close();
        // SAFETY: listen made NCCL's reference with Arc::into_raw. closeListen would have dropped it but was not
        // called, and after finalize NCCL uses nothing made from the context.
        drop(unsafe { Arc::from_raw(Arc::as_ptr(&listener)) });
    }
    drop(context.process);
    let mut users = lock(USERS.get());
    users.count = users.count.saturating_sub(1);
    if users.count > 0 {
        return;
    }
    let last = users.process.take();
    drop(users);
    if let Some(control) = last.and_then(|process| lock(&process.control).take()) {
        control.stop();
    }
}

/// Tells the control thread that a call has failed. Waits for no lock: that of this thread's own caller may be held.
pub(crate) fn note_failed_call() {
    let process = USERS.get().try_lock().ok().and_then(|users| users.process.clone());
    if let Some(control) = process.and_then(|process| process.control.try_lock().ok()?.clone()) {
        control.note_failed_call();
    }
}

/// Returns the process's state.
///
/// # Errors
/// If this is called before `init` or after the last `finalize`.
pub(crate) fn current() -> Result<Arc<Process>, Error> {
    lock(USERS.get())
        .process
        .clone()
        .ok_or_else(|| Error::protocol("a net function was called before init, or after the last finalize"))
}
