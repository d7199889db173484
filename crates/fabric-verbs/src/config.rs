//! Settings for queue pairs and registrations, where the device leaves a choice.

use std::time::Duration;

use railweave_fabric::RelaxedOrdering;

/// The settings of all connections over a port. Defaults are those of NCCL's own transport (NCCL 2.32, `NCCL_IB_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbsConfig {
    /// Local ACK timeout: 4.096 µs × 2^n, 0 to 31; 0 waits forever (ibv_modify_qp(3)). `NCCL_IB_TIMEOUT`.
    pub timeout: u8,
    /// Retries of a packet before the lane fails, 0 to 7. `NCCL_IB_RETRY_CNT`.
    pub retry_count: u8,
    /// Index into the port's partition-key table. `NCCL_IB_PKEY`.
    pub pkey_index: u16,
    /// Service level, 0 to 15. `None` takes the connection's traffic class on InfiniBand, otherwise 0. `NCCL_IB_SL`.
    pub service_level: Option<u8>,
    /// The traffic class of RoCE packets; `None` takes the connection's. `NCCL_IB_TC`.
    pub traffic_class: Option<u8>,
    /// The traffic class of the lanes that carry CTS, at the receiver's end. `NCCL_IB_FIFO_TC`.
    pub cts_traffic_class: Option<u8>,
    /// True if enhanced connection establishment is agreed on when both devices support it. `NCCL_IB_ECE_ENABLE`.
    pub ece: bool,
    /// Permission to write data into memory in any order. `NCCL_IB_PCI_RELAXED_ORDERING`.
    pub relaxed_ordering: RelaxedOrdering,
    /// True if the device reports the byte count of a write with an immediate. `RAILWEAVE_BYTE_COUNTS`.
    pub byte_counts: bool,
    /// True if the lanes of a rail share one receive queue; `None`: if there are several. `RAILWEAVE_SRQ`.
    pub shared_receives: Option<bool>,
    /// Retries of a refused change of a queue pair's state.
    pub modify_retries: ModifyRetries,
    /// True if there is GPU memory to flush: the receiver's end then makes a loop-back lane for it.
    pub flush: bool,
}

impl Default for VerbsConfig {
    fn default() -> Self {
        Self {
            timeout: 20,
            retry_count: 7,
            pkey_index: 0,
            service_level: None,
            traffic_class: None,
            cts_traffic_class: None,
            ece: true,
            relaxed_ordering: RelaxedOrdering::WhereKnown,
            byte_counts: true,
            shared_receives: None,
            modify_retries: ModifyRetries::default(),
            flush: false,
        }
    }
}

/// Retries of a refused change of a queue pair's state: ibv_modify_qp returns ETIMEDOUT while the kernel looks up the
/// peer's address. Defaults are those of NCCL's own transport (NCCL 2.30, `misc/ibvwrap.cc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModifyRetries {
    /// Attempts after the first one. `NCCL_IB_MQP_RETRY_CNT`.
    pub count: u32,
    /// The pause before the first retry; each later pause is longer by this much. `NCCL_IB_MQP_RETRY_SLEEP_MSEC`.
    pub pause: Duration,
    /// True if any error is retried, not only ETIMEDOUT. `NCCL_IB_MQP_RETRY_ALL`.
    pub any_error: bool,
}

impl ModifyRetries {
    /// Returns the pause after this many refusals of a change, `None` if it is not retried after them.
    pub(crate) fn pause_after(&self, refusals: u32) -> Option<Duration> {
        (refusals <= self.count).then(|| self.pause.saturating_mul(refusals))
    }
}

impl Default for ModifyRetries {
    fn default() -> Self {
        Self { count: 34, pause: Duration::from_millis(100), any_error: false }
    }
}
