//! The atomics of the concurrency core ([`crate::entry`]), re-exported so that a model checker can replace them.

#[cfg(loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicU64, Ordering},
    thread::yield_now,
};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread::yield_now,
};
