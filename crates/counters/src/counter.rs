//! The table of counters.

use std::fmt;

use crate::kind::Kind::{
    CongestionReceived, CongestionSent, Discard, LinkError, Other, Pause, PauseSent, Retransmission, Traffic,
};
use crate::kind::Origin::{Ethtool, Hardware, Interface, Port, PortWords};
use crate::kind::Unit::{Bytes, Events, Microseconds, Packets, Ticks};
use crate::kind::{Kind, Origin, Unit};

/// Makes the enum of counters and its functions from the table. A row has the variant, the name in metrics, the unit,
/// the kind, the sentence for help, and the origins.
macro_rules! counters {
    ($($variant:ident $name:literal $unit:ident $kind:ident $help:literal [$($origin:expr),+ $(,)?])+) => {
        /// A counter of a port. It only grows, except that a driver's new start sets it to zero, and that some of 32
        /// bits begin again at zero.
        ///
        /// Names are those of Prometheus' node_exporter (collector/infiniband_linux.go, and for interfaces
        /// collector/netdev_linux.go) if it has the counter, without `node_`, `infiniband_` and `_total`. The meanings
        /// are from the kernel's Documentation/ABI/stable/sysfs-class-infiniband and from the drivers:
        /// drivers/infiniband/hw/mlx5/counters.c, drivers/infiniband/sw/rxe/rxe_hw_counters.c and their like in
        /// bnxt_re, irdma, efa, mana and ionic; those of ethtool from
        /// Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Counter {
            $(#[doc = $help] $variant,)+
        }

        impl Counter {
            /// All counters, in their order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the name in metrics, in lower case, without a prefix and without `_total`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// Returns the unit of its values.
            pub fn unit(self) -> Unit {
                match self { $(Self::$variant => $unit,)+ }
            }

            /// Returns the conclusion that an increase permits.
            pub fn kind(self) -> Kind {
                match self { $(Self::$variant => $kind,)+ }
            }

            /// Returns its meaning in one sentence.
            pub fn help(self) -> &'static str {
                match self { $(Self::$variant => $help,)+ }
            }

            /// Returns the places it is read from, at least one. A port has those that its driver offers.
            pub fn origins(self) -> &'static [Origin] {
                match self { $(Self::$variant => &[$($origin),+],)+ }
            }
        }
    };
}

counters! {
    // Traffic.
    PortDataReceived "port_data_received_bytes" Bytes Traffic
    "Bytes that the RDMA port received."
    [PortWords("port_rcv_data"), Hardware("rx_bytes"), Hardware("ip4InOctets"), Hardware("ip6InOctets"),
     Hardware("rx_rdma_ucast_bytes"), Hardware("rx_rdma_mcast_bytes")]
    PortDataTransmitted "port_data_transmitted_bytes" Bytes Traffic
    "Bytes that the RDMA port sent."
    [PortWords("port_xmit_data"), Hardware("tx_bytes"), Hardware("ip4OutOctets"), Hardware("ip6OutOctets"),
     Hardware("tx_rdma_ucast_bytes"), Hardware("tx_rdma_mcast_bytes")]
    PortPacketsReceived "port_packets_received" Packets Traffic
    "Packets that the RDMA port received, those with errors included."
    [Port("port_rcv_packets"), Hardware("rcvd_pkts"), Hardware("rx_pkts"), Hardware("ip4InPkts"),
     Hardware("ip6InPkts"), Hardware("rx_rdma_ucast_pkts"), Hardware("rx_rdma_mcast_pkts")]
    PortPacketsTransmitted "port_packets_transmitted" Packets Traffic
    "Packets that the RDMA port sent, those with errors included."
    [Port("port_xmit_packets"), Hardware("sent_pkts"), Hardware("tx_pkts"), Hardware("ip4OutPkts"),
     Hardware("ip6OutPkts"), Hardware("tx_rdma_ucast_pkts"), Hardware("tx_rdma_mcast_pkts")]
    UnicastPacketsReceived "unicast_packets_received" Packets Traffic
    "Unicast packets that the RDMA port received, those with errors included."
    [Port("unicast_rcv_packets")]
    UnicastPacketsTransmitted "unicast_packets_transmitted" Packets Traffic
    "Unicast packets that the RDMA port sent, those with errors included."
    [Port("unicast_xmit_packets")]
    MulticastPacketsReceived "multicast_packets_received" Packets Traffic
    "Multicast packets that the RDMA port received, those with errors included."
    [Port("multicast_rcv_packets")]
    MulticastPacketsTransmitted "multicast_packets_transmitted" Packets Traffic
    "Multicast packets that the RDMA port sent, those with errors included."
    [Port("multicast_xmit_packets")]
    NetworkReceiveBytes "network_receive_bytes" Bytes Traffic
    "Bytes that the interface received; RDMA passes it by, so they are TCP's and the like."
    [Interface("rx_bytes")]
    NetworkTransmitBytes "network_transmit_bytes" Bytes Traffic
    "Bytes that the interface sent; RDMA passes it by, so they are TCP's and the like."
    [Interface("tx_bytes")]
    NetworkReceivePackets "network_receive_packets" Packets Traffic
    "Packets that the interface received."
    [Interface("rx_packets")]
    NetworkTransmitPackets "network_transmit_packets" Packets Traffic
    "Packets that the interface sent."
    [Interface("tx_packets")]

    // Congestion. RP is the reaction point, which sends the data; NP the notification point, which receives them.
    RpCnpHandled "rp_cnp_packets_handled" Packets CongestionSent
    "Congestion notifications that came back for data sent from here, for which the adapter slowed down."
    [Hardware("rp_cnp_handled"), Hardware("rx_cnp_pkts"), Hardware("cnpHandled"), Hardware("rx_rdma_cnp_pkts")]
    RpCnpIgnored "rp_cnp_ignored_packets_received" Packets CongestionSent
    "Congestion notifications that came back for data sent from here, for which the adapter did nothing."
    [Hardware("rp_cnp_ignored"), Hardware("cnpIgnored")]
    NpEcnMarked "np_ecn_marked_roce_packets_received" Packets CongestionReceived
    "RoCE packets that arrived with ECN's mark: something on their way here was congested."
    [Hardware("np_ecn_marked_roce_packets"), Hardware("rx_ecn_marked_pkts"), Hardware("RxECNMrkd"),
     Hardware("rx_rdma_ecn_pkts")]
    NpCnpSent "np_cnp_packets_sent" Packets CongestionReceived
    "Congestion notifications that this adapter sent, because data arrived with ECN's mark."
    [Hardware("np_cnp_sent"), Hardware("np_cnp_pkts"), Hardware("tx_cnp_pkts"), Hardware("cnpSent"),
     Hardware("tx_rdma_cnp_pkts")]
    RxPrioMarked "rx_prio_marked" Packets CongestionReceived
    "Packets that this adapter itself marked by ECN on arrival, over all priorities."
    [Ethtool("rx_prio#_marked")]

    // Pauses.
    RxPrioPause "rx_prio_pause" Packets Pause
    "Pause frames that told this port to stop sending, over all priorities."
    [Ethtool("rx_prio#_pause"), Ethtool("rx_global_pause")]
    RxPrioPauseDuration "rx_prio_pause_duration_seconds" Microseconds Pause
    "Time in which pause frames kept this port from sending, summed over all priorities."
    [Ethtool("rx_prio#_pause_duration"), Ethtool("rx_global_pause_duration")]
    RxPrioPauseTransitions "rx_prio_pause_transitions" Events Pause
    "Times that a pause which kept this port from sending ended, over all priorities."
    [Ethtool("rx_prio#_pause_transition"), Ethtool("rx_global_pause_transition")]
    RxPauseCtrlPhy "rx_pause_ctrl_phy" Packets Pause
    "Link-level pause frames that the physical port received."
    [Ethtool("rx_pause_ctrl_phy")]
    PortTransmitWait "port_transmit_wait" Ticks Pause
    "Ticks in which the port had data to send and sent none, for lack of credits or of arbitration."
    [Port("port_xmit_wait")]
    TxPrioPause "tx_prio_pause" Packets PauseSent
    "Pause frames by which this port told the other end of its link to stop, over all priorities."
    [Ethtool("tx_prio#_pause"), Ethtool("tx_global_pause")]
    TxPrioPauseDuration "tx_prio_pause_duration_seconds" Microseconds PauseSent
    "Time for which this port told the other end of its link to stop, summed over all priorities."
    [Ethtool("tx_prio#_pause_duration"), Ethtool("tx_global_pause_duration")]
    TxPauseCtrlPhy "tx_pause_ctrl_phy" Packets PauseSent
    "Link-level pause frames that the physical port sent."
    [Ethtool("tx_pause_ctrl_phy")]
    TxPauseStormWarnings "tx_pause_storm_warning_events" Events PauseSent
    "Times that this port sent pauses for a long time without a break."
    [Ethtool("tx_pause_storm_warning_events")]
    TxPauseStormErrors "tx_pause_storm_error_events" Events PauseSent
    "Times that this port sent pauses for so long that the adapter turned them off, and drops instead."
    [Ethtool("tx_pause_storm_error_events")]

    // Discards.
    PortDiscardsReceived "port_discards_received" Packets Discard
    "Packets that the RDMA port received and dropped."
    [Port("port_rcv_discards"), Hardware("rx_roce_discards"), Hardware("rx_drops"), Hardware("ip4InDiscards"),
     Hardware("ip6InDiscards"), Hardware("rx_rdma_mtu_discard_pkts")]
    PortDiscardsTransmitted "port_discards_transmitted" Packets Discard
    "Packets that the RDMA port dropped instead of sending them, because it was down or congested."
    [Port("port_xmit_discards"), Hardware("tx_roce_discards")]
    Vl15Dropped "vl15_dropped" Packets Discard
    "Management packets (virtual lane 15) that were dropped on arrival for lack of room."
    [Port("VL15_dropped")]
    ExcessiveBufferOverruns "excessive_buffer_overrun_errors" Events Discard
    "Times that the port's input buffer overran."
    [Port("excessive_buffer_overrun_errors")]
    OutOfBuffer "out_of_buffer_drops" Packets Discard
    "Packets that were dropped because no receive was posted for them."
    [Hardware("out_of_buffer"), Hardware("rx_out_of_buffer"), Hardware("resp_rx_outof_buf")]
    RxPrioBufDiscard "rx_prio_buf_discard" Packets Discard
    "Packets that were dropped on arrival because the port's buffers were full, over all priorities."
    [Ethtool("rx_prio#_buf_discard")]
    RxPrioCongDiscard "rx_prio_cong_discard" Packets Discard
    "Packets that were dropped on arrival because the host was congested, over all priorities."
    [Ethtool("rx_prio#_cong_discard")]
    RxDiscardsPhy "rx_discards_phy" Packets Discard
    "Packets that the physical port dropped on arrival for lack of buffers."
    [Ethtool("rx_discards_phy")]
    TxDiscardsPhy "tx_discards_phy" Packets Discard
    "Packets that the physical port dropped instead of sending them."
    [Ethtool("tx_discards_phy")]
    NetworkReceiveDrop "network_receive_drop" Packets Discard
    "Packets that the interface received and dropped."
    [Interface("rx_dropped")]
    NetworkTransmitDrop "network_transmit_drop" Packets Discard
    "Packets that the interface dropped instead of sending them."
    [Interface("tx_dropped")]

    // Retransmissions.
    LocalAckTimeouts "local_ack_timeout_errors" Events Retransmission
    "Times that no acknowledgement came in time and the data were sent again."
    [Hardware("local_ack_timeout_err"), Hardware("to_retransmits"), Hardware("RTO"), Hardware("requester_timeout"),
     Hardware("retrans_timeout_events"), Hardware("tx_rdma_ack_timeout")]
    PacketSequenceErrors "packet_sequence_errors" Events Retransmission
    "Answers of a receiver that packets are missing, after which they were sent again from here."
    [Hardware("packet_seq_err"), Hardware("rcvd_seq_err"), Hardware("seq_err_naks_rcvd"),
     Hardware("Nak Sequence Error"), Hardware("requester_oos_nak"), Hardware("req_rx_pkt_seq_err")]
    OutOfSequence "out_of_sequence_packets_received" Packets Retransmission
    "Packets that arrived out of order: those before them were lost or overtaken."
    [Hardware("out_of_sequence"), Hardware("out_of_seq_request"), Hardware("oos_drop_count"),
     Hardware("Rcvd Out of order packets"), Hardware("responder_oos"), Hardware("resp_rx_outouf_seq")]
    ImpliedNakSequenceErrors "implied_nak_seq_errors" Events Retransmission
    "Acknowledgements beyond an answer to a read or atomic that is missing, which shows that it was lost."
    [Hardware("implied_nak_seq_err"), Hardware("Nak Sequence Error Implied"), Hardware("requester_implicit_nak"),
     Hardware("req_rx_impl_nak_seq_err")]
    RnrNakRetries "rnr_nak_retry_packets_received" Packets Retransmission
    "Answers that the receiver was not ready, after which the data were sent again from here."
    [Hardware("rnr_nak_retry_err"), Hardware("rcvd_rnr_err"), Hardware("rnr_naks_rcvd"), Hardware("RNR received"),
     Hardware("requester_rnr_nak"), Hardware("req_rx_rnr_retry_err")]
    RnrNaksSent "rnr_nak_packets_sent" Packets Retransmission
    "Answers from here that no receive was posted, after which the data come again."
    [Hardware("send_rnr_err"), Hardware("RNR sent"), Hardware("responder_rnr_nak"), Hardware("resp_tx_rnr_retry_err")]
    DuplicateRequests "duplicate_requests_packets" Packets Retransmission
    "Requests that arrived twice: the other end sent them again."
    [Hardware("duplicate_request"), Hardware("dup_req"), Hardware("responder_dup_request"),
     Hardware("resp_rx_dup_request")]
    RoceAdpRetransmits "roce_adp_retransmits" Events Retransmission
    "Adaptive retransmissions of RoCE."
    [Hardware("roce_adp_retrans")]
    RoceAdpRetransmitTimeouts "roce_adp_retransmits_timeout" Events Retransmission
    "Timeouts of RoCE's adaptive retransmission."
    [Hardware("roce_adp_retrans_to")]
    CompleterRetries "completer_retry_errors" Events Retransmission
    "Times that software RoCE sent again, for any reason."
    [Hardware("completer_retry_err")]
    RetransmittedPackets "retransmitted_packets" Packets Retransmission
    "Packets that were sent again from here, for any reason."
    [Hardware("retrans_pkts"), Hardware("tx_rdma_retx_pkts"), Hardware("RetransSegs"), Hardware("tcpRetransSegs")]
    TransportRetriesExceeded "req_transport_retries_exceeded" Events Retransmission
    "Requests from here that were given up after all their retries."
    [Hardware("req_transport_retries_exceeded"), Hardware("retry_exceeded_err"), Hardware("max_retry_exceeded"),
     Hardware("req_tx_retry_excd_err")]
    RnrRetriesExceeded "req_rnr_retries_exceeded" Events Retransmission
    "Requests from here that were given up because the receiver never became ready."
    [Hardware("req_rnr_retries_exceeded"), Hardware("retry_rnr_exceeded_err")]

    // Errors of the link.
    SymbolErrors "symbol_error" Events LinkError
    "Minor errors of the link, on any lane."
    [Port("symbol_error")]
    LinkErrorRecoveries "link_error_recovery" Events LinkError
    "Times that the link recovered from an error without going down."
    [Port("link_error_recovery")]
    LinkDowned "link_downed" Events LinkError
    "Times that the link went down, because it did not recover from an error."
    [Port("link_downed"), Hardware("link_downed")]
    LocalLinkIntegrityErrors "local_link_integrity_errors" Events LinkError
    "Times that there were more errors of the link than its threshold allows."
    [Port("local_link_integrity_errors")]
    PortErrorsReceived "port_errors_received" Packets LinkError
    "Packets that the RDMA port received with an error."
    [Port("port_rcv_errors"), Hardware("rx_roce_errors")]
    PortRemotePhysicalErrors "port_receive_remote_physical_errors" Packets LinkError
    "Packets that arrived marked as bad by a switch before this port."
    [Port("port_rcv_remote_physical_errors")]
    RxIcrcEncapsulated "rx_icrc_encapsulated_errors" Packets LinkError
    "RoCE packets that arrived with a wrong invariant checksum (ICRC)."
    [Hardware("rx_icrc_encapsulated"), Hardware("CRC errors")]
    RxCrcErrorsPhy "rx_crc_errors_phy" Packets LinkError
    "Frames that the physical port received with a wrong checksum."
    [Ethtool("rx_crc_errors_phy")]
    RxSymbolErrorsPhy "rx_symbol_err_phy" Packets LinkError
    "Frames that the physical port received with a wrong symbol."
    [Ethtool("rx_symbol_err_phy")]
    LinkDownEventsPhy "link_down_events_phy" Events LinkError
    "Times that the physical link went down."
    [Ethtool("link_down_events_phy")]
    NetworkReceiveErrors "network_receive_errs" Packets LinkError
    "Packets that the interface received with an error."
    [Interface("rx_errors")]
    NetworkTransmitErrors "network_transmit_errs" Packets LinkError
    "Packets that the interface could not send because of an error."
    [Interface("tx_errors")]

    // Other.
    PortConstraintErrorsReceived "port_constraint_errors_received" Packets Other
    "Packets that the port refused on arrival, because of a partition or of raw filtering."
    [Port("port_rcv_constraint_errors")]
    PortConstraintErrorsTransmitted "port_constraint_errors_transmitted" Packets Other
    "Packets that the port refused to send, because of a partition or of raw filtering."
    [Port("port_xmit_constraint_errors")]
    PortSwitchRelayErrors "port_receive_switch_relay_errors" Packets Other
    "Packets that a switch could not forward."
    [Port("port_rcv_switch_relay_errors")]
    RoceSlowRestartUsed "roce_slow_restart_used" Events Other
    "Times that RoCE's slow restart was used."
    [Hardware("roce_slow_restart")]
    RoceSlowRestartCnps "roce_slow_restart_cnps" Events Other
    "Times that RoCE's slow restart made a congestion notification."
    [Hardware("roce_slow_restart_cnps")]
    RoceSlowRestarts "roce_slow_restart" Events Other
    "Times that RoCE changed its state to slow restart."
    [Hardware("roce_slow_restart_trans")]
    RxReadRequests "rx_read_requests" Events Other
    "RDMA reads that arrived."
    [Hardware("rx_read_requests"), Hardware("rx_read_req")]
    RxWriteRequests "rx_write_requests" Events Other
    "RDMA writes that arrived."
    [Hardware("rx_write_requests"), Hardware("rx_write_req")]
    RxAtomicRequests "rx_atomic_requests" Events Other
    "Atomic operations that arrived."
    [Hardware("rx_atomic_requests"), Hardware("rx_atomic_req")]
    RxDctConnects "rx_dct_connect_requests" Events Other
    "Connection requests that arrived for dynamically connected transport."
    [Hardware("rx_dct_connect")]
    ReqCqeErrors "req_cqes_errors" Events Other
    "Requests from here that completed with an error."
    [Hardware("req_cqe_error"), Hardware("req_rx_cqe_err")]
    ReqCqeFlushErrors "req_cqes_flush_errors" Events Other
    "Requests from here that completed as flushed, because their queue pair had failed before."
    [Hardware("req_cqe_flush_error"), Hardware("req_rx_cqe_flush")]
    ReqRemoteAccessErrors "req_remote_access_errors" Events Other
    "Requests from here that the other end refused for lack of access."
    [Hardware("req_remote_access_errors"), Hardware("req_rx_rmt_acc_err"), Hardware("remote_access_err")]
    ReqRemoteInvalidRequests "req_remote_invalid_request_errors" Events Other
    "Requests from here that the other end refused as invalid."
    [Hardware("req_remote_invalid_request"), Hardware("remote_invalid_req_err"), Hardware("req_rx_rmt_req_err")]
    RespCqeErrors "resp_cqes_errors" Events Other
    "Receives here that completed with an error."
    [Hardware("resp_cqe_error"), Hardware("resp_rx_cqe_err")]
    RespCqeFlushErrors "resp_cqes_flush_errors" Events Other
    "Receives here that completed as flushed, because their queue pair had failed before."
    [Hardware("resp_cqe_flush_error"), Hardware("resp_rx_cqe_flush")]
    RespLocalLengthErrors "resp_local_length_errors" Events Other
    "Requests that were longer than the receive posted for them here."
    [Hardware("resp_local_length_error"), Hardware("resp_rx_loc_len_err")]
    RespRemoteAccessErrors "resp_remote_access_errors" Events Other
    "Requests of the other end that were refused here for lack of access."
    [Hardware("resp_remote_access_errors"), Hardware("resp_tx_rmt_acc_err")]
    SendErrors "send_errors" Events Other
    "Packets that software RoCE could not hand to its interface."
    [Hardware("send_err")]
}

impl Counter {
    /// The number of counters.
    pub(crate) const COUNT: usize = Self::ALL.len();

    /// Returns the counter with this [`name`](Self::name); `None` if there is none.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|counter| counter.name() == name)
    }

    /// Returns the value at which it stays for good, if it is a counter of link errors of InfiniBand's PortCounters
    /// (IBTA volume 1, 16.1.3.5), which RoCE drivers have too. Drivers that count further pass it.
    pub fn largest(self) -> Option<u64> {
        match self {
            Self::SymbolErrors | Self::PortErrorsReceived | Self::PortRemotePhysicalErrors => Some(u16::MAX.into()),
            Self::LinkErrorRecoveries | Self::LinkDowned => Some(u8::MAX.into()),
            Self::LocalLinkIntegrityErrors => Some(0xf),
            _ => None,
        }
    }

    /// Returns the counter with an origin for which `is_its` returns true; `None` if there is none. It searches the
    /// table.
    pub(crate) fn find(is_its: impl Fn(Origin) -> bool) -> Option<Self> {
        Self::ALL.iter().copied().find(|counter| counter.origins().iter().any(|origin| is_its(*origin)))
    }
}

impl fmt::Display for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_row_is_whole_and_each_name_and_origin_has_one_row() {
        let (mut names, mut origins) = (BTreeSet::new(), BTreeSet::new());
        for (index, counter) in Counter::ALL.iter().enumerate() {
            assert_eq!(*counter as usize, index);
            let name = counter.name();
            assert!(names.insert(name), "{name} twice");
            assert!(name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_')), "{name}");
            assert!(!name.ends_with("_total") && !name.starts_with("node_"), "{name}");
            assert!(counter.help().ends_with('.') && counter.help().len() > 10, "{name}");
            assert_eq!(Counter::from_name(name), Some(*counter));
            assert_eq!(counter.unit() == Microseconds, name.ends_with("_seconds"), "{name}");
            assert!(!name.ends_with("_bytes") || counter.unit() == Bytes, "{name}");
            for origin in counter.origins() {
                assert!(origins.insert(format!("{origin:?}")), "{name}: {origin:?} twice");
                assert_eq!(Counter::find(|other| other == *origin), Some(*counter));
            }
        }
        for missing in ["", "port_data_received_bytes_total", "lifespan", "RpCnpHandled"] {
            assert_eq!(Counter::from_name(missing), None, "{missing}");
        }
    }

    #[test]
    fn kinds_tell_the_sending_side_from_the_receiving_side() {
        let kind = |name: &str| Counter::from_name(name).unwrap().kind();
        assert_eq!(kind("rp_cnp_packets_handled"), CongestionSent);
        for name in ["np_cnp_packets_sent", "np_ecn_marked_roce_packets_received", "rx_prio_marked"] {
            assert_eq!(kind(name), CongestionReceived, "{name}");
        }
        for name in ["rx_prio_pause", "port_transmit_wait", "rx_prio_pause_duration_seconds"] {
            assert_eq!(kind(name), Pause, "{name}");
        }
        assert_eq!(kind("tx_prio_pause"), PauseSent, "this end's own pauses do not slow what it sends");
        assert_eq!(kind("local_ack_timeout_errors"), Retransmission);
        assert_eq!(kind("link_downed"), LinkError);
        assert_eq!(Microseconds.scale(), 1e-6);
        assert_eq!(Ticks.scale(), 1.0);
    }
}
