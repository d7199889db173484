//! The addresses of this host's network interfaces, as the kernel lists them.
#![allow(unsafe_code)] // getifaddrs hands out a linked list

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One address of one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    /// The interface's name, with the address's label if it has one: `eth0`, `eth0:1`.
    pub(crate) name: String,
    /// The kernel's number of the interface; 0 if it is gone already.
    pub(crate) index: u32,
    /// The address.
    pub(crate) address: IpAddr,
    /// Length of the network's prefix in bits, in the address's own family.
    pub(crate) prefix_len: u8,
    /// True if the interface is up and has a carrier.
    pub(crate) is_up: bool,
    /// True if it only leads back to this host.
    pub(crate) is_loopback: bool,
}

impl Interface {
    /// Returns all addresses of this host, in the kernel's order.
    ///
    /// # Errors
    /// If the kernel does not list them.
    pub(crate) fn list() -> io::Result<Vec<Self>> {
        let mut found = Vec::new();
        // SAFETY: the element is one of the list.
        walk(|element| found.extend(unsafe { read_element(element) }))?;
        Ok(found)
    }

    /// Returns the interface's name without the label of an address.
    pub(crate) fn device(&self) -> &str {
        self.name.split(':').next().unwrap_or_default()
    }
}

/// Returns the names of this host's interfaces, each with true if it is up and has a carrier.
///
/// # Errors
/// If the kernel does not list them.
pub(crate) fn links() -> io::Result<BTreeMap<String, bool>> {
    let mut links = BTreeMap::new();
    walk(|element| {
        // SAFETY: the name is a C string in the list's memory.
        let name = unsafe { CStr::from_ptr(element.ifa_name) }.to_string_lossy();
        links.insert(name.split(':').next().unwrap_or_default().to_owned(), is_up(element));
    })?;
    Ok(links)
}

/// Hands each element of `getifaddrs`'s list to `see`. Its pointers are null or point into the list's memory, which
/// lasts until `see` returns.
fn walk(mut see: impl FnMut(&libc::ifaddrs)) -> io::Result<()> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the call stores the head of a list that it allocates in `first`, or fails and stores nothing.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut next = first;
    while !next.is_null() {
        // SAFETY: `next` is not null and points at an element of the list, which lives until `freeifaddrs`.
        let element = unsafe { &*next };
        see(element);
        next = element.ifa_next;
    }
    // SAFETY: `first` came from `getifaddrs` and is freed once; nothing borrows from the list.
    unsafe { libc::freeifaddrs(first) };
    Ok(())
}

/// Returns true if the interface of an element is up and has a carrier.
fn is_up(element: &libc::ifaddrs) -> bool {
    let both = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_uint;
    element.ifa_flags & both == both
}

/// Returns the name of this host's interface that has an address, without a label; `None` if none has it.
pub fn interface_of(address: IpAddr) -> Option<String> {
    let all = Interface::list().ok()?;
    let found = all.into_iter().find(|interface| interface.address == address)?;
    Some(found.device().to_owned())
}

/// Returns the addresses of the interface with this name. A name of something else, such as an RDMA device, has none,
/// and costs no list of all addresses.
pub fn interface_addresses(name: &str) -> Vec<IpAddr> {
    let Ok(c_name) = CString::new(name) else {
        return Vec::new();
    };
    // SAFETY: the name is a C string.
    if unsafe { libc::if_nametoindex(c_name.as_ptr()) } == 0 {
        return Vec::new();
    }
    let all = Interface::list().unwrap_or_default();
    all.into_iter().filter(|interface| interface.device() == name).map(|interface| interface.address).collect()
}

/// # Safety
/// `element` is one of `getifaddrs`'s list, which has not been freed.
unsafe fn read_element(element: &libc::ifaddrs) -> Option<Interface> {
    // SAFETY: the address is null or a socket address of the family that it names.
    let address = unsafe { read_address(element.ifa_addr) }?;
    // SAFETY: as for the address.
    let mask = unsafe { read_address(element.ifa_netmask) };
    let prefix_len = match mask {
        Some(IpAddr::V4(mask)) => mask.to_bits().leading_ones(),
        Some(IpAddr::V6(mask)) => mask.to_bits().leading_ones(),
        None if address.is_ipv4() => 32,
        None => 128,
    };
    // SAFETY: the name is a C string in the list's memory.
    let name = unsafe { CStr::from_ptr(element.ifa_name) }.to_string_lossy().into_owned();
    let device = CString::new(name.split(':').next().unwrap_or_default()).ok()?;
    // SAFETY: the name is a C string.
    let index = unsafe { libc::if_nametoindex(device.as_ptr()) };
    Some(Interface {
        name,
        index,
        address,
        prefix_len: prefix_len as u8,
        is_up: is_up(element),
        is_loopback: element.ifa_flags & libc::IFF_LOOPBACK as libc::c_uint != 0,
    })
}

/// # Safety
/// `address` is null, or points at a socket address as long as its family says.
unsafe fn read_address(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null, and every socket address begins with its family.
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says that it is a `sockaddr_in`; the copy requires no alignment.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is a `sockaddr_in6`; the copy requires no alignment.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_a_loopback_address() {
        let all = Interface::list().unwrap();
        let loopback = all.iter().find(|one| one.address == IpAddr::from(Ipv4Addr::LOCALHOST)).unwrap();
        assert!(loopback.is_loopback && loopback.is_up, "{loopback:?}");
        assert_eq!(loopback.prefix_len, 8);
        assert_eq!(interface_of(Ipv4Addr::LOCALHOST.into()).as_deref(), Some("lo"));
        assert_eq!(interface_of(Ipv4Addr::new(192, 0, 2, 77).into()), None);
        assert!(interface_addresses("lo").contains(&Ipv4Addr::LOCALHOST.into()));
        assert_eq!(interface_addresses("mlx5_0"), Vec::<IpAddr>::new());
    }
}
