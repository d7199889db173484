//! What NCCL's pointer to a listener points to.
#![allow(clippy::disallowed_types, reason = "listen and accept are service threads' calls")]

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use railweave_transport::{ConnectionConfig, Error};

use crate::control::{Control, Route};
use crate::network::{Established, Network};

/// A connection that is ready, and its name to the control thread.
pub(crate) type Ready = (Box<Established>, Route);

/// A listener, as NCCL's `listenComm`: serves any number of connections.
pub(crate) struct Listener {
    pub(crate) nonce: u64,
    pub(crate) device: usize,
    pub(crate) network: Arc<dyn Network>,
    pub(crate) config: ConnectionConfig,
    pub(crate) control: Arc<Control>,
    /// What is ready to be accepted; None once the listener is closed.
    ready: Mutex<Option<VecDeque<Ready>>>,
}

impl Listener {
    pub(crate) fn new(
        nonce: u64,
        device: usize,
        network: Arc<dyn Network>,
        config: ConnectionConfig,
        control: Arc<Control>,
    ) -> Self {
        Self { nonce, device, network, config, control, ready: Mutex::new(Some(VecDeque::new())) }
    }

    /// Adds a connection that is ready; hands it back when the listener is closed.
    pub(crate) fn give(&self, connection: Ready) -> Option<Ready> {
        match &mut *self.ready() {
            Some(ready) => {
                ready.push_back(connection);
                None
            }
            None => Some(connection),
        }
    }

    /// The oldest connection that nobody accepted yet.
    pub(crate) fn pop(&self) -> Option<Ready> {
        self.ready().as_mut()?.pop_front()
    }

    /// Whether nobody has closed it yet.
    pub(crate) fn is_open(&self) -> bool {
        self.ready().is_some()
    }

    /// Ends the listener; answers the connections that nobody accepted.
    pub(crate) fn close(&self) -> impl Iterator<Item = Ready> {
        self.ready().take().into_iter().flatten()
    }

    fn ready(&self) -> MutexGuard<'_, Option<VecDeque<Ready>>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The listener behind NCCL's pointer.
    ///
    /// # Safety
    /// The pointer must be NULL or come from `Arc::into_raw` and not be closed yet.
    pub(crate) unsafe fn from_raw<'a>(pointer: *mut c_void) -> Result<&'a Self, Error> {
        // SAFETY: the caller's promise; NULL gives None.
        unsafe { pointer.cast::<Self>().as_ref() }
            .ok_or_else(|| Error::protocol("accept was called with a NULL listener"))
    }
}
