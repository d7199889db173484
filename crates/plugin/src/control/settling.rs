//! Debts of connections that no call of the application uses: the control thread sends them to the peers within a
//! millisecond (docs/wire.md).
//!
//! The first debt after a quiet time wakes the thread. From then on it looks every [`LOOK_INTERVAL`] at the connections
//! handed to it, sends debts that the previous look had already found, and goes back to sleep once nothing was owed for
//! a while. So an application thread that uses a connection all the time makes no system call for this, and an idle
//! control thread costs nothing.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Events, Poll};

use crate::comm::Comm;
use crate::comm::debt::Look;
use crate::comm::owing::Owing;

/// The time between two looks. A debt is settled within two such intervals.
const LOOK_INTERVAL: Duration = Duration::from_micros(400);

/// The control thread forgets a connection that owed nothing at this many looks.
const QUIET_LOOKS: u32 = 12;

/// If the kernel takes no more, sending is retried after twice as many looks each time, up to this many.
const MOST_LOOKS_BETWEEN: u32 = 16;

/// Lists keep room for this many connections when they shrink.
const FEW: usize = 32;

/// A connection that has recently owed something.
struct Debtor {
    comm: Arc<Comm>,
    /// Looks in a row at which nothing was owed.
    quiet: u32,
    /// Looks between attempts to send this debt; 1 if none has failed.
    between: u32,
    /// Looks until the next attempt.
    wait: u32,
}

impl Debtor {
    /// Looks at it. Returns false once it is forgotten.
    fn look(&mut self) -> bool {
        match self.comm.debt.look() {
            Look::Settled => {
                self.quiet += 1;
                return self.quiet < QUIET_LOOKS || !self.comm.debt.forget();
            }
            Look::Fresh => (self.between, self.wait) = (1, 0),
            Look::Old if self.wait > 0 => self.wait -= 1,
            Look::Old => {
                if !self.comm.settle() {
                    self.wait = self.between - 1;
                    self.between = (self.between * 2).min(MOST_LOOKS_BETWEEN);
                }
            }
        }
        self.quiet = 0;
        true
    }
}

/// The control thread's part in settling.
pub(super) struct Settling {
    owing: Arc<Owing<Comm>>,
    fresh: Vec<Arc<Comm>>,
    debtors: Vec<Debtor>,
    /// The time of the next look; `None` while the thread sleeps.
    next: Option<Instant>,
}

impl Settling {
    pub(super) fn new(owing: Arc<Owing<Comm>>) -> Self {
        Self { owing, fresh: Vec::new(), debtors: Vec::new(), next: None }
    }

    /// Returns true if something was owed at the last look.
    pub(super) fn owes(&self) -> bool {
        self.debtors.iter().any(|debtor| debtor.quiet == 0)
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
        let fresh = self.fresh.drain(..).map(|comm| Debtor { comm, quiet: 0, between: 1, wait: 0 });
        self.debtors.extend(fresh);
        self.debtors.retain_mut(Debtor::look);
        // Counted from the end of this look: even if a look takes longer than the interval, other work gets its turn.
        self.next = Some(Instant::now() + LOOK_INTERVAL);
        if self.debtors.is_empty() && self.owing.sleep() {
            self.next = None;
            self.debtors.shrink_to(FEW);
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
        let debtors = self.debtors.drain(..).map(|debtor| debtor.comm);
        for comm in debtors.chain(self.fresh.drain(..)) {
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
