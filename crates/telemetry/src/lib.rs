//! The files by which a running job is watched and steered: telemetry, the two policy files, and the history of orders.
//!
//! * [`Publisher`] writes the telemetry file of a process, and [`read()`] reads it; `docs/telemetry.md` has every byte.
//! * [`PolicyFile`] reads the policy file of Railweave, and [`SeedPolicy`] the table of weights that other agents
//!   write; [`Steering`] joins the two.
//!
//! Nothing here maps a file or locks one, so nobody can stop or crash a job by truncating, filling or locking anything.
//! This crate decides nothing: it carries counters out of a process and orders into it. The plugin's control thread
//! calls it.
#![forbid(unsafe_code)]

mod folder;
mod follow;
mod header;
mod history;
mod image;
mod latencies;
mod layout;
mod policy_file;
mod process;
mod read;
mod rules;
mod run_dir;
mod seed_policy;
mod snapshot;
mod steering;
mod sweep;
mod trusted;
mod write;

#[cfg(test)]
mod tests;

pub use folder::{Files, Folder, FolderError, FoundPolicy, Lock, MOST_ENTRIES, MOST_FILES};
pub use follow::{Follower, Look};
pub use history::HistoryEntry;
pub use latencies::{BUCKETS, Latencies};
pub use layout::{LARGEST_FILE, MAJOR, MINOR, MOST_CONNECTIONS, MOST_DEVICES, MOST_EVENTS, MOST_PORTS, MOST_RAILS};
pub use policy_file::{LARGEST_POLICY, PolicyFile};
pub use process::{Presence, Process};
pub use read::{Damage, ReadError, decode, read, read_each};
pub use rules::{MOST_RULES, Order, RAILS, RuleError, Rules, Subject};
pub use run_dir::{RunDir, RunDirError};
pub use seed_policy::{CreateError, MOST_RANKS, SEED_POLICY_MAGIC, SEED_POLICY_PATH, SeedPolicy, create_seed_policy};
pub use snapshot::{
    Connection, ConnectionState, Device, Direction, Event, EventKind, Policy, Port, Rail, RailState, Snapshot, State,
};
pub use steering::Steering;
pub use sweep::{OLD, sweep};
pub use trusted::{FileError, Stamp};
pub use write::{IDLE_NS, Notice, Publisher, SILENT, WriteError};
