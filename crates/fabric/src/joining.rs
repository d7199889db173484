//! How the lanes of two ends find each other: a fabric has one of two ways, and what it does not have cannot be asked.

use std::fmt;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::{LaneId, SetupError};

/// How the lanes of a fabric come to be connected, and what a pending rail does for that. `P` is the fabric's
/// [`crate::PendingRail`].
pub enum Joining<P> {
    /// Both ends exchange one end point per lane, and each connects its lanes to the other's. Opening such a rail and
    /// connecting it may block.
    ByExchange {
        /// One end point per lane, for the peer.
        endpoints: fn(&P) -> Vec<LaneEndpoint>,
        /// Connects the lanes to the peer's end points, or goes on with it. May block, but does not sleep between two
        /// tries: that is the caller's, who calls again with the same end points. Fails when a lane cannot be brought
        /// up; the error names the peer, the port and the attribute.
        connect: fn(&mut P, &[LaneEndpoint]) -> Result<Connecting, SetupError>,
    },
    /// Lanes are sockets, which one end dials and the other accepts. Nothing blocks.
    BySockets {
        /// Returns true if this lane of the rail has no socket, or one that the peer has closed.
        awaits: fn(&P, LaneId) -> bool,
        /// Hands over the connected socket of a lane that awaits one, in place of a closed one. Fails when the lane
        /// does not exist, has a socket that the peer has not closed, or the socket cannot be configured.
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

/// How the other end reaches a lane, in the fabric's own bytes (docs/wire.md gives them per fabric). All zero stands
/// for a lane that is a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneEndpoint(pub [u8; LaneEndpoint::BYTES]);

impl LaneEndpoint {
    /// Its length on the wire.
    pub const BYTES: usize = 48;
}

impl Default for LaneEndpoint {
    fn default() -> Self {
        Self([0; Self::BYTES])
    }
}

/// How far connecting the lanes of a rail came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connecting {
    /// Every lane is connected.
    Done,
    /// This host could not do it yet, as while it looks the peer's address up. Call again after the pause.
    Later {
        /// How long to wait.
        pause: Duration,
        /// What did not work this time: the reason, when there is no time left to try again.
        reason: SetupError,
    },
}
