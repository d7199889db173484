//! The protocol, without I/O: the messages by which two processes set up a connection, and the way in which a message
//! is split over its rails and put together again (docs/wire.md has every byte).
//!
//! It makes no system call, reads no clock and owns no thread. It is generic over the [`Fabric`] that it posts work on;
//! time and arrivals come in as arguments, and actions go out as values. So the same code runs on RDMA, on TCP and in a
//! simulated world.
//!
//! The life of one message reads top-down in [`SendConnection::isend`] and [`RecvConnection::irecv`]; the set-up of a
//! connection, in [`Connector`] and [`Acceptor`].
//!
//! [`Fabric`]: railweave_fabric::Fabric

#![forbid(unsafe_code)]

pub mod call;
mod climb;
mod codec;
mod config;
mod connection;
mod cts;
mod debt;
mod debtors;
mod depths;
mod error;
mod event;
mod fate;
mod flush;
mod handle;
mod handshake;
mod hello;
mod immediate;
mod known_ways;
mod lingering;
mod measured;
mod memory;
mod message;
mod posted_receives;
mod preface;
mod rail_info;
mod rails;
mod receive;
mod receive_credits;
mod received;
mod record;
mod recovery;
mod requests;
mod send;
mod sequence;
mod session;
mod slots;
mod steering;
mod sync;
mod turn;
mod violation;
mod watched;
mod work;

pub use climb::{Climb, Failed};
pub use codec::DecodeError;
pub use config::ConnectionConfig;
pub use connection::ConnectionEnd;
pub use debt::{Debt, Look};
pub use debtors::{Debtors, Indebted, LOOK_INTERVAL, LastDebtor, MOST_LOOKS_BETWEEN};
pub use error::{Cause, Error, Misuse};
pub use event::{Event, Truncated};
pub use fate::{Fate, Probe};
pub use handle::{Handle, HandleAddress};
pub use handshake::{
    AcceptPairing, Acceptor, Action, Awaited, Connector, Dial, Handshake, HandshakeFailure, HandshakePort, LaneRefused,
    LeftOut, MakesConnection, Wanted, progress,
};
pub use hello::{Hello, HelloError, MAX_HELLO_BYTES, ProcessId};
pub use immediate::{Immediate, ImmediateLayout};
pub use known_ways::KnownWays;
pub use lingering::Lingering;
pub use memory::{Incoming, MemoryKeys, Outgoing};
pub use message::{
    FRAME_HEADER_BYTES, Frame, FrameHeader, Incarnation, Lanes, Listed, MAX_FRAME_BYTES, MAX_OFFERED_PORTS,
    MAX_TARGETS, Message, Offer, PortOffer, Pulse, RailAnswer, RailLanes, RailMessage, RailNews, Resume, Seen,
    SessionId, Ways,
};
pub use preface::{LANE_PROOF_BYTES, LanePreface, PREFACE_BYTES, Preface, Token};
pub use rail_info::{LATENCIES, RailCounters, RailInfo, RailName};
pub use receive::{Flushed, RecvConnection, RecvRequest};
pub use received::Received;
pub use recovery::{GivenUp, Hearing, Hush, RailWork, Recovers, RecoveryAction};
pub use send::{PostedSlot, SendConnection, SendRequest};
pub use sequence::Slot;
pub use session::{
    Ended, Gone, HelloFault, Limit, Lost, LostCause, PeerClock, Prover, Redials, ResumeFault, Session, SessionAction,
    SessionConfig, Side, SocketEnd, SocketEndKind, Unreachable, Unwelcome,
};

pub use steering::{OwnWeights, Steering};
pub use turn::{InCall, Taken, Turn};
pub use violation::{CtsViolation, ImmediateFault, Violation};
pub use watched::Carriers;

pub use railweave_policy::{GRANULE, Order};

/// The number of slots: places for an outstanding receive in a connection.
pub const SLOTS: usize = 256;

/// The most buffers of one grouped receive (`maxRecvs`).
pub const MAX_BUFFERS: usize = 8;

/// The longest message in bytes: 1 GiB, NCCL's `MAX_NET_SIZE`.
pub const MAX_MESSAGE_BYTES: u64 = 1 << 30;

/// The protocol version that this build speaks.
pub const PROTOCOL_VERSION: u16 = 5;
