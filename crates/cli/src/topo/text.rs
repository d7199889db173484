//! The pairing of two hosts as tables.

use super::view::{DevicePair, Host, Lone, Port, View};
use crate::output::{print, table};
use std::io;

/// Prints the pairing.
pub(crate) fn show(view: &View) -> io::Result<()> {
    let [ours, theirs] = &view.hosts;
    print(format_args!("{} <-> {}", ours.name, theirs.name))?;
    for pair in view.main_pairs() {
        show_pair(view, pair)?;
    }
    if view.pairs.len() > 1 {
        show_matrix(view)?;
    }
    Ok(())
}

fn device_name(host: &Host, number: usize) -> String {
    let name = host.devices.get(number).map_or("", |device| device.name.as_str());
    format!("{} device {number} {name}", host.name)
}

fn show_pair(view: &View, pair: &DevicePair) -> io::Result<()> {
    let [ours, theirs] = &view.hosts;
    let speed: u64 = pair.rails.iter().map(|rail| u64::from(rail.speed_mbps)).sum();
    let how = match (pair.step, pair.step_name) {
        (Some(step), Some(name)) => format!("by step {step}, {name}: {speed} Mbit/s"),
        _ => "no rail".to_owned(),
    };
    let [our_device, their_device] = [device_name(ours, pair.devices[0]), device_name(theirs, pair.devices[1])];
    print(format_args!("\n{our_device} <-> {their_device}: {how}"))?;
    if !pair.rails.is_empty() {
        let header = ["rail", &ours.name, "address", &theirs.name, "address", "subnet", "Mbit/s", "share"];
        let mut rails = table(&header, 6);
        for (number, rail) in pair.rails.iter().enumerate() {
            rails.add_row([
                number.to_string(),
                port_name(&rail.ports[0]),
                rail.ports[0].address.clone(),
                port_name(&rail.ports[1]),
                rail.ports[1].address.clone(),
                rail.subnet.clone().unwrap_or_else(|| "routed".to_owned()),
                rail.speed_mbps.to_string(),
                format!("{:.1} %", 100.0 * rail.share),
            ]);
        }
        print(rails)?;
    }
    // Other ports of the host are shown with their own devices.
    for Lone { host, port, reason, .. } in pair.unpaired.iter().filter(|lone| lone.of_device) {
        print(format_args!("no rail: {} {} {}: {reason}", view.hosts[*host].name, port_name(port), port.address))?;
    }
    pair.refusal.as_ref().map_or(Ok(()), |refusal| print(format_args!("refused: {refusal}")))
}

/// Returns the name of a port with its interface, if that has another name.
pub(crate) fn port_name(port: &Port) -> String {
    match &port.interface {
        Some(interface) if !port.name.starts_with(interface.as_str()) => format!("{} ({interface})", port.name),
        _ => port.name.clone(),
    }
}

/// Prints each device of this host against each of the peer's: the step of the ladder, and the number of rails if there
/// are several.
fn show_matrix(view: &View) -> io::Result<()> {
    let [ours, theirs] = &view.hosts;
    let numbers = 0..theirs.devices.len();
    let columns = numbers.clone().map(|number| number.to_string());
    let header: Vec<String> = std::iter::once(String::new()).chain(columns).collect();
    let mut matrix = table(&header.iter().map(String::as_str).collect::<Vec<_>>(), 1);
    for number in 0..ours.devices.len() {
        let cell = |other: usize| {
            let pair = view.pairs.iter().find(|pair| pair.devices == [number, other]);
            pair.map_or_else(String::new, |pair| match pair.step {
                Some(step) if pair.rails.len() == 1 => format!("S{step}"),
                Some(step) => format!("S{step} x{}", pair.rails.len()),
                None => "-".to_owned(),
            })
        };
        let name = format!("{number} {}", ours.devices[number].name);
        matrix.add_row(std::iter::once(name).chain(numbers.clone().map(cell)).collect::<Vec<_>>());
    }
    print(format_args!("\n{} (rows) and {} (columns), device by device:", ours.name, theirs.name))?;
    print(matrix)?;
    print(
        "S1 common subnet, S2 routes of the ports' own, S3 other port, S4 forwarded, S5 TCP, - no rail; x2: two rails",
    )
}
