//! Rails over RDMA: InfiniBand and RoCE through libibverbs, which is loaded at run time.
//!
//! The crate has three layers. [`sys`] holds C's types and functions; [`Device`], `queues` and `memory` own the
//! library's objects and destroy them in the right order; [`VerbsDomain`] and [`VerbsRail`] are the fabric. [`gid`]
//! chooses the GIDs that a lane uses. `discovery`, above this crate, finds the ports of a machine.

mod bring_up;
mod config;
mod data_direct;
mod device;
mod dma_buf;
mod domain;
mod endpoint;
mod events;
mod fabric;
mod fence;
mod flush;
pub mod gid;
mod gid_table;
mod lanes;
mod memory;
mod pending;
mod pointers;
mod port;
mod queues;
mod rail;
mod status;
pub mod sys;
mod unfound;

pub use config::{ModifyRetries, VerbsConfig};
pub use data_direct::{Engine, Mlx5};
pub use device::{About, Device, Event, Gid, port_state};
pub use domain::{Verbs, VerbsDomain};
pub use events::DeviceEvents;
pub use gid_table::{GidFilter, GidTable, HostAddresses, RoceVersions};
pub use memory::VerbsRegistration;
pub use pending::VerbsPendingRail;
pub use pointers::takes_dma_bufs;
pub use port::{OpenPort, VerbsPort};
pub use rail::VerbsRail;
