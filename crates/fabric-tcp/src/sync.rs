//! The types that threads share without a lock, under one name: `testing/models` includes the file that uses them
//! (`entry.rs`) with loom's types instead.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
pub(crate) use std::thread::yield_now;
