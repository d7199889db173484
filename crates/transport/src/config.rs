//! The configuration of a connection.

use std::time::Duration;

use railweave_fabric::PolicyName;

/// The configuration of a connection, from the options of both ends.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    /// Messages below this many bytes travel on one rail.
    pub split_min: u64,
    /// The policy that the split begins with.
    pub policy: PolicyName,
    /// True if large messages are striped over all lanes of each active rail (`NCCL_IB_SPLIT_DATA_ON_QPS`). The sender
    /// decides.
    pub striped: bool,
    /// Messages above this many bytes go as plain writes, then a write-with-immediate that carries only the record
    /// (`NCCL_IB_AR_THRESHOLD`); `None` for never.
    pub adaptive_routing_above: Option<u64>,
    /// The traffic class of every packet that NCCL asks for, `None` for the default. The class that the user sets is
    /// known to the fabrics.
    pub traffic_class: Option<u8>,
    /// True if the connection goes on without rails that fail, and brings them up again.
    pub recovers: bool,
    /// The time for which a connection without any rail waits for one; zero for as long as it takes.
    pub outage: Duration,
    /// The time for which a rail may answer nothing while the peer is alive; zero for as long as its adapter or kernel
    /// lets it.
    pub rail_timeout: Duration,
    /// The pause before the first attempt to bring a rail up again; all other times of such attempts are multiples of
    /// it. The simulation has shorter ones.
    pub rail_pause: Duration,
    /// The number from which this end counts receives, CTS entries, CTS writes and flushes. 0 (docs/wire.md); the
    /// simulation sets others, the same at both ends, so that numbers go round.
    pub first_number: u32,
    /// The time in which a rail's first packets must come through, if the fabric is one-sided and both ends connect its
    /// lanes.
    pub probe_timeout: Duration,
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        Self {
            split_min: 8192,
            policy: PolicyName::Adaptive,
            striped: false,
            adaptive_routing_above: None,
            traffic_class: None,
            recovers: true,
            outage: Duration::from_secs(300),
            rail_timeout: Duration::from_millis(500),
            rail_pause: Duration::from_millis(100),
            first_number: 0,
            probe_timeout: Duration::from_secs(10),
        }
    }
}
