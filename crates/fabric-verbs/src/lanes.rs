//! The lanes of a rail: connected queue pairs, and what is known of the work on each.

use std::ops::{Index, IndexMut};

use railweave_fabric::{LaneId, MAX_LANES, RailSpec, WorkId, Write};

use crate::queues::QueuePair;
use crate::sys;

const NUMBER_AT: u32 = WorkId::BITS;
/// Where the lane begins in the `wr_id` of a write.
pub(crate) const LANE_AT: u32 = NUMBER_AT + u16::BITS;

/// The `wr_id` of a write: its lane and number, and below them the id that the transport gave it.
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

/// Receives that each lane has where they share no queue: of several, none needs the whole pool.
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
    /// Requests of which it is known that they are complete, modulo 2^16.
    completed: u16,
    /// Signalled requests that are not complete.
    owed: u16,
    pub(crate) broken: bool,
    /// Bytes that a request may carry in itself.
    inline: u32,
    /// Receives of its own that are posted, where there are several lanes and no shared queue.
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

    /// Requests that the send queue has room for, of `depth`.
    #[inline]
    pub(crate) fn room(&self, depth: u32) -> u32 {
        depth - u32::from(self.posted.wrapping_sub(self.completed))
    }

    /// Fills a request with a write; from now on it counts as posted.
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

    /// The signalled request with this number is complete. Requests of a lane complete in order, so all before it are.
    #[inline]
    pub(crate) fn handle_completed(&mut self, number: u16) {
        self.completed = number.wrapping_add(1);
        self.owed = self.owed.wrapping_sub(1);
    }

    /// Whether no completion is to come.
    pub(crate) fn is_drained(&self) -> bool {
        self.owed == 0 || self.broken
    }
}

/// The lanes of a rail. The first one stands in place, because most rails have no other.
pub(crate) struct Lanes {
    first: Lane,
    more: Box<[Lane]>,
}

impl Lanes {
    /// Of these queue pairs; None without any.
    pub(crate) fn new(parts: Vec<LaneParts>) -> Option<Self> {
        let mut lanes = parts.into_iter().map(Lane::new);
        Some(Self { first: lanes.next()?, more: lanes.collect() })
    }

    /// How many there are.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        1 + self.more.len()
    }

    /// Whether there is only one.
    #[inline]
    pub(crate) fn is_one(&self) -> bool {
        self.more.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lane> {
        std::iter::once(&self.first).chain(&self.more)
    }

    /// The lane of the queue pair with this number.
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
