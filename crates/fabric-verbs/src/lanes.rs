//! The lanes of a rail: connected queue pairs, and the state of the work on each.

use std::ops::{Index, IndexMut};

use railweave_fabric::{LaneId, MAX_LANES, RailSpec, WorkId, Write};

use crate::queues::QueuePair;
use crate::sys;

const NUMBER_AT: u32 = WorkId::BITS;
/// The lowest bit of the lane in the `wr_id` of a write.
const LANE_AT: u32 = NUMBER_AT + u16::BITS;

/// The kind of a work request, in the top bits of its `wr_id`: a failed completion has no valid opcode
/// (ibv_poll_cq(3)). [`send_id`] makes the id of a write, which has none of these bits.
pub(crate) const RECEIVE: u64 = 1 << 63;
pub(crate) const FLUSH: u64 = 1 << 62;
/// A flush that the fence of its rail has posted; it has the bit of a flush as well.
pub(crate) const FENCE_FLUSH: u64 = 1 << 61;
const _: () = assert!(MAX_LANES << LANE_AT <= FENCE_FLUSH as usize);

/// Returns the `wr_id` of a write: its lane and number, and below them the transport's id.
#[inline]
pub(crate) fn send_id(lane: LaneId, number: u16, id: WorkId) -> u64 {
    u64::from(lane.0) << LANE_AT | u64::from(number) << NUMBER_AT | id.0
}

#[inline]
pub(crate) fn lane_of(wr_id: u64) -> usize {
    (wr_id >> LANE_AT) as usize % MAX_LANES
}

#[inline]
pub(crate) fn number_of(wr_id: u64) -> u16 {
    (wr_id >> NUMBER_AT) as u16
}

#[inline]
pub(crate) fn id_of(wr_id: u64) -> WorkId {
    WorkId(wr_id & ((1 << WorkId::BITS) - 1))
}

/// Returns the number of receives per lane without a shared queue: one of several lanes needs no more than it can bring
/// immediates.
pub(crate) fn own_receives(spec: &RailSpec) -> u32 {
    if spec.lanes > 1 { spec.receive_depth.min(spec.lane_receives) } else { spec.receive_depth }
}

/// A connected queue pair.
pub(crate) struct LaneParts {
    pub(crate) qp: QueuePair,
    pub(crate) peer_number: u32,
}

/// One lane.
pub(crate) struct Lane {
    pub(crate) qp: QueuePair,
    /// Requests posted, modulo 2^16.
    posted: u16,
    /// Requests known to be complete, modulo 2^16.
    completed: u16,
    /// Signalled requests that are not complete yet.
    owed: u16,
    pub(crate) broken: bool,
    /// Bytes that a request may carry inline.
    inline: u32,
    /// Its own posted receives; counted only with several lanes and no shared queue.
    pub(crate) receives: u32,
    pub(crate) peer_number: u32,
}

impl Lane {
    fn new(parts: LaneParts) -> Self {
        Self {
            inline: parts.qp.inline(),
            qp: parts.qp,
            posted: 0,
            completed: 0,
            owed: 0,
            broken: false,
            receives: 0,
            peer_number: parts.peer_number,
        }
    }

    /// Returns the number of free places in the send queue of `depth` places.
    #[inline]
    pub(crate) fn room(&self, depth: u32) -> u32 {
        depth - u32::from(self.posted.wrapping_sub(self.completed))
    }

    /// Fills a request with a write, which then counts as posted.
    #[inline(always)]
    pub(crate) fn fill(&mut self, lane: LaneId, write: &Write, send: &mut sys::SendWr, piece: &mut sys::Sge) {
        send.wr_id = send_id(lane, self.posted, write.id);
        send.num_sge = i32::from(write.local.length > 0);
        send.rdma = sys::RdmaTarget { remote_address: write.remote.address, rkey: write.remote.key };
        *piece = sys::Sge { address: write.local.address, length: write.local.length, lkey: write.local.key };
        send.opcode = match write.immediate {
            Some(immediate) => {
                send.imm_data = immediate.to_be();
                sys::WR_RDMA_WRITE_WITH_IMM
            }
            None => sys::WR_RDMA_WRITE,
        };
        self.owed += u16::from(write.signalled);
        let signalled = if write.signalled { sys::SEND_SIGNALED } else { 0 };
        let inline = if write.host && write.local.length <= self.inline { sys::SEND_INLINE } else { 0 };
        send.send_flags = signalled | inline;
        self.posted = self.posted.wrapping_add(1);
    }

    /// Notes that the signalled request with this number is complete. Requests of a lane complete in order, so all
    /// earlier ones are complete too.
    #[inline]
    pub(crate) fn handle_completed(&mut self, number: u16) {
        self.completed = number.wrapping_add(1);
        self.owed = self.owed.wrapping_sub(1);
    }

    /// Notes that the request with this number has failed. Those after it come back too, each with its own completion.
    pub(crate) fn handle_failed(&mut self, number: u16) {
        self.completed = number.wrapping_add(1);
    }

    /// Takes the lane apart: its queue pair, and the numbers of requests that were posted and that have come back,
    /// modulo 2^16.
    pub(crate) fn into_parts(self) -> (QueuePair, u16, u16) {
        (self.qp, self.posted, self.completed)
    }

    /// Returns true if no completion is expected.
    pub(crate) fn is_drained(&self) -> bool {
        self.owed == 0 || self.broken
    }
}

/// The lanes of a rail. The first one is stored in place, because most rails have no other.
pub(crate) struct Lanes {
    first: Lane,
    more: Box<[Lane]>,
}

impl Lanes {
    /// Returns the lanes of these queue pairs; `None` if there are none.
    pub(crate) fn new(parts: Vec<LaneParts>) -> Option<Self> {
        let mut lanes = parts.into_iter().map(Lane::new);
        Some(Self { first: lanes.next()?, more: lanes.collect() })
    }

    /// Returns the number of lanes.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        1 + self.more.len()
    }

    /// Returns true if there is only one lane.
    #[inline]
    pub(crate) fn is_one(&self) -> bool {
        self.more.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lane> {
        std::iter::once(&self.first).chain(&self.more)
    }

    /// Returns the lanes themselves.
    pub(crate) fn into_lanes(self) -> impl Iterator<Item = Lane> {
        std::iter::once(self.first).chain(self.more.into_vec())
    }

    /// Returns the lane of the queue pair with this number.
    pub(crate) fn find(&self, number: u32) -> Option<usize> {
        self.iter().position(|lane| lane.qp.number() == number)
    }
}

impl Index<usize> for Lanes {
    type Output = Lane;

    #[inline(always)]
    fn index(&self, index: usize) -> &Lane {
        match index {
            0 => &self.first,
            index => &self.more[index - 1],
        }
    }
}

impl IndexMut<usize> for Lanes {
    #[inline(always)]
    fn index_mut(&mut self, index: usize) -> &mut Lane {
        match index {
            0 => &mut self.first,
            index => &mut self.more[index - 1],
        }
    }
}
