//! The rings of threads, and the numbers of events. Each thread that is traced has one ring, which it alone fills and
//! the trace thread alone empties.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use railweave_trace::{Record, What, Words};
use rtrb::{Producer, RingBuffer};

use super::shared::{Reader, Shared, lock};

/// The records that a ring has room for: 2 MiB, which a thread allocates with its first one.
const RECORDS: usize = 1 << 16;

/// The events whose last state a thread remembers: NCCL repeats a state in each round of a progress thread that waits.
const STATES: usize = 64;

/// The bits of an event's number below the number of its thread.
const EVENT_BITS: u32 = 40;

/// The ring of a thread, as the thread has it.
struct Ring {
    /// The number of its trace.
    serial: u64,
    records: Producer<Words>,
    lost: Arc<AtomicU64>,
    /// The number of the next event of NCCL's profiler that this thread starts.
    next_event: u64,
    /// Events and the states that they have entered last, each in the place of its number.
    states: [(u64, u16); STATES],
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

/// Notes one record of this thread, if it has a ring of the trace with this number. Returns true if it has.
pub(super) fn note_here(serial: u64, record: Record) -> bool {
    let push = |place: &RefCell<Option<Ring>>| {
        let mut place = place.try_borrow_mut().ok()?;
        let ring = place.as_mut().filter(|ring| ring.serial == serial)?;
        if !ring.repeats(&record) {
            ring.push(&[record]);
        }
        Some(())
    };
    RING.try_with(push).is_ok_and(|pushed| pushed.is_some())
}

/// Returns a number for an event that this thread starts; 0 if the thread is ending.
pub(super) fn new_event(shared: &Shared) -> u64 {
    let next = |ring: &mut Ring| {
        ring.next_event += 1;
        ring.next_event
    };
    with_ring(shared, next).unwrap_or(0)
}

impl Ring {
    /// Returns true if a record says that an event enters the state that it is in.
    fn repeats(&mut self, record: &Record) -> bool {
        let What::State { event, state, .. } = record.what else { return false };
        let place = &mut self.states[event as usize % STATES];
        std::mem::replace(place, (event, state)) == (event, state)
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
        let number = shared.next_thread.fetch_add(1, Ordering::Relaxed);
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
            states: [(0, 0); STATES],
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
