//! The fence of a rail: its lanes end, and everything that is complete is reported. Unlike the data path it may block.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use railweave_fabric::{Ended, LaneId, RemoteSlice, Reports, WorkId};

use crate::flush::FlushLane;
use crate::lanes::{FENCE_FLUSH, FLUSH, Lane, RECEIVE, id_of, lane_of, number_of, send_id};
use crate::queues::{CompletionQueue, QueuePair};
use crate::sys;

/// Completions taken at once.
const POLL: usize = 32;

/// The pause after a poll that found nothing.
const PAUSE: Duration = Duration::from_micros(50);

/// The time for which the queue has to be empty where nothing tells that no more will come: at a lane that shares its
/// receives, and at one that refuses to be stopped or to take a marker. An adapter writes the completions of what has
/// arrived within microseconds. Soft-RoCE does so in threads of the kernel, which may have to wait for a processor: for
/// two ticks of the scheduler, of 4 ms each at the usual 250 Hz.
const QUIET: Duration = Duration::from_millis(10);

/// The longest wait for work that should come back, and for the flushes. Both take far less than a millisecond, because
/// neither waits for the network: an adapter that takes longer is gone. So a fence takes at most about twice this long,
/// besides the calls into the kernel.
const LIMIT: Duration = Duration::from_millis(400);

/// The longest wait for the flushes at a port through which a fence has read nothing back within [`VAIN_TIME`]. Perhaps
/// its adapter does not loop back while the cable is out, and then the fences of all its connections wait, a few at a
/// time.
const SHORT_LIMIT: Duration = Duration::from_millis(20);

/// The time for which a fence that has waited in vain shortens those after it. All connections of a port notice an
/// outage within about a second.
const VAIN_TIME: Duration = Duration::from_secs(3);

/// The parts of a rail that ends.
pub(crate) struct FenceParts {
    /// The lanes, each with the number of receives in its own queue.
    pub(crate) lanes: Vec<(u32, Lane)>,
    pub(crate) flush: Option<FlushLane>,
    /// True if the lanes take their receives from a shared queue.
    pub(crate) shares_receives: bool,
    pub(crate) completions: CompletionQueue,
    /// Places of each lane's send queue.
    pub(crate) depth: u32,
}

/// A lane that ends.
struct Ending {
    /// `None` once it is out of service.
    qp: Option<QueuePair>,
    number: u32,
    /// Requests posted, and those that have come back, modulo 2^16.
    posted: u16,
    completed: u16,
    /// Receives of its own queue that have not come back.
    receives: u32,
    /// The number of its marker.
    marker: Option<u16>,
    /// True if its work does not come back by itself, or nothing tells that it has.
    is_mute: bool,
}

/// A rail that ends.
pub(crate) struct Fence<'a, R> {
    // In the order in which they must be destroyed.
    lanes: Vec<Ending>,
    flush: Option<FlushLane>,
    completions: CompletionQueue,
    shares_receives: bool,
    depth: u32,
    reports: &'a mut R,
    /// Flushes of this fence that are complete.
    flushed: usize,
    has_flush_failed: bool,
    /// True once the completion queue cannot be polled.
    is_gone: bool,
}

impl Ending {
    fn new((receives, lane): (u32, Lane)) -> Self {
        let (mut qp, posted, completed) = lane.into_parts();
        let (number, is_mute) = (qp.number(), qp.stop().is_err());
        Self { qp: Some(qp), number, posted, completed, receives, marker: None, is_mute }
    }

    /// Posts the marker if that is needed and there is room: a request that fails, because it is posted in the error
    /// state, and comes back after all others. The kernel waits for its queue pairs in the same way (Linux,
    /// drivers/infiniband/hw/mlx5/qp.c, mlx5_ib_drain_sq). Without a marker, nothing tells if unsignalled writes at the
    /// end of a queue have been carried out, and never come back.
    fn mark(&mut self, lane: LaneId, depth: u32) {
        let waiting = self.posted.wrapping_sub(self.completed);
        let Some(qp) = &mut self.qp else { return };
        if self.is_mute || self.marker.is_some() || waiting == 0 || u32::from(waiting) >= depth {
            return;
        }
        let mut marker = sys::SendWr {
            wr_id: send_id(lane, self.posted, WorkId::default()),
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 0,
            opcode: sys::WR_RDMA_WRITE,
            send_flags: sys::SEND_SIGNALED,
            imm_data: 0,
            rdma: sys::RdmaTarget::default(),
            others: [0; 9],
        };
        // SAFETY: a chain of one, without a source; the library copies it before it returns (ibv_post_send(3)).
        if unsafe { qp.post(&raw mut marker) } == 0 {
            self.marker = Some(self.posted);
            self.posted = self.posted.wrapping_add(1);
        } else {
            self.is_mute = true;
        }
    }

    /// Returns true if everything that should come back has come back.
    fn is_back(&self) -> bool {
        self.is_mute || (self.posted == self.completed && self.receives == 0)
    }
}

impl<'a, R: Reports> Fence<'a, R> {
    /// Stops the lanes.
    pub(crate) fn new(parts: FenceParts, reports: &'a mut R) -> Self {
        Self {
            lanes: parts.lanes.into_iter().map(Ending::new).collect(),
            flush: parts.flush,
            completions: parts.completions,
            shares_receives: parts.shares_receives,
            depth: parts.depth,
            reports,
            flushed: 0,
            has_flush_failed: false,
            is_gone: false,
        }
    }

    /// Reports what is complete, takes the lanes out of service, and flushes. The remains are dropped before `shared`,
    /// the receives that the lanes share.
    ///
    /// An adapter that purges the completions of a queue pair when it is reset, such as mlx5, is polled empty before.
    /// One that keeps them, such as soft-RoCE, may take immediates until then: it resets a queue pair only when the
    /// packets in work are through, and is polled empty again. The flushes come last: only the reset of its queue pairs
    /// shows that an adapter places nothing more.
    pub(crate) fn end(
        mut self,
        flushes: &[RemoteSlice],
        last_vain: &Mutex<Option<Instant>>,
        shared: impl Send + 'static,
    ) -> Ended {
        self.wait_for_lanes();
        let retired: Vec<_> = self.lanes.iter_mut().filter_map(|lane| lane.qp.take()).map(QueuePair::retire).collect();
        while self.poll() {}
        let vain = || last_vain.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = if vain().is_some_and(|at| at.elapsed() < VAIN_TIME) { SHORT_LIMIT } else { LIMIT };
        let is_visible = self.flush_all(flushes, limit);
        if is_visible && !flushes.is_empty() {
            *vain() = None;
        } else if !is_visible && !self.has_flush_failed {
            // A read that fails took no time, and may be of memory that is gone.
            *vain() = Some(Instant::now());
        }
        let flush = self.flush.map(FlushLane::retire);
        let is_over = retired.iter().all(Result::is_ok) && flush.as_ref().is_none_or(|(is_over, _)| *is_over);
        let remains = Box::new((retired, flush, self.completions, shared));
        Ended { is_over, is_visible, remains: Some(remains) }
    }

    /// Reports completions until no more come, or [`LIMIT`] has passed.
    fn wait_for_lanes(&mut self) {
        let begun = Instant::now();
        let mut last = begun;
        loop {
            for (index, lane) in self.lanes.iter_mut().enumerate() {
                lane.mark(LaneId::at(index), self.depth);
            }
            // Read before the poll, so that the queue has been empty until this time at least.
            let now = Instant::now();
            if self.poll() {
                last = Instant::now();
                continue;
            }
            let is_told = !self.shares_receives && self.lanes.iter().all(|lane| !lane.is_mute);
            let is_over = self.lanes.iter().all(Ending::is_back) && (is_told || now - last >= QUIET);
            if is_over || self.is_gone || now - begun >= LIMIT {
                return;
            }
            thread::sleep(PAUSE);
        }
    }

    /// Reads one byte of each of these places. Returns false if that fails or takes longer than `limit`.
    fn flush_all(&mut self, flushes: &[RemoteSlice], limit: Duration) -> bool {
        let (begun, mut posted) = (Instant::now(), 0);
        loop {
            let Some(lane) = &mut self.flush else { return true };
            while let Some(place) = flushes.get(posted).filter(|_| lane.has_room()) {
                if lane.post(*place, WorkId::default(), FLUSH | FENCE_FLUSH) != 0 {
                    return false;
                }
                posted += 1;
            }
            if self.flushed == flushes.len() {
                return true;
            }
            let now = Instant::now();
            let has_any = self.poll();
            if self.has_flush_failed || self.is_gone || (!has_any && now - begun >= limit) {
                return false;
            }
            if !has_any {
                thread::sleep(PAUSE);
            }
        }
    }

    /// Takes some completions and reports those that are successful. Returns false if there are none.
    fn poll(&mut self) -> bool {
        let mut wcs = [const { MaybeUninit::<sys::Wc>::uninit() }; POLL];
        let Ok(taken) = self.completions.poll(&mut wcs) else {
            self.is_gone = true;
            return false;
        };
        for wc in &wcs[..taken] {
            // SAFETY: the library has filled the first `taken` places.
            self.handle(unsafe { wc.assume_init_ref() });
        }
        taken > 0
    }

    fn handle(&mut self, wc: &sys::Wc) {
        let is_success = wc.status == sys::WC_SUCCESS;
        if wc.wr_id & RECEIVE != 0 {
            let found = self.lanes.iter().position(|lane| lane.number == wc.qp_num);
            // The only lane takes every receive, as on the data path.
            let Some(index) = found.or((self.lanes.len() == 1).then_some(0)) else { return };
            self.lanes[index].receives = self.lanes[index].receives.saturating_sub(1);
            if is_success && wc.opcode == sys::WC_RECV_RDMA_WITH_IMM {
                self.reports.handle_received(LaneId::at(index), u32::from_be(wc.imm_data), wc.byte_len);
            }
        } else if wc.wr_id & FLUSH != 0 {
            let Some(flush) = &mut self.flush else { return };
            let id = flush.completed(wc.wr_id as u32);
            self.has_flush_failed |= !is_success;
            match wc.wr_id & FENCE_FLUSH {
                _ if !is_success => {}
                0 => self.reports.handle_sent(id),
                _ => self.flushed += 1,
            }
        } else if let Some(lane) = self.lanes.get_mut(lane_of(wc.wr_id)) {
            let number = number_of(wc.wr_id);
            lane.completed = number.wrapping_add(1);
            if is_success && lane.marker != Some(number) {
                self.reports.handle_sent(id_of(wc.wr_id));
            }
        }
    }
}
