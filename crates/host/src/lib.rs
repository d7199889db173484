//! Loads any NCCL net plugin as NCCL does and drives it.
//!
//! It is the caller's side of the API: what NCCL's proxies do with a plugin, without GPUs and without NCCL. It is not a
//! collective library for others to use. [`Plugin`] loads a .so, [`LoadedNet`] is a started one behind [`NetApi`], and a
//! [`Communicator`] runs collectives over whatever implements that.
//!
//! A message's way: a collective is written as a [`plan`], [`progress`] carries it out on [`connection`]s, and these call
//! [`NetApi`]. Ranks are processes of their own ([`ranks`]), which exchange handles through their parent ([`bootstrap`]).

pub mod bench;
pub mod bootstrap;
pub mod communicator;
pub mod connection;
pub mod counters;
pub mod crowd;
mod ends;
pub mod environment;
pub mod in_process;
mod loaded;
pub mod logger;
pub mod many;
pub mod many_in_process;
pub mod memory;
mod messages;
mod nccl;
pub mod net;
pub mod numbers;
pub mod patience;
pub mod plan;
mod plugin;
pub mod progress;
pub mod ranks;
pub mod raw;
pub mod stand_in;
pub mod sweep;
mod table;

pub use communicator::{Communicator, CommunicatorError};
pub use counters::RailCount;
pub use loaded::LoadedNet;
pub use nccl::NcclError;
pub use net::{NetApi, NetError};
pub use plugin::{LoadError, Plugin};
