//! The selection of the ports in use, and the devices made of them.

use railweave_fabric::{Discovery, Mode, PolicyName, PortFacts};
use railweave_options::{Options, RailFilter, Setting, Source, Weights};
use railweave_topology::{ChosenPort, Device, Order, Selected, Selection, devices, select};

use crate::error::{Error, Refusal};
use crate::note::{Note, Say};

/// Selects and orders the ports that the user's list admits. A list's order counts unless it is a list of NCCL's, whose
/// own transports treat it as a set.
pub(crate) fn choose(
    discovery: Discovery,
    filter: &Setting<Option<RailFilter>>,
    mode: Mode,
    order: Order,
) -> Result<Selection, Refusal> {
    let matches = |port: &PortFacts| {
        let number = Some(u32::from(port.port_number));
        filter.value.as_ref()?.matches(&port.device, Some(port.address), number).map(|found| Selected {
            order: found.item.filter(|_| !filter.source.is_nccls()),
            group: found.group,
            rail: found.rail,
            plane: found.plane,
        })
    };
    let matches = filter.value.is_some().then_some(&matches as &dyn Fn(&PortFacts) -> Option<Selected>);
    select(discovery, matches, mode, order).map_err(|none| Refusal::of_selection(&none, filter))
}

/// Says which items of the user's list let in none of the chosen ports. It is no error, because a list may be meant for
/// several kinds of host.
fn note_idle(ports: &[ChosenPort], filter: &Setting<Option<RailFilter>>, say: Say<'_>) {
    let Some(list) = &filter.value else { return };
    let facts = ports.iter().map(|port| &port.facts);
    let known = facts.map(|port| (port.device.as_str(), Some(port.address), Some(u32::from(port.port_number))));
    for (item, is_taken) in list.idle(known) {
        let what = if is_taken { "earlier items have all its ports" } else { "no usable port of this host matches it" };
        say(Note::Warning(format!(
            "{}={list}: the item {item} has no effect, because {what} (`railweave topo` lists the ports, and the \
             reason for each that is left out); correct the item, or leave it out",
            filter.source
        )));
    }
}

/// Makes devices of the ports chosen by a list. Logs the devices, the ports left out, and items of the list that have
/// none.
///
/// # Errors
/// If the user's weights leave a device no rail with a share.
pub(crate) fn make_devices(
    options: &Options,
    fabric: &str,
    selection: &Selection,
    list: &Setting<Option<RailFilter>>,
    mode: Mode,
    say: Say<'_>,
) -> Result<Vec<Device>, Error> {
    for port in &selection.left_out {
        say(Note::Information(format!("{} is left out: {}", port.name, port.reason)));
    }
    if options.mode.value.is_some() {
        say(Note::Information(format!("mode {} (from {})", mode.name(), options.mode.source)));
    }
    note_idle(&selection.ports, list, say);
    let devices = devices(&selection.ports, mode);
    check_weights(options, &devices)?;
    for device in &devices {
        let ports: Vec<_> =
            device.ports.iter().map(|index| selection.ports[*index].facts.address.to_string()).collect();
        say(Note::Information(format!(
            "device {} over {fabric} {} ({} Mbit/s)",
            device.name,
            ports.join(", "),
            device.speed_mbps
        )));
    }
    Ok(devices)
}

/// Returns the mode of the options, or `default` if they leave it open; groups of a list are fused.
///
/// # Errors
/// If the list has groups, and the mode makes other devices.
pub(crate) fn mode_of(options: &Options, list: &Setting<Option<RailFilter>>, default: Mode) -> Result<Mode, Error> {
    let Some(filter) = list.value.as_ref().filter(|filter| filter.groups.is_some()) else {
        return Ok(options.mode.value.unwrap_or(default));
    };
    let mode = options.mode.value.unwrap_or(Mode::Fused);
    // Two variables that name one port each only seem to be a group, and work in any mode.
    let is_group = matches!(list.source, Source::Variable(_));
    if is_group && matches!(mode, Mode::Ports | Mode::Adapters) {
        return Err(Error::Configuration(format!(
            "{}={filter} groups ports with +, but {}={} makes other devices of them; set it to fused or mesh, or write \
             commas in place of +",
            list.source,
            options.mode.source,
            mode.name()
        )));
    }
    Ok(mode)
}

/// Checks that a list of weights gives each device at least one rail with a share.
fn check_weights(options: &Options, devices: &[Device]) -> Result<(), Error> {
    let Weights::Fixed(weights) = options.weights.value else {
        return match options.policy.value {
            Some(PolicyName::Static) => Err(Error::Configuration(format!(
                "{}=static needs weights, but RAILWEAVE_WEIGHTS is not set; set it, as in RAILWEAVE_WEIGHTS=80,20, or \
                 choose adaptive, speed or agent",
                options.policy.source
            ))),
            _ => Ok(()),
        };
    };
    let idle = devices.iter().find(|device| weights[..device.ports.len()].iter().all(|weight| *weight == 0));
    let Some(Device { name, ports, .. }) = idle else { return Ok(()) };
    let rails = ports.len();
    Err(Error::Configuration(format!(
        "RAILWEAVE_WEIGHTS (from {}) gives no weight to any of the {rails} rail(s) of {name}; give at least one of the \
         first {rails} numbers a value above 0",
        options.weights.source
    )))
}
