//! Acknowledgements that a connection owes its peer while its thread turns to another connection.
//!
//! A receive that is done need not be acknowledged at once: its thread mostly posts the next receive, which carries the
//! acknowledgement, and a small message's way is shorter by a system call. But the peer waits for it. So the thread
//! remembers the connection, and its next call on the data path, whatever it is for, sends what is still owed.
//!
//! The connection may be closed, or used by another thread, in the meantime: [`Debt`] says whose turn it is. `debtor` keeps
//! which connection a thread has left.

use crate::sync::{AtomicU8, Ordering, spin_loop};

const SETTLED: u8 = 0;
const OWED: u8 = 1;
const SETTLING: u8 = 2;

/// Whose turn it is to look after a connection's debt.
pub(crate) struct Debt {
    state: AtomicU8,
}

impl Debt {
    pub(crate) fn new() -> Self {
        Self { state: AtomicU8::new(SETTLED) }
    }

    /// The thread that uses the connection leaves it with a debt, which it will look after.
    pub(crate) fn incur(&self) {
        self.state.store(OWED, Ordering::Release);
    }

    /// The thread that left the debt wants to settle it; false when somebody else has the connection now.
    pub(crate) fn begin_settling(&self) -> bool {
        self.state.compare_exchange(OWED, SETTLING, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Done with settling: whoever waits for the connection may have it.
    pub(crate) fn end_settling(&self) {
        self.state.store(SETTLED, Ordering::Release);
    }

    /// Somebody uses or closes the connection: its debt is theirs from now on. Waits for a settling that is under way,
    /// which takes one system call at most per lane.
    #[inline]
    pub(crate) fn take_over(&self) {
        if self.state.load(Ordering::Acquire) != SETTLED {
            self.take_over_now();
        }
    }

    #[cold]
    fn take_over_now(&self) {
        loop {
            match self.state.compare_exchange(OWED, SETTLED, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) | Err(SETTLED) => return,
                Err(_) => spin_loop(),
            }
        }
    }
}
