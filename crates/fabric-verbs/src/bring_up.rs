//! Bringing a queue pair up: its changes of state, each retried while the kernel cannot make it yet.

use std::ffi::c_int;
use std::io;
use std::time::Instant;

use railweave_fabric::{Connecting, LinkLayer, SetupError, SetupStep, TargetState, Transition, Tries};

use crate::domain::VerbsDomain;
use crate::endpoint::Endpoint;
use crate::gid::{PortGid, show_gid};
use crate::queues::QueuePair;
use crate::sys;
use crate::unfound::{Looking, WAIT};

/// Hops that a routed packet may take.
const HOP_LIMIT: u8 = 255;
/// Code of the pause that a receiver asks for while no receive is posted: 0.64 ms (IBTA, table 46).
const MIN_RNR_TIMER: u8 = 12;
/// Retries without limit while the peer has no receive posted: the protocol reserves receives, so the count never
/// matters.
const RNR_RETRY: u8 = 7;

/// This end of a path, for the attributes of its queue pairs.
pub(crate) struct Path<'a> {
    pub(crate) local: &'a PortGid,
    pub(crate) attributes: &'a sys::PortAttributes,
    pub(crate) domain: &'a VerbsDomain,
}

/// The classes by which the network treats packets.
#[derive(Clone, Copy)]
pub(crate) struct Classes {
    pub(crate) service_level: u8,
    pub(crate) traffic_class: u8,
}

/// The states that a queue pair passes through (ibv_modify_qp(3)).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reached {
    Reset,
    Init,
    ReadyToReceive,
    ReadyToSend,
}

/// A queue pair on its way to RTS.
pub(crate) struct RisingPair {
    pub(crate) pair: QueuePair,
    /// The number of its first packet.
    pub(crate) psn: u32,
    /// The peer's access rights; on a loop-back lane, its own.
    access: c_int,
    reached: Reached,
    /// The number of times that the next change of state was refused.
    refusals: u32,
    /// Others may wait while it looks for its peer.
    looking: Option<Looking>,
}

impl RisingPair {
    /// Moves a new queue pair to INIT; it stays in RESET if that change must be retried.
    pub(crate) fn open(domain: &VerbsDomain, pair: QueuePair, access: c_int) -> Result<Self, SetupError> {
        let psn = random_psn(domain)?;
        let mut rising = Self { pair, psn, access, reached: Reached::Reset, refusals: 0, looking: None };
        let result = rising.initialise(domain);
        // `rise` goes the rest of the way once the peer is known.
        rising.stand(domain, Reached::Init, result, |rising, error| rising.not_initialised(domain, error))?;
        Ok(rising)
    }

    /// Returns true once the kernel knows its peer; some attributes must be set before that (ibv_set_ece(3)).
    pub(crate) fn is_ready_to_receive(&self) -> bool {
        matches!(self.reached, Reached::ReadyToReceive | Reached::ReadyToSend)
    }

    /// Moves it on to RTS. Does not sleep: if a change of state must be retried, the next call does so.
    pub(crate) fn rise(
        &mut self,
        path: &Path<'_>,
        peer: &Endpoint,
        classes: Classes,
    ) -> Result<Connecting, SetupError> {
        let domain = path.domain;
        loop {
            let connecting = match self.reached {
                Reached::Reset => {
                    let result = self.initialise(domain);
                    self.stand(domain, Reached::Init, result, |rising, error| rising.not_initialised(domain, error))
                }
                Reached::Init => {
                    let mtu = (path.attributes.active_mtu as u8).min(peer.mtu);
                    let words = |rising: &Self, error: &io::Error| {
                        let (gid_index, lid) = (path.local.index, peer.lid);
                        let to = TargetState::ReadyToReceive { mtu: 128 << mtu, gid_index, lid };
                        rising.not_ready(path, peer, to, error)
                    };
                    let (number, begun) = (self.pair.number(), Instant::now());
                    if domain.unfound.is_looked_for(peer.gid, number, begun) {
                        return Ok(Connecting::Later { pause: WAIT, reason: self.waiting(path, peer) });
                    }
                    let result = self.make_ready_to_receive(path, peer, classes, mtu);
                    let (next, now) = (domain.config.modify_retries.pause_after(self.refusals + 1), Instant::now());
                    // The earlier one ends first: it stands for the same queue pair.
                    self.looking = None;
                    self.looking = domain.unfound.note(peer.gid, number, (&result, now - begun), next, now);
                    self.stand(domain, Reached::ReadyToReceive, result, words)
                }
                Reached::ReadyToReceive => {
                    let result = self.make_ready_to_send(domain);
                    self.stand(domain, Reached::ReadyToSend, result, |rising, error| {
                        let config = &domain.config;
                        let to = TargetState::ReadyToSend { timeout: config.timeout, retries: config.retry_count };
                        rising.not_ready(path, peer, to, error)
                    })
                }
                Reached::ReadyToSend => return Ok(Connecting::Done),
            }?;
            if connecting != Connecting::Done {
                return Ok(connecting);
            }
        }
    }

    /// Notes the outcome of a change of state: done, to be retried, or failed.
    fn stand(
        &mut self,
        domain: &VerbsDomain,
        next: Reached,
        result: io::Result<()>,
        words: impl Fn(&Self, &io::Error) -> SetupError,
    ) -> Result<Connecting, SetupError> {
        let Err(error) = result else {
            self.reached = next;
            self.refusals = 0;
            return Ok(Connecting::Done);
        };
        let retries = domain.config.modify_retries;
        let may_pass = retries.any_error || error.raw_os_error() == Some(libc::ETIMEDOUT);
        let reason = words(self, &error);
        let Some(pause) = retries.pause_after(self.refusals + 1).filter(|_| may_pass) else {
            return Err(reason);
        };
        self.refusals += 1;
        Ok(Connecting::Later { pause, reason })
    }

    fn initialise(&mut self, domain: &VerbsDomain) -> io::Result<()> {
        let mut attributes = sys::QpAttributes {
            qp_state: sys::QPS_INIT,
            pkey_index: domain.config.pkey_index,
            port_num: domain.port,
            qp_access_flags: self.access.cast_unsigned(),
            ..Default::default()
        };
        let mask = sys::QP_STATE | sys::QP_PKEY_INDEX | sys::QP_PORT | sys::QP_ACCESS_FLAGS;
        self.pair.modify(&mut attributes, mask)
    }

    fn make_ready_to_receive(&mut self, path: &Path<'_>, peer: &Endpoint, classes: Classes, mtu: u8) -> io::Result<()> {
        let mut attributes = sys::QpAttributes {
            qp_state: sys::QPS_RTR,
            path_mtu: c_int::from(mtu),
            dest_qp_num: peer.number,
            rq_psn: peer.psn,
            max_dest_rd_atomic: 1,
            min_rnr_timer: MIN_RNR_TIMER,
            ah_attr: address(path, peer, classes),
            ..Default::default()
        };
        let mask = sys::QP_STATE
            | sys::QP_AV
            | sys::QP_PATH_MTU
            | sys::QP_DEST_QPN
            | sys::QP_RQ_PSN
            | sys::QP_MAX_DEST_RD_ATOMIC
            | sys::QP_MIN_RNR_TIMER;
        self.pair.modify(&mut attributes, mask)
    }

    fn make_ready_to_send(&mut self, domain: &VerbsDomain) -> io::Result<()> {
        let mut attributes = sys::QpAttributes {
            qp_state: sys::QPS_RTS,
            timeout: domain.config.timeout,
            retry_cnt: domain.config.retry_count,
            rnr_retry: RNR_RETRY,
            sq_psn: self.psn,
            max_rd_atomic: 1,
            ..Default::default()
        };
        let mask = sys::QP_STATE
            | sys::QP_TIMEOUT
            | sys::QP_RETRY_CNT
            | sys::QP_RNR_RETRY
            | sys::QP_SQ_PSN
            | sys::QP_MAX_QP_RD_ATOMIC;
        self.pair.modify(&mut attributes, mask)
    }

    fn not_initialised(&self, domain: &VerbsDomain, error: &io::Error) -> SetupError {
        let step = SetupStep::Init {
            number: self.pair.number(),
            partition_key: domain.config.pkey_index,
            port: domain.port,
            access: self.access,
            tries: Tries(self.refusals + 1),
        };
        domain.refused(step, error)
    }

    fn not_ready(&self, path: &Path<'_>, peer: &Endpoint, to: TargetState, error: &io::Error) -> SetupError {
        SetupError::Transition(Box::new(Transition {
            number: self.pair.number(),
            port: path.domain.name.clone(),
            gid: show_gid(path.local.bytes),
            to,
            peer: peer.number,
            peer_gid: show_gid(peer.gid),
            tries: Tries(self.refusals + 1),
            error: error.into(),
        }))
    }

    fn waiting(&self, path: &Path<'_>, peer: &Endpoint) -> SetupError {
        SetupError::Waiting {
            number: self.pair.number(),
            port: path.domain.name.clone(),
            gid: show_gid(path.local.bytes),
            peer: peer.number,
            peer_gid: show_gid(peer.gid),
        }
    }
}

/// Returns the address of the peer's port: IBTA 12.7 for InfiniBand, annex A17 for RoCE.
fn address(path: &Path<'_>, peer: &Endpoint, classes: Classes) -> sys::AhAttributes {
    let domain = path.domain;
    let grh = sys::GlobalRoute {
        dgid: sys::Gid(peer.gid),
        flow_label: 0,
        // `GidTable::read` returns no larger index.
        sgid_index: path.local.index as u8,
        hop_limit: HOP_LIMIT,
        traffic_class: classes.traffic_class,
    };
    let mut address = sys::AhAttributes { sl: classes.service_level, port_num: domain.port, ..Default::default() };
    match domain.link_layer {
        LinkLayer::InfiniBand => {
            let same_subnet = subnet(path.local.bytes) == subnet(peer.gid);
            let wants_grh = peer.wants_grh || path.attributes.flags & sys::QPF_GRH_REQUIRED != 0;
            address.dlid = peer.lid;
            if !same_subnet || wants_grh {
                address.is_global = 1;
                address.grh = grh;
            }
            // A packet to another subnet goes to the router; the router's identifier for the peer is in the peer's GID,
            // if the peer has one (NCCL 2.32, NCCL_IB_ROUTABLE_FLID_GID_INDEX).
            let flid = u16::from_be_bytes([peer.gid[4], peer.gid[5]]);
            if !same_subnet && flid != 0 {
                address.dlid = flid;
            }
        }
        _ => {
            address.is_global = 1;
            address.grh = grh;
        }
    }
    address
}

/// Returns the subnet that an InfiniBand GID names: its prefix without the two bytes of the router's identifier.
fn subnet(gid: [u8; 16]) -> [u8; 6] {
    [gid[0], gid[1], gid[2], gid[3], gid[6], gid[7]]
}

/// Returns a packet number that an earlier queue pair of the same number is unlikely to have used.
fn random_psn(domain: &VerbsDomain) -> Result<u32, SetupError> {
    getrandom::u32()
        .map(|number| number & 0xff_ffff)
        .map_err(|error| SetupError::NoRandom { port: domain.name.clone(), why: error.to_string() })
}
