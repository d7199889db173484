//! The types for state that threads share without a lock, so that `testing/models` can compile the files that use them
//! with loom's types instead.

pub(crate) use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
