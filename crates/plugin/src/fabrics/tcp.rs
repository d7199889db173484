//! Rails over TCP.

use std::net::IpAddr;
use std::path::Path;

use railweave_discovery::Interface;
use railweave_discovery::tcp_ports::{discover, loopback_port};
use railweave_fabric::{Discovery, Fabric, Mode};
use railweave_fabric_tcp::{Tcp, TcpConfig, TcpDomain};
use railweave_options::{FilterItem, Options, RailFilter};
use railweave_topology::Order;
use railweave_transport::Error;

use super::addresses::{listens_on, out_of_band};
use super::{Found, Refusal, choose, network};
use crate::comm::Registrations;
use crate::log;

/// HELLO's bit for TCP.
const BIT: u8 = 1;

/// Finds the addresses of this host that become rails.
pub(super) fn find(options: &Options, interfaces: &[Interface]) -> Result<Found, Error> {
    let mut discovery = discover(Path::new("/"), interfaces);
    add_loopback(&mut discovery, options.rails.value.as_ref());
    let mode = options.mode.value.unwrap_or(Mode::Fused);
    let selection = choose(discovery, &options.rails, mode, Order::Pci).map_err(Refusal::into_error)?;
    let config = TcpConfig {
        socket_buffer: u32::try_from(options.socket_buffer.value).ok().filter(|bytes| *bytes > 0),
        peer_timeout: Some(options.peer_timeout.value),
        traffic_class: options.traffic_class.value,
    };
    let listens_on = listens_on(options, interfaces, &selection.ports)?;
    let registrations = selection.ports.iter().map(|_| Registrations::new(TcpDomain::new(config))).collect();
    Ok(Found {
        network: network::<Tcp>(options, &selection, mode, registrations)?,
        mode: u8::from(mode == Mode::Fused),
        fabrics: BIT,
        name: Tcp::NAME,
        out_of_band: out_of_band(options, interfaces, listens_on.as_deref())?,
        listens_on,
        gids: vec![Vec::new(); selection.ports.len()],
        events: Vec::new(),
        left_out: selection.left_out,
    })
}

/// Loopback addresses are ports when the list names them, for trying out, or when there is nothing else at all.
fn add_loopback(discovery: &mut Discovery, filter: Option<&RailFilter>) {
    let named = filter.filter(|filter| !filter.exclude).into_iter().flat_map(|filter| &filter.items);
    let mut addresses: Vec<IpAddr> = named
        .filter_map(|item| match item {
            FilterItem::Addresses(range) if range.address.is_loopback() => Some(range.address),
            FilterItem::Name { name, .. } if name == "lo" => Some(IpAddr::from([127, 0, 0, 1])),
            _ => None,
        })
        .collect();
    if filter.is_none() && discovery.ports.is_empty() {
        addresses.push(IpAddr::from([127, 0, 0, 1]));
        log::info("no network interface but loopback is usable: connections reach this host only");
    }
    for address in addresses {
        let port = loopback_port(address);
        discovery.left_out.retain(|left| left.name != port.name);
        if !discovery.ports.iter().any(|other| other.address == address) {
            discovery.ports.push(port);
        }
    }
}

#[cfg(test)]
mod tests {
    use railweave_fabric::{AddressRange, LeftOut};

    use super::*;

    #[test]
    fn a_loopback_address_that_is_named_is_a_port_and_not_left_out_as_well() {
        let left = |name: &str| LeftOut { name: name.to_owned(), reason: "a loopback address".to_owned() };
        let named = AddressRange { address: IpAddr::from([127, 0, 0, 1]), prefix_len: 32 };
        let filter = RailFilter { exclude: false, exact: false, items: vec![FilterItem::Addresses(named)] };
        let mut discovery = Discovery { ports: Vec::new(), left_out: vec![left("lo@127.0.0.1"), left("lo@::1")] };
        add_loopback(&mut discovery, Some(&filter));
        assert_eq!(discovery.ports, vec![loopback_port(named.address)]);
        assert_eq!(discovery.left_out, vec![left("lo@::1")]);
    }
}
