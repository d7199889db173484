//! What threads share without a lock, behind one name: the models in `tests/models.rs` include the files that use it,
//! with loom's types in its place.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};
pub(crate) use std::thread::yield_now;

/// The models make an [`AtomicPtr`] in a constant, and need a type of its own for that.
pub(crate) use std::sync::atomic::AtomicPtr as AtomicLink;
