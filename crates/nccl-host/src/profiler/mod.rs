//! Calls a profiler plugin as NCCL's core does (`src/plugin/profiler.cc`, 2.30.7; v7 as v6).
//!
//! [`ProfilerPlugin`] loads a table, [`Profiler`] is a profiler started for one communicator. A user's call takes the
//! mask of that moment ([`Call`]) and starts [`Event`]s with it; the progress thread adds an [`Op`] for each connection
//! and direction, and its steps. The handle of a step goes to the net plugin, which reports its own events below it
//! through the callback that [`Plugin::init_with`](crate::Plugin::init_with) gives it.
//!
//! As in NCCL, all communicators share the mask; an event starts if its own bit in the mask is set or that of any kind
//! below it; all results are ignored; an event that was not started has no handle, and is neither changed nor stopped.
//! Each version of the interface gets the events and states of the NCCL that brought it: v1 to v3 the states of a
//! proxy's operation, and v1 to v4 the group as the parent of an operation.

mod call;
mod callback;
mod describe;
mod names;
mod op;
mod plain;
mod plugin;
mod started;
mod table;

pub use call::{Call, Event, KernelEvent, Parent};
pub use describe::{Coll, CollCall, P2p, P2pCall};
pub use names::{Algorithm, DataType, Function, Protocol};
pub use op::{Direction, Op, OpShape};
pub use plugin::{ProfilerError, ProfilerPlugin};
pub use railweave_abi::ProfilerCallback;
pub use railweave_abi::profiler::EventCall;
pub use started::{CommunicatorInfo, Profiler};

pub(crate) use callback::without_profiler;
pub(crate) use plugin::Inner;

#[cfg(test)]
mod tests;
