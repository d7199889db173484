//! The types that threads share without a lock, under one name: `testing/models` includes the files that use them with
//! loom's types instead.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};
pub(crate) use std::thread::yield_now;

/// In the models an [`AtomicPtr`] that is made in a constant needs a type of its own.
pub(crate) use std::sync::atomic::AtomicPtr as AtomicLink;
