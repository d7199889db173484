//! The addresses of this host that become rails over TCP.

use std::net::IpAddr;
use std::path::Path;

use railweave_fabric::{Discovery, Mode, PointerSupport};
use railweave_options::{Fabric, FilterItem, Options, RailFilter};
use railweave_topology::{ChosenPort, Device, Order};

use crate::control_address::{all, listens_on, out_of_band};
use crate::error::{Error, Refusal};
use crate::found::{Found, FoundFabric};
use crate::interface::Interface;
use crate::note::{Note, Say};
use crate::selection::{choose, make_devices, mode_of};
use crate::tcp_ports::{discover, loopback_port};

/// Finds the addresses of this host that become rails.
pub(crate) fn find(options: &Options, interfaces: &[Interface], say: Say<'_>) -> Result<Found, Error> {
    let mut discovery = discover(Path::new("/"), interfaces);
    add_loopback(&mut discovery, options.rails.value.as_ref(), say);
    let mode = mode_of(options, &options.rails, Mode::Fused)?;
    let selection = choose(discovery, &options.rails, mode, Order::Pci).map_err(Refusal::into_error)?;
    let listens_on = listens_on(options, interfaces, &selection.ports)?;
    let devices = make_devices(options, "tcp", &selection, &options.rails, mode, say)?;
    Ok(Found {
        fabric: FoundFabric::Tcp,
        mode,
        out_of_band: out_of_band(options, interfaces, listens_on.as_deref())?,
        listens_on,
        devices,
        ports: selection.ports,
        left_out: selection.left_out,
    })
}

/// TCP in place of RDMA, for the peers that RDMA does not reach.
#[derive(Debug)]
pub struct Fallback {
    /// The addresses of this host, at least one.
    pub ports: Vec<ChosenPort>,
    /// The devices over them.
    pub devices: Vec<Device>,
}

/// Returns TCP over all addresses of this host, if it may stand by for RDMA: the devices take host memory only, and the
/// settings allow it. `None` also if there is no address, with a warning if the user asked for TCP beside RDMA.
///
/// # Errors
/// If the kernel does not list the addresses.
pub fn fallback(
    options: &Options,
    rdma: &[Device],
    listens_on: Option<&[IpAddr]>,
    say: Say<'_>,
) -> Result<Option<Fallback>, Error> {
    let takes_host_memory_only = rdma.iter().all(|device| device.pointers == PointerSupport::default());
    // RAILWEAVE_FABRIC=verbs asks for RDMA alone, but RAILWEAVE_HYBRID=1 wins over it.
    let is_welcome = options.hybrid.value || options.fabric.value == Fabric::Auto;
    if !takes_host_memory_only || !is_welcome {
        return Ok(None);
    }
    let interfaces = Interface::list().map_err(Error::Interfaces)?;
    let ports = fallback_ports(options, &interfaces, listens_on);
    if ports.is_empty() {
        if options.hybrid.value {
            say(Note::Warning(no_address(options, &interfaces)));
        }
        return Ok(None);
    }
    let devices = railweave_topology::devices(&ports, Mode::Fused);
    Ok(Some(Fallback { ports, devices }))
}

/// Returns those of this host's addresses at which TCP can take the place of RDMA, at most as many as a device has
/// ports; none if there is no other than loopback and the list does not name that. The list of interfaces for the
/// handshake counts (`RAILWEAVE_OOB_IF`, `NCCL_SOCKET_IFNAME`), not one of RDMA ports. Only addresses that the control
/// port listens on count, if it does not listen on all.
fn fallback_ports(options: &Options, interfaces: &[Interface], listens_on: Option<&[IpAddr]>) -> Vec<ChosenPort> {
    let mut discovery = discover(Path::new("/"), interfaces);
    discovery.ports.retain(|port| listens_on.is_none_or(|addresses| addresses.contains(&port.address)));
    let list = &options.oob_interface;
    if list.value.is_some() {
        add_loopback(&mut discovery, list.value.as_ref(), &|_| ());
    }
    choose(discovery, list, Mode::Fused, Order::Pci).map_or_else(|_| Vec::new(), |selection| selection.ports)
}

/// Returns the warning that TCP cannot stand by, though the user asked for it.
fn no_address(options: &Options, interfaces: &[Interface]) -> String {
    let lists = [&options.oob_interface, &options.control_address];
    let lists = || lists.into_iter().filter_map(|list| Some((list.source, list.value.as_ref()?)));
    let given: Vec<String> = lists().map(|(source, list)| format!("{source}={list}")).collect();
    let names: Vec<String> = lists().map(|(source, _)| source.to_string()).collect();
    let (given, names) = match given[..] {
        [] => (String::new(), "RAILWEAVE_OOB_IF".to_owned()),
        _ => (format!(" with {}", given.join(" and ")), names.join(" and ")),
    };
    let hybrid = options.hybrid.source;
    let there = if interfaces.is_empty() { "none".to_owned() } else { all(interfaces) };
    format!(
        "{hybrid} is 1, but{given} TCP can use no address of this host, so connections that RDMA cannot make fail; the \
         addresses here: {there}; name one that other hosts reach in {names}, give an interface such an address, or \
         set {hybrid}=0, so that data need not go through host memory"
    )
}

/// Adds a port for each loopback address that the list names, for trials; for 127.0.0.1 if there is no list and no
/// other address is usable.
fn add_loopback(discovery: &mut Discovery, filter: Option<&RailFilter>, say: Say<'_>) {
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
        say(Note::Information(
            "no network interface but loopback is usable: connections reach this host only".to_owned(),
        ));
    }
    for address in addresses {
        let port = loopback_port(address);
        discovery.left_out.retain(|other| other.name != port.name);
        if !discovery.ports.iter().any(|other| other.address == address) {
            discovery.ports.push(port);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use railweave_fabric::{AddressRange, LeftOut};

    use super::*;

    /// The warnings of TCP that stands by for no RDMA device, where the control port listens on these addresses.
    fn warnings(variables: &[(&str, &str)], listens_on: Option<&[IpAddr]>) -> (bool, Vec<String>) {
        let lookup = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        let (options, _) = Options::parse(lookup).unwrap();
        let notes = RefCell::new(Vec::new());
        let found = fallback(&options, &[], listens_on, &|note| notes.borrow_mut().push(note)).unwrap();
        let warning = |note: Note| match note {
            Note::Warning(text) => text,
            Note::Information(text) => panic!("{text}"),
        };
        (found.is_some(), notes.into_inner().into_iter().map(warning).collect())
    }

    #[test]
    fn tcp_that_is_asked_for_and_has_no_address_is_a_warning_with_the_lists_and_the_addresses() {
        let lists =
            [("RAILWEAVE_HYBRID", "1"), ("NCCL_SOCKET_IFNAME", "=none"), ("RAILWEAVE_CONTROL_ADDRESS", "192.0.2.77")];
        let elsewhere = [IpAddr::from([192, 0, 2, 77])];
        let (is_found, said) = warnings(&lists[..2], None);
        assert!(!is_found);
        let [text] = &said[..] else { panic!("{said:?}") };
        let beginning =
            "RAILWEAVE_HYBRID is 1, but with NCCL_SOCKET_IFNAME==none TCP can use no address of this host, ";
        assert!(text.starts_with(beginning), "{text}");
        assert!(text.contains("lo (127.0.0.1)") && text.contains("reach in NCCL_SOCKET_IFNAME, give"), "{text}");
        let (_, said) = warnings(&lists, Some(&elsewhere));
        let both = "with NCCL_SOCKET_IFNAME==none and RAILWEAVE_CONTROL_ADDRESS=192.0.2.77/32 TCP";
        assert!(said[0].contains(both), "{said:?}");
        let (_, said) = warnings(&lists[..1], Some(&elsewhere));
        assert!(said[0].contains("is 1, but TCP") && said[0].contains("reach in RAILWEAVE_OOB_IF, give"), "{said:?}");
        // Whoever did not ask for it need not know.
        assert_eq!(warnings(&lists[1..], None), (false, Vec::new()));
        let loopback = [("RAILWEAVE_HYBRID", "1"), ("NCCL_SOCKET_IFNAME", "lo")];
        assert_eq!(warnings(&loopback, None), (true, Vec::new()));
    }

    #[test]
    fn a_loopback_address_that_is_named_is_a_port_and_not_left_out_as_well() {
        let left_out = |name: &str| LeftOut { name: name.to_owned(), reason: "a loopback address".to_owned() };
        let named = AddressRange { address: IpAddr::from([127, 0, 0, 1]), prefix_len: 32 };
        let filter =
            RailFilter { exclude: false, exact: false, items: vec![FilterItem::Addresses(named)], groups: None };
        let mut discovery =
            Discovery { ports: Vec::new(), left_out: vec![left_out("lo@127.0.0.1"), left_out("lo@::1")] };
        add_loopback(&mut discovery, Some(&filter), &|note| panic!("{note:?}"));
        assert_eq!(discovery.ports, vec![loopback_port(named.address)]);
        assert_eq!(discovery.left_out, vec![left_out("lo@::1")]);
    }
}
