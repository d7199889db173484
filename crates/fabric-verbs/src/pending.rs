//! A rail whose queue pairs are being connected.

use std::sync::Arc;

use railweave_fabric::{Connecting, LaneEndpoint, LinkLayer, Part, PendingRail, RailSpec, Role, SetupError, SetupStep};

use crate::bring_up::{Classes, Path, RisingPair};
use crate::domain::{Verbs, VerbsDomain};
use crate::endpoint::Endpoint;
use crate::flush::FlushLane;
use crate::gid::{PortGid, for_peer, show_gid};
use crate::lanes::{LaneParts, Lanes, own_receives};
use crate::queues::{CompletionQueue, QueuePair, QueuePairSpec, SharedReceives, parts};
use crate::rail::{RailParts, VerbsRail};
use crate::sys;

/// Bytes that a write may carry in its work request: a CTS entry or a completion record.
const INLINE_BYTES: u32 = 64;

struct PendingLane {
    qp: RisingPair,
    /// This end's ECE: its offer; once connected, the agreed one at the receiver's end, `None` at the sender's.
    ece: Option<sys::Ece>,
    /// True if the peer's ECE was set on the queue pair.
    has_ece: bool,
    /// Set once it is connected.
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
    /// The port's GIDs as they were when the rail was opened, and the one that it uses.
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
        let own_receives = if shared.is_some() { 0 } else { own_receives(spec) };
        // The queue has a place for every request, because all that are posted on a lane complete when it breaks,
        // signalled or not.
        let lanes = u32::from(spec.lanes);
        let receives = if shared.is_some() { spec.receive_depth } else { own_receives * lanes };
        let entries = lanes * spec.send_depth + receives + if flushes { FlushLane::DEPTH } else { 0 };
        let completions = CompletionQueue::new(domain.device(), entries)
            .map_err(|error| domain.refused(SetupStep::CompletionQueue { entries }, &error))?;
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
            pending.flush = Some(FlushLane::open(domain, &pending.completions)?);
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
        let step = SetupStep::QueuePair { sends: self.spec.send_depth, receives: receive_depth };
        let qp = qp.map_err(|error| domain.refused(step, &error))?;
        let qp = RisingPair::open(domain, qp, sys::ACCESS_REMOTE_WRITE)?;
        let ece = if domain.config.ece { qp.pair.ece() } else { None };
        Ok(PendingLane { qp, ece, has_ece: false, peer: None })
    }

    fn endpoint(&self, lane: &PendingLane) -> Endpoint {
        Endpoint {
            number: lane.qp.pair.number(),
            psn: lane.qp.psn,
            lid: self.attributes.lid,
            link_layer: self.domain.link_layer,
            mtu: self.attributes.active_mtu as u8,
            wants_grh: self.attributes.flags & sys::QPF_GRH_REQUIRED != 0,
            gid: self.gid.bytes,
            // The acceptor returns as much of the connector's offer as its device supports.
            ece: lane.ece,
        }
    }

    fn connect_lane(&mut self, index: usize, peer: Endpoint) -> Result<Connecting, SetupError> {
        let role = self.spec.role;
        let path = Path { local: &self.gid, attributes: &self.attributes, domain: &self.domain };
        let classes = classes(&self.domain, &self.spec);
        let lane = &mut self.lanes[index];
        if !lane.qp.is_ready_to_receive() {
            lane.has_ece = set_ece(&path, lane, &peer)?;
        }
        let connecting = lane.qp.rise(&path, &peer, classes)?;
        if connecting == Connecting::Done {
            lane.ece = match role {
                Role::Receiver if lane.has_ece => lane.qp.pair.ece(),
                _ => None,
            };
            lane.peer = Some(peer);
        }
        Ok(connecting)
    }

    /// Returns one endpoint per lane, for the peer.
    pub fn endpoints(&self) -> Vec<LaneEndpoint> {
        self.lanes.iter().map(|lane| self.endpoint(lane).encode()).collect()
    }

    /// Connects the lanes to the peer's endpoints, or continues to do so: after a pause the caller calls again with the
    /// same endpoints. May block.
    ///
    /// # Errors
    /// If a lane cannot be brought up; the error names the peer, the port and the attribute.
    pub fn connect(&mut self, remote: &[LaneEndpoint]) -> Result<Connecting, SetupError> {
        if let Some(flush) = &mut self.flush {
            let path = Path { local: &self.gid, attributes: &self.attributes, domain: &self.domain };
            let connecting = flush.connect(&path, classes(&self.domain, &self.spec))?;
            if connecting != Connecting::Done {
                return Ok(connecting);
            }
        }
        for (index, endpoint) in remote.iter().enumerate().take(self.lanes.len()) {
            let peer = Endpoint::decode(endpoint)?;
            if peer.link_layer != self.domain.link_layer {
                let (ours, theirs) = (self.domain.link_layer, peer.link_layer);
                return Err(SetupError::LinkLayers { port: self.domain.name.clone(), ours, theirs });
            }
            if index == 0 && self.spec.role == Role::Receiver {
                // The sender has chosen its GID; this end has not sent its own endpoints yet.
                self.gid = for_peer(&self.gids, peer.gid).clone();
            }
            if self.lanes[index].peer.is_some() {
                continue;
            }
            let connecting = self.connect_lane(index, peer)?;
            if connecting != Connecting::Done {
                return Ok(connecting);
            }
        }
        Ok(Connecting::Done)
    }
}

impl PendingRail for VerbsPendingRail {
    type Fabric = Verbs;

    fn parts(&self) -> Vec<Part> {
        let pairs = self.lanes.iter().map(|lane| lane.qp.pair.number());
        let flush = self.flush.as_ref().map(FlushLane::number);
        parts((self.domain.device(), self.domain.port), pairs.chain(flush), &self.completions, self.shared.as_ref())
    }

    fn is_ready(&self) -> bool {
        self.lanes.iter().all(|lane| lane.peer.is_some())
    }

    fn into_rail(self) -> Result<VerbsRail, SetupError> {
        let unconnected = || SetupError::NotConnected { port: self.domain.name.clone() };
        let mut lanes = Vec::with_capacity(self.lanes.len());
        let (mut peer_gid, mut mtu) = ([0; 16], self.attributes.active_mtu as u8);
        for lane in self.lanes {
            let peer = lane.peer.ok_or_else(unconnected)?;
            (peer_gid, mtu) = (peer.gid, mtu.min(peer.mtu));
            lanes.push(LaneParts { qp: lane.qp.pair, peer_number: peer.number });
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
            // ibv_modify_qp(3): 1 stands for 256 bytes, 2 for 512, and so on.
            mtu: 128 << mtu.min(5),
        }))
    }
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

/// Makes a shared receive queue if the rail has a use for one and the device allows it. With `None`, each lane has
/// receives of its own. It then notices the failure of its queue pair, because its receives complete with an error, and
/// needs one object less.
fn shared_receives(domain: &VerbsDomain, spec: &RailSpec) -> Option<SharedReceives> {
    let is_wanted = spec.receive_depth > 0 && domain.config.shared_receives.unwrap_or(spec.lanes > 1);
    if !is_wanted {
        return None;
    }
    let shared = SharedReceives::new(&domain.pd, spec.receive_depth);
    shared.inspect_err(|error| domain.tell_of_queues(error)).ok()
}

/// Sets the peer's ECE if both ends have ECE of the same vendor; returns true if it is set.
fn set_ece(path: &Path<'_>, lane: &mut PendingLane, peer: &Endpoint) -> Result<bool, SetupError> {
    // Each vendor defines options of its own.
    let of_one_maker = |theirs: &sys::Ece| lane.ece.is_some_and(|ours| ours.vendor_id == theirs.vendor_id);
    let Some(ece) = peer.ece.filter(of_one_maker) else {
        return Ok(false);
    };
    match lane.qp.pair.set_ece(ece) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(false),
        Err(error) => {
            let what = SetupStep::Ece {
                peer: peer.number,
                peer_gid: show_gid(peer.gid),
                vendor: ece.vendor_id,
                options: ece.options,
                number: lane.qp.pair.number(),
            };
            Err(path.domain.refused(what, &error))
        }
    }
}
