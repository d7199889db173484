//! What a user chooses about devices, addresses and memory, as the crates take it that carry it out. How each choice is
//! written in a variable is known where the table of options is.

use std::fmt;
use std::net::IpAddr;

/// How ports become devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Each port is a device.
    Ports,
    /// All ports are one device, each a rail of its connections.
    Fused,
}

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4, which a GID carries as a mapped address.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// The addresses that agree in their first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    /// One address of the range.
    pub address: IpAddr,
    /// How many of its first bits count, in its own family: 0 to 32 for IPv4, 0 to 128 for IPv6.
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

/// As `address/length`.
impl fmt::Display for AddressRange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.address, self.prefix_len)
    }
}

/// When memory of the application is registered with relaxed ordering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelaxedOrdering {
    /// Never.
    Off,
    /// Always; a library that cannot is an error.
    On,
    /// Where the library can.
    WhereKnown,
}

/// How ports are shown whose adapter reaches GPU memory past the processor (Data Direct of ConnectX-8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataDirect {
    /// As any other.
    Off,
    /// As devices of their own, instead of the others.
    Only,
    /// As devices of their own, beside the others.
    Both,
}
