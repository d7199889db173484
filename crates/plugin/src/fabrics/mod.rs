//! Which fabrics there are. The only place that names them: adding one takes a module here, and the conformance list.

mod addresses;
mod tcp;
mod verbs;

use std::net::IpAddr;
use std::sync::Arc;

use railweave_discovery::Interface;
use railweave_fabric::{Discovery, EventSource, Fabric, LeftOut, LinkLayer, Mode, PortFacts};
use railweave_options::{
    AdaptiveRouting, Fabric as FabricOption, Options, RailFilter, Setting, Weights, name_settings,
};
use railweave_topology::{ChosenPort, NoUsablePort, Order, Selected, Selection, devices, select};
use railweave_transport::{Error, HandleAddress};

use crate::comm::Registrations;
use crate::log;
use crate::network::{Network, NetworkOf};
use crate::topology_report::ReportedGid;

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
    /// The addresses that the control port listens on; None for all.
    pub(crate) listens_on: Option<Vec<IpAddr>>,
    /// The GIDs of each of the network's ports, where it has any.
    pub(crate) gids: Vec<Vec<ReportedGid>>,
    /// What tells of events of the ports.
    pub(crate) events: Vec<Arc<dyn EventSource>>,
}

/// Finds the fabric that the options ask for, its ports and its devices. `forces_flushes` says whether NCCL's API can
/// force flushes, without which no port is shown that needs them on every GPU.
///
/// # Errors
/// When there is no usable port.
pub(crate) fn find(options: &Options, forces_flushes: bool) -> Result<Found, Error> {
    name_settings();
    let interfaces = Interface::list()
        .map_err(|error| Error::local(format!("the network interfaces cannot be listed (getifaddrs): {error}")))?;
    match options.fabric.value {
        FabricOption::Tcp => tcp::find(options, &interfaces),
        FabricOption::Verbs => verbs::find(options, &interfaces, forces_flushes).map_err(|refusal| match refusal {
            Refusal::Wrong(error) => error,
            Refusal::NoPort(reason) => {
                Error::configuration(format!("RAILWEAVE_FABRIC=verbs: {reason}; or set RAILWEAVE_FABRIC=tcp or auto"))
            }
        }),
        FabricOption::Auto => match verbs::find(options, &interfaces, forces_flushes) {
            Ok(found) => Ok(found),
            Err(Refusal::Wrong(error)) => Err(error),
            Err(Refusal::NoPort(reason)) => {
                log::info(&format!("TCP is used, because RDMA cannot be: {reason}"));
                let mut found = tcp::find(options, &interfaces)?;
                found.left_out.push(LeftOut { name: "verbs".to_owned(), reason });
                Ok(found)
            }
        },
    }
}

/// Messages of more bytes, over any connection of this device, end in a write of their own, because adaptive routing may
/// change the order of packets on one of its ports; None where the order is kept.
pub(crate) fn adaptive_routing_above(options: &Options, network: &dyn Network, device: usize) -> Option<u64> {
    let is_on = |layer: LinkLayer| match options.adaptive_routing.value {
        AdaptiveRouting::Auto => layer == LinkLayer::InfiniBand,
        AdaptiveRouting::Off => false,
        AdaptiveRouting::On => layer != LinkLayer::Tcp,
    };
    let mut ports = network.devices()[device].ports.iter().map(|index| &network.ports()[*index].facts);
    ports.any(|port| is_on(port.link_layer)).then_some(options.adaptive_routing_threshold.value)
}

/// Why a fabric cannot be used.
enum Refusal {
    /// It has no usable port here; another fabric may. The reason is a sentence without its end.
    NoPort(String),
    /// What the user asks for cannot be had, on this fabric or another.
    Wrong(Error),
}

impl Refusal {
    fn into_error(self) -> Error {
        match self {
            Self::NoPort(reason) => Error::configuration(reason),
            Self::Wrong(error) => error,
        }
    }

    /// Why there is no selection of ports, with the list that made it.
    fn of_selection(none: &NoUsablePort, filter: &Setting<Option<RailFilter>>) -> Self {
        Self::NoPort(match &filter.value {
            Some(list) => format!("{}={list}: {none}", filter.source),
            None => none.to_string(),
        })
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Wrong(error)
    }
}

/// Picks and orders the ports that the user's list lets in. A list's order counts unless it is NCCL's, whose own
/// transports take it for a set.
fn choose(
    discovery: Discovery,
    filter: &Setting<Option<RailFilter>>,
    mode: Mode,
    order: Order,
) -> Result<Selection, Refusal> {
    let matches = |port: &PortFacts| {
        let number = Some(u32::from(port.port_number));
        filter.value.as_ref()?.matches(&port.device, Some(port.address), number).map(|found| Selected {
            order: found.item.filter(|_| !filter.source.is_nccls()),
            rail: found.rail,
            plane: found.plane,
        })
    };
    let matches = filter.value.is_some().then_some(&matches as &dyn Fn(&PortFacts) -> Option<Selected>);
    select(discovery, matches, mode, order).map_err(|none| Refusal::of_selection(&none, filter))
}

/// The network over the chosen ports, each with its registrations.
fn network<F: Fabric>(
    options: &Options,
    selection: &Selection,
    mode: Mode,
    registrations: Vec<Arc<Registrations<F>>>,
) -> Result<Arc<dyn Network>, Error>
where
    NetworkOf<F>: Network + 'static,
{
    for left in &selection.left_out {
        log::info(&format!("{} is left out: {}", left.name, left.reason));
    }
    check_weights(options, &selection.ports, mode)?;
    let devices = devices(&selection.ports, mode);
    for device in &devices {
        let ports: Vec<_> =
            device.ports.iter().map(|index| selection.ports[*index].facts.address.to_string()).collect();
        log::info(&format!(
            "device {} over {} {} ({} Mbit/s)",
            device.name,
            F::NAME,
            ports.join(", "),
            device.speed_mbps
        ));
    }
    let lanes = options.lanes.value;
    let weights = options.weights.value;
    Ok(Arc::new(NetworkOf::<F> {
        registrations,
        ports: selection.ports.clone(),
        devices,
        lanes: Box::new(move |place| lanes.on(place)),
        weight: Box::new(move |place| match weights {
            Weights::BySpeed => None,
            Weights::Fixed(weights) => Some(weights[place]),
        }),
    }))
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
