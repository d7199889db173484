//! The fabrics, each with this machine's ports for it. No other module of this crate names a fabric.

mod tcp;
mod verbs;

use std::net::IpAddr;
use std::sync::Arc;

use railweave_discovery::{Fallback, Found, FoundFabric, Note, OutOfBand};
use railweave_fabric::{EventSource, Fabric, LinkLayer, Mode, PolicyName, SettingId};
use railweave_identity::{TCP, VERBS};
use railweave_options::{AdaptiveRouting, Options, Weights};
use railweave_topology::{ChosenPort, Device};
use railweave_transport::{Error, HandleAddress};

use crate::comm::Registrations;
use crate::devices::Devices;
use crate::log;
use crate::network::{Network, NetworkOf};

/// The devices and addresses of this machine that the process uses.
pub(crate) struct InUse {
    pub(crate) network: Arc<dyn Network>,
    /// TCP for the peers that RDMA does not reach, if it may be used.
    pub(crate) fallback: Option<Arc<dyn Network>>,
    /// HELLO's mode: 0 for ports, 1 if Railweave fuses them.
    pub(crate) mode: u8,
    /// HELLO's fabrics.
    pub(crate) fabrics: u8,
    /// The address that reaches this host when none of its ports does.
    pub(crate) out_of_band: Option<HandleAddress>,
    /// The addresses that the control port listens on; `None` for all.
    pub(crate) listens_on: Option<Vec<IpAddr>>,
    /// The sources of the ports' events.
    pub(crate) events: Vec<Arc<dyn EventSource>>,
}

/// A network over TCP, and the event source of its interfaces.
type OverTcp = (Arc<dyn Network>, Option<Arc<dyn EventSource>>);

/// Finds the fabric that the options ask for, and prepares its ports. `forces_flushes`: NCCL's API version can force
/// flushes; otherwise ports that need a flush on every GPU are left out.
///
/// # Errors
/// If there is no usable port.
pub(crate) fn open(options: &Options, forces_flushes: bool) -> Result<InUse, Error> {
    let Found { fabric, mode, ports, devices, out_of_band, listens_on, .. } =
        railweave_discovery::find(options, forces_flushes, &log_note).map_err(error)?;
    let (network, fallback, fabrics, events) = match fabric {
        FoundFabric::Tcp => {
            let events = tcp::events(&ports);
            let registrations = tcp::registrations(options, &ports, events.as_deref());
            let events = events.map(|events| events as Arc<dyn EventSource>);
            (network(options, mode, ports, devices, registrations), None, TCP, events.into_iter().collect())
        }
        FoundFabric::Verbs(open) => {
            let mut events = verbs::events(&open);
            let (fallback, of_fallback) = fallback(options, &devices, listens_on.as_deref())?.unzip();
            events.extend(of_fallback.flatten());
            let fabrics = VERBS | if fallback.is_some() { TCP } else { 0 };
            (network(options, mode, ports, devices, verbs::registrations(options, open)), fallback, fabrics, events)
        }
    };
    let mode = u8::from(mode != Mode::Ports);
    Ok(InUse { network, fallback, mode, fabrics, out_of_band: out_of_band.map(handle_address), listens_on, events })
}

/// Returns TCP over all addresses of this host, for the peers that RDMA does not reach, if it may be used, and the
/// event source of its interfaces.
fn fallback(options: &Options, rdma: &[Device], listens_on: Option<&[IpAddr]>) -> Result<Option<OverTcp>, Error> {
    let found = railweave_discovery::fallback(options, rdma, listens_on, &log_note).map_err(error)?;
    Ok(found.map(|Fallback { ports, devices }| {
        let events = tcp::events(&ports);
        let registrations = tcp::registrations(options, &ports, events.as_deref());
        let events = events.map(|events| events as Arc<dyn EventSource>);
        (network(options, Mode::Fused, ports, devices, registrations), events)
    }))
}

fn log_note(note: Note) {
    match note {
        Note::Information(text) => log::info(&text),
        Note::Warning(text) => log::warn(&text),
    }
}

fn error(error: railweave_discovery::Error) -> Error {
    match error {
        railweave_discovery::Error::Interfaces(_) => Error::local(error.to_string()),
        railweave_discovery::Error::Configuration(reason) => Error::configuration(reason),
    }
}

fn handle_address(found: OutOfBand) -> HandleAddress {
    let port = if found.comes_first { HandleAddress::NAMED_OUT_OF_BAND } else { HandleAddress::OUT_OF_BAND };
    HandleAddress { address: found.address, prefix_len: found.prefix_len, port }
}

/// Returns the network over the ports, each with its registrations.
fn network<F: Fabric>(
    options: &Options,
    mode: Mode,
    ports: Vec<ChosenPort>,
    devices: Vec<Device>,
    registrations: Vec<Arc<Registrations<F>>>,
) -> Arc<dyn Network>
where
    NetworkOf<F>: Network + 'static,
{
    let lanes = options.lanes.value;
    let weights = options.weights.value;
    Arc::new(NetworkOf::<F> {
        registrations,
        ports,
        devices: Devices::new(devices, fusing_forbidden(options, mode)),
        lanes: Box::new(move |place| lanes.on(place)),
        weight: Box::new(move |place| match weights {
            Weights::Unset => None,
            Weights::Fixed(weights) => weights.get(place).copied(),
        }),
        halves_share_evenly: mode == Mode::Mesh,
        asks_kernel: options.routes.value,
    })
}

/// Returns the policy that connections begin with.
pub(crate) fn policy(options: &Options) -> PolicyName {
    match (options.policy.value, options.weights.value) {
        (Some(PolicyName::Agent), _) => PolicyName::Adaptive,
        (Some(policy), _) => policy,
        (None, Weights::Fixed(_)) => PolicyName::Static,
        (None, Weights::Unset) => PolicyName::Adaptive,
    }
}

/// Returns true if policy files may change the split: unless the settings name a policy of their own.
pub(crate) fn reads_policies(options: &Options) -> bool {
    match options.policy.value {
        Some(policy) => policy == PolicyName::Agent,
        None => matches!(options.weights.value, Weights::Unset),
    }
}

/// Returns the reason why NCCL may not fuse devices, if the settings say so.
fn fusing_forbidden(options: &Options, mode: Mode) -> Option<String> {
    let merge = &options.merge_nics;
    match mode {
        Mode::Fused | Mode::Adapters | Mode::Mesh => Some(
            "Railweave has fused the ports itself; RAILWEAVE_MODE=ports shows NCCL each port, and lets it fuse them"
                .to_owned(),
        ),
        Mode::Ports if merge.value => None,
        Mode::Ports => Some(format!(
            "{} (from {}) is 0, so each port stays a device of its own; with 1, NCCL may fuse ports",
            SettingId::MergeNics,
            merge.source
        )),
    }
}

/// Returns the size in bytes above which a message of this device's connections ends with a write that carries only the
/// record, because adaptive routing may reorder packets on one of the device's ports; `None` if no port reorders.
pub(crate) fn adaptive_routing_above(options: &Options, network: &dyn Network, device: usize) -> Option<u64> {
    let is_on = |layer: LinkLayer| match options.adaptive_routing.value {
        AdaptiveRouting::Auto => layer == LinkLayer::InfiniBand,
        AdaptiveRouting::Off => false,
        AdaptiveRouting::On => layer != LinkLayer::Tcp,
    };
    let device = network.devices().at(device);
    let mut ports = device.ports.iter().map(|index| &network.ports()[*index].facts);
    ports.any(|port| is_on(port.link_layer)).then_some(options.adaptive_routing_threshold.value)
}
