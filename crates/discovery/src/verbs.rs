//! The RDMA ports of this host that become rails.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;

use railweave_fabric::{DataDirect, Discovery, Fabric as _, LeftOut, LinkLayer, Mode, PointerSupport, SettingId};
use railweave_fabric_verbs::gid::{GidRules, PortGid};
use railweave_fabric_verbs::sys::Functions;
use railweave_fabric_verbs::{HostAddresses, OpenPort, Verbs, VerbsPort};
use railweave_options::{Options, RailFilter, Setting, Source};
use railweave_topology::{ChosenPort, NoUsablePort, Order};

use crate::control_address::{after_ports, listens_on, out_of_band, preferred};
use crate::error::{Error, Refusal};
use crate::found::{Found, FoundFabric};
use crate::interface::Interface;
use crate::note::{Note, Say};
use crate::rdma_ports::{DiscoveryRules, VerbsDiscovery, discover};
use crate::selection::{choose, make_devices, mode_of};

/// Finds the RDMA ports of this host that become rails.
pub(crate) fn find(
    options: &Options,
    interfaces: &[Interface],
    forces_flushes: bool,
    say: Say<'_>,
) -> Result<Found, Refusal> {
    let mode = mode_of(options, &options.rdma_rails, Mode::Ports)?;
    let data_direct = data_direct(options, mode, forces_flushes, say);
    let VerbsDiscovery { mut ports, left_out } = seen(options, interfaces, data_direct, say)?;
    if let Some(list) = &options.rdma_rails.value {
        ports.iter_mut().for_each(|port| pick_gids(port, list.clone()));
    }
    if options.hybrid.value {
        // NCCL asks which memory a device takes once, and TCP takes no GPU memory.
        ports.iter_mut().for_each(|port| port.facts.pointers = PointerSupport::default());
        say(Note::Information(format!(
            "{} (from {}) is 1: data goes through host memory, so that TCP can carry it where RDMA does not reach",
            SettingId::Hybrid,
            options.hybrid.source
        )));
    }
    let left_out = leave_out_link_local(options, &mut ports, left_out);
    let discovery = Discovery { ports: ports.iter().map(|port| port.facts.clone()).collect(), left_out };
    let order = if options.pci_order.value { Order::Pci } else { Order::Machine };
    let mut selection = choose(discovery, &options.rdma_rails, mode, order)?;
    let mut opened = Vec::new();
    let left_out = &mut selection.left_out;
    selection.ports.retain(|chosen| match open(&ports, chosen) {
        Ok(port) => {
            opened.push(port);
            true
        }
        Err(reason) => {
            left_out.push(LeftOut { name: chosen.facts.name.clone(), reason });
            false
        }
    });
    if opened.is_empty() {
        let none = NoUsablePort { left_out: selection.left_out, not_listed: Vec::new() };
        return Err(Refusal::of_selection(&none, &options.rdma_rails));
    }
    check_two(&options.rdma_rails, &selection.ports, say)?;
    // An InfiniBand GID is no address for a socket, and the machine may have only loopback.
    let loopback = || after_ports(IpAddr::V4(Ipv4Addr::LOCALHOST), 8);
    let listens_on = listens_on(options, interfaces, &selection.ports)?;
    let out_of_band = out_of_band(options, interfaces, listens_on.as_deref())?.unwrap_or_else(loopback);
    let devices = make_devices(options, Verbs::NAME, &selection, &options.rdma_rails, mode, say)?;
    Ok(Found {
        fabric: FoundFabric::Verbs(opened),
        mode,
        ports: selection.ports,
        devices,
        left_out: selection.left_out,
        out_of_band: Some(preferred(options, out_of_band)),
        listens_on,
    })
}

/// Leaves out ports whose GIDs are all link-local, because nothing shows that they reach the same peers as ports with
/// addresses. They stay if the user's list admits no port with an address, as in NCCL's own transport, or if the user
/// named the GID.
fn leave_out_link_local(options: &Options, ports: &mut Vec<VerbsPort>, mut left_out: Vec<LeftOut>) -> Vec<LeftOut> {
    let is_link_local_only = |port: &VerbsPort| {
        let is_link_local = matches!(port.facts.address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let is_named = options.gid_index.value.on(&port.facts.device).is_some();
        port.facts.link_layer == LinkLayer::Roce && is_link_local && !is_named
    };
    let is_in = |port: &VerbsPort| {
        let (facts, list) = (&port.facts, options.rdma_rails.value.as_ref());
        let number = Some(facts.port_number.into());
        list.is_none_or(|list| list.matches(&facts.device, Some(facts.address), number).is_some())
    };
    if ports.iter().any(|port| is_in(port) && !is_link_local_only(port)) {
        let link_local = ports.extract_if(.., |port| is_link_local_only(port));
        left_out.extend(link_local.map(|port| {
            LeftOut {
                name: port.facts.name,
                reason:
                    "its GIDs are link-local, while other ports have addresses; give its network interface an IPv4 or \
                     a global IPv6 address, or name an entry in RAILWEAVE_GID_INDEX"
                        .to_owned(),
            }
        }));
    }
    left_out
}

/// Returns the way in which ports with a Data Direct engine are shown: a fused device gets each port once, and an NCCL
/// that cannot be told to flush on every GPU is shown none of them.
fn data_direct(options: &Options, mode: Mode, forces_flushes: bool, say: Say<'_>) -> DataDirect {
    let wanted = &options.data_direct;
    match wanted.value {
        // An engine reads GPU memory only.
        _ if options.hybrid.value => DataDirect::Off,
        DataDirect::Only | DataDirect::Both if !forces_flushes => {
            if wanted.source != Source::Default {
                say(Note::Information(format!(
                    "Data Direct (from {}) is not used: it needs a flush on every GPU, and this NCCL (net API v6 to \
                     v8) cannot be told to do one; use NCCL 2.24 or later, or set RAILWEAVE_DATA_DIRECT=0",
                    wanted.source
                )));
            }
            DataDirect::Off
        }
        DataDirect::Off => DataDirect::Off,
        DataDirect::Both if mode == Mode::Ports => DataDirect::Both,
        DataDirect::Only | DataDirect::Both => DataDirect::Only,
    }
}

/// Returns the ports of this machine, whatever the user's list admits.
fn seen(
    options: &Options,
    interfaces: &[Interface],
    data_direct: DataDirect,
    say: Say<'_>,
) -> Result<VerbsDiscovery, Refusal> {
    let library = options.ibverbs_library.value.as_str();
    let functions = Functions::load(&[library]).map_err(|error| Refusal::NoPort(error.to_string()))?;
    if let Err(error) = functions.prepare_for_forks() {
        say(Note::Warning(format!(
            "ibv_fork_init: {error}; a process that forks (data loaders) may lose memory that the adapter uses: start \
             workers with spawn instead, or before NCCL is initialised"
        )));
    }
    let gids = |device: &str| GidRules {
        index: options.gid_index.value.on(device),
        roce_version: options.roce_version.value,
        family: options.address_family.value,
        range: options.address_range.value,
        flid_index: options.flid_gid_index.value.into(),
        prefix_len: options.prefix_length.value,
    };
    let rules = DiscoveryRules {
        gids: &gids,
        addresses: host_addresses(interfaces),
        merge_vfs: options.merge_vfs.value,
        data_direct,
        mlx5_library: &options.mlx5_library.value,
    };
    discover(Path::new("/"), &Arc::new(functions), &rules).map_err(|error| Refusal::NoPort(error.to_string()))
}

/// Returns a function for the current addresses of this host; if the kernel does not list them, it returns those known
/// at the start.
fn host_addresses(interfaces: &[Interface]) -> HostAddresses {
    let of = |interfaces: &[Interface]| -> Vec<_> {
        interfaces.iter().map(|interface| (interface.address, interface.prefix_len)).collect()
    };
    let first = of(interfaces);
    Arc::new(move || Interface::list().map_or_else(|_| first.clone(), |interfaces| of(&interfaces)))
}

/// Restricts the GIDs of a port that a list admits by addresses to those addresses.
fn pick_gids(port: &mut VerbsPort, list: RailFilter) {
    let (device, number) = (port.facts.device.clone(), u32::from(port.facts.port_number));
    let is_in = move |gid: &PortGid| list.matches(&device, Some(gid.address()), Some(number)).is_some();
    port.filter_gids(Arc::new(is_in));
}

/// Opens a chosen port. Returns it ready for use, or the reason why it cannot be used.
fn open(ports: &[VerbsPort], chosen: &ChosenPort) -> Result<OpenPort, String> {
    let port = ports.iter().find(|port| port.facts.name == chosen.facts.name).ok_or("it is gone")?;
    OpenPort::new(port.clone()).map_err(|error| error.to_string())
}

/// Checks that each of two variables that name one port each names one in use: they are meant for this host.
///
/// # Errors
/// If one of them names none.
fn check_two(list: &Setting<Option<RailFilter>>, ports: &[ChosenPort], say: Say<'_>) -> Result<(), Error> {
    let (Some(filter), Source::Variables(first, second)) = (&list.value, list.source) else { return Ok(()) };
    let mut used = Vec::new();
    for (item, name) in filter.items.iter().zip([first, second]) {
        let alone = RailFilter { exclude: false, exact: filter.exact, items: vec![item.clone()], groups: None };
        let is_it = |port: &&ChosenPort| {
            let facts = &port.facts;
            alone.matches(&facts.device, Some(facts.address), Some(facts.port_number.into())).is_some()
        };
        let Some(port) = ports.iter().find(is_it) else {
            let there: Vec<&str> = ports.iter().map(|port| port.facts.name.as_str()).collect();
            return Err(Error::Configuration(format!(
                "{name}={item} names no RDMA port that can be used, and {} need one each; `railweave topo` lists the \
                 ports, and the reason for each that is left out; of both, there is {}",
                list.source,
                there.join(", ")
            )));
        };
        used.push(port.facts.name.as_str());
    }
    say(Note::Information(format!("Using [0]{}:SOUT [1]{}:SUP", used[0], used[1])));
    Ok(())
}
