//! The errors of a connection, by cause: code decides by the cause, and users read its message.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use railweave_fabric::{Fault, LaneId, PostError, RailError, RailId, RegisterError, SetupError};

use crate::violation::{CtsViolation, Violation};
use crate::{Ended, HandshakeFailure, Lost, MAX_BUFFERS, MAX_MESSAGE_BYTES, Unreachable};

/// An error of one connection. It is only a pointer to its cause, so that the results of successful calls stay small.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Cause>);

/// The reason why a call failed, or a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// A lane of a rail failed.
    #[error("{name} to {peer}, lane {lane}: {error}")]
    Lane {
        /// The rail.
        rail: RailId,
        /// The rail's name, with its two ends.
        name: String,
        /// The peer.
        peer: String,
        /// The lane.
        lane: LaneId,
        /// The reason.
        error: RailError,
    },
    /// A rail refused work although it had room, and no completion said why.
    #[error("{name} to {peer}: {error}")]
    Post {
        /// The rail.
        rail: RailId,
        /// The rail's name, with its two ends.
        name: String,
        /// The peer.
        peer: String,
        /// The reason.
        error: PostError,
    },
    /// The peer broke the protocol on a rail.
    #[error("{name} to {peer}: {violation}; the peer breaks the protocol")]
    Violation {
        /// The rail that it came on.
        rail: RailId,
        /// The rail's name, with its two ends.
        name: String,
        /// The peer.
        peer: String,
        /// The breach.
        violation: Violation,
    },
    /// An adapter of this host has data that the peer knows as placed, so that nobody can send it again, and has died,
    /// or makes it visible to no GPU any more.
    #[error(
        "{name} to {peer}: its adapter has acknowledged data to the peer, which cannot be sent again, and does not \
         place it in memory or make it visible to the GPU; look at the kernel log of this host, and at the adapter"
    )]
    Unrepairable {
        /// The rail.
        rail: RailId,
        /// The rail's name, with its two ends.
        name: String,
        /// The peer.
        peer: String,
    },
    /// A device of this host has refused to take the queue pairs of a failed rail out of service, so that nobody knows
    /// when its last data lands.
    #[error(
        "{name} to {peer} has failed, and its device refuses to end its queue pairs, which may still write to memory; \
         look at the kernel log of this host, and reset the adapter"
    )]
    Unended {
        /// The rail.
        rail: RailId,
        /// The rail's name, with its two ends.
        name: String,
        /// The peer.
        peer: String,
    },
    /// No rail of the connection carried anything for too long.
    #[error(
        "no rail to {peer} has carried anything for {:.1} s, longer than RAILWEAVE_OUTAGE_TIMEOUT: {history}; check \
         the cables, the switches and the ports' addresses, or raise RAILWEAVE_OUTAGE_TIMEOUT",
        *.for_ns as f64 / 1e9
    )]
    Outage {
        /// The peer.
        peer: String,
        /// The time, in nanoseconds.
        for_ns: u64,
        /// The reasons why its rails went down.
        history: String,
    },
    /// The peer has not said for too long what had come over a rail that failed.
    #[error(
        "{name} to {peer} failed {:.1} s ago, and the peer has not said since what had come over it, longer than \
         RAILWEAVE_OUTAGE_TIMEOUT: the control session finds no way, or the peer's process stands still; look at that \
         process, check that its control port can be reached (RAILWEAVE_CONTROL_PORT), or raise \
         RAILWEAVE_OUTAGE_TIMEOUT",
        *.for_ns as f64 / 1e9
    )]
    Unanswered {
        /// The rail.
        rail: RailId,
        /// The rail's name, with its two ends.
        name: String,
        /// The peer.
        peer: String,
        /// The time, in nanoseconds.
        for_ns: u64,
    },
    /// A CTS entry from the peer is wrong.
    #[error(transparent)]
    Cts(#[from] CtsViolation),
    /// A call was wrong.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The set-up of a connection failed.
    #[error("{}", .failure.of(.peer))]
    Handshake {
        /// The peer.
        peer: String,
        /// The reason.
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
        /// The reason.
        ended: Arc<Ended>,
    },
    /// The session has been away for longer than a new connection waits for it.
    #[error(
        "the control session with {peer} lost its socket ({why}) and has not gone on for {:.1} s, longer than \
         RAILWEAVE_HANDSHAKE_TIMEOUT; check that the peer runs, and the network between the hosts",
        *.for_ns as f64 / 1e9
    )]
    SessionAway {
        /// The peer.
        peer: String,
        /// The reason why it lost its socket.
        why: Arc<Ended>,
        /// The time since then, in nanoseconds.
        for_ns: u64,
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
    /// An error that the code that drives connections found, in its own words.
    #[error("{message}")]
    Other {
        /// The party at fault.
        fault: Fault,
        /// A sentence that names the values and what to try.
        message: String,
    },
}

impl Cause {
    /// Returns the party at fault; the plugin's edge maps it to NCCL's result code.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Lane { error, .. } => error.fault(),
            Self::Post { error: PostError::Invalid(_), .. } | Self::Violation { .. } | Self::Cts(_) => Fault::Protocol,
            Self::Post { error: PostError::Full | PostError::Broken, .. } => Fault::Peer,
            Self::Misuse(misuse) => misuse.fault(),
            Self::Handshake { failure, .. } => failure.fault(),
            Self::Unreachable(why) => why.fault(),
            Self::SessionEnded { .. } | Self::SessionAway { .. } | Self::Lost(_) | Self::Outage { .. } => Fault::Peer,
            Self::Unrepairable { .. } | Self::Unended { .. } => Fault::Local,
            Self::Setup(error) => error.fault(),
            Self::Register(error) => error.fault(),
            Self::Unanswered { .. } => Fault::Peer,
            Self::Other { fault, .. } => *fault,
        }
    }
}

/// A wrong call, which a connection refuses although it works.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// irecv was called with this many buffers.
    #[error("irecv was called with {0} buffers; allowed: 1 to {MAX_BUFFERS} (maxRecvs)")]
    Buffers(usize),
    /// A receive has this many bytes.
    #[error("a receive of {0} bytes is longer than {MAX_MESSAGE_BYTES} bytes, the maxP2pBytes of this device")]
    ReceiveTooLong(u64),
    /// A message is too long.
    #[error(
        "a message of {size} bytes to {peer} is longer than {MAX_MESSAGE_BYTES} bytes, the maxP2pBytes of this device"
    )]
    MessageTooLong {
        /// Its length.
        size: u64,
        /// The peer.
        peer: String,
    },
    /// test was called for a receive that has ended.
    #[error("test was called for receive request {0}, which is not in progress; a request ends once test reports done")]
    NoReceive(usize),
    /// test was called for a send that has ended.
    #[error("test was called for send request {0}, which is not in progress; a request ends once test reports done")]
    NoSend(u8),
    /// More than this many flushes are outstanding.
    #[error("more than {0} flushes are outstanding on one connection; NCCL has at most 32 requests")]
    Flushes(usize),
}

impl Misuse {
    /// Returns the party at fault.
    pub fn fault(&self) -> Fault {
        match self {
            Self::ReceiveTooLong(_) | Self::MessageTooLong { .. } => Fault::Configuration,
            Self::Buffers(_) | Self::NoReceive(_) | Self::NoSend(_) | Self::Flushes(_) => Fault::Protocol,
        }
    }
}

impl Error {
    /// Returns an error that the code that drives connections found, in its own words.
    #[cold]
    pub fn new(fault: Fault, message: impl Into<String>) -> Self {
        Cause::Other { fault, message: message.into() }.into()
    }

    /// Returns an error that blames the peer, or the path to it.
    pub fn peer(message: impl Into<String>) -> Self {
        Self::new(Fault::Peer, message)
    }

    /// Returns an error for a breach of the protocol, or a misuse of the API.
    pub fn protocol(message: impl Into<String>) -> Self {
        Self::new(Fault::Protocol, message)
    }

    /// Returns an error for a wrong configuration.
    pub fn configuration(message: impl Into<String>) -> Self {
        Self::new(Fault::Configuration, message)
    }

    /// Returns an error for a failure of this host's kernel, verbs library or sockets.
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

/// Every cause converts to an error, and so does everything that converts to a cause.
impl<C: Into<Cause>> From<C> for Error {
    #[cold]
    fn from(cause: C) -> Self {
        Self(Box::new(cause.into()))
    }
}
