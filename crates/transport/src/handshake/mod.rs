//! How a connection comes to be: OFFER, ANSWER, LANES both ways, READY.
//!
//! [`Connector`] and [`Acceptor`] are two state machines without I/O. They take messages, sockets and the time
//! ([`Handshake`]), and give [`Action`]s ([`Makes`]). They may be moved to another thread between any two calls, which
//! is how set-up calls that block stay off the control thread.

mod acceptor;
mod connector;
mod failure;
mod opening;

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use railweave_fabric::{Fabric, LaneId, Part, RailId};

pub use self::acceptor::{AcceptPairing, Acceptor};
pub use self::connector::Connector;
pub use self::failure::{Awaited, HandshakeFailure, LaneRefused, LeftOut};
use crate::message::Token;
use crate::{Error, Event, Message, PortOffer};

/// One port of the device that a connection is made on.
pub struct HandshakePort<F: Fabric> {
    /// The port as it is offered.
    pub offer: PortOffer,
    /// Where its memory is registered.
    pub domain: Arc<F::Domain>,
    /// The weight that the options give the port; None takes the speed.
    pub weight: Option<u32>,
}

impl<F: Fabric> Clone for HandshakePort<F> {
    fn clone(&self) -> Self {
        Self { offer: self.offer, domain: Arc::clone(&self.domain), weight: self.weight }
    }
}

/// A lane that is to be dialled.
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
    /// What to present.
    pub token: Token,
}

/// What a handshake wants done. `C` is the connection that it makes.
#[derive(Debug)]
pub enum Action<C> {
    /// Send this to the peer, over the session.
    Send(Message),
    /// Dial this lane and hand the socket, or the reason why there is none, to `handle_dialed`.
    Dial(Dial),
    /// The connection is there. The handshake is over.
    Ready(Box<C>),
    /// There will be no connection. The handshake is over.
    Failed(Error),
}

impl<C> Action<C> {
    /// The same, where the connection that there is becomes another thing.
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
    /// Takes a message from the peer. May block where [`Self::may_block`].
    fn handle_message(&mut self, message: Message);

    /// Takes the socket of a dialled lane, or the reason why there is none.
    fn handle_dialed(&mut self, rail: RailId, lane: LaneId, socket: Result<OwnedFd, String>);

    /// Tells whether a lane waits for the socket that the peer dials; both numbers are as the peer says them.
    ///
    /// # Errors
    /// When it does not.
    fn awaits_lane(&self, rail: u8, lane: u8) -> Result<(), LaneRefused>;

    /// Takes the socket of a lane that the peer dialled; both numbers are as the peer says them.
    ///
    /// # Errors
    /// When no such lane waits for one, or the socket is none; it is closed.
    fn handle_lane(&mut self, rail: u8, lane: u8, socket: OwnedFd) -> Result<(), LaneRefused>;

    /// Gives up when the time has come. May block where [`Self::may_block`].
    fn handle_timeout(&mut self, now_ns: u64);

    /// When [`Self::handle_timeout`] has to be called, in nanoseconds of the caller's clock; None once it is over.
    fn timeout_ns(&self) -> Option<u64>;

    /// Gives it until then, in nanoseconds of the caller's clock: the time in which it could do nothing is not its own.
    fn set_deadline(&mut self, deadline_ns: u64);

    /// How long to wait before [`Self::go_on`] is called, where this host could not connect a lane yet.
    fn pause(&self) -> Option<Duration>;

    /// Goes on connecting lanes. May block where [`Self::may_block`].
    fn go_on(&mut self);

    /// What of this host the connection is being made of, as the events of its devices name it.
    fn parts(&self) -> Vec<Part>;

    /// Returns true if its calls may block, as making queue pairs does.
    fn may_block(&self) -> bool;

    /// What happened. To be asked before [`Makes::poll_action`].
    fn poll_event(&mut self) -> Option<Event>;
}

/// A handshake, and what it makes.
pub trait Makes: Handshake {
    /// The end of a connection.
    type Connection;

    /// What to do next.
    fn poll_action(&mut self) -> Option<Action<Self::Connection>>;
}
