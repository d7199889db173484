//! The rings of threads, and the numbers of events. Each thread that is traced has one ring, which it alone fills and
//! the trace thread alone empties.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use railweave_trace::{Kind, Record, What, Words};
use rtrb::{Producer, RingBuffer};

use super::shared::{Reader, Shared, lock};

/// The records that a ring has room for: 2 MiB, which a thread allocates with its first one.
pub(super) const RECORDS: usize = 1 << 16;

/// The most open events that a thread remembers. A job has a few for each channel and connection; those of operations
/// that were aborted are never ended.
const MOST_OPEN: usize = 1 << 14;

/// The bits of an event's number below the number of its thread.
const EVENT_BITS: u32 = 40;

/// The number of the next thread in any trace of this process, so that no event of one has a number of another one's.
static THREAD: AtomicU32 = AtomicU32::new(1);

/// The ring of a thread, as the thread has it.
struct Ring {
    /// The number of its trace.
    serial: u64,
    records: Producer<Words>,
    lost: Arc<AtomicU64>,
    /// The number of the next event of NCCL's profiler that this thread starts.
    next_event: u64,
    /// The events that this thread has started and not ended, by their numbers.
    open: HashMap<u64, Open>,
    /// The numbers of those of them that are steps, by their parents and their own numbers in these.
    steps: HashMap<(u64, u32), u64>,
}

/// An event that goes on.
#[derive(Clone, Copy, Default)]
struct Open {
    /// The parent and the number of a step; `None` for another event.
    step: Option<(u64, u32)>,
    /// The state that it has entered last.
    state: Option<u16>,
}

thread_local! {
    static RING: RefCell<Option<Ring>> = const { RefCell::new(None) };
}

/// Passes the ring of this thread to `fill`, which must note nothing itself. `None` if the thread is ending.
fn with_ring<R>(shared: &Shared, fill: impl FnOnce(&mut Ring) -> R) -> Option<R> {
    let with = |place: &RefCell<Option<Ring>>| {
        let mut place = place.try_borrow_mut().ok()?;
        let ring = match &mut *place {
            Some(ring) if ring.serial == shared.serial => ring,
            // A forked child may have its parent's.
            place => place.insert(Ring::new(shared)),
        };
        Some(fill(ring))
    };
    RING.try_with(with).ok().flatten()
}

/// Notes records of this thread, all or none of them.
pub(super) fn note_all(shared: &Shared, records: &[Record]) {
    with_ring(shared, |ring| ring.push(records));
}

/// Passes the ring of this thread to `fill`, if it is one of the trace with this number. Otherwise returns `None`: the
/// thread has noted nothing yet, or is ending.
fn with_own<R>(serial: u64, fill: impl FnOnce(&mut Ring) -> R) -> Option<R> {
    let with = |place: &RefCell<Option<Ring>>| {
        let mut place = place.try_borrow_mut().ok()?;
        place.as_mut().filter(|ring| ring.serial == serial).map(fill)
    };
    RING.try_with(with).ok().flatten()
}

/// Makes the ring of this thread, if it has none of this trace.
pub(super) fn make(shared: &Shared) {
    with_ring(shared, |_| ());
}

/// Starts an event of NCCL's profiler in the trace with this number. Returns its number; `None` if this thread has no
/// ring there.
///
/// NCCL starts the step of a receive again in each round in which it cannot post the receive, and forgets the step
/// before. So a step that goes on is not started again.
pub(super) fn start(serial: u64, at_ns: impl FnOnce() -> u64, begin: &Begin) -> Option<u64> {
    with_own(serial, |ring| ring.start(at_ns, begin))
}

/// Ends an event in the trace with this number. Returns false if this thread has no ring there.
pub(super) fn stop(serial: u64, at_ns: u64, event: u64) -> bool {
    let stop = |ring: &mut Ring| {
        if let Some(Open { step: Some(step), .. }) = ring.open.remove(&event) {
            ring.steps.remove(&step);
        }
        ring.push(&[Record { at_ns, what: What::EventEnd { event } }]);
    };
    with_own(serial, stop).is_some()
}

/// Notes that an event enters a state, in the trace with this number. Returns false if this thread has no ring there.
///
/// NCCL repeats a state in each round of a progress thread that waits. So the state that an event is in is not noted.
pub(super) fn enter(serial: u64, at_ns: impl FnOnce() -> u64, event: u64, state: u16, bytes: u64) -> bool {
    let enter = |ring: &mut Ring| {
        if let Some(open) = ring.open.get_mut(&event)
            && open.state.replace(state) == Some(state)
        {
            return;
        }
        ring.push(&[Record { at_ns: at_ns(), what: What::State { event, state, bytes } }]);
    };
    with_own(serial, enter).is_some()
}

/// The begin of an event.
pub(crate) struct Begin {
    pub(crate) kind: Kind,
    pub(crate) parent: u64,
    /// Its communicator; for a proxy step, the number of the step instead.
    pub(crate) number: u32,
    /// The facts about it.
    pub(crate) facts: Option<What>,
}

impl Ring {
    fn start(&mut self, at_ns: impl FnOnce() -> u64, begin: &Begin) -> u64 {
        let &Begin { kind, parent, number, facts } = begin;
        let step = (kind == Kind::ProxyStep).then_some((parent, number));
        if let Some(event) = step.and_then(|step| self.steps.get(&step)) {
            return *event;
        }
        self.next_event += 1;
        let event = self.next_event;
        if self.open.len() >= MOST_OPEN {
            self.open.clear();
            self.steps.clear();
        }
        if matches!(kind, Kind::ProxyOp | Kind::ProxyStep) {
            self.open.insert(event, Open { step, state: None });
        }
        if let Some(step) = step {
            self.steps.insert(step, event);
        }
        let at_ns = at_ns();
        let begin = Record { at_ns, what: What::EventBegin { event, parent, kind, number } };
        match facts {
            Some(what) => self.push(&[begin, Record { at_ns, what }]),
            None => self.push(&[begin]),
        }
        event
    }

    /// Adds all records, or none of them if there is no room.
    fn push(&mut self, records: &[Record]) {
        if self.records.slots() < records.len() {
            let lost = self.lost.load(Ordering::Relaxed);
            self.lost.store(lost + records.len() as u64, Ordering::Relaxed);
            return;
        }
        for record in records {
            // There is room, because only this thread fills the ring.
            let _ = self.records.push(record.words());
        }
    }

    /// Makes the ring of this thread.
    #[cold]
    fn new(shared: &Shared) -> Self {
        let number = THREAD.fetch_add(1, Ordering::Relaxed);
        let (producer, records) = RingBuffer::new(RECORDS);
        let lost = Arc::new(AtomicU64::new(0));
        // SAFETY: the call takes nothing and returns a number.
        let tid = unsafe { libc::gettid() }.cast_unsigned();
        let reader =
            Reader { records, lost: Arc::clone(&lost), told: 0, number, tid, name: thread_name(), is_known: false };
        lock(&shared.rings).push(reader);
        Self {
            serial: shared.serial,
            records: producer,
            lost,
            next_event: u64::from(number) << EVENT_BITS,
            open: HashMap::new(),
            steps: HashMap::new(),
        }
    }
}

/// Returns the name of this thread, as the kernel knows it; empty if it does not say.
fn thread_name() -> String {
    let mut bytes = [0_u8; 16];
    // SAFETY: the kernel writes at most 16 bytes, with a NUL at their end (PR_GET_NAME of prctl(2)).
    let result = unsafe { libc::prctl(libc::PR_GET_NAME, bytes.as_mut_ptr()) };
    let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(0);
    if result == 0 { String::from_utf8_lossy(&bytes[..length]).into_owned() } else { String::new() }
}
