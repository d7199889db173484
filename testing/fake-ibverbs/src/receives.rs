//! Receive queues: a queue pair's own, or a shared one.
//!
//! Only writes with immediate consume receives here, and these bring no bytes into the receive's buffers; so a receive is
//! its identifier.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use railweave_fabric_verbs::sys;

use crate::reports::Counts;
use crate::spin::SpinLock;
use crate::world;

struct Ring {
    ids: Box<[u64]>,
    head: usize,
    length: usize,
    posted: u32,
    /// A sender waits for a receive.
    starving: bool,
    /// The queue pair is in the error state: receives are given back.
    closed: bool,
    posts: u64,
    receives: u64,
    consumed: u64,
}

/// Receives that wait for a message.
pub(crate) struct ReceiveQueue {
    ring: SpinLock<Ring>,
    max_sges: u32,
    /// Places whose completions were polled. Together with `Ring::posted` it says how full the queue is.
    pub(crate) released: AtomicU32,
}

/// What became of a posted receive.
enum Posted {
    /// It waits.
    Waits,
    /// It goes back at once, flushed.
    Flushed,
}

impl ReceiveQueue {
    pub(crate) fn new(capacity: usize, max_sges: u32) -> Self {
        let ring = Ring {
            ids: vec![0; capacity].into_boxed_slice(),
            head: 0,
            length: 0,
            posted: 0,
            starving: false,
            closed: false,
            posts: 0,
            receives: 0,
            consumed: 0,
        };
        Self { ring: SpinLock::new(ring), max_sges, released: AtomicU32::new(0) }
    }

    /// The oldest receive; none leaves a note that one is wanted.
    #[inline]
    pub(crate) fn take(&self) -> Option<u64> {
        let mut ring = self.ring.lock();
        if ring.length == 0 {
            ring.starving = true;
            return None;
        }
        let id = ring.ids[ring.head];
        ring.head += 1;
        if ring.head == ring.ids.len() {
            ring.head = 0;
        }
        ring.length -= 1;
        ring.consumed += 1;
        Some(id)
    }

    /// Takes no more receives and answers those that wait.
    pub(crate) fn close(&self) -> Vec<u64> {
        let mut ring = self.ring.lock();
        ring.closed = true;
        let waiting = (0..ring.length).map(|index| ring.ids[(ring.head + index) % ring.ids.len()]).collect();
        ring.length = 0;
        waiting
    }

    /// Empties the queue, as when it was created.
    pub(crate) fn reset(&self) {
        let mut ring = self.ring.lock();
        (ring.head, ring.length, ring.posted, ring.closed, ring.starving) = (0, 0, 0, false, false);
        self.released.store(0, Ordering::Release);
    }

    /// How many receives it holds at most.
    pub(crate) fn places(&self) -> usize {
        self.ring.lock().ids.len()
    }

    /// How many receives wait.
    pub(crate) fn waiting(&self) -> usize {
        self.ring.lock().length
    }

    /// Adds what was counted here.
    pub(crate) fn count(&self, counts: &mut Counts) {
        let ring = self.ring.lock();
        counts.receive_posts += ring.posts;
        counts.receives += ring.receives;
        counts.receives_consumed += ring.consumed;
    }

    #[inline]
    fn post(&self, ring: &mut Ring, wr: &sys::RecvWr) -> Result<Posted, c_int> {
        if wr.num_sge < 0 || wr.num_sge as u32 > self.max_sges {
            return Err(libc::EINVAL);
        }
        if ring.posted.wrapping_sub(self.released.load(Ordering::Acquire)) as usize >= ring.ids.len() {
            return Err(libc::ENOMEM);
        }
        ring.posted = ring.posted.wrapping_add(1);
        ring.receives += 1;
        if ring.closed {
            return Ok(Posted::Flushed);
        }
        let mut place = ring.head + ring.length;
        if place >= ring.ids.len() {
            place -= ring.ids.len();
        }
        ring.ids[place] = wr.wr_id;
        ring.length += 1;
        Ok(Posted::Waits)
    }

    /// Posts a chain of receives; `flush` is told of each that goes back at once.
    ///
    /// # Safety
    /// As for ibv_post_recv(3): `wr` is a chain of work requests, `bad` can be written.
    #[inline]
    pub(crate) unsafe fn post_chain(
        &self,
        wr: *mut sys::RecvWr,
        bad: *mut *mut sys::RecvWr,
        mut flush: impl FnMut(u64),
    ) -> c_int {
        let mut ring = self.ring.lock();
        ring.posts += 1;
        let mut next = wr;
        let mut refusal = 0;
        while !next.is_null() {
            // SAFETY: the caller vouches for the chain.
            let request = unsafe { &*next };
            match self.post(&mut ring, request) {
                Ok(Posted::Waits) => {}
                Ok(Posted::Flushed) => flush(request.wr_id),
                Err(errno) => {
                    refusal = errno;
                    // SAFETY: the caller vouches for it.
                    unsafe { bad.write(next) };
                    break;
                }
            }
            next = request.next;
        }
        let wanted = ring.length > 0 && std::mem::take(&mut ring.starving);
        drop(ring);
        if wanted {
            world::lock().carry_on();
        }
        refusal
    }
}

/// A `struct ibv_srq` and what stands behind it.
#[repr(C)]
pub(crate) struct SharedReceiveQueue {
    pub(crate) public: sys::Srq,
    pub(crate) queue: ReceiveQueue,
    /// Events of this queue that were taken and not yet acknowledged.
    pub(crate) unacknowledged: AtomicU32,
}

/// ibv_post_srq_recv(3).
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut sys::Srq,
    wr: *mut sys::RecvWr,
    bad: *mut *mut sys::RecvWr,
) -> c_int {
    // SAFETY: ibv_post_srq_recv(3): the caller hands over what ibv_create_srq gave, not yet destroyed; that is the first
    // field of a SharedReceiveQueue. A shared queue is never closed, so nothing is flushed.
    unsafe { (*srq.cast::<SharedReceiveQueue>()).queue.post_chain(wr, bad, |_| ()) }
}
