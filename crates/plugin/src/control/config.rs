//! The control thread's configuration.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use railweave_fabric::EventSource;
use railweave_identity::Key;
use railweave_options::PortRange;
use railweave_transport::Hello;

use crate::congestion::LaneCongestion;
use crate::publish::PublishConfig;
use crate::trace::Tracer;

/// The control thread's configuration.
pub(crate) struct ControlConfig {
    pub(crate) hello: Hello,
    pub(crate) key: Option<Key>,
    pub(crate) ports: PortRange,
    /// The addresses that the control port listens on; `None` for all.
    pub(crate) listens_on: Option<Vec<IpAddr>>,
    /// The addresses of this host's ports, from which sessions may be dialled.
    pub(crate) own: Vec<IpAddr>,
    pub(crate) handshake_timeout: Duration,
    pub(crate) peer_timeout: Duration,
    pub(crate) congestion: LaneCongestion,
    /// The sources of the ports' events.
    pub(crate) events: Vec<Arc<dyn EventSource>>,
    /// True if connections go on without rails that fail.
    pub(crate) recovers: bool,
    /// The time for which a rail of these may be silent while its peer is alive; zero for any.
    pub(crate) rail_timeout: Duration,
    /// True if events that say that a part of this host failed concern the connections that use it.
    pub(crate) return_events: bool,
    /// The telemetry and the policy files; `None` if the user wants none.
    pub(crate) publish: Option<PublishConfig>,
    /// The trace of this process, if it is traced.
    pub(crate) tracer: Option<Arc<Tracer>>,
    /// True if the log has a line for each lane that is set up.
    pub(crate) log_lanes: bool,
}
