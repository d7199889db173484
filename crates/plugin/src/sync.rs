//! The types for state that threads share without a lock. The files that share such state take them from here, so that
//! `testing/models` can compile these files with loom's types instead.

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// A second name: the models put loom's type here, and a type of their own for [`AtomicPtr`], because loom's cannot be
/// made in a constant.
pub(crate) use std::sync::atomic::AtomicPtr as AtomicLink;
