//! Completion queues, and receive queues, which belong to one queue pair or are shared.
//!
//! Only writes with immediate consume receives here, and they write nothing to the receive's buffers. A receive is
//! therefore stored as its identifier.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use railweave_fabric_verbs::sys;

use crate::events::{Events, Source};
use crate::reports::Counts;
use crate::spin::SpinLock;

/// A completion that waits to be polled.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    /// The completion, as a poll returns it.
    pub(crate) completion: sys::Wc,
    /// The count of freed places in the queue that the work came from. Polling raises it by `places`: a place is taken
    /// until its completion has been polled, as on a card.
    pub(crate) released: *const AtomicU32,
    /// The number of places that polling frees.
    pub(crate) places: u32,
}

/// The count of freed places for stale completions, which no queue reads.
static NOBODY: AtomicU32 = AtomicU32::new(0);

struct Completions {
    entries: Box<[Entry]>,
    head: usize,
    completions: u64,
}

/// A `struct ibv_cq`, followed by this library's own data.
#[repr(C)]
pub(crate) struct CompletionQueue {
    public: sys::Cq,
    /// The number of entries, so that an empty queue is noticed without the lock. Changed only under the lock.
    waiting: AtomicU32,
    /// True if it takes no completions any more: it has overrun, or is silenced.
    shut: AtomicBool,
    /// True if its device is gone.
    silenced: AtomicBool,
    ring: SpinLock<Completions>,
    events: Arc<Events>,
}

impl CompletionQueue {
    pub(crate) fn new(public: sys::Cq, capacity: usize, events: Arc<Events>) -> Self {
        let empty = Entry { completion: sys::Wc::default(), released: std::ptr::null(), places: 0 };
        Self {
            public,
            waiting: AtomicU32::new(0),
            shut: AtomicBool::new(false),
            silenced: AtomicBool::new(false),
            ring: SpinLock::new(Completions {
                entries: vec![empty; capacity].into_boxed_slice(),
                head: 0,
                completions: 0,
            }),
            events,
        }
    }

    /// Adds a completion. If the queue is full, the completion is lost and the queue stays broken, as on a card.
    #[inline]
    pub(crate) fn push(&self, entry: Entry) {
        let mut ring = self.ring.lock();
        let waiting = self.waiting.load(Ordering::Relaxed);
        if waiting as usize == ring.entries.len() || self.shut.load(Ordering::Relaxed) {
            drop(ring);
            self.break_by_overrun();
            return;
        }
        let mut place = ring.head + waiting as usize;
        if place >= ring.entries.len() {
            place -= ring.entries.len();
        }
        ring.entries[place] = entry;
        self.waiting.store(waiting + 1, Ordering::Release);
    }

    /// Removes the entries of a queue pair that is destroyed or reset, and frees their places. If `stale` is true the
    /// entries stay for the next poll, which then frees nothing.
    pub(crate) fn forget(&self, qp_number: u32, stale: bool) {
        let mut ring = self.ring.lock();
        let (head, size) = (ring.head, ring.entries.len());
        let mut kept = 0;
        for index in 0..self.waiting.load(Ordering::Relaxed) as usize {
            let mut entry = ring.entries[(head + index) % size];
            let own = entry.completion.qp_num == qp_number;
            if own {
                // SAFETY: see `poll`.
                unsafe { (*entry.released).fetch_add(entry.places, Ordering::Release) };
                entry.released = &raw const NOBODY;
            }
            if !own || stale {
                ring.entries[(head + kept) % size] = entry;
                kept += 1;
            }
        }
        self.waiting.store(kept as u32, Ordering::Release);
    }

    /// Takes no completions from now on, and says nothing about that: its device is gone.
    pub(crate) fn silence(&self) {
        self.silenced.store(true, Ordering::Release);
        self.shut.store(true, Ordering::Release);
    }

    /// Returns the capacity, in completions.
    pub(crate) fn places(&self) -> u64 {
        self.ring.lock().entries.len() as u64
    }

    /// Adds this queue's counts.
    pub(crate) fn count(&self, counts: &mut Counts) {
        counts.completions += self.ring.lock().completions;
    }

    #[cold]
    fn break_by_overrun(&self) {
        if !self.shut.swap(true, Ordering::AcqRel) {
            let size = self.public.cqe;
            crate::complaints::complain(format_args!(
                "a completion queue of {size} entries has overrun: completions are lost; poll more often, or create it \
                 with more entries than the queues that report to it have places"
            ));
            self.events.raise(sys::EVENT_CQ_ERR, Source::Cq(std::ptr::from_ref(self).addr()));
        }
    }

    /// Takes up to `entries` completions: ibv_poll_cq(3).
    ///
    /// # Safety
    /// `wc` must have room for `entries` completions.
    #[inline]
    pub(crate) unsafe fn poll(&self, entries: c_int, wc: *mut sys::Wc) -> c_int {
        if self.waiting.load(Ordering::Acquire) == 0 {
            let broken = self.shut.load(Ordering::Acquire) && !self.silenced.load(Ordering::Acquire);
            return if broken { -1 } else { 0 };
        }
        let mut ring = self.ring.lock();
        let waiting = self.waiting.load(Ordering::Relaxed);
        let taken = waiting.min(u32::try_from(entries).unwrap_or(0));
        let mut place = ring.head;
        for index in 0..taken as usize {
            let entry = &ring.entries[place];
            // SAFETY: the caller vouches for the room. The counter lives in a queue pair or a receive queue, whose
            // entries are removed or redirected before it is destroyed (`forget`).
            unsafe {
                wc.add(index).write(entry.completion);
                (*entry.released).fetch_add(entry.places, Ordering::Release);
            }
            place += 1;
            if place == ring.entries.len() {
                place = 0;
            }
        }
        ring.head = place;
        ring.completions += u64::from(taken);
        self.waiting.store(waiting - taken, Ordering::Release);
        taken as c_int
    }
}

struct Receives {
    ids: Box<[u64]>,
    head: usize,
    length: usize,
    posted: u32,
    /// True while a sender waits for a receive.
    starving: bool,
    /// True if the queue pair is in the error state: new receives are flushed.
    closed: bool,
    posts: u64,
    receives: u64,
    consumed: u64,
}

/// A queue of posted receives.
pub(crate) struct ReceiveQueue {
    ring: SpinLock<Receives>,
    max_sges: u32,
    /// The number of places freed by polled completions. `Receives::posted` less this number is the number of places
    /// taken.
    pub(crate) released: AtomicU32,
}

/// The fate of a posted receive.
enum Posted {
    /// It waits for a message.
    Waits,
    /// It is flushed at once.
    Flushed,
}

impl ReceiveQueue {
    pub(crate) fn new(capacity: usize, max_sges: u32) -> Self {
        let ring = Receives {
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

    /// Takes the oldest receive. Returns `None` if the queue is empty, and notes that a sender waits.
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

    /// Closes the queue and returns the pending receives.
    pub(crate) fn close(&self) -> Vec<u64> {
        let mut ring = self.ring.lock();
        ring.closed = true;
        let waiting = (0..ring.length).map(|index| ring.ids[(ring.head + index) % ring.ids.len()]).collect();
        ring.length = 0;
        waiting
    }

    /// Empties the queue, as after creation.
    pub(crate) fn reset(&self) {
        let mut ring = self.ring.lock();
        (ring.head, ring.length, ring.posted, ring.closed, ring.starving) = (0, 0, 0, false, false);
        self.released.store(0, Ordering::Release);
    }

    /// Returns the capacity, in receives.
    pub(crate) fn places(&self) -> usize {
        self.ring.lock().ids.len()
    }

    /// Returns the number of pending receives.
    pub(crate) fn waiting(&self) -> usize {
        self.ring.lock().length
    }

    /// Adds this queue's counts.
    pub(crate) fn count(&self, counts: &mut Counts) {
        let ring = self.ring.lock();
        counts.receive_posts += ring.posts;
        counts.receives += ring.receives;
        counts.receives_consumed += ring.consumed;
    }

    #[inline]
    fn post(&self, ring: &mut Receives, wr: &sys::RecvWr) -> Result<Posted, c_int> {
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

    /// Posts a chain of receives and calls `flush` for each that is flushed at once. Returns the error of the receive
    /// that is refused, or 0, and true if a sender has waited for a receive.
    ///
    /// # Safety
    /// The same as for ibv_post_recv(3): `wr` is a chain of work requests, and `bad` is writable.
    #[inline]
    pub(crate) unsafe fn post_chain(
        &self,
        wr: *mut sys::RecvWr,
        bad: *mut *mut sys::RecvWr,
        mut flush: impl FnMut(u64),
    ) -> (c_int, bool) {
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
        (refusal, wanted)
    }
}

/// A `struct ibv_srq`, followed by this library's own data.
#[repr(C)]
pub(crate) struct SharedReceiveQueue {
    pub(crate) public: sys::Srq,
    pub(crate) queue: ReceiveQueue,
}
