//! Measurements of a plugin: collectives, latency and bandwidth, sweeps over all sizes, many connections, and the
//! traffic of each rail over time.
//!
//! This is not a collective library for others to use. A [`Communicator`] runs collectives over any implementation of
//! [`railweave_nccl_host::NetApi`].
//!
//! The path of a message: a collective is written as a plan (`plan.rs`), `progress.rs` executes it on connections, and
//! these call the API; a profiler hears of it as it does from NCCL (`announcement.rs`). Ranks are processes of their
//! own ([`ranks`]), which exchange handles through their parent ([`bootstrap`]).

mod announcement;
pub mod bootstrap;
pub mod communicator;
pub mod connections;
pub mod crowd;
pub mod ends;
pub mod error;
pub mod figures;
pub mod flow;
pub mod messages;
pub mod nccl;
pub mod numbers;
pub mod pair;
pub mod patience;
mod plan;
pub mod process;
mod progress;
pub mod ranks;
pub mod samples;
pub mod sockets;
pub mod sweep;

pub use communicator::Communicator;
pub use error::CommunicatorError;
