//! The trace of this process: what its threads note, and the thread that writes it to files (docs/tracing.md).
//!
//! A thread that notes something puts it into a ring of its own, without a lock and without waiting. The trace thread
//! empties the rings some ten times a second. It is a thread of its own, because a slow disk must not hold up the
//! control thread, which keeps connections alive. Without `RAILWEAVE_TRACE` none of this is there.
#![allow(clippy::disallowed_types, reason = "the data path uses only rings; locks are for what happens now and then")]

mod drain;
mod ring;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use railweave_telemetry::EventKind;
use railweave_trace::{Communicator, Connection, Ended, Frame, Happened, Name, Process, Rail};
use railweave_transport::RailInfo;

pub(crate) use self::ring::{new_event, note, note_all, note_here};

use self::ring::Reader;
use crate::forks::ProcessMark;
use crate::log;
use crate::per_process::PerProcess;

/// The time between two looks of the trace thread at the rings. A ring has room for what a thread notes in many times
/// this time.
const LOOK: Duration = Duration::from_millis(20);

/// The most texts that records may name. NCCL has a few dozen names of functions, types, algorithms and protocols.
const MOST_NAMES: usize = 1000;

/// The most bytes of such a text.
const LONGEST_NAME: usize = 100;

/// The configuration of a trace, from the settings.
#[derive(Clone, Debug)]
pub(crate) struct TraceConfig {
    /// The folder of the files.
    pub(crate) dir: PathBuf,
    /// The bytes that they may take.
    pub(crate) most_bytes: u64,
}

/// The trace of this process. When the last user drops it, all that was noted is written.
pub(crate) struct Tracer {
    shared: Arc<Shared>,
    /// The time at which it began, of both clocks.
    pub(crate) epoch: Instant,
    owner: ProcessMark,
    thread: Option<JoinHandle<()>>,
}

/// The part of the trace that the threads of the process share.
struct Shared {
    /// A number that no other trace of this process has.
    serial: u64,
    rings: Mutex<Vec<Reader>>,
    next_thread: AtomicU32,
    /// The frames to write, in the order in which they were added.
    frames: Mutex<Vec<Frame>>,
    names: Mutex<HashMap<String, u16>>,
    next_communicator: AtomicU32,
    next_connection: AtomicU32,
    /// The rails of open connections, whose counters are looked at.
    rails: Mutex<Vec<(u32, RailInfo)>>,
    is_over: AtomicBool,
    /// Wakes the trace thread up when the trace is over.
    over: (Mutex<()>, Condvar),
}

static CURRENT: PerProcess<Mutex<Weak<Tracer>>> = PerProcess::new();

/// The serial number of the trace that goes on; 0 for none.
static CURRENT_SERIAL: AtomicU64 = AtomicU64::new(0);

/// The number of the next trace of this process, or of one that it has forked.
static SERIAL: AtomicU64 = AtomicU64::new(1);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panicking thread leaves is whole: every change under these locks is one step.
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
fn wall_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl Tracer {
    /// Returns the trace of this process, which begins now if there is none yet, for the process that these facts are
    /// about. `None` if its thread cannot be started, which the log says.
    pub(crate) fn of_process(config: &TraceConfig, facts: impl FnOnce() -> Process) -> Option<Arc<Self>> {
        let mut current = lock(CURRENT.get());
        if let Some(tracer) = current.upgrade() {
            return Some(tracer);
        }
        let epoch = Instant::now();
        let process = Process { sessions_from_ns: now_ns(), ..facts() };
        let shared = Arc::new(Shared {
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            rings: Mutex::default(),
            next_thread: AtomicU32::new(1),
            frames: Mutex::default(),
            names: Mutex::default(),
            next_communicator: AtomicU32::new(1),
            next_connection: AtomicU32::new(1),
            rails: Mutex::default(),
            is_over: AtomicBool::new(false),
            over: Default::default(),
        });
        let drain = drain::Drain::new(Arc::clone(&shared), config, process);
        let spawned = std::thread::Builder::new().name("railweave-trace".into()).spawn(move || drain.run());
        let thread = match spawned {
            Ok(thread) => thread,
            Err(error) => {
                log::warn(&format!(
                    "nothing is traced, because the trace thread cannot be started: {error}; try raising the limit of \
                     threads (ulimit -u)"
                ));
                return None;
            }
        };
        log::info(&format!("this process is traced into \"{}\"", config.dir.display()));
        let tracer = Arc::new(Self { shared, epoch, owner: ProcessMark::own(), thread: Some(thread) });
        *current = Arc::downgrade(&tracer);
        CURRENT_SERIAL.store(tracer.shared.serial, Ordering::Relaxed);
        Some(tracer)
    }

    /// Returns the trace of this process, if there is one.
    pub(crate) fn current() -> Option<Arc<Self>> {
        lock(CURRENT.get()).upgrade()
    }

    /// Returns true if this is the process that is traced, and no forked child of it.
    fn is_ours(&self) -> bool {
        self.owner == ProcessMark::own()
    }

    /// Adds a frame.
    pub(crate) fn add(&self, frame: Frame) {
        lock(&self.shared.frames).push(frame);
    }

    /// Adds a connection with its rails. Returns its number.
    pub(crate) fn open(&self, connection: Connection, rails: &[RailInfo]) -> u32 {
        let number = self.shared.next_connection.fetch_add(1, Ordering::Relaxed);
        self.add(Frame::Connection(Connection { number, ..connection }));
        self.name_rails(number, rails);
        lock(&self.shared.rails).extend(rails.iter().map(|rail| (number, rail.clone())));
        number
    }

    /// Adds the names of a connection's rails: they may have other addresses than before.
    pub(crate) fn name_rails(&self, connection: u32, rails: &[RailInfo]) {
        let mut frames = lock(&self.shared.frames);
        frames.extend(rails.iter().map(|rail| {
            let (local, remote) = (rail.name.local.clone(), rail.name.remote.clone());
            Frame::Rail(Rail { connection, number: rail.index as u32, local, remote })
        }));
    }

    /// Notes that a connection is closed.
    pub(crate) fn close(&self, connection: u32) {
        lock(&self.shared.rails).retain(|(number, _)| *number != connection);
        self.add(Frame::Ended(Ended { at_ns: now_ns(), connection }));
    }

    /// Adds an event, of this connection and this rail if there is one.
    pub(crate) fn happened(&self, kind: EventKind, connection: Option<u32>, rail: Option<u32>, text: &str) {
        let (name, text) = (kind.to_string(), text.to_owned());
        self.add(Frame::Happened(Happened { at_ns: now_ns(), kind: kind.0.into(), name, connection, rail, text }));
    }

    /// Adds a communicator of NCCL. Returns its number.
    pub(crate) fn add_communicator(&self, communicator: Communicator) -> u32 {
        let number = self.shared.next_communicator.fetch_add(1, Ordering::Relaxed);
        self.add(Frame::Communicator(Communicator { number, ..communicator }));
        number
    }

    /// Returns the number of a text, 0 if it is empty or there are too many.
    pub(crate) fn name(&self, text: &str) -> u16 {
        let text = &text[..text.floor_char_boundary(LONGEST_NAME)];
        let mut names = lock(&self.shared.names);
        if let Some(number) = names.get(text) {
            return *number;
        }
        if text.is_empty() || names.len() == MOST_NAMES {
            return 0;
        }
        let number = names.len() as u16 + 1;
        names.insert(text.to_owned(), number);
        self.add(Frame::Name(Name { number: number.into(), text: text.to_owned() }));
        number
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.is_ours() {
            // A forked child has no such thread, and the locks may be held by threads that are not there.
            std::mem::forget((thread, Arc::clone(&self.shared)));
            return;
        }
        let _ = CURRENT_SERIAL.compare_exchange(self.shared.serial, 0, Ordering::Relaxed, Ordering::Relaxed);
        let (mutex, condvar) = &self.shared.over;
        {
            let _guard = lock(mutex);
            self.shared.is_over.store(true, Ordering::Release);
        }
        condvar.notify_all();
        // A panic of the thread was reported by its own log line.
        let _ = thread.join();
    }
}
