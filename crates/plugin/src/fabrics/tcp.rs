//! Rails over TCP.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use railweave_discovery::{LinkEvents, interface_part, is_link_up};
use railweave_fabric_tcp::{Tcp, TcpConfig, TcpDomain, TcpLink};
use railweave_options::Options;
use railweave_topology::ChosenPort;

use crate::comm::Registrations;
use crate::log;

/// Returns the registrations of these ports. `events` tells what becomes of their addresses.
pub(super) fn registrations(
    options: &Options,
    ports: &[ChosenPort],
    events: Option<&LinkEvents>,
) -> Vec<Arc<Registrations<Tcp>>> {
    let config = TcpConfig {
        socket_buffer: u32::try_from(options.socket_buffer.value).ok().filter(|bytes| *bytes > 0),
        peer_timeout: Some(options.peer_timeout.value),
        traffic_class: options.traffic_class.value,
    };
    let all: Vec<IpAddr> = ports.iter().map(|port| port.facts.address).collect();
    let registrations = |port: &ChosenPort| {
        let device = port.facts.device.clone();
        let part = interface_part(&device);
        let address = events.map(|events| events.port_address(&device, (&port.facts).into(), &all));
        let link = match address {
            None => TcpLink { part, is_up: Arc::new(move || is_link_up(&device)), other_address: Arc::new(|| None) },
            Some(address) => {
                let other = address.clone();
                TcpLink {
                    part,
                    is_up: Arc::new(move || !address.is_lost() && is_link_up(&device)),
                    other_address: Arc::new(move || other.other()),
                }
            }
        };
        Registrations::new(TcpDomain::over(config, Some(link)))
    };
    ports.iter().map(registrations).collect()
}

/// Returns the event source of the interfaces that have these ports.
pub(super) fn events(ports: &[ChosenPort]) -> Option<Arc<LinkEvents>> {
    // The loopback interface has no cable.
    let ports = ports.iter().filter(|port| !port.facts.address.is_loopback());
    let names: BTreeSet<String> = ports.map(|port| port.facts.device.clone()).collect();
    if names.is_empty() {
        return None;
    }
    match LinkEvents::open(names) {
        Ok(events) => Some(Arc::new(events)),
        Err(error) => {
            log::warn(&format!(
                "cannot receive the events of network interfaces: {error}; one that goes down is noticed only by its \
                 silence"
            ));
            None
        }
    }
}
