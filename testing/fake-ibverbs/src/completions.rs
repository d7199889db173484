//! Completion queues: what `ibv_poll_cq` takes from.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use railweave_fabric_verbs::sys;

use crate::events::{Events, Source};
use crate::reports::Counts;
use crate::spin::SpinLock;

/// A completion on its way to whoever polls.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    /// What is polled.
    pub(crate) completion: sys::Wc,
    /// The count of places given back to the queue that the work came from, ...
    pub(crate) released: *const AtomicU32,
    /// ... and by how much polling raises it. So a place is taken until its completion has been polled, as on a card.
    pub(crate) places: u32,
}

/// The count of places that stale completions give back.
static NOBODY: AtomicU32 = AtomicU32::new(0);

struct Ring {
    entries: Box<[Entry]>,
    head: usize,
    completions: u64,
}

/// A `struct ibv_cq` and what stands behind it.
#[repr(C)]
pub(crate) struct CompletionQueue {
    public: sys::Cq,
    /// How many entries there are, so that an empty queue is seen without the lock. Changed under the lock alone.
    waiting: AtomicU32,
    overrun: AtomicBool,
    polls: AtomicU64,
    empty_polls: AtomicU64,
    ring: SpinLock<Ring>,
    events: Arc<Events>,
    /// Events of this queue that were taken and not yet acknowledged.
    pub(crate) unacknowledged: AtomicU32,
}

impl CompletionQueue {
    pub(crate) fn new(public: sys::Cq, capacity: usize, events: Arc<Events>) -> Self {
        let empty = Entry { completion: sys::Wc::default(), released: std::ptr::null(), places: 0 };
        Self {
            public,
            waiting: AtomicU32::new(0),
            overrun: AtomicBool::new(false),
            polls: AtomicU64::new(0),
            empty_polls: AtomicU64::new(0),
            ring: SpinLock::new(Ring { entries: vec![empty; capacity].into_boxed_slice(), head: 0, completions: 0 }),
            events,
            unacknowledged: AtomicU32::new(0),
        }
    }

    /// Adds a completion. Without room it is lost, and the queue is broken for good, as on a card.
    #[inline]
    pub(crate) fn push(&self, entry: Entry) {
        let mut ring = self.ring.lock();
        let waiting = self.waiting.load(Ordering::Relaxed);
        if waiting as usize == ring.entries.len() || self.overrun.load(Ordering::Relaxed) {
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

    /// Removes what one queue pair has put here: it is about to go, or starts afresh. Stale entries stay for whoever polls,
    /// without giving anything back.
    pub(crate) fn forget(&self, qp_number: u32, stale: bool) {
        let mut ring = self.ring.lock();
        let (head, size) = (ring.head, ring.entries.len());
        let mut kept = 0;
        for index in 0..self.waiting.load(Ordering::Relaxed) as usize {
            let mut entry = ring.entries[(head + index) % size];
            let own = entry.completion.qp_num == qp_number;
            if own {
                // SAFETY: see `poll_cq`.
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

    /// How many completions it holds at most.
    pub(crate) fn places(&self) -> u64 {
        self.ring.lock().entries.len() as u64
    }

    /// Adds what was counted here.
    pub(crate) fn count(&self, counts: &mut Counts) {
        counts.polls += self.polls.load(Ordering::Relaxed);
        counts.empty_polls += self.empty_polls.load(Ordering::Relaxed);
        counts.completions += self.ring.lock().completions;
    }

    #[cold]
    fn break_by_overrun(&self) {
        if !self.overrun.swap(true, Ordering::AcqRel) {
            let size = self.public.cqe;
            crate::complaints::complain(format_args!(
                "a completion queue of {size} entries has overrun: completions are lost; poll more often, or create it \
                 with more entries than the queues that report to it have places"
            ));
            self.events.raise(sys::EVENT_CQ_ERR, Source::Cq(std::ptr::from_ref(self).addr()));
        }
    }

    /// Counts with plain stores: two threads that poll one queue at once may lose a count, and pay nothing for it.
    #[inline]
    fn tick(counter: &AtomicU64) {
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// ibv_poll_cq(3).
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut sys::Cq, entries: c_int, wc: *mut sys::Wc) -> c_int {
    // SAFETY: ibv_poll_cq(3): the caller hands over what ibv_create_cq gave, not yet destroyed; that is the first field of a
    // CompletionQueue.
    let queue = unsafe { &*cq.cast::<CompletionQueue>() };
    CompletionQueue::tick(&queue.polls);
    if queue.waiting.load(Ordering::Acquire) == 0 {
        CompletionQueue::tick(&queue.empty_polls);
        return if queue.overrun.load(Ordering::Acquire) { -1 } else { 0 };
    }
    let mut ring = queue.ring.lock();
    let waiting = queue.waiting.load(Ordering::Relaxed);
    let taken = waiting.min(u32::try_from(entries).unwrap_or(0));
    let mut place = ring.head;
    for index in 0..taken as usize {
        let entry = &ring.entries[place];
        // SAFETY: the caller's array has room for `entries` completions. The counter lives in a queue pair or a receive queue;
        // these take their entries out of completion queues before they go (`forget`).
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
    queue.waiting.store(waiting - taken, Ordering::Release);
    taken as c_int
}
