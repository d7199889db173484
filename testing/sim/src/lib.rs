//! Plays NCCL's part with the protocol in a simulated world, watched by checkers (docs/simulation.md).
//!
//! [`run`] plays one seed: processes with their connections and applications. Under them `transport` runs, unchanged,
//! on the fabric of `railweave-fabric-sim`. [`Checker`]s watch the traffic and the results of calls; the same seed
//! gives the same history.

#![forbid(unsafe_code)]

mod blows;
pub mod campaign;
mod counts;
pub mod exhaustive;
mod faults;
mod history;
mod play;
mod sabotage;
mod task;
pub mod trials;
mod watch;
mod witness;

pub use blows::{Blow, Blows, Situation};
pub use counts::{Counts, Seen};
pub use play::{Outcome, Workload, run, run_sabotaged};
pub use sabotage::{Rule, Sabotage};
pub use watch::{Checker, Violation};
