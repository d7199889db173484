//! The part of a trace that the threads of the process share, and the clocks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use railweave_trace::{Frame, RailSample, Words};
use railweave_transport::RailCounters;
use rtrb::Consumer;

/// The part of the trace that the threads of the process share.
pub(super) struct Shared {
    /// A number that no other trace of this process has.
    pub(super) serial: u64,
    pub(super) rings: Mutex<Vec<Reader>>,
    /// The frames to write, in the order in which they were added.
    pub(super) frames: Mutex<Vec<Frame>>,
    pub(super) names: Mutex<HashMap<String, u16>>,
    pub(super) next_connection: AtomicU32,
    /// The rails of open connections, whose counters are looked at.
    pub(super) rails: Mutex<Vec<WatchedRail>>,
    pub(super) is_over: AtomicBool,
    /// Wakes the trace thread up when the trace is over.
    pub(super) over: (Mutex<()>, Condvar),
}

impl Shared {
    pub(super) fn new(serial: u64) -> Self {
        Self {
            serial,
            rings: Mutex::default(),
            frames: Mutex::default(),
            names: Mutex::default(),
            next_connection: AtomicU32::new(1),
            rails: Mutex::default(),
            is_over: AtomicBool::new(false),
            over: Default::default(),
        }
    }
}

/// A rail of an open connection.
#[derive(Clone)]
pub(super) struct WatchedRail {
    pub(super) connection: u32,
    pub(super) number: u32,
    /// True at the sending end.
    pub(super) sends: bool,
    pub(super) counters: Arc<RailCounters>,
}

impl WatchedRail {
    /// Returns its present state, without its share.
    pub(super) fn sample(&self) -> RailSample {
        RailSample {
            connection: self.connection,
            number: self.number,
            is_up: !self.counters.is_down(),
            share: None,
            sent: self.counters.data_bytes(),
            received: self.counters.received_bytes(),
            in_flight: self.sends.then(|| self.counters.in_flight()),
        }
    }
}

/// The ring of a thread, as the trace thread has it.
pub(super) struct Reader {
    pub(super) records: Consumer<Words>,
    /// The number of records for which there was no room, and the number of them that the file knows of.
    pub(super) lost: Arc<AtomicU64>,
    pub(super) told: u64,
    pub(super) number: u32,
    pub(super) tid: u32,
    pub(super) name: String,
    /// True once the file knows the thread.
    pub(super) is_known: bool,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panicking thread leaves nothing by halves: every change under these locks is one step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the present time in nanoseconds of CLOCK_MONOTONIC, which all processes of a host share.
pub(crate) fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is a variable of this function; this clock is there on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// Returns the present time in nanoseconds since 1970.
pub(super) fn wall_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
