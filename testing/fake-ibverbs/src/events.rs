//! Asynchronous events of an open device, behind a descriptor that polls readable.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use railweave_fabric_verbs::sys;

use crate::complaints::complain;
use crate::completions::CompletionQueue;
use crate::pairs::QueuePair;
use crate::receives::SharedReceiveQueue;

/// What an event is about; queues by their address.
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

/// The events of one open device.
pub(crate) struct Events {
    descriptor: OwnedFd,
    waiting: Mutex<VecDeque<(c_int, Source)>>,
}

impl Events {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: eventfd takes no memory. As a semaphore it counts one down with each read, so it is readable while
        // events wait; like the descriptor of a real device it blocks until told otherwise.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
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

    /// Takes the next event, waiting as the descriptor's flags say, and counts it as not yet acknowledged.
    pub(crate) fn take(&self) -> io::Result<sys::AsyncEvent> {
        loop {
            let mut count = [0_u8; 8];
            // SAFETY: eight bytes may be written.
            let read = unsafe { libc::read(self.descriptor(), count.as_mut_ptr().cast(), count.len()) };
            if read < 0 {
                return Err(io::Error::last_os_error());
            }
            let mut waiting = self.waiting();
            // None: the event was about something that has been destroyed since.
            if let Some((kind, source)) = waiting.pop_front() {
                // Under the lock, so that `forget` and what waits for acknowledgements afterwards see it.
                if let Some(counter) = unacknowledged(source) {
                    counter.fetch_add(1, Ordering::AcqRel);
                }
                return Ok(sys::AsyncEvent { element: element(source), event_type: kind });
            }
        }
    }

    /// Drops the events about something that is being destroyed.
    pub(crate) fn forget(&self, source: Source) {
        self.waiting().retain(|&(_, waiting)| waiting != source);
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, VecDeque<(c_int, Source)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes back one event: ibv_ack_async_event(3).
pub(crate) fn acknowledge(event: &sys::AsyncEvent) {
    // SAFETY: which member of the union counts follows from the type of event, and reading the wrong one would still read
    // initialised bytes: `take` has written it.
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
    let Some(counter) = unacknowledged(source) else { return };
    if counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| count.checked_sub(1)).is_err() {
        complain(format_args!(
            "an event of type {} was acknowledged that nobody had taken, or twice",
            event.event_type
        ));
    }
}

fn unacknowledged<'queue>(source: Source) -> Option<&'queue AtomicU32> {
    // SAFETY: events are about what is not yet destroyed (`forget`), and destroying waits for their acknowledgement.
    unsafe {
        match source {
            Source::Cq(address) => {
                Some(&(*std::ptr::with_exposed_provenance::<CompletionQueue>(address)).unacknowledged)
            }
            Source::Qp(address) => Some(&(*std::ptr::with_exposed_provenance::<QueuePair>(address)).unacknowledged),
            Source::Srq(address) => {
                Some(&(*std::ptr::with_exposed_provenance::<SharedReceiveQueue>(address)).unacknowledged)
            }
            Source::Port(_) | Source::Device => None,
        }
    }
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
