//! The two ways in which the lanes of two ends find each other. A fabric uses one of them, and has no calls for the
//! other.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
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
        /// Returns the address that this end's port has now; `None` if it is not known to be another than the one that
        /// it offers.
        address: fn(&P) -> Option<IpAddr>,
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

/// A lane's address for the other end, in the fabric's own format (docs/wire.md). For a lane that is a socket it is all
/// zero, or [the address](Self::of_port) of a port that has another one than it offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneEndpoint(pub [u8; LaneEndpoint::BYTES]);

impl LaneEndpoint {
    /// Length on the wire.
    pub const BYTES: usize = 48;

    /// Returns the end point of a lane that is a socket, whose port has this address now, or still the one of the
    /// set-up.
    pub fn of_port(address: Option<IpAddr>) -> Self {
        let mut endpoint = Self::default();
        if let Some(address) = address {
            let mapped = match address {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            };
            endpoint.0[..16].copy_from_slice(&mapped.octets());
        }
        endpoint
    }

    /// Returns the address that the port of a lane that is a socket has now; `None` if it is still the one of the
    /// set-up.
    ///
    /// # Errors
    /// If the peer sent something else than an address at which a socket can be reached.
    pub fn port(&self) -> Result<Option<IpAddr>, NoAddress> {
        let Some((address, rest)) = self.0.split_first_chunk::<16>() else {
            return Err(NoAddress);
        };
        if self.0 == [0; Self::BYTES] {
            return Ok(None);
        }
        let address = Ipv6Addr::from(*address).to_canonical();
        let is_many = address.is_multicast() || address == Ipv4Addr::BROADCAST;
        if rest.iter().any(|byte| *byte != 0) || is_many || address.is_unspecified() {
            return Err(NoAddress);
        }
        Ok(Some(address))
    }
}

/// The bytes of a [`LaneEndpoint`] are no address at which a socket can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAddress;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_point_of_a_socket_is_the_address_that_it_was_made_of() {
        assert_eq!(LaneEndpoint::of_port(None), LaneEndpoint::default());
        assert_eq!(LaneEndpoint::default().port(), Ok(None));
        for address in ["10.0.0.1", "fd77::1", "127.0.0.1"] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(LaneEndpoint::of_port(Some(address)).port(), Ok(Some(address)));
        }
        let v4 = LaneEndpoint::of_port(Some([10, 0, 0, 1].into()));
        assert_eq!(v4.0[..16], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
    }

    #[test]
    fn what_no_socket_can_be_dialled_at_is_no_address() {
        for address in ["224.0.0.1", "255.255.255.255", "ff02::1", "0.0.0.0"] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(LaneEndpoint::of_port(Some(address)).port(), Err(NoAddress), "{address}");
        }
        let mut behind = LaneEndpoint::of_port(Some([10, 0, 0, 1].into()));
        behind.0[47] = 1;
        assert_eq!(behind.port(), Err(NoAddress));
    }
}
