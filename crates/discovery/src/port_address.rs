//! The address of a port over TCP, whose interface may have another one by and by.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use railweave_topology::NetworkAddress;

/// The addresses that some interfaces have now, in the kernel's order.
#[derive(Debug, Default)]
#[allow(clippy::disallowed_types, reason = "no call of NCCL locks it")]
pub(crate) struct Present(Mutex<Vec<(String, NetworkAddress)>>);

impl Present {
    pub(crate) fn set(&self, addresses: Vec<(String, NetworkAddress)>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = addresses;
    }

    fn of(&self, interface: &str) -> Vec<NetworkAddress> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter(|(name, _)| name == interface).map(|(_, address)| *address).collect()
    }
}

/// The address of a port, as its interface's events tell it.
#[derive(Clone, Debug)]
pub struct PortAddress {
    interface: String,
    address: NetworkAddress,
    /// The addresses of the process's other ports.
    others: Vec<IpAddr>,
    /// True if the interface has had it: the kernel answers for all of 127.0.0.0/8, and lists only 127.0.0.1.
    was_listed: bool,
    present: Arc<Present>,
}

impl PortAddress {
    pub(crate) fn new(interface: &str, address: NetworkAddress, others: &[IpAddr], present: Arc<Present>) -> Self {
        let was_listed = present.of(interface).iter().any(|it| it.address() == address.address());
        Self { interface: interface.to_owned(), address, others: others.to_vec(), was_listed, present }
    }

    /// Returns the address that the interface has now instead: one of the same subnet that no other port has, because
    /// only such an address is surely what the user has chosen, and leads to the same peers. `None` if it still has the
    /// old one, or no such other.
    pub fn other(&self) -> Option<IpAddr> {
        let present = self.present.of(&self.interface);
        if !self.was_listed || present.iter().any(|it| it.address() == self.address.address()) {
            return None;
        }
        let is_free = |it: &NetworkAddress| it.shares_subnet(&self.address) && !self.others.contains(&it.address());
        present.into_iter().find(is_free).map(|it| it.address())
    }

    /// Returns true if the interface has lost the address and has no other instead, so that nothing leaves the host
    /// from it.
    pub fn is_lost(&self) -> bool {
        let is_there = |it: &NetworkAddress| it.address() == self.address.address();
        self.was_listed && !self.present.of(&self.interface).iter().any(is_there) && self.other().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> NetworkAddress {
        let (address, prefix_len) = text.split_once('/').unwrap();
        NetworkAddress::new(address.parse().unwrap(), prefix_len.parse().unwrap())
    }

    /// Returns the address that a port has after its interface's addresses have changed to these, and if it has none.
    fn after(before: &str, others: &[&str], now: &[&str]) -> (Option<String>, bool) {
        let present = Arc::new(Present::default());
        let listed = |all: &[&str]| all.iter().map(|text| ("eth0".to_owned(), network(text))).collect();
        present.set(listed(&[before]));
        let others: Vec<IpAddr> = others.iter().map(|text| text.parse().unwrap()).collect();
        let port = PortAddress::new("eth0", network(before), &others, Arc::clone(&present));
        assert_eq!((port.other(), port.is_lost()), (None, false));
        let mut now: Vec<_> = listed(now);
        now.push(("eth1".to_owned(), network("10.0.0.77/24")));
        present.set(now);
        (port.other().map(|other| other.to_string()), port.is_lost())
    }

    #[test]
    fn a_port_has_another_address_of_its_subnet_once_its_own_is_gone() {
        let moved = |to: &str| (Some(to.to_owned()), false);
        assert_eq!(after("10.0.0.1/24", &[], &["10.0.0.2/24", "10.0.0.1/24"]), (None, false), "it is still there");
        assert_eq!(after("10.0.0.1/24", &[], &["192.0.2.1/24", "10.0.0.2/24"]), moved("10.0.0.2"));
        assert_eq!(after("fd77::1/64", &[], &["10.0.0.2/24", "fe80::1/64", "fd77::2/64"]), moved("fd77::2"));
        assert_eq!(after("10.0.0.1/24", &["10.0.0.2"], &["10.0.0.2/24"]), (None, true), "another port has it");
        assert_eq!(after("10.0.0.1/24", &[], &["10.0.1.2/24"]), (None, true), "another subnet");
        assert_eq!(after("10.0.0.1/24", &[], &[]), (None, true));
    }

    #[test]
    fn an_address_that_no_interface_lists_is_never_gone() {
        let present = Arc::new(Present::default());
        present.set(vec![("lo".to_owned(), network("127.0.0.1/8"))]);
        let port = PortAddress::new("lo", network("127.0.0.2/8"), &[], present);
        assert_eq!((port.other(), port.is_lost()), (None, false));
    }
}
