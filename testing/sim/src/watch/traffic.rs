//! The traffic of a connection's rails, as the fabric has carried it, and the counters that must say the same.

use railweave_transport::RailCounters;

use super::checker::{Checked, Checker};

/// The traffic of one rail.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    /// Bytes of messages that have landed.
    pub(super) data_bytes: u64,
    /// Writes of the sender that have landed, apart from the empty ones that tell a rail's latency.
    pub(super) data_writes: u64,
    /// Empty writes of the sender that have landed.
    pub(super) pings: u32,
    /// Chains of CTS entries that were posted.
    pub(super) cts: u64,
    /// Bytes that were reported with immediates.
    pub(super) received_bytes: u64,
}

impl Traffic {
    /// Checks the counters of one end of the rail. Everything that the end has posted must have landed.
    pub(super) fn check(&self, sender: bool, counters: &RailCounters) -> Checked {
        let [bytes, writes, cts, received] =
            [counters.data_bytes(), counters.data_writes(), counters.cts_writes(), counters.received_bytes()];
        let count = [bytes, writes, cts, received];
        let carried = match sender {
            true => [self.data_bytes, self.data_writes, 0, 0],
            false => [0, 0, self.cts, self.received_bytes],
        };
        let in_flight = counters.in_flight();
        if in_flight > 0 {
            return Err((Checker::Counters, format!("{in_flight} bytes are said to be in flight")));
        }
        if count == carried {
            return Ok(());
        }
        let text = format!(
            "the counters say {count:?} (bytes, writes, CTS, bytes received), but the rail has carried {carried:?}"
        );
        Err((Checker::Counters, text))
    }
}
