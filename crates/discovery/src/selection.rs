//! The selection of the ports in use, and the devices made of them.

use railweave_fabric::{Discovery, Mode, PortFacts};
use railweave_options::{Options, RailFilter, Setting, Weights};
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
            rail: found.rail,
            plane: found.plane,
        })
    };
    let matches = filter.value.is_some().then_some(&matches as &dyn Fn(&PortFacts) -> Option<Selected>);
    select(discovery, matches, mode, order).map_err(|none| Refusal::of_selection(&none, filter))
}

/// Makes devices of the chosen ports. Logs the devices and the ports left out.
///
/// # Errors
/// If the user's weights leave no rail a share.
pub(crate) fn make_devices(
    options: &Options,
    fabric: &str,
    selection: &Selection,
    mode: Mode,
    say: Say<'_>,
) -> Result<Vec<Device>, Error> {
    for port in &selection.left_out {
        say(Note::Information(format!("{} is left out: {}", port.name, port.reason)));
    }
    check_weights(options, &selection.ports, mode)?;
    let devices = devices(&selection.ports, mode);
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

/// Checks that a list of weights gives at least one of the rails in use a share.
fn check_weights(options: &Options, ports: &[ChosenPort], mode: Mode) -> Result<(), Error> {
    let Weights::Fixed(weights) = options.weights.value else {
        return Ok(());
    };
    let rails = if mode == Mode::Fused { ports.len() } else { 1 };
    if weights[..rails].iter().any(|weight| *weight > 0) {
        return Ok(());
    }
    Err(Error::Configuration(format!(
        "RAILWEAVE_WEIGHTS (from {}) gives no weight to any of the {rails} rail(s) in use; give at least one of the \
         first {rails} numbers a value above 0",
        options.weights.source
    )))
}
