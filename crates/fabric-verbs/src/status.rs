//! A bad completion in words: what its status means, who is at fault, and what to look at.

use std::ffi::c_int;

use railweave_fabric::{Fault, RailError};

use crate::sys;

/// What is known of a completion's lane.
pub(crate) struct Lane<'a> {
    /// Number of this end's queue pair.
    pub(crate) number: u32,
    /// Number of the peer's.
    pub(crate) peer: u32,
    /// The port and both GIDs, in words.
    pub(crate) path: &'a str,
}

/// The error of a completion whose status is not success.
pub(crate) fn error(status: c_int, vendor: u32, lane: &Lane<'_>) -> RailError {
    let (name, fault, advice) = meaning(status);
    RailError {
        fault,
        message: format!(
            "WC error status={status} ({name}), vendor code {vendor:#x}, on queue pair {:#x} to {:#x}, {}: {advice}",
            lane.number, lane.peer, lane.path
        ),
    }
}

/// A status by the name of IBTA 11.6.2, whose fault it is, and the usual causes.
fn meaning(status: c_int) -> (&'static str, Fault, &'static str) {
    const OWN: &str = "this is a bug of Railweave; please report it with this line";
    match status {
        sys::WC_LOC_LEN_ERR => ("local length error", Fault::Local, OWN),
        sys::WC_LOC_QP_OP_ERR => (
            "local queue-pair operation error",
            Fault::Local,
            "the adapter could not carry the work out: its port may be down or its address gone (so says soft-RoCE), or its \
             driver failed; look at the port's state (rdma link, ibstat) and the kernel log of this host",
        ),
        sys::WC_LOC_PROT_ERR => (
            "local protection error",
            Fault::Local,
            "the memory is not registered, or was deregistered while it was sent; look for a deregMr or a free during a \
             transfer",
        ),
        sys::WC_WR_FLUSH_ERR => (
            "work request flushed",
            Fault::Peer,
            "the lane broke before this work was done; look at the peer's log and at the port's events",
        ),
        sys::WC_BAD_RESP_ERR => (
            "bad response",
            Fault::Peer,
            "the peer's adapter answered what makes no sense; check firmware and path MTU",
        ),
        sys::WC_LOC_ACCESS_ERR => ("local access error", Fault::Local, OWN),
        sys::WC_REM_INV_REQ_ERR => (
            "remote invalid request",
            Fault::Peer,
            "the peer's adapter refused the request; check that both hosts run the same version of Railweave, and firmware",
        ),
        sys::WC_REM_ACCESS_ERR => (
            "remote access error",
            Fault::Peer,
            "the peer's memory is not registered for this, or no longer; look for a deregMr or a free there during a \
             transfer",
        ),
        sys::WC_REM_OP_ERR => {
            ("remote operation error", Fault::Peer, "the peer's adapter failed; look at its kernel log")
        }
        sys::WC_RETRY_EXC_ERR => (
            "transport retry counter exceeded",
            Fault::Peer,
            "the peer does not answer: its process or host is gone, a cable or switch port is down, or packets are lost; \
             check connectivity between these two GIDs (ping with the same MTU, firewall for UDP 4791, PFC or ECN on the \
             switch), the GID index, and raise NCCL_IB_TIMEOUT where the network is only slow",
        ),
        sys::WC_RNR_RETRY_EXC_ERR => (
            "receiver-not-ready retry counter exceeded",
            Fault::Peer,
            "the peer posted no receive in time; this is a bug of Railweave, please report it with this line",
        ),
        sys::WC_REM_ABORT_ERR => {
            ("remote aborted", Fault::Peer, "the peer's adapter gave the work up; look at its log")
        }
        sys::WC_FATAL_ERR => ("fatal error", Fault::Local, "the adapter failed; look at the kernel log of this host"),
        sys::WC_RESP_TIMEOUT_ERR => {
            ("response timeout", Fault::Peer, "the peer does not answer; check connectivity between these two GIDs")
        }
        sys::WC_GENERAL_ERR => ("general error", Fault::Local, "look at the kernel log of this host"),
        _ => ("a status that this version does not know", Fault::Local, "look at the kernel log of this host"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_told_with_its_lane_and_what_to_look_at() {
        let lane = Lane { number: 0x12, peer: 0x34, path: "mlx5_0:1, GID 10.0.0.1 to GID 10.0.0.2" };
        let error = error(sys::WC_RETRY_EXC_ERR, 0x81, &lane);
        assert_eq!(error.fault, Fault::Peer);
        for part in ["WC error status=12", "0x81", "0x12 to 0x34", "mlx5_0:1", "10.0.0.2", "check connectivity"] {
            assert!(error.message.contains(part), "{part} is not in {}", error.message);
        }
    }

    #[test]
    fn every_status_has_words() {
        for status in -1..40 {
            let (name, _, advice) = meaning(status);
            assert!(!name.is_empty() && advice.len() > 10, "{status}");
        }
    }
}
