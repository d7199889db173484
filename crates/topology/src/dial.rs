//! The addresses at which a connector looks for its peer's control port: those of the handle, the most promising first.

use std::net::IpAddr;

use railweave_fabric::AddressPurpose;

use crate::NetworkAddress;

/// One address of a peer, from its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DialAddress {
    /// The address.
    pub address: IpAddr,
    /// Length of its network's prefix in bits, in the address's own family: 0 to 32 for IPv4, 0 to 128 for IPv6.
    pub prefix_len: u8,
    /// Its purpose.
    pub purpose: AddressPurpose,
}

/// The class of an address, most promising first; earlier variants are tried first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Promise {
    /// Named by the peer's user for this very purpose.
    Named,
    /// On a subnet of this host.
    Neighbour,
    /// This host has it too: the peer is on this host, or every host has this address (docker0).
    Own,
    /// Offered for control sessions.
    OutOfBand,
    /// Perhaps reachable through a router.
    Routed,
    /// Right only if the peer is on this host, which the connector cannot know.
    Loopback,
}

/// Returns the order in which to try the addresses of a peer's handle, as indices. `own` are this host's addresses.
///
/// The order: an out-of-band address that the peer's user named on RDMA, addresses on a subnet of this host, addresses
/// that this host has too, any other out-of-band address, the remaining ones, and loopback addresses; equals keep the
/// handle's order. Addresses that cannot be dialled (an IPv6 link-local one needs an interface, and a handle names
/// none) and repeated ones are left out. A wrong address only costs time, because HELLO shows that another process has
/// answered.
pub fn dial_order(handle: &[DialAddress], own: &[NetworkAddress]) -> Vec<usize> {
    let address_of = |entry: &DialAddress| NetworkAddress::new(entry.address, entry.prefix_len);
    let mut order: Vec<(Promise, usize)> = Vec::new();
    for (index, entry) in handle.iter().enumerate() {
        let theirs = address_of(entry);
        let needs_interface = theirs.address().is_ipv6() && theirs.is_link_local();
        if theirs.is_unicast() && !needs_interface {
            order.push((promise(&theirs, entry.purpose, own), index));
        }
    }
    order.sort_unstable();
    let mut tried: Vec<IpAddr> = Vec::new();
    order.retain(|&(_, index)| {
        let address = address_of(&handle[index]).address();
        let is_new = !tried.contains(&address);
        tried.push(address);
        is_new
    });
    order.into_iter().map(|(_, index)| index).collect()
}

fn promise(theirs: &NetworkAddress, purpose: AddressPurpose, own: &[NetworkAddress]) -> Promise {
    if purpose == AddressPurpose::NamedOutOfBand {
        // Even a loopback address: a user who names one has all processes on one host. On other hosts the connection is
        // refused immediately.
        Promise::Named
    } else if theirs.is_loopback() {
        Promise::Loopback
    } else if own.iter().any(|ours| ours.address() == theirs.address()) {
        Promise::Own
    } else if own.iter().any(|ours| ours.shares_subnet(theirs)) {
        Promise::Neighbour
    } else if purpose == AddressPurpose::OutOfBand {
        Promise::OutOfBand
    } else {
        Promise::Routed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses an address; `*` marks the out-of-band one, `!` one that the user named.
    fn entry(text: &str) -> DialAddress {
        let (address, length) = text.trim_end_matches(['*', '!']).split_once('/').unwrap();
        let (address, prefix_len) = (address.parse().unwrap(), length.parse().unwrap());
        let purpose = match text.chars().last() {
            Some('*') => AddressPurpose::OutOfBand,
            Some('!') => AddressPurpose::NamedOutOfBand,
            _ => AddressPurpose::Port,
        };
        DialAddress { address, prefix_len, purpose }
    }

    fn order(handle: &[&str], own: &[&str]) -> Vec<usize> {
        let handle: Vec<_> = handle.iter().map(|text| entry(text)).collect();
        let own = own.iter().map(|text| entry(text)).map(|own| NetworkAddress::new(own.address, own.prefix_len));
        dial_order(&handle, &own.collect::<Vec<_>>())
    }

    #[test]
    fn subnets_first_then_out_of_band_then_the_rest() {
        let handle = ["10.9.0.1/24", "10.1.0.1/24", "10.2.0.1/24", "192.168.0.1/24*"];
        assert_eq!(order(&handle, &["10.2.0.7/24", "10.1.0.7/24"]), [1, 2, 3, 0]);
        assert_eq!(order(&handle, &["10.3.0.7/24"]), [3, 0, 1, 2]);
        assert_eq!(order(&handle, &["192.168.0.7/24"]), [3, 0, 1, 2]);
        assert_eq!(order(&handle, &[]), [3, 0, 1, 2]);
    }

    #[test]
    fn what_the_user_named_goes_first() {
        let handle = ["10.9.0.1/24", "10.1.0.1/24", "192.168.0.1/24!"];
        assert_eq!(order(&handle, &["10.1.0.7/24"]), [2, 1, 0]);
        assert_eq!(order(&handle, &["192.168.0.7/24"]), [2, 0, 1]);
        // So does a named loopback address; an address that cannot be dialled is left out even if it is named.
        assert_eq!(order(&["10.1.0.1/24", "127.0.0.1/8!"], &["10.1.0.7/24"]), [1, 0]);
        assert_eq!(order(&["10.1.0.1/24", "fe80::1/64!"], &["10.1.0.7/24"]), [0]);
    }

    #[test]
    fn an_address_that_every_host_has_waits_for_its_neighbours() {
        let handle = ["172.17.0.1/16", "10.1.0.1/24"];
        assert_eq!(order(&handle, &["172.17.0.1/16", "10.1.0.7/24"]), [1, 0]);
        assert_eq!(order(&handle, &["172.17.0.1/16", "10.1.0.1/24"]), [0, 1]);
        assert_eq!(order(&["172.17.0.1/16", "10.1.0.1/24"], &["172.17.0.1/16"]), [0, 1]);
    }

    #[test]
    fn loopback_is_last_but_tried() {
        assert_eq!(order(&["127.0.0.1/8", "::1/128", "10.1.0.1/24"], &["127.0.0.1/8"]), [2, 0, 1]);
        assert_eq!(order(&["127.0.0.1/8*", "10.1.0.1/24"], &[]), [1, 0]);
        assert_eq!(order(&["127.0.0.1/8", "127.0.0.2/8"], &["127.0.0.1/8"]), [0, 1]);
    }

    #[test]
    fn what_cannot_be_dialled_or_was_tried_is_left_out() {
        assert_eq!(order(&["fe80::1/64", "0.0.0.0/0", "ff02::1/16", "10.1.0.1/24"], &["fe80::2/64"]), [3]);
        assert_eq!(order(&["169.254.0.1/16"], &["169.254.0.2/16"]), [0]);
        assert_eq!(order(&["10.1.0.1/24", "::ffff:10.1.0.1/24*"], &[]), [1]);
        assert_eq!(order(&["10.1.0.1/24", "10.1.0.1/24*"], &["10.1.0.2/24"]), [0]);
        assert!(order(&[], &["10.1.0.1/24"]).is_empty());
    }
}
