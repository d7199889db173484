//! Commands of service threads to the control thread, and the listeners that both know.
#![allow(clippy::disallowed_types, reason = "service threads and the control thread exchange commands here")]

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use railweave_transport::{Climb, Event, Handle};

use super::pending::PendingConnect;
use crate::comm::{Comm, End, Route};
use crate::listener::Listener;
use crate::network::Network;

/// A connection to be made.
pub(crate) struct ConnectRequest {
    pub(crate) handle: Handle,
    /// The addresses to try, in this order.
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) network: Arc<dyn Network>,
    /// TCP for the peers that RDMA does not reach, if it may be used.
    pub(crate) fallback: Option<Arc<dyn Network>>,
    pub(crate) device: usize,
    /// Its attempts so far.
    pub(crate) climb: Climb,
    pub(crate) config: railweave_transport::ConnectionConfig,
    pub(crate) result: Arc<PendingConnect>,
    /// The time until which it waits for a session that is away, on the control thread's clock; 0 before that thread
    /// has it.
    pub(crate) until_ns: u64,
}

/// The listeners of this process by their nonce. Shared, so that a listener is known before its handle leaves `listen`.
pub(crate) type Listeners = Arc<Mutex<HashMap<u64, Arc<Listener>>>>;

/// A command of a service thread to the control thread.
pub(crate) enum Command {
    Connect(Box<ConnectRequest>),
    /// NCCL has an open connection.
    Opened(Route, Weak<Comm>),
    Close(Route, Box<dyn End>),
    /// An event of an open connection.
    Note(Route, Event),
    /// A call has failed, so a connection may have.
    Failed,
    Stop,
}

/// Locks a mutex. A panic is caught at the edge, and the state that it leaves is consistent.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
