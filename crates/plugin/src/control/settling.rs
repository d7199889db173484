//! What connections owe their peers while no call of the application is on them: the control thread sends it within a
//! millisecond (docs/wire.md).
//!
//! The first debt after quiet wakes the thread. From then on it looks every [`LOOK`] at the connections that were
//! handed to it, sends what was owed already at the look before, and goes back to sleep when nothing was owed for a
//! while. So whoever works on a connection all the time pays no system call for this, and an idle thread costs nothing.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Events, Poll};

use crate::comm::Comm;
use crate::comm::debt::Look;
use crate::comm::owing::Owing;

/// Between two looks. A debt is at most two of them old when it is settled.
const LOOK: Duration = Duration::from_micros(400);

/// A connection that owed nothing at so many looks is let go.
const QUIET_LOOKS: u32 = 12;

/// Where the kernel takes no more, it is tried again after twice as many looks each time, at most so many.
const MOST_LOOKS_BETWEEN: u32 = 16;

/// Places for so many connections are kept though nobody needs them.
const FEW: usize = 32;

/// A connection that was left owing, and has owed something lately.
struct Known {
    comm: Arc<Comm>,
    /// Looks in a row at which nothing was owed.
    quiet: u32,
    /// How many looks lie between the tries to send this debt; 1 where none has failed.
    between: u32,
    /// Looks until the next try.
    wait: u32,
}

impl Known {
    /// Looks at it; whether it is still to be looked at.
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
    known: Vec<Known>,
    /// When to look again; None while the thread sleeps.
    next: Option<Instant>,
}

impl Settling {
    pub(super) fn new(owing: Arc<Owing<Comm>>) -> Self {
        Self { owing, fresh: Vec::new(), known: Vec::new(), next: None }
    }

    /// Whether something is owed, as of the last look.
    pub(super) fn owes(&self) -> bool {
        self.known.iter().any(|known| known.quiet == 0)
    }

    /// Waits for events until `timeout` has passed, and looks in between. May return without any event.
    ///
    /// # Errors
    /// What the kernel says.
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

    /// Looks at what is known, if it is time.
    pub(super) fn look(&mut self, now: Instant) {
        if self.next.is_some_and(|next| next > now) {
            return;
        }
        self.owing.take(&mut self.fresh);
        if self.next.is_none() && self.fresh.is_empty() {
            return;
        }
        let fresh = self.fresh.drain(..).map(|comm| Known { comm, quiet: 0, between: 1, wait: 0 });
        self.known.extend(fresh);
        self.known.retain_mut(Known::look);
        // From the end of this look: where one takes longer than [`LOOK`], other work goes on between two.
        self.next = Some(Instant::now() + LOOK);
        if self.known.is_empty() && self.owing.sleep() {
            self.next = None;
            self.known.shrink_to(FEW);
            self.fresh.shrink_to(FEW);
        }
    }
}

impl Drop for Settling {
    /// The thread ends: what is owed is sent as far as the kernel takes it, and no connection is kept.
    fn drop(&mut self) {
        self.owing.close(&mut self.fresh);
        // What a bug has left in the middle of a change is not to be worked on.
        if std::thread::panicking() {
            return;
        }
        let known = self.known.drain(..).map(|known| known.comm);
        for comm in known.chain(self.fresh.drain(..)) {
            comm.settle();
        }
    }
}

/// Waits for an event for so long, to the microsecond: `Poll` counts milliseconds. Whether there is one.
fn is_ready(poll: &Poll, timeout: Duration) -> bool {
    let mut waited = libc::pollfd { fd: poll.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs().min(1 << 30) as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: both are places of this function, and one descriptor is named. What fails is as if nothing had happened.
    unsafe { libc::ppoll(&raw mut waited, 1, &raw const timeout, std::ptr::null()) > 0 }
}
