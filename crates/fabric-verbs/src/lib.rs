//! Rails over RDMA: InfiniBand and RoCE through libibverbs, which is loaded at run time.
//!
//! The hardware edge is a ladder. [`sys`] holds C's types and functions; [`Device`] and what `queues` and `memory` own
//! are what the library hands out, destroyed in the right order; [`VerbsDomain`] and [`VerbsRail`] are the fabric. What a
//! machine has is in [`discovery`], and which of its GIDs a lane uses in [`gid`].

mod bring_up;
mod config;
mod data_direct;
mod device;
pub mod discovery;
mod dma_buf;
mod domain;
mod endpoint;
mod events;
mod fabric;
mod flush;
pub mod gid;
mod gid_table;
mod lanes;
mod memory;
mod pending;
mod pointers;
mod queues;
mod rail;
mod status;
pub mod sys;
mod sysfs;

pub use config::{ModifyRetries, VerbsConfig};
pub use device::{About, Device, Event, Gid, port_state};
pub use domain::{Verbs, VerbsDomain};
pub use events::DeviceEvents;
pub use gid_table::{GidFilter, HostAddresses};
pub use memory::VerbsRegistration;
pub use pending::VerbsPendingRail;
pub use rail::VerbsRail;
