//! What the control thread is told at its start.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use railweave_fabric::EventSource;
use railweave_options::PortRange;
use railweave_transport::Hello;

use crate::congestion::LaneCongestion;
use crate::key::Key;

/// What the control thread is told at its start.
pub(crate) struct ControlConfig {
    pub(crate) hello: Hello,
    pub(crate) key: Option<Key>,
    pub(crate) ports: PortRange,
    /// The addresses that the control port listens on; None for all.
    pub(crate) listens_on: Option<Vec<IpAddr>>,
    pub(crate) handshake_timeout: Duration,
    pub(crate) peer_timeout: Duration,
    pub(crate) congestion: LaneCongestion,
    /// What tells of events of the ports.
    pub(crate) events: Vec<Arc<dyn EventSource>>,
    /// Whether connections are lost when an event says that what they are made of failed.
    pub(crate) return_events: bool,
}
