//! The trace of this process, from its begin to its end.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use railweave_telemetry::EventKind;
use railweave_trace::{Communicator, Connection, Ended, Frame, Happened, Name, Process, Rail, Record};
use railweave_transport::RailInfo;

use super::drain::Drain;
use super::ring;
use super::shared::{Shared, lock, now_ns};
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

/// The trace of this process. When the last user drops it, all that was noted is written.
pub(crate) struct Tracer {
    shared: Arc<Shared>,
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
        let drain = Drain::new(Arc::clone(&shared), &config.dir, config.most_bytes, process);
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

/// Notes one record of this thread.
pub(crate) fn note(tracer: &Tracer, record: Record) {
    ring::note_all(&tracer.shared, &[record]);
}

/// Notes records of this thread, all or none of them.
pub(crate) fn note_all(tracer: &Tracer, records: &[Record]) {
    ring::note_all(&tracer.shared, records);
}

/// Notes one record of this thread in the trace that goes on, if there is one.
pub(crate) fn note_here(record: Record) {
    let serial = CURRENT_SERIAL.load(Ordering::Relaxed);
    // A thread that has noted nothing yet has no ring.
    if serial > 0
        && !ring::note_here(serial, record)
        && let Some(tracer) = Tracer::current()
    {
        note(&tracer, record);
    }
}

/// Returns a number for an event that this thread starts; 0 if the thread is ending.
pub(crate) fn new_event(tracer: &Tracer) -> u64 {
    ring::new_event(&tracer.shared)
}
