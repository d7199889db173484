//! A seeded, virtual-time world with faults and checkers, for tests (docs/simulation.md).
//!
//! [`Sim`] is a fabric in a [`World`] with its own clock: any number of processes, ports and rails, and everything that
//! can go wrong with them, from one structure of [`Faults`]. `transport` runs on it unchanged. [`run`] plays NCCL on it
//! with one seed, while [`Checker`]s watch what travels and what the calls answer; the same seed gives the same history.
//!
//! What this crate is not: it is no model of how fast a network is, and nothing of it is in the plugin.

#![forbid(unsafe_code)]

pub mod campaign;
mod chance;
mod counts;
mod fabric;
mod fabric_faults;
mod faults;
mod history;
pub mod observer;
#[cfg(feature = "plants")]
pub mod plants;
mod play;
mod task;
mod watch;
mod witness;
mod world;

pub use chance::Chance;
pub use counts::{Counts, Seen};
pub use fabric::{Sim, SimDomain, SimPendingRail, SimRail, SimRegistration};
pub use fabric_faults::Faults;
pub use play::{Outcome, Workload, run};
pub use watch::{Checker, Violation};
pub use world::{State, World};
