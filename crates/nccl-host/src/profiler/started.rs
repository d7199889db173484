//! A profiler that was started for one communicator.

use super::describe::{Start, What};
use super::plugin::{Inner, ProfilerError, ProfilerPlugin};
use super::table::InitArgs;
use railweave_abi::profiler::EventType;
use std::ffi::{CString, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A communicator, as a profiler sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommunicatorInfo {
    /// The name that the user gave it; profilers get NULL if it is `None`.
    pub name: Option<CString>,
    /// The hash that all its ranks share.
    pub comm_id: u64,
    /// The number of hosts.
    pub hosts: i32,
    /// The number of ranks.
    pub ranks: i32,
    /// This rank.
    pub rank: i32,
}

/// A profiler started for one communicator; dropping it calls `finalize`.
#[derive(Debug)]
pub struct Profiler {
    plugin: Arc<Inner>,
    context: *mut c_void,
    info: CommunicatorInfo,
    /// True once `finalize` was called, or while there is nothing to finalize.
    finalized: bool,
}

// SAFETY: NCCL calls a profiler from several threads at once with one context.
unsafe impl Send for Profiler {}
// SAFETY: as above; nothing changes here but the mask, which is atomic.
unsafe impl Sync for Profiler {}

impl ProfilerPlugin {
    /// Starts the profiler for one communicator.
    ///
    /// # Errors
    /// If `init` fails, or a function is missing. NCCL then goes on without a profiler.
    pub fn init(&self, info: CommunicatorInfo) -> Result<Profiler, ProfilerError> {
        self.inner.complete()?;
        let plugin = Arc::clone(&self.inner);
        let mut profiler = Profiler { plugin, context: null_mut(), info, finalized: true };
        let CommunicatorInfo { comm_id, hosts, ranks, rank, .. } = profiler.info;
        let name = profiler.info.name.as_ref().map_or(null(), |name| name.as_ptr());
        let args = InitArgs { comm_id, name, hosts, ranks, rank };
        // SAFETY: the mask stays in place as long as the profiler is loaded; the name lives as long as this.
        let code = unsafe { self.inner.table.init(&raw mut profiler.context, self.inner.mask.as_ptr(), args) };
        if !code.is_success() {
            return Err(self.inner.failed("init", code));
        }
        profiler.finalized = false;
        Ok(profiler)
    }
}

impl Profiler {
    /// Returns the mask of the events that the profiler wants now, in all communicators.
    #[must_use]
    pub fn mask(&self) -> i32 {
        self.plugin.mask.load(Ordering::Relaxed)
    }

    /// Returns the communicator's description.
    #[must_use]
    pub fn info(&self) -> &CommunicatorInfo {
        &self.info
    }

    /// Ends the communicator. As in NCCL, the profiler is not called if its context is NULL.
    ///
    /// # Errors
    /// If the profiler returns an error, which NCCL ignores.
    pub fn finalize(mut self) -> Result<(), ProfilerError> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), ProfilerError> {
        if std::mem::replace(&mut self.finalized, true) || self.context.is_null() {
            return Ok(());
        }
        // SAFETY: `init` wrote the context, and this is its last use: events borrow `self`.
        let code = unsafe { self.plugin.table.finalize(self.context) };
        if code.is_success() { Ok(()) } else { Err(self.plugin.failed("finalize", code)) }
    }

    /// Returns the loaded profiler.
    pub(super) fn plugin(&self) -> &Inner {
        &self.plugin
    }

    /// Returns the context.
    pub(super) fn context(&self) -> *mut c_void {
        self.context
    }

    /// Starts an event if `mask` has one of the bits in `wanted`, and returns its handle, or NULL.
    pub(super) fn start(
        &self,
        mask: c_int,
        wanted: c_int,
        kind: EventType,
        (parent, group): (*mut c_void, *mut c_void),
        what: What<'_>,
    ) -> *mut c_void {
        let mut event = null_mut();
        if mask & wanted == 0 {
            return event;
        }
        // NCCL leaves the rank of the other kinds at 0.
        let ranked = matches!(what, What::Coll(_) | What::P2p(_) | What::ProxyOp(_) | What::ProxyStep(_));
        let start = Start {
            kind,
            parent,
            group,
            rank: if ranked { self.info.rank } else { 0 },
            name: self.info.name.as_ref().map_or(null(), |name| name.as_ptr()),
            comm_id: self.info.comm_id,
            what,
        };
        // SAFETY: `init` wrote the context; the handles are this profiler's or NULL, and the name lives as long as
        // `self`.
        unsafe { self.plugin.table.start(self.context, &raw mut event, start) };
        event
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        // `finalize` returns the error to a caller who needs it.
        let _ = self.finish();
    }
}
