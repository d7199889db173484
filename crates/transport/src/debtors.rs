//! Connections with debts, as the threads remember them: an application's thread the one that it left last, the control
//! thread all of them.
//!
//! The first debt of a connection after a quiet time is handed to the control thread. From then on the thread looks
//! every [`LOOK_INTERVAL`] at the connections that it knows, sends each debt that the previous look had already found,
//! and forgets a connection that owed nothing for 12 looks, about 5 ms. So a thread that uses a connection all the time
//! sends its debts itself, and an idle control thread costs nothing.

use std::cell::Cell;
use std::ops::Deref;
use std::time::Duration;

use crate::debt::{Debt, Look};

/// The time between two looks. A debt is settled within two such intervals, if the kernel takes it.
pub const LOOK_INTERVAL: Duration = Duration::from_micros(400);

/// If the kernel takes no more, sending is retried after twice as many looks each time, up to this many.
pub const MOST_LOOKS_BETWEEN: u32 = 16;

/// The control thread forgets a connection that owed nothing at this many looks.
const QUIET_LOOKS: u32 = 12;

/// Lists keep room for this many connections when they shrink.
const FEW: usize = 32;

/// A connection that may have a debt.
pub trait Indebted {
    /// Returns the state of its debt.
    fn debt(&self) -> &Debt;

    /// Sends the debt, unless another thread has the connection. Returns as [`Debt::settle`] does.
    fn settle(&self) -> bool;
}

/// A connection that has recently owed something, as the control thread remembers it.
#[derive(Debug)]
struct Debtor<C> {
    connection: C,
    /// Looks in a row at which nothing was owed.
    quiet: u32,
    /// Looks between attempts to send this debt; 1 if none has failed.
    between: u32,
    /// Looks until the next attempt.
    wait: u32,
}

impl<C: Deref<Target: Indebted>> Debtor<C> {
    /// Looks at it. Returns false once it is forgotten.
    fn look(&mut self) -> bool {
        let debt = self.connection.debt();
        match debt.look() {
            Look::Settled => {
                self.quiet += 1;
                return self.quiet < QUIET_LOOKS || !debt.forget();
            }
            Look::Fresh => (self.between, self.wait) = (1, 0),
            Look::Old if self.wait > 0 => self.wait -= 1,
            Look::Old => {
                if self.connection.settle() {
                    // The kernel has room again, so the next debt is tried at once.
                    self.between = 1;
                } else {
                    self.wait = self.between - 1;
                    self.between = (self.between * 2).min(MOST_LOOKS_BETWEEN);
                }
            }
        }
        self.quiet = 0;
        true
    }
}

/// The connections that the control thread looks at, through pointers.
#[derive(Debug)]
pub struct Debtors<C> {
    all: Vec<Debtor<C>>,
}

impl<C> Default for Debtors<C> {
    fn default() -> Self {
        Self { all: Vec::new() }
    }
}

impl<C: Deref<Target: Indebted>> Debtors<C> {
    /// Adds connections for which [`Debt::incur`] returned true.
    pub fn add(&mut self, fresh: impl IntoIterator<Item = C>) {
        self.all.extend(fresh.into_iter().map(|connection| Debtor { connection, quiet: 0, between: 1, wait: 0 }));
    }

    /// Looks at all of them. Must be called every [`LOOK_INTERVAL`] while there are any. Returns true if some are left.
    pub fn look(&mut self) -> bool {
        self.all.retain_mut(Debtor::look);
        !self.all.is_empty()
    }

    /// Returns true if something was owed at the last look.
    pub fn owe(&self) -> bool {
        self.all.iter().any(|debtor| debtor.quiet == 0)
    }

    /// Releases memory that is not in use, if there is much.
    pub fn shrink(&mut self) {
        self.all.shrink_to(FEW);
    }

    /// Removes all of them, and returns them.
    pub fn take(&mut self) -> impl Iterator<Item = C> {
        std::mem::take(&mut self.all).into_iter().map(|debtor| debtor.connection)
    }
}

/// The name of the connection that a thread has left with a debt. If the thread's next call on another connection posts
/// nothing, that call settles the debt, so that the peer rarely waits for the control thread.
pub struct LastDebtor<C>(Cell<Option<C>>);

impl<C> Default for LastDebtor<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C> LastDebtor<C> {
    /// Returns the name of none.
    pub const fn new() -> Self {
        Self(Cell::new(None))
    }

    /// Ends the thread's call on a connection, which `owes` its peer something or not. If the thread left another
    /// connection with a debt before, passes that to `settle`. `is_it` returns true if a name is that of the call's
    /// connection, and `name` returns its name.
    #[inline]
    pub fn leave(&self, owes: bool, is_it: impl FnOnce(&C) -> bool, name: impl FnOnce() -> C, settle: impl FnOnce(C)) {
        let mut last = self.0.take();
        if let Some(other) = last.take_if(|last| !is_it(last)) {
            settle(other);
        }
        if owes {
            self.0.set(Some(last.unwrap_or_else(name)));
        }
    }

    /// Removes the name, and returns it.
    pub fn take(&self) -> Option<C> {
        self.0.take()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    /// A connection whose kernel takes nothing while it is full.
    #[derive(Default)]
    struct Owing {
        debt: Debt,
        is_full: Cell<bool>,
        attempts: Cell<u32>,
    }

    impl Indebted for Owing {
        fn debt(&self) -> &Debt {
            &self.debt
        }

        fn settle(&self) -> bool {
            self.debt.settle(|| {
                self.attempts.set(self.attempts.get() + 1);
                !self.is_full.get()
            })
        }
    }

    /// Returns a connection that owes something, and the list of a control thread that knows it.
    fn owing() -> (Rc<Owing>, Debtors<Rc<Owing>>) {
        let owing = Rc::new(Owing::default());
        assert!(owing.debt.incur());
        let mut debtors = Debtors::default();
        debtors.add([Rc::clone(&owing)]);
        (owing, debtors)
    }

    #[test]
    fn a_debt_is_sent_at_the_second_look() {
        let (owing, mut debtors) = owing();
        assert!(debtors.look() && debtors.owe());
        assert_eq!(owing.attempts.get(), 0, "its thread may still send it");
        assert!(debtors.look() && debtors.owe());
        assert_eq!(owing.attempts.get(), 1);
        assert!(debtors.look() && !debtors.owe());
        assert_eq!(owing.attempts.get(), 1);
    }

    #[test]
    fn a_debt_that_a_call_replaced_is_as_young_as_the_new_one() {
        let (owing, mut debtors) = owing();
        for _ in 0..20 {
            assert!(debtors.look());
            assert_eq!(owing.debt.take_over(Err), Ok(()));
            assert!(!owing.debt.incur(), "the control thread knows it");
        }
        assert_eq!(owing.attempts.get(), 0);
    }

    #[test]
    fn a_quiet_connection_is_forgotten_and_one_that_owes_again_is_not() {
        let (owing, mut debtors) = owing();
        let looks = |debtors: &mut Debtors<_>, most: u32| (1..=most).find(|_| !debtors.look());
        assert_eq!(looks(&mut debtors, 2 + 11), None);
        assert!(!owing.debt.incur(), "it owes before it is forgotten");
        assert_eq!(looks(&mut debtors, 2 + 11), None, "it is quiet from the settling on");
        assert_eq!(looks(&mut debtors, 1), Some(1));
        assert!(owing.debt.incur(), "and must be handed over when it owes again");
    }

    #[test]
    fn attempts_that_fail_are_repeated_ever_more_rarely() {
        let (owing, mut debtors) = owing();
        owing.is_full.set(true);
        let mut at = Vec::new();
        for look in 1..=64 {
            let before = owing.attempts.get();
            debtors.look();
            at.extend((owing.attempts.get() > before).then_some(look));
        }
        assert_eq!(at, [2, 3, 5, 9, 17, 33, 49]);
        owing.is_full.set(false);
        let looks = (1..=MOST_LOOKS_BETWEEN + 1).find(|_| debtors.look() && !debtors.owe());
        assert!(looks.is_some());
        // The next debt is tried at once again, even if a thread has tried it before the control thread looks.
        owing.is_full.set(true);
        assert!(!owing.debt.incur() && !owing.settle());
        let before = owing.attempts.get();
        for attempts in 1..=2 {
            debtors.look();
            assert_eq!(owing.attempts.get(), before + attempts);
        }
    }

    #[test]
    fn a_thread_settles_the_connection_that_it_left_and_not_the_one_that_it_uses() {
        let (last, settled) = (LastDebtor::new(), RefCell::new(Vec::new()));
        let leave = |connection: u32, owes: bool| {
            last.leave(owes, |name| *name == connection, || connection, |name| settled.borrow_mut().push(name));
        };
        leave(1, true);
        leave(1, true);
        assert!(settled.borrow().is_empty());
        leave(2, false);
        leave(2, false);
        assert_eq!(*settled.borrow(), [1], "once");
        leave(2, true);
        leave(2, false);
        leave(3, false);
        assert_eq!(*settled.borrow(), [1], "a connection that owes no more is nobody's debtor");
        leave(2, true);
        leave(3, true);
        assert_eq!((settled.borrow().last(), last.take()), (Some(&2), Some(3)));
    }
}
