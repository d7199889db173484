//! The user's choices about devices, addresses, memory and the split, as types for the crates that carry them out. The
//! `options` crate knows how each choice is written in a variable.

use std::fmt;
use std::net::IpAddr;

/// The way in which ports become devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Each port is a device.
    Ports,
    /// All ports form one device, or those of each group that the user names; each is a rail of its connections.
    Fused,
    /// The ports of each adapter form a device.
    Adapters,
    /// As [`Self::Fused`], for hosts that are joined by direct cables.
    Mesh,
}

impl Mode {
    /// Every mode.
    pub const ALL: &[Self] = &[Self::Ports, Self::Fused, Self::Adapters, Self::Mesh];

    /// Returns the mode's word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ports => "ports",
            Self::Fused => "fused",
            Self::Adapters => "adapters",
            Self::Mesh => "mesh",
        }
    }
}

/// The source of a split: the way in which the bytes of each rail are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyName {
    /// The user's weights.
    Static,
    /// The speeds that the ports report.
    Speed,
    /// The rates at which the rails carry what they are given.
    Adaptive,
    /// A file that a program outside the job writes.
    Agent,
}

impl PolicyName {
    /// Every policy.
    pub const ALL: &[Self] = &[Self::Static, Self::Speed, Self::Adaptive, Self::Agent];

    /// Returns the policy's word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Speed => "speed",
            Self::Adaptive => "adaptive",
            Self::Agent => "agent",
        }
    }
}

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4, which a GID carries as a mapped address.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// The addresses that share a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    /// One address of the range.
    pub address: IpAddr,
    /// Length of the prefix in bits, in the address's own family: 0 to 32 for IPv4, 0 to 128 for IPv6.
    pub prefix_len: u8,
}

impl AddressRange {
    /// Returns true if `address` is in the range. An IPv4 address inside IPv6 (`::ffff:a.b.c.d`) counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        let shift = |bits: u8| u32::from(bits.saturating_sub(self.prefix_len));
        match (self.address.to_canonical(), address.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                (ours.to_bits() ^ theirs.to_bits()).checked_shr(shift(32)).unwrap_or(0) == 0
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                (ours.to_bits() ^ theirs.to_bits()).checked_shr(shift(128)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

/// Writes `address/length`.
impl fmt::Display for AddressRange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.address, self.prefix_len)
    }
}

/// The use of relaxed ordering for memory of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelaxedOrdering {
    /// Never.
    Off,
    /// Always; a library without support is an error.
    On,
    /// If the library supports it.
    WhereKnown,
}

/// The presentation of ports whose adapter reaches GPU memory without going through the processor (Data Direct of
/// ConnectX-8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataDirect {
    /// Like any other port.
    Off,
    /// As separate devices, instead of the ordinary ones.
    Only,
    /// As separate devices, alongside the ordinary ones.
    Both,
}
