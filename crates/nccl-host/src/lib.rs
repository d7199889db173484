//! Loads any NCCL net plugin as NCCL does, and calls it.
//!
//! This is the caller's side of the API, without GPUs and without NCCL. [`Plugin`] loads a .so, and [`LoadedNet`] is a
//! started plugin, called through [`NetApi`]. The module [`connection`] keeps one side of a connection together with
//! the memory that is registered for it.

pub mod connection;
pub mod counters;
pub mod library;
mod loaded;
pub mod logger;
pub mod memory;
pub mod net;
mod plugin;
mod table;

pub use counters::RailCount;
pub use library::LoadError;
pub use loaded::LoadedNet;
pub use net::{NetApi, NetError};
pub use plugin::Plugin;
