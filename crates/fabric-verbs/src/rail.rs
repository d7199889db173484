//! A rail over queue pairs: the data path's calls. Nothing here but the end of the rail blocks, allocates (except for
//! errors) or makes a system call of its own.

use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr};
use std::ptr;
use std::sync::Arc;

use railweave_fabric::{
    Ended, LaneId, Part, PostError, Rail, RailError, RailSpec, RemoteSlice, Reports, WorkFailure, WorkId, Write,
};

use crate::domain::VerbsDomain;
use crate::fence::{Fence, FenceParts};
use crate::flush::FlushLane;
use crate::gid::show_gid;
use crate::lanes::{FLUSH, Lane, Lanes, RECEIVE, id_of, lane_of, number_of, own_receives};
use crate::queues::{CompletionQueue, SharedReceives, parts};
use crate::{status, sys};

/// Work requests handed over at once.
const CHAIN: usize = 16;
/// Receives posted at once.
const REFILL: usize = 64;
/// Completions taken at once.
const POLL: usize = 16;

/// The parts of a rail.
pub(crate) struct RailParts {
    pub(crate) lanes: Lanes,
    pub(crate) peer_gid: [u8; 16],
    pub(crate) flush: Option<FlushLane>,
    pub(crate) shared: Option<SharedReceives>,
    pub(crate) completions: CompletionQueue,
    pub(crate) domain: Arc<VerbsDomain>,
    pub(crate) spec: RailSpec,
    pub(crate) gid: [u8; 16],
    /// The path's MTU in bytes.
    pub(crate) mtu: u32,
}

/// The rail.
pub struct VerbsRail {
    // In the order in which they must be destroyed.
    lanes: Lanes,
    flush: Option<FlushLane>,
    shared: Option<SharedReceives>,
    completions: CompletionQueue,
    domain: Arc<VerbsDomain>,
    requests: Box<WorkRequests>,
    depth: u32,
    /// The most receives that the pool holds; `missing` of them are not posted.
    pool_depth: u32,
    missing: u32,
    /// The most receives that each lane holds, with several lanes and no shared queue.
    lane_depth: u32,
    max_write: u32,
    /// True if there is one lane, as in most rails: it takes every receive, and `missing` counts its queue's.
    is_plain: bool,
    any_broken: bool,
    /// Failures that are not reported yet; empty unless a lane is broken.
    failures: Vec<Failure>,
    gid: [u8; 16],
    peer_gid: [u8; 16],
    mtu: u32,
}

/// The arguments of [`Reports::handle_failed`].
type Failure = (LaneId, Option<WorkId>, Box<RailError>);

/// Requests that are linked once and filled for each post. A chain of n occupies the last n places, so that its last
/// request is the one without a next.
struct WorkRequests {
    sends: [sys::SendWr; CHAIN],
    pieces: [sys::Sge; CHAIN],
    receives: [sys::RecvWr; REFILL],
}

// SAFETY: the pointers in `requests` point into the same box, and any thread may use libibverbs' objects.
unsafe impl Send for VerbsRail {}

impl WorkRequests {
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
        let mut requests =
            Box::new(Self { sends: [send; CHAIN], pieces: [sys::Sge::default(); CHAIN], receives: [receive; REFILL] });
        for index in 0..CHAIN {
            requests.sends[index].sg_list = &raw mut requests.pieces[index];
            if index + 1 < CHAIN {
                requests.sends[index].next = &raw mut requests.sends[index + 1];
            }
        }
        for index in 0..REFILL - 1 {
            requests.receives[index].next = &raw mut requests.receives[index + 1];
        }
        requests
    }
}

impl VerbsRail {
    pub(crate) fn new(parts: RailParts) -> Self {
        let depth = parts.spec.send_depth;
        let max_write = parts.domain.max_write;
        Self {
            is_plain: parts.lanes.is_one(),
            lanes: parts.lanes,
            flush: parts.flush,
            shared: parts.shared,
            completions: parts.completions,
            domain: parts.domain,
            requests: WorkRequests::linked(),
            depth,
            pool_depth: parts.spec.receive_depth,
            missing: parts.spec.receive_depth,
            lane_depth: own_receives(&parts.spec),
            max_write,
            any_broken: false,
            failures: Vec::new(),
            gid: parts.gid,
            peer_gid: parts.peer_gid,
            mtu: parts.mtu,
        }
    }

    /// Hands over a chain that fits into the prepared requests and for which there is room.
    fn post_some(&mut self, index: usize, chain: &[Write]) -> Result<(), PostError> {
        let lane = &mut self.lanes[index];
        let requests = &mut *self.requests;
        let first = CHAIN - chain.len();
        for ((write, send), piece) in chain.iter().zip(&mut requests.sends[first..]).zip(&mut requests.pieces[first..])
        {
            lane.fill(LaneId::at(index), write, send, piece);
        }
        // SAFETY: as in `post_fitting`: the chain is at the end of the linked requests.
        match unsafe { lane.qp.post(&raw mut requests.sends[first]) } {
            0 => Ok(()),
            errno => self.lane_failed(index, errno),
        }
    }

    /// Handles the library's refusal of work for which there is room, on the queue pair with this number: a lane's, or
    /// the loop-back lane's.
    #[cold]
    fn post_failed(&mut self, index: usize, number: u32, errno: i32) -> Result<(), PostError> {
        let port = self.domain.name.clone();
        self.fail(index, None, RailError::TakesNoWork { port, number, errno: errno.abs() });
        Err(PostError::Broken)
    }

    /// Like [`Self::post_failed`], for a lane's queue pair.
    #[cold]
    fn lane_failed(&mut self, index: usize, errno: i32) -> Result<(), PostError> {
        let number = self.lanes[index].qp.number();
        self.post_failed(index, number, errno)
    }

    /// Marks a lane as broken; the next poll reports its first failure.
    #[cold]
    fn fail(&mut self, index: usize, id: Option<WorkId>, error: RailError) {
        self.any_broken = true;
        let lane = &mut self.lanes[index];
        if !lane.broken {
            lane.broken = true;
            self.failures.push((LaneId::at(index), id, Box::new(error)));
        }
    }

    /// Handles an unsuccessful completion.
    #[cold]
    fn handle_error(&mut self, wc: &sys::Wc) {
        let of_flush = wc.wr_id & FLUSH != 0;
        let by_number = self.lanes.find(wc.qp_num);
        let index = match wc.wr_id & (RECEIVE | FLUSH) {
            0 => lane_of(wc.wr_id),
            _ => by_number.unwrap_or(0),
        };
        let id = match (of_flush, &mut self.flush) {
            (true, Some(flush)) => Some(flush.completed(wc.wr_id as u32)),
            _ if wc.wr_id & RECEIVE != 0 => {
                self.handle_returned(index);
                None
            }
            _ => {
                self.lanes[index].handle_failed(number_of(wc.wr_id));
                Some(id_of(wc.wr_id))
            }
        };
        let path = format!("{}, GID {} to {}", self.domain.name, show_gid(self.gid), show_gid(self.peer_gid));
        let lane = &self.lanes[index];
        let (number, peer) = match (of_flush, &self.flush) {
            (true, Some(flush)) => (flush.number(), flush.number()),
            _ => (lane.qp.number(), lane.peer_number),
        };
        let status = status::meaning(wc.status);
        let failure = WorkFailure { status, code: wc.status, vendor: wc.vendor_err, number, peer, path };
        self.fail(index, id, RailError::Work(failure));
    }

    /// Notes that a lane's receive has come back unused.
    #[cold]
    fn handle_returned(&mut self, index: usize) {
        if self.shared.is_some() {
            return;
        }
        if self.is_plain {
            self.missing = self.missing.wrapping_add(1);
        } else {
            self.lanes[index].receives = self.lanes[index].receives.saturating_sub(1);
        }
    }

    /// Takes completions out of the queue and returns their number.
    #[inline(always)]
    fn take(&mut self, wcs: &mut [MaybeUninit<sys::Wc>]) -> usize {
        self.completions.poll(wcs).unwrap_or_else(|code| {
            self.queue_failed(code);
            0
        })
    }

    /// Takes the oldest unreported failure, if there is room for a report.
    #[cold]
    #[inline(never)]
    fn next_failure(&mut self, room: &mut usize) -> Option<Failure> {
        if *room == 0 || self.failures.is_empty() {
            return None;
        }
        *room -= 1;
        Some(self.failures.remove(0))
    }

    /// Handles a receive off the fast path. Returns the lane that took it; `None` if there is nothing to report.
    #[cold]
    #[inline(never)]
    fn lane_of_receive(&mut self, wc: &sys::Wc) -> Option<usize> {
        let index = if self.is_plain { 0 } else { self.lanes.find(wc.qp_num)? };
        if self.shared.is_none() && !self.is_plain {
            self.lanes[index].receives = self.lanes[index].receives.saturating_sub(1);
        }
        if wc.opcode != sys::WC_RECV_RDMA_WITH_IMM {
            self.unexpected(index, wc);
            return None;
        }
        Some(index)
    }

    /// Reports a successful completion.
    #[inline(always)]
    fn handle_success(&mut self, wc: &sys::Wc, reports: &mut impl Reports) {
        if wc.wr_id & RECEIVE != 0 {
            self.missing = self.missing.wrapping_add(1);
            let lane = if self.is_plain && wc.opcode == sys::WC_RECV_RDMA_WITH_IMM {
                LaneId::FIRST
            } else if let Some(index) = self.lane_of_receive(wc) {
                LaneId::at(index)
            } else {
                return;
            };
            reports.handle_received(lane, u32::from_be(wc.imm_data), wc.byte_len);
        } else {
            let id = if wc.wr_id & FLUSH == 0 {
                let index = if self.lanes.is_one() { 0 } else { lane_of(wc.wr_id) };
                self.lanes[index].handle_completed(number_of(wc.wr_id));
                id_of(wc.wr_id)
            } else if let Some(flush) = &mut self.flush {
                flush.completed(wc.wr_id as u32)
            } else {
                return;
            };
            reports.handle_sent(id);
        }
    }

    /// Reports completions that the library has filled in: several, or failed ones. The next poll reports lanes that
    /// broke.
    #[inline(never)]
    fn report_all(&mut self, filled: &[MaybeUninit<sys::Wc>], reports: &mut impl Reports) {
        for wc in filled {
            // SAFETY: the library has filled them.
            let wc = unsafe { wc.assume_init_ref() };
            if wc.status == sys::WC_SUCCESS {
                self.handle_success(wc, reports);
            } else {
                self.handle_error(wc);
            }
        }
    }

    /// [`Rail::report`] with a broken lane: pending failures first, then what is still in the queue.
    #[cold]
    #[inline(never)]
    fn report_failures(&mut self, most: usize, reports: &mut impl Reports) -> bool {
        let mut room = most;
        if self.failures.is_empty() {
            let mut wcs = [const { MaybeUninit::<sys::Wc>::uninit() }; POLL];
            let taken = self.take(&mut wcs[..most.min(POLL)]);
            self.report_all(&wcs[..taken], reports);
            room -= taken;
        }
        while let Some((lane, id, error)) = self.next_failure(&mut room) {
            reports.handle_failed(lane, id, error);
        }
        room < most
    }

    /// Fails the lane of a peer that sends instead of writing.
    #[cold]
    fn unexpected(&mut self, index: usize, wc: &sys::Wc) {
        let port = self.domain.name.clone();
        self.fail(index, None, RailError::NotAWrite { port, opcode: wc.opcode, bytes: wc.byte_len });
    }

    /// Fails every lane: the completion queue itself is broken.
    #[cold]
    fn queue_failed(&mut self, code: i32) {
        for index in 0..self.lanes.count() {
            let port = self.domain.name.clone();
            self.fail(index, None, RailError::QueueGone { port, code });
        }
    }
}

impl Rail for VerbsRail {
    #[inline]
    fn lanes(&self) -> u8 {
        self.lanes.count() as u8
    }

    #[inline(always)]
    fn send_room(&self, lane: LaneId) -> u32 {
        self.lanes[lane.index()].room(self.depth)
    }

    #[inline]
    fn max_write(&self) -> u32 {
        self.max_write
    }

    fn is_broken(&self, lane: LaneId) -> bool {
        self.lanes.iter().nth(lane.index()).is_some_and(|lane| lane.broken)
    }

    #[inline(always)]
    fn post_fitting(&mut self, lane: LaneId, chain: &[Write]) -> Result<(), PostError> {
        let [write] = chain else {
            return chain.chunks(CHAIN).try_for_each(|part| self.post_some(lane.index(), part));
        };
        let index = lane.index();
        let state = &mut self.lanes[index];
        let requests = &mut *self.requests;
        let (send, piece) = (&mut requests.sends[CHAIN - 1], &mut requests.pieces[CHAIN - 1]);
        state.fill(lane, write, send, piece);
        // SAFETY: the last of the linked requests has no next. The source is a piece of registered memory
        // (`LocalSlice`), which may be read for as long as its registration lives (`Memory::from_raw`); the adapter
        // refuses the key of one that has ended.
        match unsafe { state.qp.post(send) } {
            0 => Ok(()),
            errno => self.lane_failed(index, errno),
        }
    }

    fn flushes(&self) -> bool {
        self.flush.is_some()
    }

    fn post_flush(&mut self, target: RemoteSlice, id: WorkId) -> Result<(), PostError> {
        if self.any_broken {
            return Err(PostError::Broken);
        }
        let Some(flush) = &mut self.flush else {
            return Err(PostError::Invalid(format!(
                "{} has no loop-back lane: the device does not report that it accepts GPU memory",
                self.domain.name
            )));
        };
        if !flush.has_room() {
            return Err(PostError::Full);
        }
        match flush.post(target, id, FLUSH) {
            0 => Ok(()),
            errno => {
                let number = flush.number();
                self.post_failed(0, number, errno)
            }
        }
    }

    fn post_receives(&mut self, count: u32) -> Result<u32, PostError> {
        if self.any_broken {
            return Err(PostError::Broken);
        }
        let count = count.min(self.missing);
        let wanted = self.pool_depth.saturating_sub(self.missing) + count;
        let requests = &mut *self.requests;
        // A chain of n receives occupies the last n places.
        let mut chain = |count: u32| -> *mut sys::RecvWr { &raw mut requests.receives[REFILL - count as usize] };
        if self.is_plain || self.shared.is_some() {
            // One queue, refilled with as many as were taken from it.
            let mut left = count;
            while left > 0 {
                let some = left.min(REFILL as u32);
                let errno = match &mut self.shared {
                    // SAFETY: the chain is at the end of the linked requests, so it ends in a null pointer.
                    Some(shared) => unsafe { shared.post(chain(some)) },
                    // SAFETY: as above.
                    None => unsafe { self.lanes[0].qp.post_receives(chain(some)) },
                };
                if errno != 0 {
                    return self.lane_failed(0, errno).map(|()| 0);
                }
                left -= some;
            }
        } else {
            // Any of the pool's immediates may arrive on any lane, up to the most that one lane can take.
            let wanted = wanted.min(self.lane_depth);
            for index in 0..self.lanes.count() {
                while self.lanes[index].receives < wanted {
                    let lane = &mut self.lanes[index];
                    let some = (wanted - lane.receives).min(REFILL as u32);
                    // SAFETY: as above.
                    let errno = unsafe { lane.qp.post_receives(chain(some)) };
                    if errno != 0 {
                        return self.lane_failed(index, errno).map(|()| 0);
                    }
                    lane.receives += some;
                }
            }
        }
        self.missing -= count;
        Ok(count)
    }

    #[inline(always)]
    fn report(&mut self, most: usize, reports: &mut impl Reports) -> bool {
        if self.any_broken {
            return self.report_failures(most, reports);
        }
        let mut wcs = [const { MaybeUninit::<sys::Wc>::uninit() }; POLL];
        let taken = self.take(&mut wcs[..most.min(POLL)]);
        if taken == 0 {
            return false;
        }
        // SAFETY: the library has filled the first `taken` places.
        let first = unsafe { wcs[0].assume_init_ref() };
        if taken == 1 && first.status == sys::WC_SUCCESS {
            self.handle_success(first, reports);
        } else {
            self.report_all(&wcs[..taken], reports);
        }
        true
    }

    fn parts(&self) -> Vec<Part> {
        let pairs = self.lanes.iter().map(|lane| lane.qp.number());
        let flush = self.flush.as_ref().map(FlushLane::number);
        parts((self.domain.device(), self.domain.port), pairs.chain(flush), &self.completions, self.shared.as_ref())
    }

    fn ends(&self) -> Option<(IpAddr, IpAddr)> {
        let address = |gid: [u8; 16]| Ipv6Addr::from(gid).to_canonical();
        Some((address(self.gid), address(self.peer_gid)))
    }

    fn number(&self) -> u32 {
        self.lanes.iter().next().map_or(0, |lane| lane.qp.number())
    }

    fn describe(&self) -> String {
        format!("{} {} - {}", self.domain.name, show_gid(self.gid), show_gid(self.peer_gid))
    }

    fn describe_lanes(&self) -> Vec<String> {
        let (port, mtu, gid, peer_gid) = (&self.domain.name, self.mtu, show_gid(self.gid), show_gid(self.peer_gid));
        let describe = |lane: &Lane| {
            let (number, peer) = (lane.qp.number(), lane.peer_number);
            format!("queue pair {number:#x} of {port} (GID {gid}) - {peer:#x} (GID {peer_gid}), path MTU {mtu}")
        };
        self.lanes.iter().map(describe).collect()
    }

    fn is_drained(&self) -> bool {
        self.lanes.iter().all(Lane::is_drained)
            && (self.any_broken || self.flush.as_ref().is_none_or(FlushLane::is_drained))
    }

    fn end(self, flushes: &[RemoteSlice], reports: &mut impl Reports) -> Ended {
        let Self { lanes, flush, shared, completions, domain, .. } = self;
        // Receives that a single lane holds in its own queue; the other lanes count theirs themselves.
        let plain = self.pool_depth.saturating_sub(self.missing);
        let receives = |lane: &Lane| match (&shared, self.is_plain) {
            (Some(_), _) => 0,
            (None, true) => plain,
            (None, false) => lane.receives,
        };
        let lanes = lanes.into_lanes().map(|lane| (receives(&lane), lane)).collect();
        let parts = FenceParts { lanes, flush, shares_receives: shared.is_some(), completions, depth: self.depth };
        Fence::new(parts, reports).end(flushes, &domain.last_vain, shared)
    }
}
