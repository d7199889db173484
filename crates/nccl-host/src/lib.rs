//! Loads any NCCL net plugin and profiler as NCCL does, and calls it.
//!
//! This is the caller's side of the API, without GPUs and without NCCL. [`Plugin`] loads a .so, and [`LoadedNet`] is a
//! started plugin, called through [`NetApi`]. The module [`connection`] keeps one side of a connection together with
//! the memory that is registered for it. The module [`profiler`] calls a profiler plugin as NCCL does.

pub mod connection;
pub mod counters;
pub mod library;
mod loaded;
pub mod logger;
pub mod memory;
pub mod net;
mod plugin;
pub mod profiler;
mod table;

pub use counters::RailCount;
pub use library::LoadError;
pub use loaded::LoadedNet;
pub use net::{NetApi, NetError};
pub use plugin::Plugin;
