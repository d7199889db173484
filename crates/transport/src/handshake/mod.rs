//! The set-up of a connection: OFFER, ANSWER, LANES both ways, over RDMA PROBE both ways, READY.
//!
//! [`Connector`] and [`Acceptor`] are two state machines without I/O. They take messages, sockets and the time
//! ([`Handshake`]), and return [`Action`]s ([`MakesConnection`]). They may move to another thread between any two
//! calls, so that set-up calls that block need not run on the control thread.

mod acceptor;
mod connector;
mod failure;
mod opening;
mod plan;
mod probe;
pub mod progress;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use railweave_fabric::{Fabric, LaneId, Part, RailId, Step};

pub use self::acceptor::{AcceptPairing, Acceptor};
pub use self::connector::{Connector, Wanted};
pub use self::failure::{Awaited, HandshakeFailure, LaneRefused, LeftOut};
pub(crate) use self::probe::{Probe, repeat_ns};
use crate::message::Incarnation;
use crate::preface::Token;
use crate::{Error, Event, Message, PortOffer};

/// One port that a connection may use: of its device, or another of the host.
pub struct HandshakePort<F: Fabric> {
    /// The port as it is offered.
    pub offer: PortOffer,
    /// The domain in which its memory is registered.
    pub domain: Arc<F::Domain>,
    /// The weight that takes the place of the port's speed; `None` if its speed counts.
    pub weight: Option<u32>,
    /// The port's weight under the policy `static`, from the options; `None` if they have none.
    pub fixed: Option<u32>,
}

impl<F: Fabric> Clone for HandshakePort<F> {
    fn clone(&self) -> Self {
        Self { offer: self.offer, domain: Arc::clone(&self.domain), weight: self.weight, fixed: self.fixed }
    }
}

/// A lane to dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dial {
    /// The rail.
    pub rail: RailId,
    /// The lane.
    pub lane: LaneId,
    /// Address to dial from.
    pub local: IpAddr,
    /// Address to dial; the port is the session's.
    pub remote: IpAddr,
    /// The token to present.
    pub token: Token,
    /// The incarnation of the rail that the lane belongs to.
    pub incarnation: Incarnation,
}

/// A task that a handshake hands to its caller. `C` is the connection that it makes.
#[derive(Debug)]
pub enum Action<C> {
    /// Send this to the peer, over the session.
    Send(Message),
    /// Dial this lane and hand the socket, or the reason why there is none, to `handle_dialled`.
    Dial(Dial),
    /// The connection is made, and the handshake has ended.
    Ready(Box<C>),
    /// The handshake has ended without a connection.
    Failed(Error),
}

impl<C> Action<C> {
    /// Converts the connection of [`Self::Ready`] with `made`; other actions stay as they are.
    pub fn map<D>(self, made: impl FnOnce(Box<C>) -> Box<D>) -> Action<D> {
        match self {
            Self::Send(message) => Action::Send(message),
            Self::Dial(dial) => Action::Dial(dial),
            Self::Ready(connection) => Action::Ready(made(connection)),
            Self::Failed(error) => Action::Failed(error),
        }
    }
}

/// One side of a connection's set-up, whatever its fabric and its side.
pub trait Handshake: Send {
    /// Handles a message from the peer. May block if [`Self::may_block`].
    fn handle_message(&mut self, message: Message);

    /// Takes the socket of a dialled lane, or the reason why there is none.
    fn handle_dialled(&mut self, rail: RailId, lane: LaneId, socket: Result<OwnedFd, String>);

    /// Checks that a lane waits for the socket that the peer dials; both numbers are as the peer sent them.
    ///
    /// # Errors
    /// If the lane does not wait for one.
    fn awaits_lane(&self, rail: u8, lane: u8) -> Result<(), LaneRefused>;

    /// Takes the socket of a lane that the peer dialled; both numbers are as the peer sent them.
    ///
    /// # Errors
    /// If no such lane waits for a socket, or this one is unusable; it is closed.
    fn handle_lane(&mut self, rail: u8, lane: u8, socket: OwnedFd) -> Result<(), LaneRefused>;

    /// Gives up if the deadline has passed. May block if [`Self::may_block`].
    fn handle_timeout(&mut self, now_ns: u64);

    /// Returns when [`Self::handle_timeout`] must be called, in nanoseconds of the caller's clock; `None` once the
    /// handshake has ended.
    fn timeout_ns(&self) -> Option<u64>;

    /// Sets the deadline, in nanoseconds of the caller's clock: time in which the handshake could do nothing does not
    /// count.
    fn set_deadline(&mut self, deadline_ns: u64);

    /// Returns the time to wait before [`Self::go_on`] is called, if this host could not connect a lane yet, or waits
    /// for the first packets of its rails to come through.
    fn pause(&self) -> Option<Duration>;

    /// Continues to connect lanes, or to wait for their first packets. May block if [`Self::may_block`].
    fn go_on(&mut self, now_ns: u64);

    /// Returns the parts of this host that the connection will use, as the events of the host's devices name them.
    fn parts(&self) -> Vec<Part>;

    /// Handles the failure of a part of this host, for this reason: the next call that may block leaves out the rails
    /// that use it. Returns false if the peer may count on them already; the handshake must be given up then.
    fn handle_part_failed(&mut self, failed: &Part, reason: &str) -> bool;

    /// Returns true if its calls may block, as making queue pairs does.
    fn may_block(&self) -> bool;

    /// Returns the step of the ladder that gave the rails, once a connector has its answer; `None` for an acceptor.
    fn step(&self) -> Option<Step> {
        None
    }

    /// Returns true if the handshake is a connector's and has failed because none of its rails came up: others may.
    fn is_of_rails(&self) -> bool {
        false
    }

    /// Returns the next event. Must be called before [`MakesConnection::poll_action`].
    fn poll_event(&mut self) -> Option<Event>;
}

/// A handshake that makes one end of a connection.
pub trait MakesConnection: Handshake {
    /// The end that it makes.
    type Connection;

    /// Returns the next action.
    fn poll_action(&mut self) -> Option<Action<Self::Connection>>;
}
