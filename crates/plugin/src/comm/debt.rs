//! What a connection owes its peer while no call is on it: whose turn it is to send it.
//!
//! A receive that is done need not be acknowledged at once: its thread mostly posts the next receive, which carries the
//! acknowledgement, and a small message's way is shorter by a system call. And the kernel may have no room for a CTS.
//! But the peer waits for both, and the thread may never come back. So the connection's next call sends what is owed,
//! or its thread's next call on any other connection (`debtor`), or the control thread within a millisecond
//! (`control::settling`).
//!
//! Each of them may come while another is at it: [`Debt`] lets in one at a time.

use crate::sync::{AtomicU8, Ordering, spin_loop, yield_now};

/// Nothing is owed, and the control thread does not know the connection. Whoever calls on it has it.
const UNKNOWN: u8 = 0;
/// Nothing is owed; the control thread looks at it now and then. Whoever calls on it has it.
const SETTLED: u8 = 4;
/// Something is owed, and nobody has the connection.
const OWED: u8 = 5;
/// As before, and the control thread has seen it at a look.
const SEEN: u8 = 6;
/// Somebody sends what is owed, and has the connection as long as that takes.
const SETTLING: u8 = 7;

/// The bits that are 0 where nothing is owed.
const OWING: u8 = 3;

/// How often to look whether a settling is over before the processor is given to others: it takes a system call.
const SPINS: u32 = 100;

/// Whose turn it is to look after a connection's debt.
pub(crate) struct Debt {
    state: AtomicU8,
}

/// What the control thread finds at a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Nothing is owed.
    Settled,
    /// A debt that was not there at the look before, or that somebody sees to.
    Fresh,
    /// The debt of the look before.
    Old,
}

impl Debt {
    pub(crate) fn new() -> Self {
        Self { state: AtomicU8::new(UNKNOWN) }
    }

    /// Whoever has the connection leaves it with a debt. Whether the control thread must be told of the connection.
    pub(crate) fn incur(&self) -> bool {
        self.state.swap(OWED, Ordering::AcqRel) == UNKNOWN
    }

    /// Sends the debt by `send`, which answers whether all of it is on its way, if it is nobody's turn. Whether nothing
    /// is owed then as far as this thread knows: where somebody else has the connection, its debt is theirs.
    pub(crate) fn settle(&self, send: impl FnOnce() -> bool) -> bool {
        let begun = self.state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |state| {
            matches!(state, OWED | SEEN).then_some(SETTLING)
        });
        if begun.is_err() {
            return true;
        }
        let mut turn = Turn { state: &self.state, then: SETTLED };
        let is_settled = send();
        if !is_settled {
            turn.then = SEEN;
        }
        is_settled
    }

    /// The control thread looks.
    pub(crate) fn look(&self) -> Look {
        match self.state.load(Ordering::Relaxed) {
            UNKNOWN | SETTLED => Look::Settled,
            SEEN => Look::Old,
            OWED => {
                // Where it fails the debt is not there any more, or is a later one.
                let _ = self.state.compare_exchange(OWED, SEEN, Ordering::AcqRel, Ordering::Relaxed);
                Look::Fresh
            }
            _ => Look::Fresh,
        }
    }

    /// The control thread lets go of the connection, unless it owes again; whether it may.
    pub(crate) fn forget(&self) -> bool {
        self.state.compare_exchange(SETTLED, UNKNOWN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Somebody uses or closes the connection: its debt is theirs from now on. Waits for a settling that is under way,
    /// which takes a few system calls at most per lane.
    ///
    /// False when nobody settles it, as `is_ours` says: in a forked child, whose parent was at it when it was forked.
    #[inline]
    #[must_use]
    pub(crate) fn take_over(&self, is_ours: impl Fn() -> bool) -> bool {
        self.state.load(Ordering::Acquire) & OWING == 0 || self.take_over_now(is_ours)
    }

    #[cold]
    fn take_over_now(&self, is_ours: impl Fn() -> bool) -> bool {
        let mut spins = 0;
        loop {
            let taken = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| match state {
                OWED | SEEN => Some(SETTLED),
                _ => None,
            });
            match taken {
                Ok(_) | Err(UNKNOWN | SETTLED) => return true,
                Err(_) if spins < SPINS => spin_loop(),
                Err(_) if !is_ours() => return false,
                Err(_) => yield_now(),
            }
            spins += 1;
        }
    }
}

/// A settling that is under way. It ends in one store, also where sending panics: whoever comes before that finds it
/// under way, and whoever comes after finds what it left.
struct Turn<'a> {
    state: &'a AtomicU8,
    then: u8,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.state.store(self.then, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_sent_is_owed_until_it_was() {
        let debt = Debt::new();
        assert!(debt.incur());
        assert!(!debt.settle(|| false), "whoever left it sends it, before the control thread has looked, too");
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
            assert!(!debt.take_over(|| false));
            true
        }));
        assert!(debt.take_over(|| false), "nobody is at it any more");
    }
}
