//! Which fabrics there are. The only file that names them: adding one touches this file and the conformance list.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use railweave_fabric::{Discovery, Fabric, LeftOut, PortFacts};
use railweave_fabric_tcp::{Interface, Tcp, TcpConfig, TcpDomain, discover, loopback_port};
use railweave_options::{Fabric as FabricOption, FilterItem, Mode as ModeOption, Options, RailFilter, Weights};
use railweave_topology::{ChosenPort, Mode, Selected, devices, select};
use railweave_transport::{Error, HandleAddress};

use crate::log;
use crate::network::{Network, NetworkOf};
use crate::registrations::Registrations;

/// HELLO's bit for TCP.
const TCP_BIT: u8 = 1;

/// What this machine has to offer.
pub(crate) struct Found {
    pub(crate) network: Arc<dyn Network>,
    /// HELLO's mode: 0 ports, 1 fused.
    pub(crate) mode: u8,
    /// HELLO's fabrics.
    pub(crate) fabrics: u8,
    /// The fabric's name.
    pub(crate) name: &'static str,
    /// What was seen but is not used.
    pub(crate) left_out: Vec<LeftOut>,
    /// The address that reaches this host when none of its ports does.
    pub(crate) out_of_band: Option<HandleAddress>,
}

/// Finds the fabric that the options ask for, its ports and its devices.
///
/// # Errors
/// When there is no usable port.
pub(crate) fn find(options: &Options) -> Result<Found, Error> {
    match options.fabric.value {
        FabricOption::Auto | FabricOption::Tcp => tcp(options),
        FabricOption::Verbs => Err(Error::configuration(format!(
            "RAILWEAVE_FABRIC=verbs (from {}): this build has no verbs fabric; set RAILWEAVE_FABRIC=tcp or auto",
            options.fabric.source
        ))),
    }
}

fn tcp(options: &Options) -> Result<Found, Error> {
    let interfaces = Interface::list()
        .map_err(|error| Error::local(format!("the network interfaces cannot be listed (getifaddrs): {error}")))?;
    let filter = options.rails.value.as_ref();
    let mut discovery = discover(Path::new("/"), &interfaces);
    add_loopback(&mut discovery, filter);
    let matches = |port: &PortFacts| {
        let filter = filter?;
        let number = Some(u32::from(port.port_number));
        filter.matches(&port.device, Some(port.address), number).map(|found| Selected {
            order: found.item,
            rail: found.rail,
            plane: found.plane,
        })
    };
    let mode = match options.mode.value {
        ModeOption::Auto | ModeOption::Fused => Mode::Fused,
        ModeOption::Ports => Mode::Ports,
    };
    let selection = select(discovery, filter.map(|_| &matches as &dyn Fn(&PortFacts) -> Option<Selected>), mode)
        .map_err(|error| match filter {
            Some(list) => Error::configuration(format!("{}={list}: {error}", options.rails.source)),
            None => Error::configuration(error.to_string()),
        })?;
    for left in &selection.left_out {
        log::info(&format!("{} is left out: {}", left.name, left.reason));
    }
    check_weights(options, &selection.ports, mode)?;
    let devices = devices(&selection.ports, mode);
    for device in &devices {
        let ports: Vec<_> =
            device.ports.iter().map(|index| selection.ports[*index].facts.address.to_string()).collect();
        log::info(&format!("device {} over {} ({} Mbit/s)", device.name, ports.join(", "), device.speed_mbps));
    }
    let out_of_band = out_of_band(options, &interfaces)?;
    let config = TcpConfig {
        socket_buffer: u32::try_from(options.socket_buffer.value).ok().filter(|bytes| *bytes > 0),
        peer_timeout: Some(options.peer_timeout.value),
    };
    let lanes = options.lanes.value;
    let weights = options.weights.value;
    let network = NetworkOf::<Tcp> {
        registrations: selection.ports.iter().map(|_| Registrations::new(TcpDomain::new(config))).collect(),
        ports: selection.ports,
        devices,
        lanes: Box::new(move |place| lanes.on(place)),
        weight: Box::new(move |place| match weights {
            Weights::BySpeed => None,
            Weights::Fixed(weights) => Some(weights[place]),
        }),
    };
    Ok(Found {
        network: Arc::new(network),
        mode: u8::from(mode == Mode::Fused),
        fabrics: TCP_BIT,
        name: Tcp::NAME,
        left_out: selection.left_out,
        out_of_band,
    })
}

/// The first address of an interface that the options name for control sessions, else the first that leads anywhere.
fn out_of_band(options: &Options, interfaces: &[Interface]) -> Result<Option<HandleAddress>, Error> {
    let Some(filter) = &options.oob_interface.value else {
        let leads_out =
            |interface: &&Interface| interface.is_up && !interface.is_loopback && interface.address.is_ipv4();
        return Ok(interfaces.iter().find(leads_out).map(handle_address));
    };
    let named = |interface: &&Interface| {
        interface.is_up && filter.matches(&interface.name, Some(interface.address), None).is_some()
    };
    match interfaces.iter().find(named) {
        Some(interface) => Ok(Some(handle_address(interface))),
        None => {
            let names: Vec<_> =
                interfaces.iter().map(|interface| format!("{} ({})", interface.name, interface.address)).collect();
            Err(Error::configuration(format!(
                "{} names no interface of this host for control sessions; there are {}",
                options.oob_interface.source,
                names.join(", ")
            )))
        }
    }
}

fn handle_address(interface: &Interface) -> HandleAddress {
    HandleAddress { address: interface.address, prefix_len: interface.prefix_len, port: HandleAddress::OUT_OF_BAND }
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
        if !discovery.ports.iter().any(|other| other.address == address) {
            discovery.ports.push(port);
        }
    }
}

/// A list of weights must say something about every rail, and give one of them a share.
fn check_weights(options: &Options, ports: &[ChosenPort], mode: Mode) -> Result<(), Error> {
    let Weights::Fixed(weights) = options.weights.value else {
        return Ok(());
    };
    let rails = if mode == Mode::Fused { ports.len() } else { 1 };
    if weights[..rails].iter().any(|weight| *weight > 0) {
        return Ok(());
    }
    Err(Error::configuration(format!(
        "RAILWEAVE_WEIGHTS (from {}) gives no weight to any of the {rails} rail(s) in use; give at least one of the first \
         {rails} numbers a value above 0",
        options.weights.source
    )))
}
