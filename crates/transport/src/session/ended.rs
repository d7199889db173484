//! Why sessions end, why there is none, and why connections are lost by it. The sentences are neutral: what to set and
//! where to look is added by whoever knows the options.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use thiserror::Error;

use crate::HelloError;
use crate::codec::DecodeError;

/// What became of a session's socket, as the caller saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketEnd {
    /// What it means for the next try to reach the peer.
    pub kind: SocketEndKind,
    /// What happened, in words.
    pub text: String,
}

/// What the end of a socket means for the next try to reach its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketEndKind {
    /// The host has no route to the address.
    NoRoute,
    /// The peer has closed it and had not sent a byte: it may welcome whoever dials again.
    Mute,
    /// Anything else.
    Other,
}

/// Why a session ended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Ended {
    /// Its socket ended.
    #[error("{0}")]
    Socket(String),
    /// HELLO or PROOF did not come in time.
    #[error("Handshake timeout: no HELLO or proof came in time; check that no firewall blocks TCP between the hosts")]
    Late,
    /// The peer did not answer a PING in time.
    #[error("it has been silent for {:.1} s and was asked", *.for_ns as f64 / 1e9)]
    Silent {
        /// How long nothing has come from it, in nanoseconds.
        for_ns: u64,
    },
    /// The peer does not read what is sent to it, so that nothing is read from it either.
    #[error("it has not read what was sent to it for {:.1} s: {unsent} bytes wait for it", *.for_ns as f64 / 1e9)]
    NotReading {
        /// How long nothing was read from it, in nanoseconds.
        for_ns: u64,
        /// Bytes that wait to be sent.
        unsent: usize,
    },
    /// The peer sent a message that it may not send now.
    #[error("a control message came out of turn")]
    OutOfTurn,
    /// No connection uses it.
    #[error("no connection uses it")]
    Idle,
    /// The peer's HELLO or proof was refused.
    #[error("closed")]
    Refused,
    /// What the peer sent is no frame, or no message.
    #[error(transparent)]
    Garbled(#[from] DecodeError),
    /// The peer broke a limit of the caller's.
    #[error("{0}")]
    Limit(String),
}

/// What is wrong with a HELLO.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HelloFault {
    /// It is none.
    #[error(transparent)]
    Garbled(#[from] DecodeError),
    /// It does not agree with this process's.
    #[error(transparent)]
    Differs(#[from] HelloError),
}

/// Why a peer is not welcome: each is worth a line in the log.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unwelcome {
    /// Its HELLO does not fit.
    #[error("{address}: {fault}; its session was refused")]
    Hello {
        /// Where it dialled from.
        address: SocketAddr,
        /// What is wrong.
        fault: HelloFault,
    },
    /// It did not say HELLO, or prove that it has the key, in time.
    #[error("{address} opened a session but did not say who it is in time; it was closed")]
    Late {
        /// Where it dialled from.
        address: SocketAddr,
    },
    /// It sent a message that it may not send now.
    #[error("{peer} sent a control message out of turn; its session was closed")]
    OutOfTurn {
        /// The peer.
        peer: String,
    },
    /// It has another key.
    #[error("{peer} has another key; its session was refused")]
    OtherKey {
        /// The peer.
        peer: String,
    },
}

/// Why an opener has no session to the process that it wants.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unreachable {
    /// Its HELLO does not fit to this process's.
    #[error("{address}: {fault}")]
    Hello {
        /// Where it was reached.
        address: SocketAddr,
        /// What is wrong.
        fault: HelloFault,
    },
    /// It has another key.
    #[error("{peer} has another key")]
    OtherKey {
        /// The peer.
        peer: String,
    },
    /// There is no address to dial.
    #[error("there is no address to dial")]
    NoAddress,
    /// No address brought a session.
    #[error("{}", tries.join("; "))]
    Tried {
        /// What became of each try, with its address.
        tries: Vec<String>,
        /// The host has no route to any of them.
        no_route: bool,
        /// All addresses are loopback addresses.
        loopback: bool,
    },
}

/// Why an open connection is lost to its session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The peer.
    pub peer: String,
    /// What it did, or what happened to it.
    pub cause: LostCause,
}

/// What ends an open connection besides its rails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LostCause {
    /// The peer has closed it.
    Bye,
    /// The peer gave it up while it took it to be in set-up still.
    GaveUp(String),
    /// The session ended.
    Session(Arc<Ended>),
}

impl fmt::Display for Lost {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (peer, log) = (&self.peer, "look at that process's own log for the reason");
        match &self.cause {
            LostCause::Bye => write!(out, "{peer} has closed the connection; {log}"),
            LostCause::GaveUp(reason) => write!(out, "{peer} gave the connection up: {reason}"),
            LostCause::Session(ended) => write!(out, "{peer} is gone: {ended}; {log}"),
        }
    }
}
