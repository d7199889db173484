//! The turns on a connection's end: the application's calls, and between them another thread of the process, such as
//! the control thread, which may need the end while the application makes no calls.
//!
//! The application's side must cost next to nothing, because every call pays for it: a call says that it has begun, and
//! looks if another thread wants the end. The processor may let the look pass the store, so that each side could miss
//! the other. Only a barrier between the two prevents that, and a barrier costs more than the rest of a call's
//! overhead. So the other side has both barriers: [`Turn::take`] makes all threads of the process pass one
//! (membarrier(2)), after it has said what it wants and before it looks for a call. Whatever call it does not see then
//! will see it. If the system refuses this, every call passes a barrier of its own, on a path that calls take anyway
//! if the end is wanted.
//!
//! On fabrics that are not one-sided a third kind of thread uses the end, in neither's turn: the one that settles the
//! debt ([`Debt`]). The application waits for it, and the other side gives up. Settlers do not look at the turn: a debt
//! can be settled only from the time when a call has noted it, and during a turn of the other side none can.

use crate::debt::{Debt, Held};
use crate::sync::{AtomicU8, Ordering, fence, light_fence};

/// The application is not in a call.
const FREE: u8 = 0;
/// The application is in a call, or looks if it may begin one.
const IN_CALL: u8 = 1;

/// Another thread wants the end, or has it.
const WANTED: u8 = 1;
/// Calls pass a barrier of their own.
const FENCED: u8 = 2;

/// The turns on a connection's end: who uses it.
///
/// It has two sides: the application, whose calls never overlap, and others. Threads of either side may change.
#[derive(Debug)]
pub struct Turn {
    /// Written by the application.
    in_call: AtomicU8,
    /// Written by the other side. 0 if there is nothing that a call must know.
    wanted: AtomicU8,
}

impl Turn {
    /// Returns the turns of an end that nobody uses. `has_barrier`: the barrier that is passed to [`Self::take`] works;
    /// otherwise each call costs more, and that barrier is never called.
    pub fn new(has_barrier: bool) -> Self {
        Self { in_call: AtomicU8::new(FREE), wanted: AtomicU8::new(if has_barrier { 0 } else { FENCED }) }
    }

    /// Begins a call of the application, which ends when the result is dropped. `debt` is the end's debt, which the
    /// call takes over; `None` on a one-sided fabric, where there is none. If the call leaves a debt, it must note that
    /// before it ends ([`Debt::incur`]).
    ///
    /// While another thread uses the end, it calls `wait` before each further check, with the number of checks so far.
    ///
    /// # Errors
    /// That of `wait`, which fails if the other thread can never finish: this is a child that was forked meanwhile.
    #[inline(always)]
    pub fn enter<E>(&self, debt: Option<&Debt>, wait: impl Fn(u32) -> Result<(), E> + Copy) -> Result<InCall<'_>, E> {
        self.in_call.store(IN_CALL, Ordering::Relaxed);
        light_fence();
        if self.wanted.load(Ordering::Acquire) != 0 {
            self.enter_slowly(wait)?;
        }
        let call = InCall { turn: self };
        if let Some(debt) = debt {
            debt.take_over(wait)?;
        }
        Ok(call)
    }

    /// Goes on with a call's beginning if there is something that it must know.
    #[cold]
    #[inline(never)]
    fn enter_slowly<E>(&self, wait: impl Fn(u32) -> Result<(), E>) -> Result<(), E> {
        let mut checks = 0;
        loop {
            // Needed only if calls pass a barrier of their own.
            fence(Ordering::SeqCst);
            if self.wanted.load(Ordering::Acquire) & WANTED == 0 {
                return Ok(());
            }
            self.in_call.store(FREE, Ordering::Release);
            while self.wanted.load(Ordering::Acquire) & WANTED != 0 {
                checks += 1;
                wait(checks)?;
            }
            self.in_call.store(IN_CALL, Ordering::Relaxed);
        }
    }

    /// Takes the turn for a thread that is not the application's, until the result is dropped or given back. While the
    /// application is in a call, it calls `wait` before each further check, with the number of checks so far; the next
    /// call waits until the turn is over. Returns `None` once `wait` returns false; also, without waiting, if another
    /// thread has the turn or settles the debt, or if the barrier fails.
    ///
    /// `barrier` must return true only after every thread of the process has passed a full barrier during its call.
    pub fn take<'a>(
        &'a self,
        debt: &'a Debt,
        barrier: impl FnOnce() -> bool,
        mut wait: impl FnMut(u32) -> bool,
    ) -> Option<Taken<'a>> {
        let unwanted = self.wanted.load(Ordering::Relaxed) & FENCED;
        // The order is Acquire for the sake of what the thread that had the turn before has done to the end.
        self.wanted.compare_exchange(unwanted, unwanted | WANTED, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        let wish = Wish { wanted: &self.wanted, unwanted };
        if unwanted == FENCED {
            fence(Ordering::SeqCst);
        } else if !barrier() {
            return None;
        }
        let mut checks = 0;
        while self.in_call.load(Ordering::Acquire) != FREE {
            checks += 1;
            if !wait(checks) {
                return None;
            }
        }
        // The last call has ended, so what it owes is noted.
        Some(Taken { held: debt.hold()?, _wish: wish })
    }
}

/// A call of the application. It ends when this is dropped, also by a panic.
#[derive(Debug)]
#[must_use]
pub struct InCall<'a> {
    turn: &'a Turn,
}

impl Drop for InCall<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.turn.in_call.store(FREE, Ordering::Release);
    }
}

/// A turn of the other side. If it is dropped without [`Self::give_back`], as by a panic, the end's debt counts as
/// unchanged.
#[derive(Debug)]
#[must_use]
pub struct Taken<'a> {
    /// Dropped first: the application never finds a turn over whose debt is still held.
    held: Held<'a>,
    _wish: Wish<'a>,
}

impl Taken<'_> {
    /// Ends the turn, after which the end `owes` its peer something or not. Returns true if the control thread must be
    /// told about the connection, as [`Debt::incur`] does.
    pub fn give_back(self, owes: bool) -> bool {
        self.held.release(owes)
    }
}

/// The other side's wish for the end. It ends when this is dropped.
#[derive(Debug)]
struct Wish<'a> {
    wanted: &'a AtomicU8,
    unwanted: u8,
}

impl Drop for Wish<'_> {
    fn drop(&mut self) {
        self.wanted.store(self.unwanted, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Waits for nobody.
    fn never(checks: u32) -> Result<(), u32> {
        Err(checks)
    }

    #[test]
    fn each_side_keeps_the_other_out_until_it_is_done() {
        for has_barrier in [true, false] {
            let (turn, debt) = (Turn::new(has_barrier), Debt::new());
            let (barriers, checked) = (Cell::new(0), Cell::new(0));
            let take = || {
                let barrier = || {
                    barriers.set(barriers.get() + 1);
                    true
                };
                turn.take(&debt, barrier, |checks| {
                    checked.set(checks);
                    checks < 3
                })
            };
            let call = turn.enter(Some(&debt), never).expect("nobody uses the end");
            assert!(take().is_none());
            assert_eq!(checked.get(), 3, "it waits for the call");
            drop(call);
            let taken = take().expect("the call has ended");
            assert_eq!(barriers.get(), 2 * i32::from(has_barrier));
            assert!(take().is_none(), "one at a time");
            let waits = Cell::new(0);
            let wait = |checks| {
                waits.set(checks);
                if checks < 3 { Ok(()) } else { Err("the turn never ends") }
            };
            assert_eq!(turn.enter(None, wait).err(), Some("the turn never ends"));
            assert_eq!(waits.get(), 3);
            assert!(!taken.give_back(false));
            drop(turn.enter(None, never).expect("the turn is over"));
            assert!(take().is_some(), "the call that failed is no call");
        }
    }

    #[test]
    fn without_the_barrier_nobody_has_the_turn() {
        let (turn, debt) = (Turn::new(true), Debt::new());
        assert!(turn.take(&debt, || false, |_| false).is_none());
        drop(turn.enter(None, never).expect("the wish is gone"));
    }

    #[test]
    fn a_panic_ends_a_turn() {
        let (turn, debt) = (Turn::new(true), Debt::new());
        assert!(debt.incur());
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _taken = turn.take(&debt, || true, |_| false).expect("nobody uses the end");
            panic!("a bug");
        }));
        assert!(panicked.is_err());
        assert!(!debt.is_free(), "the debt is as it was");
        drop(turn.enter(Some(&debt), never).expect("the turn is over"));
    }

    #[test]
    fn a_debt_is_not_settled_during_a_turn_and_is_still_owed_after_it_or_not() {
        for owes in [false, true] {
            let (turn, debt) = (Turn::new(true), Debt::new());
            assert!(debt.incur());
            assert!(!debt.settle(|| {
                assert!(turn.take(&debt, || true, |_| false).is_none(), "the end is in use");
                false
            }));
            let taken = turn.take(&debt, || true, |_| false).expect("nobody uses the end");
            assert!(debt.settle(|| panic!("the end is in use")));
            assert!(!taken.give_back(owes), "the control thread knows the connection");
            assert_eq!(debt.is_free(), !owes);
        }
    }

    #[test]
    fn a_turn_may_leave_a_debt() {
        let (turn, debt) = (Turn::new(true), Debt::new());
        let taken = turn.take(&debt, || true, |_| false).expect("nobody uses the end");
        assert!(taken.give_back(true), "the control thread must be told");
        assert!(!debt.is_free());
        let mut settled = false;
        assert!(debt.settle(|| {
            settled = true;
            true
        }));
        assert!(settled);
    }
}
