//! Asynchronous events of an open device, behind a descriptor that is readable while events wait.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use railweave_fabric_verbs::sys;

use crate::complaints::complain;

/// The longest time that destroying a queue waits for acknowledgements of events. The real library has no limit.
const PATIENCE: Duration = Duration::from_secs(10);

/// The number of events about each queue, by its address, that were taken and not yet acknowledged; queues without such
/// events have no entry.
static TAKEN: Mutex<BTreeMap<usize, u32>> = Mutex::new(BTreeMap::new());

/// The subject of an event; a queue by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A completion queue.
    Cq(usize),
    /// A queue pair.
    Qp(usize),
    /// A shared receive queue.
    Srq(usize),
    /// A port, by its number.
    Port(u8),
    /// The device.
    Device,
}

impl Source {
    /// Returns the queue's address; `None` for a port or device. A queue is destroyed only after all events about it
    /// are acknowledged.
    fn address(self) -> Option<usize> {
        match self {
            Self::Cq(address) | Self::Qp(address) | Self::Srq(address) => Some(address),
            Self::Port(_) | Self::Device => None,
        }
    }
}

/// The events of one open device.
pub(crate) struct Events {
    descriptor: OwnedFd,
    waiting: Mutex<VecDeque<(c_int, Source)>>,
}

impl Events {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: eventfd takes no pointer. As a semaphore it counts down by one per read, so it is readable while
        // events wait; like the descriptor of a real device it blocks unless the program sets O_NONBLOCK.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(Self { descriptor, waiting: Mutex::new(VecDeque::new()) })
    }

    pub(crate) fn descriptor(&self) -> c_int {
        self.descriptor.as_raw_fd()
    }

    /// Adds an event.
    pub(crate) fn raise(&self, kind: c_int, source: Source) {
        self.waiting().push_back((kind, source));
        let one = 1_u64.to_ne_bytes();
        // SAFETY: eight bytes are read. The write cannot block: the count stays far below its limit.
        unsafe { libc::write(self.descriptor(), one.as_ptr().cast(), one.len()) };
    }

    /// Takes the next event and counts it as not yet acknowledged. Waits for one unless the descriptor has O_NONBLOCK.
    pub(crate) fn take(&self) -> io::Result<sys::AsyncEvent> {
        loop {
            let mut count = [0_u8; 8];
            // SAFETY: eight bytes may be written.
            let read = unsafe { libc::read(self.descriptor(), count.as_mut_ptr().cast(), count.len()) };
            if read < 0 {
                return Err(io::Error::last_os_error());
            }
            let mut waiting = self.waiting();
            // `None`: the subject of the event has been destroyed since.
            if let Some((kind, source)) = waiting.pop_front() {
                // Counted under the lock, so that a call of `await_acknowledgements` after `forget` sees it.
                if let Some(address) = source.address() {
                    *taken().entry(address).or_default() += 1;
                }
                return Ok(sys::AsyncEvent { element: element(source), event_type: kind });
            }
        }
    }

    /// Discards the events about an object that is being destroyed.
    pub(crate) fn forget(&self, source: Source) {
        self.waiting().retain(|&(_, waiting)| waiting != source);
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<(c_int, Source)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Acknowledges one event: ibv_ack_async_event(3).
pub(crate) fn acknowledge(event: &sys::AsyncEvent) {
    // SAFETY: the type of event selects the member of the union, and even the wrong one would be initialised: `take`
    // has written it.
    let source = unsafe {
        match event.event_type {
            sys::EVENT_CQ_ERR => Source::Cq(event.element.cq.addr()),
            sys::EVENT_QP_FATAL
            | sys::EVENT_QP_REQ_ERR
            | sys::EVENT_QP_ACCESS_ERR
            | sys::EVENT_COMM_EST
            | sys::EVENT_SQ_DRAINED
            | sys::EVENT_QP_LAST_WQE_REACHED => Source::Qp(event.element.qp.addr()),
            sys::EVENT_SRQ_ERR | sys::EVENT_SRQ_LIMIT_REACHED => Source::Srq(event.element.srq.addr()),
            _ => Source::Device,
        }
    };
    let Some(address) = source.address() else { return };
    let mut taken = taken();
    match taken.get_mut(&address) {
        Some(1) => drop(taken.remove(&address)),
        Some(count) => *count -= 1,
        None => complain(format_args!(
            "an event of type {} was acknowledged, but had not been taken or was acknowledged before",
            event.event_type
        )),
    }
}

/// Waits until all events about a queue are acknowledged. Returns false if that takes longer than [`PATIENCE`].
pub(crate) fn await_acknowledgements(address: usize, what: &str) -> bool {
    let start = Instant::now();
    while taken().contains_key(&address) {
        if start.elapsed() > PATIENCE {
            complain(format_args!(
                "{what} is destroyed, but an event about it was never acknowledged: the real library would wait \
                 forever; call ibv_ack_async_event first"
            ));
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

fn taken() -> MutexGuard<'static, BTreeMap<usize, u32>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn element(source: Source) -> sys::AsyncElement {
    match source {
        Source::Cq(address) => sys::AsyncElement { cq: std::ptr::with_exposed_provenance_mut(address) },
        Source::Qp(address) => sys::AsyncElement { qp: std::ptr::with_exposed_provenance_mut(address) },
        Source::Srq(address) => sys::AsyncElement { srq: std::ptr::with_exposed_provenance_mut(address) },
        Source::Port(number) => sys::AsyncElement { port_num: number.into() },
        Source::Device => sys::AsyncElement { cq: std::ptr::null_mut() },
    }
}
