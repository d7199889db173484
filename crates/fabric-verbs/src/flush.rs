//! The loop-back lane: a queue pair connected to itself. Reading one byte of GPU memory back on it makes the adapter's
//! earlier writes there visible to the GPU.

use std::ffi::c_int;
use std::sync::Arc;

use railweave_fabric::{
    Access, Connecting, LinkLayer, Memory, Region, RelaxedOrdering, RemoteSlice, SetupError, SetupStep, WorkId,
};

use crate::bring_up::{Classes, Path, RisingPair};
use crate::domain::VerbsDomain;
use crate::endpoint::Endpoint;
use crate::memory::{VerbsRegistration, register};
use crate::queues::{CompletionQueue, QueuePair, QueuePairSpec};
use crate::sys;

/// A queue pair connected to itself.
pub(crate) struct FlushLane {
    // Dropped before the memory that it writes to.
    qp: RisingPair,
    room: u32,
    target: Arc<Region>,
    registration: VerbsRegistration,
    ids: [WorkId; Self::DEPTH as usize],
    posted: u32,
}

impl FlushLane {
    /// Flushes that can be in progress at once.
    pub(crate) const DEPTH: u32 = 64;

    /// Opens a lane, which is not connected yet.
    pub(crate) fn open(domain: &VerbsDomain, completions: &CompletionQueue) -> Result<Self, SetupError> {
        let spec = QueuePairSpec { completions, shared: None, send_depth: Self::DEPTH, receive_depth: 0, inline: 0 };
        let qp =
            QueuePair::new(&domain.pd, &spec).map_err(|error| domain.refused(SetupStep::FlushQueuePair, &error))?;
        let qp = RisingPair::open(domain, qp, sys::ACCESS_REMOTE_READ)?;
        let target = Arc::new(Region::new(1));
        let access = Access { remote_write: false, remote_read: false, strict_order: true };
        let registration = register(domain, Memory::from_region(&target), access, RelaxedOrdering::Off)?;
        Ok(Self {
            qp,
            room: Self::DEPTH,
            target,
            registration,
            ids: [WorkId::default(); Self::DEPTH as usize],
            posted: 0,
        })
    }

    /// Connects it to itself, or continues to do so.
    pub(crate) fn connect(&mut self, path: &Path<'_>, classes: Classes) -> Result<Connecting, SetupError> {
        let link_layer = path.domain.link_layer;
        let own = Endpoint {
            number: self.number(),
            psn: self.qp.psn,
            lid: path.attributes.lid,
            link_layer,
            mtu: path.attributes.active_mtu as u8,
            wants_grh: path.attributes.flags & sys::QPF_GRH_REQUIRED != 0 && link_layer != LinkLayer::Roce,
            gid: path.local.bytes,
            ece: None,
        };
        self.qp.rise(path, &own, classes)
    }

    pub(crate) fn number(&self) -> u32 {
        self.qp.pair.number()
    }

    /// Takes it out of service: [`QueuePair::retire`]. Returns true if that was possible, and its remains.
    pub(crate) fn retire(self) -> (bool, impl Send + 'static) {
        let Self { qp, target, registration, .. } = self;
        let pair = qp.pair.retire();
        (pair.is_ok(), (pair, registration, target))
    }

    /// Returns true if there is room for one more flush.
    pub(crate) fn has_room(&self) -> bool {
        self.room > 0
    }

    /// Reads one byte from `source`. The completion returns `wr_id`, with the number for [`Self::completed`] in its low
    /// bits. There must be room. Returns the library's error number; 0 if the flush is in progress.
    pub(crate) fn post(&mut self, source: RemoteSlice, id: WorkId, wr_id: u64) -> c_int {
        use railweave_fabric::Registration as _;
        let number = self.posted % Self::DEPTH;
        let mut piece = sys::Sge { address: self.target.address(), length: 1, lkey: self.registration.local_key() };
        let mut work = sys::SendWr {
            wr_id: wr_id | u64::from(number),
            next: std::ptr::null_mut(),
            sg_list: &raw mut piece,
            num_sge: 1,
            opcode: sys::WR_RDMA_READ,
            send_flags: sys::SEND_SIGNALED,
            imm_data: 0,
            rdma: sys::RdmaTarget { remote_address: source.address, rkey: source.key },
            others: [0; 9],
        };
        // SAFETY: a chain of one; the library copies it before it returns (ibv_post_send(3)), and the target is
        // registered for as long as this lives.
        let errno = unsafe { self.qp.pair.post(&raw mut work) };
        if errno == 0 {
            self.ids[number as usize] = id;
            self.posted = self.posted.wrapping_add(1);
            self.room -= 1;
        }
        errno
    }

    /// Frees the place of a completed flush, and returns its id; `number` is the low bits of its `wr_id`.
    pub(crate) fn completed(&mut self, number: u32) -> WorkId {
        self.room = (self.room + 1).min(Self::DEPTH);
        self.ids[(number % Self::DEPTH) as usize]
    }

    /// Returns true if no flush is in progress.
    pub(crate) fn is_drained(&self) -> bool {
        self.room == Self::DEPTH
    }
}
