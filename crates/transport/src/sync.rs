//! The types for state that threads share without a lock, so that `testing/models` can compile the files that use them
//! with loom's types instead.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// The light side of an asymmetric barrier: keeps the compiler from moving accesses past it. The other side makes every
/// thread pass a barrier, which keeps the processor from it.
#[inline(always)]
pub(crate) fn light_fence() {
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}
