//! The trace of this process: what its threads note, and the thread that writes it to files (docs/tracing.md).
//!
//! A thread that notes something puts it into a ring of its own, without a lock and without waiting. The trace thread
//! empties the rings some ten times a second. It is a thread of its own, because a slow disk must not hold up the
//! control thread, which keeps connections alive. Without `RAILWEAVE_TRACE` none of this is there.
#![allow(clippy::disallowed_types, reason = "the data path uses only rings; locks are for what happens now and then")]

mod drain;
mod ring;
mod shared;
mod tracer;

pub(crate) use self::ring::Begin;
pub(crate) use self::shared::now_ns;
pub(crate) use self::tracer::{TraceConfig, Tracer, enter, name, next_communicator, note, start, stop};
