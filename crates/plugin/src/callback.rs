//! NCCL's callback for events of net plugins, and the number of communicators for which it leads to this library's own
//! profiler.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use railweave_abi::ProfilerCallback;

/// The callback, or NULL. All communicators of a process have the same.
static CALLBACK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// The number of communicators that have this library's own profiler.
static OWN: AtomicUsize = AtomicUsize::new(0);

/// Stores the callback that NCCL passed to `init`.
pub(crate) fn set(callback: Option<ProfilerCallback>) {
    if let Some(callback) = callback {
        CALLBACK.store(callback as *mut (), Ordering::Release);
    }
}

/// Returns the callback; `None` before v10 of NCCL's net API.
pub(crate) fn get() -> Option<ProfilerCallback> {
    let address = CALLBACK.load(Ordering::Acquire);
    // SAFETY: only `set` stores here, and it stores a function of this type; NULL is `None`.
    unsafe { std::mem::transmute::<*mut (), Option<ProfilerCallback>>(address) }
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
