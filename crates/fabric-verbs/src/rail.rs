//! A rail over queue pairs: what the data path calls. Nothing here blocks, allocates (but for errors) or makes a system
//! call of its own.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

use railweave_fabric::{Completion, Fault, PostError, Rail, RailError, RailSpec, RemoteSlice, WorkId, Write};

use crate::domain::{VerbsDomain, show_gid};
use crate::flush::FlushLane;
use crate::queues::{CompletionQueue, QueuePair, SharedReceives};
use crate::{status, sys};

/// Work requests that are handed over at once.
const CHAIN: usize = 16;
/// Receives that are posted at once.
const REFILL: usize = 64;
/// Completions that are taken at once.
const POLL: usize = 16;

/// What a work request was, in the top bits of its `wr_id`: a failed completion tells nothing else. Below: the lane
/// (8 bits from 32 on) and the number of the request (32 bits).
const RECEIVE: u64 = 1 << 63;
const FLUSH: u64 = 1 << 62;

fn send_id(lane: u8, number: u32) -> u64 {
    u64::from(lane) << 32 | u64::from(number)
}

fn lane_of(wr_id: u64) -> usize {
    usize::from((wr_id >> 32) as u8)
}

/// A connected queue pair.
pub(crate) struct LaneParts {
    pub(crate) qp: QueuePair,
    pub(crate) peer_number: u32,
    pub(crate) peer_gid: [u8; 16],
}

/// What a rail is made of.
pub(crate) struct RailParts {
    pub(crate) lanes: Vec<LaneParts>,
    pub(crate) flush: Option<FlushLane>,
    pub(crate) shared: Option<SharedReceives>,
    pub(crate) completions: CompletionQueue,
    pub(crate) domain: Arc<VerbsDomain>,
    pub(crate) spec: RailSpec,
    pub(crate) gid: [u8; 16],
}

struct Lane {
    qp: QueuePair,
    /// Requests posted, modulo 2^32.
    posted: u32,
    /// Requests of which it is known that they are complete, modulo 2^32.
    completed: u32,
    /// Signalled requests under way.
    owed: u32,
    /// By the request's number modulo the length, a power of two: the ids of signalled requests.
    ids: Box<[WorkId]>,
    inline: u32,
    /// Receives of its own that are posted.
    receives: u32,
    broken: bool,
    peer_number: u32,
}

/// The rail.
pub struct VerbsRail {
    // In the order in which they must be destroyed.
    lanes: Box<[Lane]>,
    flush: Option<FlushLane>,
    shared: Option<SharedReceives>,
    completions: CompletionQueue,
    domain: Arc<VerbsDomain>,
    work: Box<Work>,
    depth: u32,
    /// Receives that the pool holds at most, and holds now.
    pool_depth: u32,
    pool: u32,
    max_write: u32,
    any_broken: bool,
    /// Failures that no completion tells.
    failures: Vec<Completion>,
    gid: [u8; 16],
    peer_gid: [u8; 16],
}

/// Requests that are linked once and filled for each post. A chain of n stands in the last n places, so that its last
/// request is the one without a next.
struct Work {
    sends: [sys::SendWr; CHAIN],
    pieces: [sys::Sge; CHAIN],
    receives: [sys::RecvWr; REFILL],
}

// SAFETY: the pointers in `work` lead into the same box, and the objects of libibverbs may be used by any thread.
unsafe impl Send for VerbsRail {}

impl Work {
    fn linked() -> Box<Self> {
        let send = sys::SendWr {
            wr_id: 0,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 1,
            opcode: sys::WR_RDMA_WRITE,
            send_flags: 0,
            imm_data: 0,
            rdma: sys::RdmaTarget::default(),
            others: [0; 9],
        };
        let receive = sys::RecvWr { wr_id: RECEIVE, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 0 };
        let mut work =
            Box::new(Self { sends: [send; CHAIN], pieces: [sys::Sge::default(); CHAIN], receives: [receive; REFILL] });
        for index in 0..CHAIN {
            work.sends[index].sg_list = &raw mut work.pieces[index];
            if index + 1 < CHAIN {
                work.sends[index].next = &raw mut work.sends[index + 1];
            }
        }
        for index in 0..REFILL - 1 {
            work.receives[index].next = &raw mut work.receives[index + 1];
        }
        work
    }
}

impl Lane {
    /// Fills a request with a write; from now on it counts as posted.
    #[inline]
    fn fill(&mut self, index: u8, write: &Write, send: &mut sys::SendWr, piece: &mut sys::Sge) {
        send.wr_id = send_id(index, self.posted);
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
        let mut flags = 0;
        if write.signalled {
            flags = sys::SEND_SIGNALED;
            self.ids[self.posted as usize & (self.ids.len() - 1)] = write.id;
            self.owed += 1;
        }
        if write.host && write.local.length <= self.inline {
            flags |= sys::SEND_INLINE;
        }
        send.send_flags = flags;
        self.posted = self.posted.wrapping_add(1);
    }
}

impl VerbsRail {
    pub(crate) fn new(parts: RailParts) -> Self {
        let depth = parts.spec.send_depth;
        let peer_gid = parts.lanes.first().map_or([0; 16], |lane| lane.peer_gid);
        let lanes = parts.lanes.into_iter().map(|lane| Lane {
            inline: lane.qp.inline(),
            qp: lane.qp,
            posted: 0,
            completed: 0,
            owed: 0,
            ids: vec![WorkId::default(); depth.next_power_of_two() as usize].into_boxed_slice(),
            receives: 0,
            broken: false,
            peer_number: lane.peer_number,
        });
        let max_write = railweave_fabric::Domain::max_write(&*parts.domain);
        Self {
            lanes: lanes.collect(),
            flush: parts.flush,
            shared: parts.shared,
            completions: parts.completions,
            domain: parts.domain,
            work: Work::linked(),
            depth,
            pool_depth: parts.spec.receive_depth,
            pool: 0,
            max_write,
            any_broken: false,
            failures: Vec::new(),
            gid: parts.gid,
            peer_gid,
        }
    }

    /// Hands over one write, for which there is room.
    #[inline]
    fn post_one(&mut self, index: usize, write: &Write) -> Result<(), PostError> {
        let work = &mut *self.work;
        let (send, piece) = (&mut work.sends[CHAIN - 1], &mut work.pieces[CHAIN - 1]);
        let lane = &mut self.lanes[index];
        lane.fill(index as u8, write, send, piece);
        // SAFETY: the last of the linked requests has no next. That the source is registered until completion is what
        // fabric::Memory's maker promised.
        match unsafe { lane.qp.post(send) } {
            0 => Ok(()),
            errno => self.post_failed(index, errno),
        }
    }

    /// Hands over a chain that fits into the prepared requests.
    fn post_some(&mut self, index: usize, chain: &[Write]) -> Result<(), PostError> {
        let lane = &mut self.lanes[index];
        let work = &mut *self.work;
        let first = CHAIN - chain.len();
        for ((write, send), piece) in chain.iter().zip(&mut work.sends[first..]).zip(&mut work.pieces[first..]) {
            lane.fill(index as u8, write, send, piece);
        }
        // SAFETY: as in post_one: the chain stands at the end of the linked requests.
        match unsafe { lane.qp.post(&raw mut work.sends[first]) } {
            0 => Ok(()),
            errno => self.post_failed(index, errno),
        }
    }

    /// The library refused work for which there is room.
    #[cold]
    fn post_failed(&mut self, index: usize, errno: i32) -> Result<(), PostError> {
        let error = std::io::Error::from_raw_os_error(errno.abs());
        let message = format!(
            "{}: the adapter takes no work on queue pair {:#x} ({error}); look at the kernel log of this host",
            self.domain.name,
            self.lanes[index].qp.number()
        );
        self.fail(index, None, RailError { fault: Fault::Local, message });
        Err(PostError::Broken)
    }

    /// Marks a lane as dead; the first time, the failure is reported by the next poll.
    #[cold]
    fn fail(&mut self, index: usize, id: Option<WorkId>, error: RailError) {
        self.any_broken = true;
        let lane = &mut self.lanes[index];
        if !lane.broken {
            lane.broken = true;
            self.failures.push(Completion::Failed { lane: index as u8, id, error: Box::new(error) });
        }
    }

    /// A completion that is no success.
    #[cold]
    fn handle_error(&mut self, wc: &sys::Wc) {
        let of_flush = wc.wr_id & FLUSH != 0;
        let by_number = self.lanes.iter().position(|lane| lane.qp.number() == wc.qp_num);
        let index = match wc.wr_id & (RECEIVE | FLUSH) {
            0 => lane_of(wc.wr_id),
            _ => by_number.unwrap_or(0),
        };
        let id = match (of_flush, &mut self.flush) {
            (true, Some(flush)) => Some(flush.completed(wc.wr_id as u32)),
            _ if wc.wr_id & RECEIVE != 0 => None,
            _ => {
                let lane = &self.lanes[index];
                Some(lane.ids[wc.wr_id as usize & (lane.ids.len() - 1)])
            }
        };
        let path = format!("{}, GID {} to {}", self.domain.name, show_gid(self.gid), show_gid(self.peer_gid));
        let lane = &self.lanes[index];
        let (number, peer) = match (of_flush, &self.flush) {
            (true, Some(flush)) => (flush.number(), flush.number()),
            _ => (lane.qp.number(), lane.peer_number),
        };
        let error = status::error(wc.status, wc.vendor_err, &status::Lane { number, peer, path: &path });
        self.fail(index, id, error);
    }

    /// Gives failures that wait; how many.
    #[cold]
    fn take_failures(&mut self, out: &mut [Completion]) -> usize {
        let count = self.failures.len().min(out.len());
        for (place, failure) in out.iter_mut().zip(self.failures.drain(..count)) {
            *place = failure;
        }
        count
    }

    /// Takes one successful completion; None where it tells nothing.
    #[inline]
    fn handle_success(&mut self, wc: &sys::Wc) -> Option<Completion> {
        if wc.wr_id & RECEIVE != 0 {
            let index = match self.lanes.len() {
                1 => 0,
                _ => self.lanes.iter().position(|lane| lane.qp.number() == wc.qp_num)?,
            };
            self.pool = self.pool.saturating_sub(1);
            if self.shared.is_none() {
                self.lanes[index].receives = self.lanes[index].receives.saturating_sub(1);
            }
            if wc.opcode != sys::WC_RECV_RDMA_WITH_IMM {
                self.unexpected(index, wc);
                return None;
            }
            let immediate = u32::from_be(wc.imm_data);
            return Some(Completion::Received { lane: index as u8, immediate, bytes: wc.byte_len });
        }
        if wc.wr_id & FLUSH != 0 {
            return self.flush.as_mut().map(|flush| Completion::Sent { id: flush.completed(wc.wr_id as u32) });
        }
        let lane = &mut self.lanes[lane_of(wc.wr_id)];
        let number = wc.wr_id as u32;
        // Requests of a lane complete in order: this one's completion is that of all before it.
        lane.completed = number.wrapping_add(1);
        lane.owed -= 1;
        Some(Completion::Sent { id: lane.ids[number as usize & (lane.ids.len() - 1)] })
    }

    /// A peer that sends instead of writing.
    #[cold]
    fn unexpected(&mut self, index: usize, wc: &sys::Wc) {
        let message = format!(
            "{}: the peer sent a message of opcode {:#x} ({} bytes) where only writes with immediates may come; it breaks \
             the protocol",
            self.domain.name, wc.opcode, wc.byte_len
        );
        self.fail(index, None, RailError { fault: Fault::Protocol, message });
    }

    /// The completion queue itself is broken: every lane is.
    #[cold]
    fn queue_failed(&mut self, code: i32) {
        for index in 0..self.lanes.len() {
            let message = format!(
                "{}: the completion queue cannot be polled (code {code}); the adapter is gone or was reset, look at the \
                 kernel log of this host",
                self.domain.name
            );
            self.fail(index, None, RailError { fault: Fault::Local, message });
        }
    }
}

impl Rail for VerbsRail {
    #[inline]
    fn lanes(&self) -> u8 {
        self.lanes.len() as u8
    }

    #[inline]
    fn send_room(&self, lane: u8) -> u32 {
        let lane = &self.lanes[usize::from(lane)];
        self.depth - lane.posted.wrapping_sub(lane.completed)
    }

    #[inline]
    fn max_write(&self) -> u32 {
        self.max_write
    }

    #[inline]
    fn byte_counts(&self) -> bool {
        self.domain.config.byte_counts
    }

    #[inline]
    fn post(&mut self, lane: u8, chain: &[Write]) -> Result<(), PostError> {
        let index = usize::from(lane);
        let Some(state) = self.lanes.get(index) else {
            return Err(no_lane(lane, self.lanes.len()));
        };
        if state.broken {
            return Err(PostError::Broken);
        }
        if chain.len() > (self.depth - state.posted.wrapping_sub(state.completed)) as usize {
            return Err(PostError::Full);
        }
        if let [write] = chain
            && write.local.length <= self.max_write
        {
            return self.post_one(index, write);
        }
        if let Some(long) = chain.iter().find(|write| write.local.length > self.max_write) {
            return Err(too_long(long.local.length, self.max_write));
        }
        if chain.len() <= CHAIN {
            return if chain.is_empty() { Ok(()) } else { self.post_some(index, chain) };
        }
        chain.chunks(CHAIN).try_for_each(|part| self.post_some(index, part))
    }

    fn post_flush(&mut self, target: RemoteSlice, id: WorkId) -> Result<(), PostError> {
        if self.any_broken {
            return Err(PostError::Broken);
        }
        let Some(flush) = &mut self.flush else {
            return Err(PostError::Invalid(format!(
                "{} has no loop-back lane: the device does not say that it takes GPU memory",
                self.domain.name
            )));
        };
        flush.post(target, id, FLUSH)
    }

    fn post_receives(&mut self, count: u32) -> Result<u32, PostError> {
        if self.any_broken {
            return Err(PostError::Broken);
        }
        let count = count.min(self.pool_depth - self.pool);
        let wanted = self.pool + count;
        let work = &mut *self.work;
        // A chain of n receives stands in the last n places.
        let mut chain = |count: u32| -> *mut sys::RecvWr { &raw mut work.receives[REFILL - count as usize] };
        if let Some(shared) = &mut self.shared {
            let mut left = count;
            while left > 0 {
                let some = left.min(REFILL as u32);
                // SAFETY: the chain stands at the end of the linked requests, so it ends in a null pointer.
                let errno = unsafe { shared.post(chain(some)) };
                if errno != 0 {
                    return self.post_failed(0, errno).map(|()| 0);
                }
                left -= some;
            }
        } else {
            // Any lane may bring any of the pool's immediates.
            for index in 0..self.lanes.len() {
                while self.lanes[index].receives < wanted {
                    let lane = &mut self.lanes[index];
                    let some = (wanted - lane.receives).min(REFILL as u32);
                    // SAFETY: as above.
                    let errno = unsafe { lane.qp.post_receives(chain(some)) };
                    if errno != 0 {
                        return self.post_failed(index, errno).map(|()| 0);
                    }
                    lane.receives += some;
                }
            }
        }
        self.pool = wanted;
        Ok(count)
    }

    #[inline]
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        let mut wcs = [const { MaybeUninit::<sys::Wc>::uninit() }; POLL];
        let room = out.len().min(POLL);
        if room == 0 {
            return 0;
        }
        if !self.failures.is_empty() {
            return self.take_failures(out);
        }
        let taken = match self.completions.poll(&mut wcs[..room]) {
            Ok(taken) => taken,
            Err(code) => {
                self.queue_failed(code);
                0
            }
        };
        let mut count = 0;
        for wc in &wcs[..taken] {
            // SAFETY: the library has filled the first `taken` places.
            let wc = unsafe { wc.assume_init_ref() };
            if wc.status != sys::WC_SUCCESS {
                self.handle_error(wc);
            } else if let Some(completion) = self.handle_success(wc) {
                out[count] = completion;
                count += 1;
            }
        }
        if !self.failures.is_empty() {
            count += self.take_failures(&mut out[count..]);
        }
        count
    }

    fn describe(&self) -> String {
        format!("{} {} - {}", self.domain.name, show_gid(self.gid), show_gid(self.peer_gid))
    }

    fn is_drained(&self) -> bool {
        self.lanes.iter().all(|lane| lane.owed == 0 || lane.broken)
            && (self.any_broken || self.flush.as_ref().is_none_or(FlushLane::is_drained))
    }
}

#[cold]
fn no_lane(lane: u8, lanes: usize) -> PostError {
    PostError::Invalid(format!("lane {lane} of a rail with {lanes}"))
}

#[cold]
fn too_long(length: u32, most: u32) -> PostError {
    PostError::Invalid(format!("a write of {length} bytes; this port carries at most {most}"))
}
