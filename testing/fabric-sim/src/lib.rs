//! A fabric in a seeded, virtual-time world with faults, for tests (docs/simulation.md).
//!
//! [`Sim`] is a fabric in a [`World`] with its own clock: any number of processes, ports and rails, and everything that
//! can go wrong with them, from one structure of [`Faults`]. The same seed gives the same events. An [`Observer`] sees
//! each event, and may schedule tasks by the world's clock; without an observer, tests let time pass by
//! [`World::advance`].
//!
//! The crate knows nothing about the protocol that runs on it, and its times predict nothing about real networks.

#![forbid(unsafe_code)]

mod chance;
mod fabric;
mod faults;
mod observer;
mod world;

pub use chance::Chance;
pub use fabric::{Sim, SimDomain, SimPendingRail, SimRail, SimRegistration};
pub use faults::Faults;
pub use observer::{Breach, Event, Landing, Mishap, Observer, Opening, Outage, Place, Unobserved};
pub use world::{SimClock, State, Wire, World};
