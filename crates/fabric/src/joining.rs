//! The two ways in which the lanes of two ends find each other. A fabric uses one of them, and has no calls for the
//! other.

use std::fmt;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::{LaneId, SetupError};

/// The way in which a fabric's lanes are connected, and the pending rail's part in it. `P` is the fabric's
/// [`crate::PendingRail`].
pub enum Joining<P> {
    /// Both ends exchange one end point per lane, and each connects its lanes to the other's. Opening and connecting
    /// such a rail may block.
    ByExchange {
        /// Returns one end point per lane, for the peer.
        endpoints: fn(&P) -> Vec<LaneEndpoint>,
        /// Starts or continues connecting the lanes to the peer's end points. May block, but does not sleep between
        /// attempts: the caller sleeps, and calls again with the same end points. Fails if a lane cannot be connected;
        /// the error names the peer, the port and the attribute.
        connect: fn(&mut P, &[LaneEndpoint]) -> Result<Connecting, SetupError>,
    },
    /// Lanes are sockets: one end dials them, the other accepts them. Nothing blocks.
    BySockets {
        /// Returns true if this lane of the rail has no socket, or one that the peer has closed.
        awaits: fn(&P, LaneId) -> bool,
        /// Hands over the connected socket of a lane that awaits one; it replaces a closed one. Fails if the lane does
        /// not exist, if it has a socket that the peer has not closed, or if the socket cannot be configured.
        attach: fn(&mut P, LaneId, OwnedFd) -> Result<(), SetupError>,
    },
}

impl<P> Joining<P> {
    /// Returns true if opening a rail and connecting its lanes may block.
    pub const fn may_block(&self) -> bool {
        matches!(self, Self::ByExchange { .. })
    }
}

impl<P> fmt::Debug for Joining<P> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::ByExchange { .. } => "ByExchange",
            Self::BySockets { .. } => "BySockets",
        })
    }
}

/// A lane's address for the other end, in the fabric's own format (docs/wire.md). All zero for a lane that is a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneEndpoint(pub [u8; LaneEndpoint::BYTES]);

impl LaneEndpoint {
    /// Length on the wire.
    pub const BYTES: usize = 48;
}

impl Default for LaneEndpoint {
    fn default() -> Self {
        Self([0; Self::BYTES])
    }
}

/// The progress of connecting a rail's lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connecting {
    /// Every lane is connected.
    Done,
    /// This host could not do it yet, for example because it is still resolving the peer's address. Call again after
    /// the pause.
    Later {
        /// Time to wait.
        pause: Duration,
        /// The failure of this attempt; the final reason if no time is left for another.
        reason: SetupError,
    },
}
