//! Errors, sorted by who is at fault: the plugin's edge maps each [`Fault`] to NCCL's result code in one table.

mod rail;
mod register;
mod setup;

use std::io;

pub use rail::{ClosedAt, RailError, SocketTrouble, WorkFailure, WorkStatus};
pub use register::RegisterError;
pub use setup::{SetupError, SetupStep, SystemError, TargetState, Transition, Tries};

/// Who is at fault. The plugin's edge turns it into an `ncclResult_t`, and nothing else decides that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A call to this host's kernel, verbs library or sockets failed.
    Local,
    /// The peer, or the path to it, failed.
    Peer,
    /// The protocol was broken or the API misused.
    Protocol,
    /// The configuration, or sizes that do not fit together.
    Configuration,
}

/// Why work could not be posted on a lane.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The lane's send queue has no room for the whole chain; nothing of it was posted. Post again after a poll,
    /// unless the chain is longer than the queue is deep.
    #[error("the lane's send queue is full")]
    Full,
    /// The lane is broken; nothing was posted, and its failed completion says why.
    #[error("the lane is broken")]
    Broken,
    /// The work itself is wrong: a key that is not registered here, a length that the fabric cannot carry.
    #[error("{0}")]
    Invalid(String),
}

/// The error with this number.
fn os(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}
