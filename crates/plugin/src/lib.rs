//! The NCCL net plugin: the functions that NCCL calls, and the threads behind them.
//!
//! NCCL's calls arrive in `entry`, which finds the connection behind an opaque pointer (`comm`) and calls the protocol
//! for the connection's fabric. The `control` thread makes and closes connections, whatever their fabric (`network`).
//! Only `fabrics` knows which fabrics there are; it prepares the ports that the crate `railweave-discovery` finds on
//! this machine.
//!
//! Nothing on the data path (isend, irecv, test, iflush) blocks, allocates or locks.

mod callback;
mod comm;
mod congestion;
mod control;
mod counters;
mod descriptors;
mod devices;
mod entry;
mod fabrics;
mod forks;
mod listen_comm;
mod listener;
mod log;
mod network;
mod per_process;
mod process;
mod profiler;
mod publish;
mod shares;
mod sync;
mod trace;

pub use counters::railweaveRailCounters_v1;
pub use profiler::{
    ncclProfiler_v1, ncclProfiler_v2, ncclProfiler_v3, ncclProfiler_v4, ncclProfiler_v5, ncclProfiler_v6,
    ncclProfiler_v7,
};

pub use entry::{
    ncclNetPlugin_v6, ncclNetPlugin_v7, ncclNetPlugin_v8, ncclNetPlugin_v9, ncclNetPlugin_v10, ncclNetPlugin_v11,
    ncclNetPlugin_v12,
};
