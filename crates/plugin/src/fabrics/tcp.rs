//! Rails over TCP.

use std::collections::BTreeSet;
use std::sync::Arc;

use railweave_discovery::{LinkEvents, interface_part, is_link_up, other_address};
use railweave_fabric::EventSource;
use railweave_fabric_tcp::{Tcp, TcpConfig, TcpDomain, TcpLink};
use railweave_options::Options;
use railweave_topology::ChosenPort;

use crate::comm::Registrations;
use crate::log;

/// Returns the registrations of these ports.
pub(super) fn registrations(options: &Options, ports: &[ChosenPort]) -> Vec<Arc<Registrations<Tcp>>> {
    let config = TcpConfig {
        socket_buffer: u32::try_from(options.socket_buffer.value).ok().filter(|bytes| *bytes > 0),
        peer_timeout: Some(options.peer_timeout.value),
        traffic_class: options.traffic_class.value,
    };
    let registrations = |port: &ChosenPort| {
        let (part, address) = (interface_part(&port.facts.device), port.facts.address);
        let link = TcpLink { part, address, is_up: is_link_up, other_address };
        Registrations::new(TcpDomain::over(config, Some(link)))
    };
    ports.iter().map(registrations).collect()
}

/// Returns the event source of the interfaces that have these ports.
pub(super) fn events(ports: &[ChosenPort]) -> Option<Arc<dyn EventSource>> {
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
