//! What a session wants done.

use std::net::SocketAddr;
use std::sync::Arc;

use super::{Ended, Lost, Unreachable};
use crate::{Frame, Message, Offer};

/// What a session wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionAction {
    /// Dial this address. Then call [`crate::Session::handle_connected`], or [`crate::Session::handle_lost`].
    Dial(SocketAddr),
    /// Send this frame; on a dialled socket [`crate::Preface::Session`] goes before the first.
    Send(Frame),
    /// Read nothing more from the socket, and close it: at once, or where `flush` is set when all that was sent has
    /// gone out. Nothing more is to be said of this socket; the next one is another.
    HangUp {
        /// What was sent is to reach the peer.
        flush: bool,
    },
    /// The peer is who it should be: connections may be begun.
    Up,
    /// There will be no session to the wanted process.
    Unreachable(Unreachable),
    /// The session is over. Of connections that are open or closed there may be more to say.
    Ended(Arc<Ended>),
    /// The peer offers a connection: call [`crate::Session::accept_offer`] or [`crate::Session::refuse`], now or later.
    Offer {
        /// The connection.
        connection: u32,
        /// The offer.
        offer: Offer,
    },
    /// The peer has taken back an offer, or its session is gone: forget it.
    Withdrawn(u32),
    /// A message for the handshake of this connection.
    Message {
        /// The connection.
        connection: u32,
        /// The message.
        message: Message,
    },
    /// The peer still works at this connection's set-up, so its time begins anew.
    Waits(u32),
    /// The session ended while this connection was set up. Call [`crate::Session::failed`], or
    /// [`crate::Session::opened`] where the last message had come and the connection is made of it.
    Interrupted(u32),
    /// The peer has left this open connection; it is lost soon.
    PeerLeft(u32),
    /// This open connection is lost: tell its [`crate::Link`].
    Lost {
        /// The connection.
        connection: u32,
        /// Why.
        lost: Lost,
    },
    /// Let this closed connection linger, and say in [`crate::Session::handle_lingered`] how far it is.
    Linger(u32),
    /// This closed connection is over: drop its end.
    Over(u32),
}
