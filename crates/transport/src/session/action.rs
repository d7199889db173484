//! The tasks that a session hands to its caller.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::{Ended, Lost, Unreachable};
use crate::{Frame, Message, Offer, RailNews, Received, Resume};

/// A task that a session hands to its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionAction {
    /// Dial this address. Then call [`crate::Session::handle_connected`], or [`crate::Session::handle_lost`].
    Dial {
        /// The address of this host to dial from; `None` if the kernel chooses.
        from: Option<IpAddr>,
        /// The address to dial.
        to: SocketAddr,
    },
    /// Send this frame; on a dialled socket [`crate::Preface::Session`] goes before the first, unless it is dialled for
    /// a [check](crate::Session::is_checking).
    Send(Frame),
    /// Read nothing more from the socket, and close it: at once, or with `flush` once everything sent has gone out.
    /// Report nothing more about this socket; reports that follow are about the next one.
    HangUp {
        /// True if everything sent must still reach the peer.
        flush: bool,
    },
    /// The peer is the expected one: connections may be begun.
    Up,
    /// The session has lost its socket for this reason, and looks for another. Its connections go on.
    Away(Arc<Ended>),
    /// The session has found no socket yet: what has waited for it for long may fail.
    StillAway,
    /// The session goes on over another socket.
    Back {
        /// The time that it was without one, in nanoseconds.
        after_ns: u64,
    },
    /// A peer wants to go on with a session on this socket. Find the session with this name that
    /// [allows it](crate::Session::check_resume), give the socket to that one, and forget this one; or call
    /// [`crate::Session::refuse_resume`].
    Resume(Resume),
    /// Call [`crate::Session::handle_judged`] with the state of this open connection's probe: [`crate::Fate::judge`].
    Judge {
        /// The connection.
        connection: u32,
        /// True if another probe is to be asked for.
        is_due: bool,
        /// True if the peer's process seems to have ended, or has been silent for longer than its time.
        insists: bool,
    },
    /// The peer has closed this connection, and says what it had received: tell the connection's [`crate::Fate`].
    Received {
        /// The connection.
        connection: u32,
        /// The receives that the peer has had.
        received: Received,
    },
    /// There will be no session to the wanted process.
    Unreachable(Unreachable),
    /// The session has ended. More actions may follow for connections that are open or closed.
    Ended(Arc<Ended>),
    /// The peer offers a connection: call [`crate::Session::accept_offer`] or [`crate::Session::refuse`], now or later.
    Offer {
        /// The connection.
        connection: u32,
        /// The offer.
        offer: Offer,
    },
    /// The peer has taken this offer back, or its session is gone: forget the offer.
    Withdrawn(u32),
    /// A message for the handshake of this connection.
    Message {
        /// The connection.
        connection: u32,
        /// The message.
        message: Message,
    },
    /// A step of the peer in the recovery of a rail of this open connection:
    /// [`crate::Recovers::handle_rail_news`].
    Rail {
        /// The connection.
        connection: u32,
        /// The step.
        news: RailNews,
    },
    /// The peer is still setting up this connection, so its timeout restarts.
    Waits(u32),
    /// The session ended while this connection was set up. Call [`crate::Session::failed`], or
    /// [`crate::Session::opened`] if the last message had already come and completes the connection.
    Interrupted(u32),
    /// The peer has left this open connection, which will soon be lost.
    PeerLeft(u32),
    /// This open connection is lost: tell its [`crate::Fate`].
    Lost {
        /// The connection.
        connection: u32,
        /// The reason.
        lost: Lost,
    },
    /// Let this closed connection linger, and report to [`crate::Session::handle_lingered`] if it is drained.
    Linger(u32),
    /// This closed connection has ended: drop its end.
    Over(u32),
}
