//! A listener and its connections that are ready to be accepted.
#![allow(clippy::disallowed_types, reason = "listen and accept are service threads' calls")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use railweave_transport::ConnectionConfig;

use crate::comm::{Established, Route};
use crate::network::Network;

/// A connection that is ready, and the control thread's name for it.
pub(crate) type Ready = (Box<Established>, Route);

/// A connection that waits for `accept`.
struct Waiting {
    connection: Ready,
    /// True once its peer has closed it or is gone.
    is_left: bool,
}

/// A listener, for any number of connections.
pub(crate) struct Listener {
    pub(crate) nonce: u64,
    pub(crate) device: usize,
    pub(crate) network: Arc<dyn Network>,
    /// TCP for the peers that RDMA does not reach, if it may be used.
    pub(crate) fallback: Option<Arc<dyn Network>>,
    pub(crate) config: ConnectionConfig,
    /// The connections that are ready to be accepted; `None` once the listener is closed.
    ready: Mutex<Option<VecDeque<Waiting>>>,
}

impl Listener {
    pub(crate) fn new(
        nonce: u64,
        device: usize,
        network: Arc<dyn Network>,
        fallback: Option<Arc<dyn Network>>,
        config: ConnectionConfig,
    ) -> Self {
        Self { nonce, device, network, fallback, config, ready: Mutex::new(Some(VecDeque::new())) }
    }

    /// Returns the network and its device for an offer over TCP or over RDMA; `None` if there is none of the kind.
    pub(crate) fn network_for(&self, is_tcp: bool) -> Option<(&Arc<dyn Network>, usize)> {
        match &self.fallback {
            _ if self.network.is_tcp() == is_tcp => Some((&self.network, self.device)),
            // All its addresses are one device.
            Some(fallback) if fallback.is_tcp() == is_tcp => Some((fallback, 0)),
            _ => None,
        }
    }

    /// Adds a connection that is ready. Returns it if the listener is closed.
    pub(crate) fn give(&self, connection: Ready) -> Option<Ready> {
        match &mut *self.ready() {
            Some(ready) => {
                ready.push_back(Waiting { connection, is_left: false });
                None
            }
            None => Some(connection),
        }
    }

    /// Takes the oldest connection, or one whose peer has left if there is no other.
    pub(crate) fn pop(&self) -> Option<Ready> {
        let mut ready = self.ready();
        let ready = ready.as_mut()?;
        let place = ready.iter().position(|waiting| !waiting.is_left).unwrap_or(0);
        ready.remove(place).map(|waiting| waiting.connection)
    }

    /// Returns the number of connections not accepted yet.
    pub(crate) fn unaccepted(&self) -> usize {
        self.ready().as_ref().map_or(0, VecDeque::len)
    }

    /// Notes that the peer has left this connection. Returns true if the connection is not accepted yet and was not
    /// marked before.
    pub(crate) fn peer_left(&self, route: Route) -> bool {
        let mut ready = self.ready();
        let mut waiting = ready.iter_mut().flatten();
        let found = waiting.find(|waiting| waiting.connection.1 == route && !waiting.is_left);
        found.map(|waiting| waiting.is_left = true).is_some()
    }

    /// Takes back an unaccepted connection that its peer has left, unless the listener has no other of this kind.
    pub(crate) fn give_up(&self, route: Route) -> Option<Box<Established>> {
        let mut ready = self.ready();
        let ready = ready.as_mut()?;
        let left = ready.iter().filter(|waiting| waiting.is_left).count();
        let place = ready.iter().position(|waiting| waiting.connection.1 == route && waiting.is_left)?;
        let given_up = if left > 1 { ready.remove(place) } else { None };
        given_up.map(|waiting| waiting.connection.0)
    }

    /// Returns true until the listener is closed.
    pub(crate) fn is_open(&self) -> bool {
        self.ready().is_some()
    }

    /// Closes the listener and returns the connections that were not accepted.
    pub(crate) fn close(&self) -> impl Iterator<Item = Ready> {
        self.ready().take().into_iter().flatten().map(|waiting| waiting.connection)
    }

    fn ready(&self) -> MutexGuard<'_, Option<VecDeque<Waiting>>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
