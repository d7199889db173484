//! NCCL's callback for events of net plugins, and the number of communicators for which it leads to this library's own
//! profiler.

use std::sync::atomic::{AtomicUsize, Ordering};

use railweave_abi::ProfilerCallback;

/// NCCL's variable with the path of a profiler, or with this word for none.
const VARIABLE: &str = "NCCL_PROFILER_PLUGIN";
const NONE: &str = "none";

/// The number of communicators that have this library's own profiler.
static OWN: AtomicUsize = AtomicUsize::new(0);

/// Returns the callback that NCCL passed to `init`; `None` if NCCL has no profiler, and passes one that does nothing.
pub(crate) fn of_nccl(callback: Option<ProfilerCallback>) -> Option<ProfilerCallback> {
    let is_off = std::env::var(VARIABLE).is_ok_and(|value| value.eq_ignore_ascii_case(NONE));
    callback.filter(|_| !is_off)
}

/// Returns true if the callback leads to this library's own profiler, and to no other.
pub(crate) fn is_own() -> bool {
    OWN.load(Ordering::Relaxed) > 0
}

/// Notes that one more communicator has this library's own profiler.
pub(crate) fn add_own() {
    OWN.fetch_add(1, Ordering::Relaxed);
}

/// Undoes [`add_own`].
pub(crate) fn remove_own() {
    OWN.fetch_sub(1, Ordering::Relaxed);
}
