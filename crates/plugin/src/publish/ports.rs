//! The devices and ports of a network, as the telemetry file shows them.

use railweave_telemetry::{Device, MOST_PORTS, Port};

use crate::network::Network;

/// Returns the devices of a network.
pub(super) fn devices(network: &dyn Network) -> impl Iterator<Item = Device> {
    let all = network.devices();
    (0..all.count()).map(move |index| {
        let device = all.at(index);
        let ports: Vec<_> = device.ports.iter().map(|port| &*network.ports()[*port].facts.name).collect();
        Device {
            name: device.name.clone(),
            speed_mbps: Some(device.speed_mbps).filter(|speed_mbps| *speed_mbps > 0),
            port_count: ports.len() as u32,
            fabric: fabric_name(network).to_owned(),
            ports: ports.join(","),
        }
    })
}

/// Returns the index of a port, which is added if it is new; `None` if its name is not known.
pub(super) fn port_index(ports: &mut Vec<Port>, name: &str, network: &dyn Network) -> Option<u16> {
    let fabric = fabric_name(network);
    let known = ports.iter().position(|port| port.name == name && port.fabric == fabric);
    let index = known.unwrap_or(ports.len());
    if name.is_empty() || index == MOST_PORTS {
        return None;
    }
    if known.is_none() {
        ports.push(Port { name: name.to_owned(), fabric: fabric.to_owned() });
    }
    u16::try_from(index).ok()
}

fn fabric_name(network: &dyn Network) -> &'static str {
    if network.is_tcp() { "tcp" } else { "verbs" }
}
