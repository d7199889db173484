//! The addresses that the control port listens on, and the address that reaches this host when none of its ports does.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use railweave_fabric::LinkLayer;
use railweave_options::{Options, RailFilter};
use railweave_topology::ChosenPort;

use crate::error::Error;
use crate::found::OutOfBand;
use crate::interface::Interface;
use crate::tcp_ports::discover;

/// Returns the addresses that the control port listens on; `None` for all of this host's.
///
/// # Errors
/// If the options name no address of this host, or leave out one at which TCP lanes are dialled.
pub(crate) fn listens_on(
    options: &Options,
    interfaces: &[Interface],
    ports: &[ChosenPort],
) -> Result<Option<Vec<IpAddr>>, Error> {
    let ports = ports.iter().map(|port| &port.facts);
    let Some(list) = &options.control_address.value else {
        // If all of these are loopback addresses, no other host could use the port, so it listens only there.
        let out_of_band = options.oob_interface.value.iter().flat_map(|filter| named(interfaces, filter));
        let out_of_band = out_of_band.map(|interface| interface.address);
        let addresses: BTreeSet<IpAddr> = ports.map(|facts| facts.address).chain(out_of_band).collect();
        let is_private = addresses.iter().all(IpAddr::is_loopback) && !addresses.is_empty();
        return Ok(is_private.then(|| addresses.into_iter().collect()));
    };
    let of_interfaces = interfaces.iter().filter(|interface| interface.is_up && !needs_interface(interface.address));
    let of_interfaces = of_interfaces.map(|interface| (interface.name.as_str(), interface.address));
    // TCP lanes arrive at the ports' own addresses. Some may be loopback addresses that no interface lists; the kernel
    // accepts connections at these too.
    let mut rails = ports.filter(|facts| facts.link_layer == LinkLayer::Tcp);
    let of_rails = rails.clone().map(|facts| (facts.device.as_str(), facts.address));
    let mut chosen: Vec<IpAddr> = Vec::new();
    for (name, address) in of_interfaces.chain(of_rails) {
        if list.matches(name, Some(address), None).is_some() && !chosen.contains(&address) {
            chosen.push(address);
        }
    }
    if chosen.is_empty() {
        return Err(Error::Configuration(format!(
            "RAILWEAVE_CONTROL_ADDRESS={list} names no address of this host for the control port; there are {}",
            all(interfaces)
        )));
    }
    if let Some(port) = rails.find(|facts| !chosen.contains(&facts.address)) {
        return Err(Error::Configuration(format!(
            "RAILWEAVE_CONTROL_ADDRESS={list} leaves out {} ({}), at which the lanes of that rail are dialled; name it \
             too, or leave it out of RAILWEAVE_RAILS",
            port.address, port.name
        )));
    }
    Ok(Some(chosen))
}

/// Returns the best address of the interfaces that the options name for control sessions; if they name none, the first
/// address that other hosts may reach, IPv4 before IPv6. Only addresses that the control port listens on count.
///
/// # Errors
/// If the options name an interface that is not up here, or at which the control port does not listen.
pub(crate) fn out_of_band(
    options: &Options,
    interfaces: &[Interface],
    listens_on: Option<&[IpAddr]>,
) -> Result<Option<OutOfBand>, Error> {
    let is_heard = |address: IpAddr| listens_on.is_none_or(|addresses| addresses.contains(&address));
    let Some(filter) = &options.oob_interface.value else {
        let usable = discover(Path::new("/"), interfaces).ports;
        let usable = || usable.iter().filter(|port| is_heard(port.address));
        let best = usable().find(|port| port.address.is_ipv4()).or_else(|| usable().next());
        let best = best.map(|port| after_ports(port.address, port.prefix_len));
        // If the control port listens only on loopback addresses, the first of them still reaches this host.
        let only = || listens_on?.first().map(|address| after_ports(*address, if address.is_ipv4() { 8 } else { 128 }));
        return Ok(best.or_else(only));
    };
    // A list of exclusions also admits loopback, which reaches only this host.
    let best = named(interfaces, filter).filter(|interface| is_heard(interface.address));
    let best = best.min_by_key(|interface| (needs_interface(interface.address), interface.is_loopback));
    if let Some(interface) = best {
        return Ok(Some(after_ports(interface.address, interface.prefix_len)));
    }
    let source = options.oob_interface.source;
    Err(Error::Configuration(match named(interfaces, filter).next() {
        Some(interface) => format!(
            "{source}={filter} names {} ({}) for control sessions, but RAILWEAVE_CONTROL_ADDRESS leaves it out; \
             name it there too",
            interface.name, interface.address
        ),
        None => format!(
            "{source}={filter} names no interface of this host that is up, for control sessions; there are {}",
            all(interfaces)
        ),
    }))
}

/// Returns [`out_of_band`]'s address for RDMA ports: it is dialled first if the user named it.
pub(crate) fn preferred(options: &Options, address: OutOfBand) -> OutOfBand {
    let is_named = options.oob_interface.value.as_ref().is_some_and(|filter| !filter.exclude);
    OutOfBand { comes_first: is_named, ..address }
}

/// Returns an out-of-band address that is dialled after the ports' own.
pub(crate) fn after_ports(address: IpAddr, prefix_len: u8) -> OutOfBand {
    OutOfBand { address, prefix_len, comes_first: false }
}

fn named<'a>(interfaces: &'a [Interface], filter: &'a RailFilter) -> impl Iterator<Item = &'a Interface> {
    let is_named = |interface: &&Interface| {
        interface.is_up && filter.matches(&interface.name, Some(interface.address), None).is_some()
    };
    interfaces.iter().filter(is_named)
}

/// Returns true if an address is ambiguous without its interface: each interface has IPv6 link-local addresses of its
/// own.
fn needs_interface(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Returns a list of all addresses, for sentences.
pub(crate) fn all(interfaces: &[Interface]) -> String {
    let shown = interfaces.iter().map(|interface| format!("{} ({})", interface.name, interface.address));
    shown.collect::<Vec<_>>().join(", ")
}
