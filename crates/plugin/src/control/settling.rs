//! Debts of connections that no call of the application uses: the control thread sends them to the peers within a
//! millisecond (docs/wire.md).
//!
//! `railweave_transport::Debtors` says when. This file has the clock and the sleep: the first debt after a quiet time
//! wakes the thread, and it sleeps again once it has forgotten all connections.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Events, Poll};
use railweave_transport::{Debtors, Indebted, LOOK_INTERVAL};

use crate::comm::Comm;
use crate::comm::owing::Owing;

/// The list of connections that were handed over keeps room for this many when it shrinks.
const FEW: usize = 32;

/// The control thread's part in settling.
pub(super) struct Settling {
    owing: Arc<Owing<Comm>>,
    fresh: Vec<Arc<Comm>>,
    debtors: Debtors<Arc<Comm>>,
    /// The time of the next look; `None` while the thread sleeps.
    next: Option<Instant>,
}

impl Settling {
    pub(super) fn new(owing: Arc<Owing<Comm>>) -> Self {
        Self { owing, fresh: Vec::new(), debtors: Debtors::default(), next: None }
    }

    /// Returns true if something was owed at the last look.
    pub(super) fn owes(&self) -> bool {
        self.debtors.owe()
    }

    /// Waits for events until `timeout` has passed, and looks in between. May return without any event.
    ///
    /// # Errors
    /// If the poll fails.
    pub(super) fn wait(&mut self, poll: &mut Poll, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let now = Instant::now();
            self.look(now);
            let until_now = until.map(|until| until.saturating_duration_since(now));
            let Some(next) = self.next else {
                return poll.poll(events, until_now);
            };
            let next = next.saturating_duration_since(now);
            if is_ready(poll, until_now.map_or(next, |until| until.min(next)))
                || until_now.is_some_and(|left| left <= next)
            {
                return poll.poll(events, Some(Duration::ZERO));
            }
        }
    }

    /// Looks at all debtors, if a look is due.
    pub(super) fn look(&mut self, now: Instant) {
        if self.next.is_some_and(|next| next > now) {
            return;
        }
        self.owing.take(&mut self.fresh);
        if self.next.is_none() && self.fresh.is_empty() {
            return;
        }
        self.debtors.add(self.fresh.drain(..));
        let are_left = self.debtors.look();
        // Counted from the end of this look: even if a look takes longer than the interval, other work gets its turn.
        self.next = Some(Instant::now() + LOOK_INTERVAL);
        if !are_left && self.owing.sleep() {
            self.next = None;
            self.debtors.shrink();
            self.fresh.shrink_to(FEW);
        }
    }
}

impl Drop for Settling {
    /// Sends all debts as far as the kernel takes them, and releases all connections.
    fn drop(&mut self) {
        self.owing.close(&mut self.fresh);
        // After a panic the state may be in the middle of a change.
        if std::thread::panicking() {
            return;
        }
        for comm in self.debtors.take().chain(self.fresh.drain(..)) {
            comm.settle();
        }
    }
}

/// Waits for an event for at most this time, to the microsecond (`Poll` counts milliseconds). Returns true if there is
/// one.
fn is_ready(poll: &Poll, timeout: Duration) -> bool {
    let mut waited = libc::pollfd { fd: poll.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs().min(1 << 30) as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: both are variables of this function, and one descriptor is passed. A failure counts as no event.
    unsafe { libc::ppoll(&raw mut waited, 1, &raw const timeout, std::ptr::null()) > 0 }
}
