//! A connection's debt to its peer while no call uses the connection, and the thread whose turn it is to send it.
//!
//! A debt consists of acknowledgements and CTS. A finished receive need not be acknowledged at once: its thread usually
//! posts the next receive, which carries the acknowledgement too, so that a small message costs one system call less. A
//! CTS stays unsent if the kernel has no room for it. But the peer waits for both, and the thread may never call again.
//! So the debt is sent by the connection's next call, by its thread's next call on another connection that posts
//! nothing, or by the control thread within a millisecond (`debtors.rs` has both).
//!
//! Two of these may try at once: [`Debt`] admits one at a time. It also keeps them out while a thread has the
//! connection for another purpose (`turn.rs`).

use crate::sync::{AtomicU8, Ordering};

/// Nothing is owed, and the control thread does not know the connection. The calling thread may use the connection.
const UNKNOWN: u8 = 0;
/// Nothing is owed, and the control thread looks at the connection from time to time. The calling thread may use the
/// connection.
const SETTLED: u8 = 4;
/// Something is owed, and no thread uses the connection.
const OWED: u8 = 5;
/// Like `OWED`, but older: the control thread has found it once, or a thread could not send all of it.
const SEEN: u8 = 6;
/// A thread is sending the debt, or has the connection for another purpose while there is a debt.
const SETTLING: u8 = 7;

/// The bits that are 0 if nothing is owed.
const OWING: u8 = 3;

/// The state of a connection's debt: who may send it.
#[derive(Debug)]
pub struct Debt {
    state: AtomicU8,
}

/// The result of a look by the control thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nothing is owed.
    Settled,
    /// A debt that the previous look did not find, or that a thread is sending.
    Fresh,
    /// A debt that the previous look found, or that a thread could not send completely.
    Old,
}

impl Default for Debt {
    fn default() -> Self {
        Self { state: AtomicU8::new(UNKNOWN) }
    }
}

impl Debt {
    /// Returns the debt of a new connection, which owes nothing, and which the control thread does not know.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records that the calling thread leaves the connection with a debt. Returns true if the control thread must be
    /// told about the connection.
    #[inline]
    pub fn incur(&self) -> bool {
        self.state.swap(OWED, Ordering::AcqRel) == UNKNOWN
    }

    /// Sends the debt with `send`, unless there is none or another thread has the connection. `send` returns true if
    /// all of the debt is on its way. Returns false only if `send` left some of the debt: while another thread has the
    /// connection, the debt is that thread's.
    pub fn settle(&self, send: impl FnOnce() -> bool) -> bool {
        let begun = self.state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |state| {
            matches!(state, OWED | SEEN).then_some(SETTLING)
        });
        if begun.is_err() {
            return true;
        }
        let mut guard = SettlingGuard { state: &self.state, then: SETTLED };
        let is_settled = send();
        if !is_settled {
            guard.then = SEEN;
        }
        is_settled
    }

    /// Looks at the debt. Called by the control thread.
    pub fn look(&self) -> Look {
        match self.state.load(Ordering::Relaxed) {
            UNKNOWN | SETTLED => Look::Settled,
            SEEN => Look::Old,
            OWED => {
                // If this fails, another thread has just taken the debt.
                let _ = self.state.compare_exchange(OWED, SEEN, Ordering::AcqRel, Ordering::Relaxed);
                Look::Fresh
            }
            _ => Look::Fresh,
        }
    }

    /// Keeps all others from settling the debt until the result is dropped or released. Only for a thread whose turn it
    /// is (`turn.rs`): what the calls until now have left must be noted, and no further call may begin. Returns
    /// `None` if another thread is sending the debt.
    pub(crate) fn hold(&self) -> Option<Held<'_>> {
        let held = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
            matches!(state, OWED | SEEN).then_some(SETTLING)
        });
        match held {
            Ok(then) => Some(Held { debt: self, guard: Some(SettlingGuard { state: &self.state, then }) }),
            Err(SETTLING) => None,
            // Without a debt there is nothing to settle.
            Err(_) => Some(Held { debt: self, guard: None }),
        }
    }

    /// Records that the control thread stops watching the connection. Returns false, and does nothing, if the
    /// connection owes again.
    pub fn forget(&self) -> bool {
        self.state.compare_exchange(SETTLED, UNKNOWN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Returns true if nothing is owed, so that the calling thread may use the connection.
    #[inline]
    pub fn is_free(&self) -> bool {
        self.state.load(Ordering::Acquire) & OWING == 0
    }

    /// Takes the debt over for a thread that uses or closes the connection. While a settling is in progress, which
    /// takes at most a few system calls per lane, it calls `wait` before each further check, with the number of checks
    /// so far.
    ///
    /// # Errors
    /// That of `wait`, which fails if the settling can never end: this is a child that was forked while its parent was
    /// settling.
    #[inline]
    pub fn take_over<E>(&self, wait: impl Fn(u32) -> Result<(), E>) -> Result<(), E> {
        if self.is_free() { Ok(()) } else { self.take_over_now(wait) }
    }

    #[cold]
    fn take_over_now<E>(&self, wait: impl Fn(u32) -> Result<(), E>) -> Result<(), E> {
        let mut checks = 0;
        loop {
            let taken = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| match state {
                OWED | SEEN => Some(SETTLED),
                _ => None,
            });
            checks += 1;
            match taken {
                Ok(_) | Err(UNKNOWN | SETTLED) => return Ok(()),
                Err(_) => wait(checks)?,
            }
        }
    }
}

/// A settling in progress. It ends with one store, even if sending panics: other threads see it in progress until then,
/// and its result afterwards.
#[derive(Debug)]
struct SettlingGuard<'a> {
    state: &'a AtomicU8,
    then: u8,
}

impl Drop for SettlingGuard<'_> {
    fn drop(&mut self) {
        self.state.store(self.then, Ordering::Release);
    }
}

/// A debt that nobody may settle. Dropped, it is as it was.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    debt: &'a Debt,
    /// `None` if nothing was owed.
    guard: Option<SettlingGuard<'a>>,
}

impl Held<'_> {
    /// Lets others settle the debt again, if the connection still `owes` something, or does now. Returns true if the
    /// control thread must be told about the connection.
    pub(crate) fn release(self, owes: bool) -> bool {
        match self.guard {
            Some(mut guard) => {
                if !owes {
                    guard.then = SETTLED;
                }
                false
            }
            None => owes && self.debt.incur(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_debt_stays_until_all_of_it_is_sent() {
        let debt = Debt::new();
        assert!(debt.incur());
        assert!(!debt.settle(|| false), "its thread may send it before the control thread has looked");
        assert_eq!(debt.look(), Look::Old, "it is older than the look before");
        assert!(debt.settle(|| true));
        assert_eq!(debt.look(), Look::Settled);
        assert!(debt.settle(|| panic!("nothing is owed")));
    }

    #[test]
    fn a_child_that_was_forked_during_a_settling_does_not_wait_for_it() {
        let debt = Debt::new();
        assert!(debt.incur());
        assert!(debt.settle(|| {
            let waits = Cell::new(0);
            let wait = |checks| {
                waits.set(waits.get() + 1);
                if waits.get() == checks && checks < 3 { Ok(()) } else { Err(checks) }
            };
            assert_eq!(debt.take_over(wait), Err(3));
            true
        }));
        assert_eq!(debt.take_over(Err), Ok(()), "the settling has ended");
    }
}
