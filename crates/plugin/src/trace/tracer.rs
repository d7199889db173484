//! The trace of this process, from its begin to its end.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use railweave_telemetry::EventKind;
use railweave_trace::{
    Communicator, Connection, EarlierFiles, Ended, Frame, Happened, Name, Process, Rail, Record, Sample, Writer,
};
use railweave_transport::RailInfo;

use super::drain::Drain;
use super::ring::{self, Begin};
use super::shared::{Shared, WatchedRail, lock, now_ns};
use crate::forks::ProcessMark;
use crate::log;
use crate::per_process::PerProcess;

/// The configuration of a trace, from the settings.
#[derive(Clone, Debug)]
pub(crate) struct TraceConfig {
    /// The folder of the files.
    pub(crate) dir: PathBuf,
    /// The bytes that they may take.
    pub(crate) most_bytes: u64,
}

/// The most texts that records may name. NCCL has a few dozen names of functions, types, algorithms and protocols.
const MOST_NAMES: usize = 1000;

/// The most bytes of such a text.
const LONGEST_NAME: usize = 100;

/// The time that the last write of a trace has before its process goes on without it.
const LAST_WRITE: Duration = Duration::from_secs(5);

/// The trace of this process. When the last user drops it, all that was noted is written.
pub(crate) struct Tracer {
    shared: Arc<Shared>,
    /// The id of the process in the trace.
    pub(crate) id: [u8; 16],
    /// True once that is the id by which peers know the process.
    is_claimed: AtomicBool,
    /// The time at which it began, of both clocks.
    pub(crate) epoch: Instant,
    owner: ProcessMark,
    thread: Option<JoinHandle<()>>,
}

static CURRENT: PerProcess<Mutex<Weak<Tracer>>> = PerProcess::new();

/// The serial number of the trace that goes on; 0 for none.
static CURRENT_SERIAL: AtomicU64 = AtomicU64::new(0);

/// The number of the next trace of this process, or of one that it has forked.
static SERIAL: AtomicU64 = AtomicU64::new(1);

/// The number of the next communicator in any of its traces.
static COMMUNICATOR: AtomicU32 = AtomicU32::new(1);

/// The files of earlier traces of this process, and their bytes, oldest first.
static EARLIER: PerProcess<Mutex<EarlierFiles>> = PerProcess::new();

impl Tracer {
    /// Returns the trace of the process with this id, by which its peers name it. It begins now if there is none yet,
    /// with these facts. `None` if its thread cannot be started, which the log says.
    pub(crate) fn of_process(config: &TraceConfig, id: [u8; 16], facts: impl FnOnce() -> Process) -> Option<Arc<Self>> {
        let mut current = lock(CURRENT.get());
        if let Some(tracer) = current.upgrade().filter(|tracer| tracer.id == id) {
            return Some(tracer);
        }
        let epoch = Instant::now();
        let process = Process { id: id.to_vec(), sessions_from_ns: now_ns(), ..facts() };
        let shared = Arc::new(Shared::new(SERIAL.fetch_add(1, Ordering::Relaxed)));
        let earlier = std::mem::take(&mut *lock(EARLIER.get()));
        let drain = Drain::new(Arc::clone(&shared), Writer::new(&config.dir, process, config.most_bytes, earlier));
        let run = move || {
            let files = drain.run();
            lock(EARLIER.get()).extend(files);
        };
        let spawned = std::thread::Builder::new().name("railweave-trace".into()).spawn(run);
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
        let tracer = Arc::new(Self {
            shared,
            id,
            is_claimed: AtomicBool::new(false),
            epoch,
            owner: ProcessMark::own(),
            thread: Some(thread),
        });
        *current = Arc::downgrade(&tracer);
        CURRENT_SERIAL.store(tracer.shared.serial, Ordering::Relaxed);
        Some(tracer)
    }

    /// Returns true the first time: the caller then has the process's id for itself.
    pub(crate) fn claim(&self) -> bool {
        !self.is_claimed.swap(true, Ordering::Relaxed)
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
        let (number, sends) = (self.shared.next_connection.fetch_add(1, Ordering::Relaxed), connection.sends);
        self.add(Frame::Connection(Connection { number, ..connection }));
        self.name_rails(number, rails);
        let watched = rails.iter().map(|rail| WatchedRail {
            connection: number,
            number: rail.index as u32,
            sends,
            counters: Arc::clone(&rail.counters),
        });
        lock(&self.shared.rails).extend(watched);
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

    /// Notes that a connection is closed, with the last state of its rails.
    pub(crate) fn close(&self, connection: u32) {
        let rails: Vec<_> = lock(&self.shared.rails).extract_if(.., |rail| rail.connection == connection).collect();
        let at_ns = now_ns();
        let rails = rails.iter().map(WatchedRail::sample).collect();
        lock(&self.shared.frames)
            .extend([Frame::Sample(Sample { at_ns, rails }), Frame::Ended(Ended { at_ns, connection })]);
    }

    /// Adds an event, of this connection and this rail if there is one.
    pub(crate) fn happened(&self, kind: EventKind, connection: Option<u32>, rail: Option<u32>, text: &str) {
        let (name, text) = (kind.to_string(), text.to_owned());
        self.add(Frame::Happened(Happened { at_ns: now_ns(), kind: kind.0.into(), name, connection, rail, text }));
    }

    /// Adds a communicator of NCCL.
    pub(crate) fn add_communicator(&self, communicator: Communicator) {
        self.add(Frame::Communicator(communicator));
    }

    /// Returns the number of a text, 0 if it is empty or there are too many.
    fn name(&self, text: &str) -> u16 {
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
        // A disk that hangs must not keep a communicator from its end.
        let begun = Instant::now();
        while !thread.is_finished() && begun.elapsed() < LAST_WRITE {
            std::thread::sleep(Duration::from_millis(1));
        }
        if thread.is_finished() {
            // A panic of the thread was reported by its own log line.
            let _ = thread.join();
        } else {
            log::warn("the end of the trace is not written yet; the job goes on; look at the disk of RAILWEAVE_TRACE");
        }
    }
}

/// Returns the number of a communicator, which no other one of this process has.
pub(crate) fn next_communicator() -> u32 {
    COMMUNICATOR.fetch_add(1, Ordering::Relaxed)
}

/// Notes one record of this thread.
pub(crate) fn note(tracer: &Tracer, record: Record) {
    ring::note_all(&tracer.shared, &[record]);
}

/// Passes the number of the trace that goes on to `with`. That returns `None` if this thread has no ring there yet;
/// then the thread gets one, and `with` is called again. Returns `None` if nothing is traced.
fn with_ring<R>(mut with: impl FnMut(u64) -> Option<R>) -> Option<R> {
    let serial = CURRENT_SERIAL.load(Ordering::Relaxed);
    if serial == 0 {
        return None;
    }
    with(serial).or_else(|| {
        let tracer = Tracer::current()?;
        ring::make(&tracer.shared);
        with(tracer.shared.serial)
    })
}

/// Starts an event of NCCL's profiler. Returns its number; `None` if nothing is traced, or this thread is ending.
pub(crate) fn start(begin: &Begin) -> Option<u64> {
    with_ring(|serial| ring::start(serial, now_ns, begin))
}

/// Ends an event.
pub(crate) fn stop(event: u64) {
    let at_ns = now_ns();
    with_ring(|serial| ring::stop(serial, at_ns, event).then_some(()));
}

/// Notes that an event enters a state, with this many bytes.
pub(crate) fn enter(event: u64, state: u16, bytes: u64) {
    with_ring(|serial| ring::enter(serial, now_ns, event, state, bytes).then_some(()));
}

/// Returns the number of a text in the trace that goes on; 0 if there is none, or no room.
pub(crate) fn name(text: &str) -> u16 {
    Tracer::current().map_or(0, |tracer| tracer.name(text))
}
