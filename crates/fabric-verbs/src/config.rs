//! How queue pairs are set up and memory is registered, where the device leaves a choice.

use std::time::Duration;

use railweave_fabric::RelaxedOrdering;

/// The same for every connection over a port. Defaults are those of NCCL's own transport (NCCL 2.32, `NCCL_IB_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbsConfig {
    /// Local ACK timeout: 4.096 µs × 2^n, 0 to 31, where 0 is for ever (ibv_modify_qp(3)). `NCCL_IB_TIMEOUT`.
    pub timeout: u8,
    /// How often a packet is sent again before the lane fails, 0 to 7. `NCCL_IB_RETRY_CNT`.
    pub retry_count: u8,
    /// Index into the port's partition-key table. `NCCL_IB_PKEY`.
    pub pkey_index: u16,
    /// Service level, 0 to 15; None takes the connection's traffic class on InfiniBand, else 0. `NCCL_IB_SL`.
    pub service_level: Option<u8>,
    /// The traffic class of RoCE packets; None takes the connection's. `NCCL_IB_TC`.
    pub traffic_class: Option<u8>,
    /// The traffic class of the lanes on which CTS go out, at the receiver's end. `NCCL_IB_FIFO_TC`.
    pub cts_traffic_class: Option<u8>,
    /// Whether to agree on enhanced connection establishment where both devices know it. `NCCL_IB_ECE_ENABLE`.
    pub ece: bool,
    /// Whether data may be written into memory in any order: `NCCL_IB_PCI_RELAXED_ORDERING`.
    pub relaxed_ordering: RelaxedOrdering,
    /// Whether the device reports how many bytes a write with an immediate had. `RAILWEAVE_BYTE_COUNTS`.
    pub byte_counts: bool,
    /// Whether the lanes of a rail share one receive queue; None where there are several. `RAILWEAVE_SRQ`.
    pub shared_receives: Option<bool>,
    /// When a change of a queue pair's state that was refused is tried again.
    pub modify_retries: ModifyRetries,
    /// Whether to make a loop-back lane for flushes at the receiver's end: there is GPU memory to flush.
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

/// When a change of a queue pair's state is tried again: while the kernel looks the peer's address up, it answers
/// ETIMEDOUT. Defaults are those of NCCL's own transport (NCCL 2.30, `misc/ibvwrap.cc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModifyRetries {
    /// Tries after the first one. `NCCL_IB_MQP_RETRY_CNT`.
    pub count: u32,
    /// The pause before the first of these; each later one is longer by the same. `NCCL_IB_MQP_RETRY_SLEEP_MSEC`.
    pub pause: Duration,
    /// After any error, not only after ETIMEDOUT. `NCCL_IB_MQP_RETRY_ALL`.
    pub any_error: bool,
}

impl Default for ModifyRetries {
    fn default() -> Self {
        Self { count: 34, pause: Duration::from_millis(100), any_error: false }
    }
}
