//! The object behind NCCL's pointer to a listener.

use std::ffi::c_void;
use std::sync::Arc;

use railweave_abi::ProfilerCallback;
use railweave_transport::Error;

use crate::control::Control;
use crate::listener::Listener;

/// A listener and the control thread that serves it: NCCL's `listenComm`.
pub(crate) struct ListenComm {
    pub(crate) listener: Arc<Listener>,
    pub(crate) control: Arc<Control>,
    /// NCCL's callback for events; `None` if NCCL has none, or no profiler.
    pub(crate) profiler: Option<ProfilerCallback>,
}

impl ListenComm {
    /// Returns the listener behind NCCL's pointer.
    ///
    /// # Safety
    /// The pointer must be NULL or come from `Arc::into_raw` and not be closed yet.
    pub(crate) unsafe fn from_raw<'a>(pointer: *mut c_void) -> Result<&'a Self, Error> {
        // SAFETY: the caller's promise; NULL becomes `None`.
        unsafe { pointer.cast::<Self>().as_ref() }
            .ok_or_else(|| Error::protocol("accept was called with NULL for the listener"))
    }

    /// Closes the listener and the connections that were not accepted.
    pub(crate) fn close(&self) {
        self.control.unlisten(self.listener.nonce);
    }
}
