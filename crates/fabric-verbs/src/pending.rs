//! A rail whose queue pairs are being connected.

use std::ffi::c_int;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use railweave_fabric::{Fault, LaneEndpoint, LinkLayer, PendingRail, RailSpec, Role, SetupError};

use crate::domain::{Verbs, VerbsDomain, show_gid};
use crate::endpoint::Endpoint;
use crate::flush::FlushLane;
use crate::gid::{PortGid, for_peer};
use crate::lanes::{LaneParts, Lanes};
use crate::queues::{CompletionQueue, QueuePair, QueuePairSpec, SharedReceives};
use crate::rail::{RailParts, VerbsRail};
use crate::sys;

/// Bytes that a write may carry in its work request: a CTS entry or a completion record.
const INLINE_BYTES: u32 = 64;
/// Hops that a routed packet may take.
const HOP_LIMIT: u8 = 255;
/// Code of the pause that a receiver without a receive asks for: 0.64 ms (IBTA, table 46).
const MIN_RNR_TIMER: u8 = 12;
/// Asks for receives without limit: the protocol reserves them, so the count never matters.
const RNR_RETRY: u8 = 7;
/// A change of state that times out while the kernel looks the peer's address up is tried so often.
const MODIFY_TRIES: u32 = 3;

struct PendingLane {
    qp: QueuePair,
    psn: u32,
    /// What this end knows of ECE: what it offers, then what both agreed on.
    ece: Option<sys::Ece>,
    /// Once it is connected.
    peer: Option<Endpoint>,
}

/// A rail whose queue pairs are being connected. Dropping it releases everything.
pub struct VerbsPendingRail {
    // In the order in which they must be destroyed.
    lanes: Vec<PendingLane>,
    flush: Option<FlushLane>,
    shared: Option<SharedReceives>,
    completions: CompletionQueue,
    domain: Arc<VerbsDomain>,
    spec: RailSpec,
    attributes: sys::PortAttributes,
    /// The port's GIDs as they were when the rail was begun, and which of them it uses.
    gids: Vec<PortGid>,
    gid: PortGid,
}

impl VerbsPendingRail {
    pub(crate) fn open(domain: &Arc<VerbsDomain>, spec: &RailSpec) -> Result<Self, SetupError> {
        let attributes = domain.active_port()?;
        let gids = domain.gids(&attributes);
        let gid = spec.peer.map_or(&gids[0], |peer| for_peer(&gids, peer.octets())).clone();
        let flushes = spec.role == Role::Receiver && domain.config.flush;
        let shared = shared_receives(domain, spec);
        let own_receives = if shared.is_some() { 0 } else { spec.receive_depth };
        // When a lane breaks, everything that is posted on it completes, signalled or not.
        let lanes = u32::from(spec.lanes);
        let receives = if shared.is_some() { spec.receive_depth } else { own_receives * lanes };
        let entries = lanes * spec.send_depth + receives + if flushes { FlushLane::DEPTH } else { 0 };
        let completions = CompletionQueue::new(domain.device(), entries).map_err(|error| {
            let advice =
                "fewer lanes (RAILWEAVE_LANES) need smaller queues; look at the device's max_cqe (ibv_devinfo -v)";
            domain.refused(&format!("a completion queue of {entries} entries cannot be created"), &error, advice)
        })?;
        let mut pending = Self {
            lanes: Vec::with_capacity(usize::from(spec.lanes)),
            flush: None,
            shared,
            completions,
            domain: Arc::clone(domain),
            spec: spec.clone(),
            attributes,
            gids,
            gid,
        };
        for _ in 0..spec.lanes {
            let lane = pending.open_lane(own_receives)?;
            pending.lanes.push(lane);
        }
        if flushes {
            let path = Path { local: &pending.gid, attributes: &pending.attributes, domain };
            pending.flush = Some(FlushLane::open(domain, &pending.completions, &path, classes(domain, spec))?);
        }
        Ok(pending)
    }

    fn open_lane(&self, receive_depth: u32) -> Result<PendingLane, SetupError> {
        let domain = &self.domain;
        let spec = |inline| QueuePairSpec {
            completions: &self.completions,
            shared: self.shared.as_ref(),
            send_depth: self.spec.send_depth,
            receive_depth,
            inline,
        };
        // Some devices carry less in a work request, or nothing, and refuse instead of granting less.
        let qp = QueuePair::new(&domain.pd, &spec(INLINE_BYTES)).or_else(|_| QueuePair::new(&domain.pd, &spec(0)));
        let mut qp = qp.map_err(|error| {
            let what = format!(
                "a queue pair for {} sends and {receive_depth} receives cannot be created",
                self.spec.send_depth
            );
            domain.refused(
                &what,
                &error,
                "look at the device's max_qp and max_qp_wr (ibv_devinfo -v), and raise ulimit -l",
            )
        })?;
        initialise(domain, &mut qp, sys::ACCESS_REMOTE_WRITE)?;
        let ece = if domain.config.ece { qp.ece() } else { None };
        Ok(PendingLane { qp, psn: random_psn(domain)?, ece, peer: None })
    }

    fn endpoint(&self, lane: &PendingLane) -> Endpoint {
        Endpoint {
            number: lane.qp.number(),
            psn: lane.psn,
            lid: self.attributes.lid,
            link_layer: self.domain.link_layer,
            mtu: self.attributes.active_mtu as u8,
            wants_grh: self.attributes.flags & sys::QPF_GRH_REQUIRED != 0,
            gid: self.gid.bytes,
            // What the connector offers, the acceptor answers with what is left of it.
            ece: lane.ece,
        }
    }

    fn connect_lane(&mut self, index: usize, peer: Endpoint) -> Result<(), SetupError> {
        let role = self.spec.role;
        let path = Path { local: &self.gid, attributes: &self.attributes, domain: &self.domain };
        let classes = classes(&self.domain, &self.spec);
        let lane = &mut self.lanes[index];
        let has_ece = set_ece(&path, lane, &peer)?;
        bring_up(&path, &mut lane.qp, lane.psn, &peer, classes)?;
        lane.ece = match role {
            Role::Receiver if has_ece => lane.qp.ece(),
            _ => None,
        };
        lane.peer = Some(peer);
        Ok(())
    }
}

impl PendingRail for VerbsPendingRail {
    type Fabric = Verbs;

    fn endpoints(&self) -> Vec<LaneEndpoint> {
        self.lanes.iter().map(|lane| self.endpoint(lane).encode()).collect()
    }

    fn connect(&mut self, remote: &[LaneEndpoint]) -> Result<(), SetupError> {
        for (index, endpoint) in remote.iter().enumerate().take(self.lanes.len()) {
            let peer = Endpoint::decode(endpoint)?;
            if peer.link_layer != self.domain.link_layer {
                return Err(SetupError {
                    fault: Fault::Configuration,
                    message: format!(
                        "{} is {}, the peer's port {}; let RAILWEAVE_RAILS name ports of one kind",
                        self.domain.name,
                        self.domain.link_layer.name(),
                        peer.link_layer.name()
                    ),
                });
            }
            if index == 0 && self.spec.role == Role::Receiver {
                // The sender has chosen; this end's answer is still open.
                self.gid = for_peer(&self.gids, peer.gid).clone();
            }
            self.connect_lane(index, peer)?;
        }
        Ok(())
    }

    fn attach(&mut self, lane: u8, _socket: OwnedFd) -> Result<(), SetupError> {
        Err(SetupError {
            fault: Fault::Protocol,
            message: format!("a socket came for lane {lane} of {}, whose lanes are queue pairs", self.domain.name),
        })
    }

    fn is_ready(&self) -> bool {
        self.lanes.iter().all(|lane| lane.peer.is_some())
    }

    fn into_rail(self) -> Result<VerbsRail, SetupError> {
        let unconnected =
            || SetupError { fault: Fault::Protocol, message: format!("{}: a lane is not connected", self.domain.name) };
        let mut lanes = Vec::with_capacity(self.lanes.len());
        let mut peer_gid = [0; 16];
        for lane in self.lanes {
            let peer = lane.peer.ok_or_else(unconnected)?;
            peer_gid = peer.gid;
            lanes.push(LaneParts { qp: lane.qp, peer_number: peer.number });
        }
        Ok(VerbsRail::new(RailParts {
            lanes: Lanes::new(lanes).ok_or_else(unconnected)?,
            peer_gid,
            flush: self.flush,
            shared: self.shared,
            completions: self.completions,
            domain: self.domain,
            spec: self.spec,
            gid: self.gid.bytes,
        }))
    }
}

/// This end of a path, for the attributes of its queue pairs.
pub(crate) struct Path<'a> {
    pub(crate) local: &'a PortGid,
    pub(crate) attributes: &'a sys::PortAttributes,
    pub(crate) domain: &'a VerbsDomain,
}

/// How packets are treated on their way.
#[derive(Clone, Copy)]
pub(crate) struct Classes {
    pub(crate) service_level: u8,
    pub(crate) traffic_class: u8,
}

fn classes(domain: &VerbsDomain, spec: &RailSpec) -> Classes {
    let config = &domain.config;
    // The lanes of the receiving end carry CTS.
    let of_cts = config.cts_traffic_class.filter(|_| spec.role == Role::Receiver);
    let of_job = spec.traffic_class.filter(|_| domain.link_layer == LinkLayer::InfiniBand).map(|class| class & 15);
    Classes {
        service_level: config.service_level.or(of_job).unwrap_or(0),
        traffic_class: of_cts.or(config.traffic_class).or(spec.traffic_class).unwrap_or(0),
    }
}

/// A shared receive queue, where the rail has a use for one and the device makes it: None gives each lane receives of
/// its own. A lane with its own sees its queue pair die, because these come back then; and it needs one object less.
fn shared_receives(domain: &VerbsDomain, spec: &RailSpec) -> Option<SharedReceives> {
    let is_wanted = spec.receive_depth > 0 && domain.config.shared_receives.unwrap_or(spec.lanes > 1);
    if !is_wanted {
        return None;
    }
    let shared = SharedReceives::new(&domain.pd, spec.receive_depth);
    shared.inspect_err(|error| domain.tell_of_queues(error)).ok()
}

/// Takes over the peer's ECE where both ends know it; whether it is set.
fn set_ece(path: &Path<'_>, lane: &mut PendingLane, peer: &Endpoint) -> Result<bool, SetupError> {
    // What the options mean is the maker's business.
    let of_one_maker = |theirs: &sys::Ece| lane.ece.is_some_and(|ours| ours.vendor_id == theirs.vendor_id);
    let Some(ece) = peer.ece.filter(of_one_maker) else {
        return Ok(false);
    };
    match lane.qp.set_ece(ece) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(false),
        Err(error) => {
            let what = format!(
                "the ECE of the peer's queue pair {:#x} (GID {}; vendor {:#x}, options {:#x}) cannot be set on {:#x}",
                peer.number,
                show_gid(peer.gid),
                ece.vendor_id,
                ece.options,
                lane.qp.number()
            );
            let advice = "give both adapters the same firmware, or set NCCL_IB_ECE_ENABLE=0 on both hosts";
            Err(path.domain.refused(&what, &error, advice))
        }
    }
}

/// The change from RESET to INIT.
pub(crate) fn initialise(domain: &VerbsDomain, qp: &mut QueuePair, access: c_int) -> Result<(), SetupError> {
    let mut attributes = sys::QpAttributes {
        qp_state: sys::QPS_INIT,
        pkey_index: domain.config.pkey_index,
        port_num: domain.port,
        qp_access_flags: access.cast_unsigned(),
        ..Default::default()
    };
    let mask = sys::QP_STATE | sys::QP_PKEY_INDEX | sys::QP_PORT | sys::QP_ACCESS_FLAGS;
    qp.modify(&mut attributes, mask).map_err(|error| {
        let what = format!(
            "QP transition failed: queue pair {:#x} to INIT (partition-key index {}, port {}, access {access:#x})",
            qp.number(),
            domain.config.pkey_index,
            domain.port
        );
        domain.refused(&what, &error, "check NCCL_IB_PKEY against the port's partition keys")
    })
}

/// The changes to RTR and RTS.
pub(crate) fn bring_up(
    path: &Path<'_>,
    qp: &mut QueuePair,
    psn: u32,
    peer: &Endpoint,
    classes: Classes,
) -> Result<(), SetupError> {
    let config = &path.domain.config;
    let mtu = (path.attributes.active_mtu as u8).min(peer.mtu);
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
    modify(qp, &mut attributes, mask).map_err(|error| {
        let what = format!("path MTU {}, GID index {}, LID {:#x}", 128u32 << mtu, path.local.index, peer.lid);
        failed(path, qp, peer, "RTR", &what, &error)
    })?;
    let mut attributes = sys::QpAttributes {
        qp_state: sys::QPS_RTS,
        timeout: config.timeout,
        retry_cnt: config.retry_count,
        rnr_retry: RNR_RETRY,
        sq_psn: psn,
        max_rd_atomic: 1,
        ..Default::default()
    };
    let mask = sys::QP_STATE
        | sys::QP_TIMEOUT
        | sys::QP_RETRY_CNT
        | sys::QP_RNR_RETRY
        | sys::QP_SQ_PSN
        | sys::QP_MAX_QP_RD_ATOMIC;
    modify(qp, &mut attributes, mask).map_err(|error| {
        let what = format!("timeout {}, retry count {}", config.timeout, config.retry_count);
        failed(path, qp, peer, "RTS", &what, &error)
    })
}

/// The address of the peer's port: IBTA 12.7 for InfiniBand, annex A17 for RoCE.
fn address(path: &Path<'_>, peer: &Endpoint, classes: Classes) -> sys::AhAttributes {
    let domain = path.domain;
    let grh = sys::GlobalRoute {
        dgid: sys::Gid(peer.gid),
        flow_label: 0,
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
            // Between subnets a packet goes to the router; its identifier for the peer stands in the peer's GID, where there
            // is one (NCCL 2.32, NCCL_IB_ROUTABLE_FLID_GID_INDEX).
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

/// The subnet that an InfiniBand GID names: its prefix without the two bytes of the router's identifier.
fn subnet(gid: [u8; 16]) -> [u8; 6] {
    [gid[0], gid[1], gid[2], gid[3], gid[6], gid[7]]
}

fn modify(qp: &mut QueuePair, attributes: &mut sys::QpAttributes, mask: c_int) -> io::Result<()> {
    let mut tries = 1;
    loop {
        match qp.modify(attributes, mask) {
            Err(error) if error.raw_os_error() == Some(libc::ETIMEDOUT) && tries < MODIFY_TRIES => tries += 1,
            result => return result,
        }
    }
}

fn failed(path: &Path<'_>, qp: &QueuePair, peer: &Endpoint, state: &str, what: &str, error: &io::Error) -> SetupError {
    let advice = match error.raw_os_error() {
        Some(libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::ENODEV) => {
            "the peer's address cannot be reached from this port: check its subnet, cable and switch, and the GID index \
             (NCCL_IB_GID_INDEX, show_gids)"
        }
        _ => "check the GID index (NCCL_IB_GID_INDEX, show_gids) and that both ports are of one network",
    };
    SetupError {
        fault: Fault::Local,
        message: format!(
            "QP transition failed: queue pair {:#x} of {} (GID {}) to {state} for the peer's {:#x} (GID {}), {what}: {error}; \
             {advice}",
            qp.number(),
            path.domain.name,
            show_gid(path.local.bytes),
            peer.number,
            show_gid(peer.gid),
        ),
    }
}

/// A packet number that no earlier queue pair of this number is likely to have used.
pub(crate) fn random_psn(domain: &VerbsDomain) -> Result<u32, SetupError> {
    getrandom::u32().map(|number| number & 0xff_ffff).map_err(|error| SetupError {
        fault: Fault::Local,
        message: format!("{}: no random packet number: {error}", domain.name),
    })
}
