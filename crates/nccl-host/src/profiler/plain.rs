//! A profiler that does nothing with the events that it gets, to measure what they cost a net plugin.

use super::plugin::ProfilerPlugin;
use super::table::Table;
use crate::library::LoadError;
use railweave_abi::profiler::parts::StateArgsV4;
use railweave_abi::profiler::{EventState, v6};
use railweave_abi::{NcclLogger, NcclResult};
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::ptr::without_provenance_mut;
use std::sync::atomic::{AtomicI32, Ordering};

/// The mask that `init` writes.
static MASK: AtomicI32 = AtomicI32::new(0);

/// The handle of every event, and the context.
const HANDLE: usize = 1;

static TABLE: v6::Profiler = v6::Profiler {
    name: c"plain".as_ptr(),
    init: Some(init),
    start_event: Some(start_event),
    stop_event: Some(stop_event),
    record_event_state: Some(record_event_state),
    finalize: Some(finalize),
};

impl ProfilerPlugin {
    /// Returns a profiler that wants the events of this mask, and does nothing with them. There is one mask for all of
    /// this process: that of the last call.
    ///
    /// # Errors
    /// If too many profilers are loaded.
    pub fn plain(mask: i32) -> Result<Self, LoadError> {
        MASK.store(mask, Ordering::Relaxed);
        Self::new(Path::new("plain"), Table::V6(&TABLE), vec![6], None)
    }
}

unsafe extern "C" fn init(
    context: *mut *mut c_void,
    _comm_id: u64,
    mask: *mut c_int,
    _name: *const c_char,
    _hosts: c_int,
    _ranks: c_int,
    _rank: c_int,
    _logger: Option<NcclLogger>,
) -> NcclResult {
    // SAFETY: the host passes both pointers.
    unsafe {
        *context = without_provenance_mut(HANDLE);
        *mask = MASK.load(Ordering::Relaxed);
    }
    NcclResult::SUCCESS
}

unsafe extern "C" fn start_event(_: *mut c_void, event: *mut *mut c_void, _: *mut v6::EventDescr) -> NcclResult {
    // SAFETY: the host passes the pointer.
    unsafe { *event = without_provenance_mut(HANDLE) };
    NcclResult::SUCCESS
}

unsafe extern "C" fn stop_event(_: *mut c_void) -> NcclResult {
    NcclResult::SUCCESS
}

unsafe extern "C" fn record_event_state(_: *mut c_void, _: EventState, _: *mut StateArgsV4) -> NcclResult {
    NcclResult::SUCCESS
}

unsafe extern "C" fn finalize(_: *mut c_void) -> NcclResult {
    NcclResult::SUCCESS
}
