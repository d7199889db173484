//! The files by which a running job is watched and steered: telemetry, and the two policy files.
//!
//! * [`Publisher`] writes the telemetry file of a process, and [`read()`] reads it; `docs/telemetry.md` has every byte.
//! * [`PolicyFile`] reads the policy file of Railweave, and [`SeedPolicy`] the table of weights that other agents write;
//!   [`Steering`] joins the two.
//!
//! Nothing here maps a file or locks one, so nobody can stop or crash a job by truncating, filling or locking anything.
//! This crate decides nothing: it carries counters out of a process and orders into it. The plugin's control thread
//! calls it.
#![forbid(unsafe_code)]

mod header;
mod image;
mod latencies;
mod layout;
mod process;
mod read;
mod run_dir;
mod snapshot;
mod sweep;
mod write;

pub use latencies::{BUCKETS, Latencies};
pub use layout::{LARGEST_FILE, MAJOR, MINOR, MOST_CONNECTIONS, MOST_DEVICES, MOST_EVENTS, MOST_RAILS};
pub use process::{Presence, Process};
pub use read::{Damage, ReadError, decode, read};
pub use run_dir::{RunDir, RunDirError};
pub use snapshot::{
    Connection, ConnectionState, Device, Direction, Event, EventKind, Policy, Rail, RailState, Snapshot, State,
};
pub use sweep::{OLD, sweep};
pub use write::{IDLE_NS, Notice, Publisher, WriteError};
