//! A port of one end of a connection, as the pairing knows it.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use railweave_fabric::LinkLayer;

use crate::NetworkAddress;

/// One end's port, as in the offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The port's link layer.
    pub link_layer: LinkLayer,
    /// IP address (TCP) or GID (RDMA); IPv4 as an IPv4-mapped address.
    pub address: Ipv6Addr,
    /// Length of the network's prefix in bits, in the address's own family: 0 to 32 for IPv4, 0 to 128 for IPv6.
    pub prefix_len: u8,
    /// Speed in Mbit/s.
    pub speed_mbps: u32,
    /// NCCL's rail id; -1 if undefined.
    pub rail_id: i16,
    /// NCCL's plane id; -1 if undefined. Different planes are never connected.
    pub plane_id: i16,
}

impl Endpoint {
    /// Returns its address with the length of its prefix.
    pub(crate) fn network(&self) -> NetworkAddress {
        NetworkAddress::new(IpAddr::V6(self.address), self.prefix_len)
    }
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// The sender, which dials.
    Connector,
    /// The receiver, which answers.
    Acceptor,
}

impl Side {
    /// Returns the other end.
    pub fn other(self) -> Self {
        match self {
            Self::Connector => Self::Acceptor,
            Self::Acceptor => Self::Connector,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Connector => "connector",
            Self::Acceptor => "acceptor",
        })
    }
}
