//! Errors, sorted by who is at fault: the plugin's edge maps each [`Fault`] to NCCL's result code in one table.

mod rail;

use std::fmt;

pub use rail::{ClosedAt, RailError, SocketTrouble, WorkFailure, WorkStatus};

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
    /// The lane's send queue has no room for the whole chain; nothing of it was posted. Post again after a poll.
    #[error("the lane's send queue is full")]
    Full,
    /// The lane is broken; nothing was posted, and its failed completion says why.
    #[error("the lane is broken")]
    Broken,
    /// The work itself is wrong: a key that is not registered here, a length that the fabric cannot carry.
    #[error("{0}")]
    Invalid(String),
}

/// Why memory could not be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The fabric cannot register this kind of memory.
    #[error("{fabric} cannot register {kind} memory; only host memory is supported on this device")]
    Unsupported {
        /// The fabric's name.
        fabric: &'static str,
        /// The kind of memory that was asked for.
        kind: &'static str,
    },
    /// A limit of the domain is reached.
    #[error("{0}")]
    Exhausted(String),
    /// The address range is not one: it wraps around, or lies beyond what the fabric can address.
    #[error("the range of {length} bytes at {address:#x} is no valid memory range")]
    Range {
        /// First byte.
        address: u64,
        /// Length in bytes.
        length: usize,
    },
    /// The kernel or the verbs library refused.
    #[error("{0}")]
    System(String),
}

impl RegisterError {
    /// Who is at fault.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Unsupported { .. } => Fault::Configuration,
            Self::Range { .. } => Fault::Protocol,
            Self::Exhausted(_) | Self::System(_) => Fault::Local,
        }
    }
}

/// Why a rail could not be set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetupError {
    /// Who is at fault.
    pub fault: Fault,
    /// What failed, with the values, and what to try.
    pub message: String,
}

impl fmt::Display for SetupError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for SetupError {}
