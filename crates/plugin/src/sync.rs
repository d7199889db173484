//! What threads share without a lock, behind one name: the models in `tests/models.rs` include the files that use it, with
//! loom's types in its place.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};
