//! Errors, classified by who is at fault: the plugin maps each [`Fault`] to NCCL's result code in one table.

mod rail;
mod register;
mod setup;

use std::io;

pub use rail::{ClosedAt, RailError, SocketTrouble, WorkFailure, WorkStatus};
pub use register::RegisterError;
pub use setup::{SetupError, SetupStep, SystemError, TargetState, Transition, Tries};

/// The party at fault. It alone decides which `ncclResult_t` the plugin returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A call to this host's kernel, verbs library or sockets failed.
    Local,
    /// The peer, or the path to it, failed.
    Peer,
    /// The protocol was broken or the API misused.
    Protocol,
    /// The configuration is wrong, or sizes do not fit together.
    Configuration,
}

/// The reason why work could not be posted on a lane.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The lane's send queue has no room for the whole chain; nothing was posted. Retry after a poll, unless the chain
    /// is longer than the queue.
    #[error("the lane's send queue is full")]
    Full,
    /// The lane is broken; nothing was posted. Its failed completion gives the reason.
    #[error("the lane is broken")]
    Broken,
    /// The work itself is invalid: a key that is not registered here, or a length that the fabric cannot carry.
    #[error("{0}")]
    Invalid(String),
}

/// Returns the error with this number.
fn os(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}
