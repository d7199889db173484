//! The NCCL net plugin: what NCCL calls, and what runs beside it.
//!
//! NCCL's calls come in by `entry`. There the connection behind an opaque pointer is found (`comm`), and the calls that
//! it carries lead into the protocol for the fabric in use. The `control` thread makes and ends connections, whatever
//! their fabric (`network`). `fabrics` alone knows which fabrics there are, and gets ready what the crate
//! `railweave-discovery` found on this machine.
//!
//! Nothing on the data path (isend, irecv, test, iflush) blocks, allocates or locks.

mod comm;
mod congestion;
mod control;
mod counters;
mod descriptors;
mod entry;
mod fabrics;
mod identity;
mod key;
mod listen_comm;
mod listener;
mod log;
mod network;
mod per_process;
mod process;
mod shares;
mod sync;

pub use counters::railweaveRailCounters_v1;
pub use entry::{
    ncclNetPlugin_v6, ncclNetPlugin_v7, ncclNetPlugin_v8, ncclNetPlugin_v9, ncclNetPlugin_v10, ncclNetPlugin_v11,
    ncclNetPlugin_v12,
};
