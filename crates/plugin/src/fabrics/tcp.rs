//! Rails over TCP.

use std::sync::Arc;

use railweave_fabric_tcp::{Tcp, TcpConfig, TcpDomain};
use railweave_options::Options;

use crate::comm::Registrations;

/// Returns the registrations of this many ports.
pub(super) fn registrations(options: &Options, ports: usize) -> Vec<Arc<Registrations<Tcp>>> {
    let config = TcpConfig {
        socket_buffer: u32::try_from(options.socket_buffer.value).ok().filter(|bytes| *bytes > 0),
        peer_timeout: Some(options.peer_timeout.value),
        traffic_class: options.traffic_class.value,
    };
    (0..ports).map(|_| Registrations::new(TcpDomain::new(config))).collect()
}
