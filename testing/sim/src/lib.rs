//! NCCL's part, played with the protocol in a simulated world, and checkers that watch (docs/simulation.md).
//!
//! [`run`] plays one seed: processes with their connections and applications, on the fabric of `railweave-fabric-sim`,
//! on which `transport` runs unchanged. [`Checker`]s watch what travels and what the calls return; the same seed gives
//! the same history.

#![forbid(unsafe_code)]

pub mod campaign;
mod counts;
mod faults;
mod history;
#[cfg(feature = "plants")]
pub mod plants;
mod play;
mod task;
mod watch;
mod witness;

pub use counts::{Counts, Seen};
pub use play::{Outcome, Workload, run};
pub use watch::{Checker, Violation};
