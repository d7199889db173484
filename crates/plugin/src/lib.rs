//! The NCCL net plugin: what NCCL calls, and what runs beside it.
//!
//! NCCL looks up one of the tables in `tables`, whose entries lead to `api`, and for the data path to `data_path`.
//! There the connection behind an opaque pointer is found (`comm`); its own table of calls leads into the protocol for
//! the fabric in use. The `control` thread makes and ends connections, whatever their fabric (`network`). `fabrics` alone
//! knows which fabrics there are.
//!
//! Nothing on the data path (isend, irecv, test, iflush) blocks, allocates or locks.

mod api;
mod comm;
mod congestion;
mod control;
mod counters;
mod data_path;
mod debt;
mod debtor;
mod descriptors;
mod ends;
mod fabrics;
mod identity;
mod key;
mod listener;
mod log;
mod network;
mod owing;
mod per_process;
mod process;
mod registrations;
mod settings;
mod shares;
mod sync;
mod tables;
mod topology_report;

pub use counters::railweaveRailCounters_v1;
pub use tables::{
    ncclNetPlugin_v6, ncclNetPlugin_v7, ncclNetPlugin_v8, ncclNetPlugin_v9, ncclNetPlugin_v10, ncclNetPlugin_v11,
    ncclNetPlugin_v12,
};
pub use topology_report::{ReportedDevice, ReportedGid, ReportedPort, TopologyReport};
