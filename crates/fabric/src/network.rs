//! Addresses with their networks: tests for a common subnet, and for special kinds of address.

use std::fmt;
use std::net::IpAddr;

use crate::PortFacts;

/// An address and the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkAddress {
    address: IpAddr,
    prefix_len: u8,
}

impl NetworkAddress {
    /// Combines an address with a prefix length in bits of its own family, limited to the address's length. An
    /// IPv4-mapped IPv6 address counts as IPv4, and so does its prefix.
    pub fn new(address: IpAddr, prefix_len: u8) -> Self {
        let address = address.to_canonical();
        Self { address, prefix_len: prefix_len.min(if address.is_ipv4() { 32 } else { 128 }) }
    }

    /// Returns the address, never an IPv4-mapped one.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns true if each address is on the other's network by its prefix. A prefix of 0 bits matches nothing.
    pub fn shares_subnet(&self, other: &Self) -> bool {
        if self.prefix_len.min(other.prefix_len) == 0 {
            return false;
        }
        // That is true if the addresses agree in the bits of the longer prefix.
        let length = u32::from(self.prefix_len.max(other.prefix_len));
        match (self.address, other.address) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => (ours.to_bits() ^ theirs.to_bits()).leading_zeros() >= length,
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => (ours.to_bits() ^ theirs.to_bits()).leading_zeros() >= length,
            _ => false,
        }
    }

    /// Returns true if another address is on its network.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.shares_subnet(&Self::new(address, self.prefix_len))
    }

    /// Returns true if both are IPv4 or both are IPv6.
    pub fn same_family(&self, other: &Self) -> bool {
        self.address.is_ipv4() == other.address.is_ipv4()
    }

    /// Returns true if it only leads back to this host.
    pub fn is_loopback(&self) -> bool {
        self.address.is_loopback()
    }

    /// Returns true for addresses that routers do not forward: 169.254.0.0/16 (RFC 3927) and fe80::/10 (RFC 4291,
    /// 2.5.6).
    pub fn is_link_local(&self) -> bool {
        match self.address {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        }
    }

    /// Returns true if it names a single host.
    pub fn is_unicast(&self) -> bool {
        let is_broadcast = matches!(self.address, IpAddr::V4(v4) if v4.is_broadcast());
        !self.address.is_unspecified() && !self.address.is_multicast() && !is_broadcast
    }
}

impl From<&PortFacts> for NetworkAddress {
    fn from(port: &PortFacts) -> Self {
        Self::new(port.address, port.prefix_len)
    }
}

impl fmt::Display for NetworkAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.address, self.prefix_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> NetworkAddress {
        let (address, length) = text.split_once('/').unwrap();
        NetworkAddress::new(address.parse().unwrap(), length.parse().unwrap())
    }

    #[test]
    fn both_prefixes_must_agree_on_the_subnet() {
        for (ours, theirs, shared) in [
            ("10.0.0.1/24", "10.0.0.2/24", true),
            ("10.0.0.1/24", "10.0.1.2/24", false),
            ("10.0.0.1/16", "10.0.1.2/24", false),
            ("10.0.0.1/16", "10.0.0.2/24", true),
            ("10.0.0.0/31", "10.0.0.1/31", true),
            ("10.0.0.1/31", "10.0.0.2/31", false),
            ("10.0.0.1/32", "10.0.0.2/32", false),
            ("10.0.0.1/32", "10.0.0.1/32", true),
            ("10.0.0.1/0", "10.0.0.2/0", false),
            ("10.0.0.1/0", "10.0.0.2/24", false),
            ("::ffff:10.0.0.1/24", "10.0.0.2/24", true),
            ("::ffff:10.0.0.1/24", "10.9.0.2/24", false),
            ("2001:db8::1/64", "2001:db8::2/64", true),
            ("2001:db8::1/64", "2001:db8:0:1::2/64", false),
            ("2001:db8::1/128", "2001:db8::1/128", true),
            ("10.0.0.1/24", "2001:db8::1/24", false),
            ("10.0.0.1/200", "10.0.0.1/24", true),
        ] {
            assert_eq!(network(ours).shares_subnet(&network(theirs)), shared, "{ours} {theirs}");
            assert_eq!(network(theirs).shares_subnet(&network(ours)), shared, "{theirs} {ours}");
        }
    }

    #[test]
    fn addresses_that_name_no_host_are_told() {
        for text in ["0.0.0.0/0", "255.255.255.255/32", "224.0.0.1/4", "::/0", "ff02::1/16", "::ffff:0.0.0.0/8"] {
            assert!(!network(text).is_unicast(), "{text}");
        }
        for text in ["10.0.0.255/16", "127.0.0.1/8", "::1/128", "fe80::1/64"] {
            assert!(network(text).is_unicast(), "{text}");
        }
    }
}
