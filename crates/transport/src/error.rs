//! What goes wrong on a connection, by cause: what decides what to do next looks at these, and users read their
//! sentences.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use railweave_fabric::{Fault, LaneId, PostError, RailError, RailId, RegisterError, SetupError};

use crate::violation::{CtsViolation, Violation};
use crate::{Ended, HandshakeFailure, Lost, MAX_BUFFERS, MAX_MESSAGE_BYTES, Unreachable};

/// An error of one connection. A pointer to its cause, so that a call that succeeds carries no room for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Cause>);

/// Why a call failed, or a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// A lane of a rail died.
    #[error("{name} to {peer}, lane {lane}: {error}")]
    Lane {
        /// The rail.
        rail: RailId,
        /// The same in words, with its two ends.
        name: String,
        /// The peer.
        peer: String,
        /// The lane.
        lane: LaneId,
        /// Why.
        error: RailError,
    },
    /// A rail refused work although it had room, and no completion said why.
    #[error("{name} to {peer}: {error}")]
    Post {
        /// The rail.
        rail: RailId,
        /// The same in words, with its two ends.
        name: String,
        /// The peer.
        peer: String,
        /// Why.
        error: PostError,
    },
    /// The peer broke the protocol on a rail.
    #[error("{name} to {peer}: {violation}; the peer breaks the protocol")]
    Violation {
        /// The rail that it came on.
        rail: RailId,
        /// The same in words, with its two ends.
        name: String,
        /// The peer.
        peer: String,
        /// What it did.
        violation: Violation,
    },
    /// The peer's CTS cannot be followed.
    #[error(transparent)]
    Cts(#[from] CtsViolation),
    /// A call was wrong.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// No connection came of a set-up.
    #[error("{}", .failure.of(.peer))]
    Handshake {
        /// The peer.
        peer: String,
        /// Why.
        failure: HandshakeFailure,
    },
    /// The peer cannot be reached.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// The session ended while a connection was being set up.
    #[error("the session to {peer} ended while a connection was set up: {ended}")]
    SessionEnded {
        /// The peer.
        peer: String,
        /// Why.
        ended: Arc<Ended>,
    },
    /// The session says that the connection is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// A rail could not be made.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// Memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// What whoever drives connections found, in words of its own.
    #[error("{message}")]
    Other {
        /// Who is at fault.
        fault: Fault,
        /// A sentence that names the values and what to try.
        message: String,
    },
}

impl Cause {
    /// Who is at fault; the plugin's edge maps it to NCCL's result code.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Lane { error, .. } => error.fault(),
            Self::Post { error: PostError::Invalid(_), .. } | Self::Violation { .. } | Self::Cts(_) => Fault::Protocol,
            Self::Post { error: PostError::Full | PostError::Broken, .. } => Fault::Peer,
            Self::Misuse(misuse) => misuse.fault(),
            Self::Handshake { failure, .. } => failure.fault(),
            Self::Unreachable(why) => why.fault(),
            Self::SessionEnded { .. } | Self::Lost(_) => Fault::Peer,
            Self::Setup(error) => error.fault(),
            Self::Register(error) => error.fault(),
            Self::Other { fault, .. } => *fault,
        }
    }
}

/// A call that a connection cannot carry out, though it works.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// irecv names so many buffers.
    #[error("irecv was called with {0} buffers, allowed are 1 to {MAX_BUFFERS} (maxRecvs)")]
    Buffers(usize),
    /// A receive has so many bytes.
    #[error("a receive of {0} bytes is longer than {MAX_MESSAGE_BYTES} bytes, the maxP2pBytes of this device")]
    ReceiveTooLong(u64),
    /// A message has so many bytes.
    #[error(
        "a message of {size} bytes to {peer} is longer than {MAX_MESSAGE_BYTES} bytes, the maxP2pBytes of this device"
    )]
    MessageTooLong {
        /// Its length.
        size: u64,
        /// The peer.
        peer: String,
    },
    /// test names a receive that is over.
    #[error("test was called for receive request {0}, which is not under way; a request is over once test said done")]
    NoReceive(usize),
    /// test names a send that is over.
    #[error("test was called for send request {0}, which is not under way; a request is over once test said done")]
    NoSend(u8),
    /// More flushes than so many are outstanding.
    #[error("more than {0} flushes are outstanding on one connection; NCCL has at most 32 requests")]
    Flushes(usize),
}

impl Misuse {
    /// Who is at fault.
    pub fn fault(&self) -> Fault {
        match self {
            Self::ReceiveTooLong(_) | Self::MessageTooLong { .. } => Fault::Configuration,
            Self::Buffers(_) | Self::NoReceive(_) | Self::NoSend(_) | Self::Flushes(_) => Fault::Protocol,
        }
    }
}

impl Error {
    /// What whoever drives connections found, in words of its own.
    #[cold]
    pub fn new(fault: Fault, message: impl Into<String>) -> Self {
        Cause::Other { fault, message: message.into() }.into()
    }

    /// The peer, or the path to it, failed.
    pub fn peer(message: impl Into<String>) -> Self {
        Self::new(Fault::Peer, message)
    }

    /// The protocol was broken, or the API misused.
    pub fn protocol(message: impl Into<String>) -> Self {
        Self::new(Fault::Protocol, message)
    }

    /// The configuration is at fault.
    pub fn configuration(message: impl Into<String>) -> Self {
        Self::new(Fault::Configuration, message)
    }

    /// This host's kernel, verbs library or sockets failed.
    pub fn local(message: impl Into<String>) -> Self {
        Self::new(Fault::Local, message)
    }
}

impl Deref for Error {
    type Target = Cause;

    fn deref(&self) -> &Cause {
        &self.0
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl std::error::Error for Error {}

/// Every cause makes an error, and whatever makes a cause.
impl<C: Into<Cause>> From<C> for Error {
    #[cold]
    fn from(cause: C) -> Self {
        Self(Box::new(cause.into()))
    }
}
