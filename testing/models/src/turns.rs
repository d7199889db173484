//! The turns on a connection's end: calls of the application, another thread that wants the end, and a thread that
//! settles the debt.

use std::convert::Infallible;

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;

use crate::debt::Debt;
use crate::sync::{Ordering, fence};
use crate::turn::Turn;

/// A connection and its end, watched by loom: two threads that use the end at once, or one that does not see what the
/// other has done, fail the model.
struct Connection {
    turn: Turn,
    debt: Debt,
    /// The number of uses; `None` once the connection is closed.
    end: UnsafeCell<Option<u32>>,
}

// SAFETY: the models check that access is ordered.
unsafe impl Sync for Connection {}
// SAFETY: as above.
unsafe impl Send for Connection {}

impl Connection {
    fn new(has_barrier: bool) -> Arc<Self> {
        Arc::new(Self { turn: Turn::new(has_barrier), debt: Debt::new(), end: UnsafeCell::new(Some(0)) })
    }

    /// Uses the end. Returns false if the connection is closed.
    fn work(&self) -> bool {
        // SAFETY: loom fails the model if another thread may be here.
        self.end.with_mut(|end| unsafe { (*end).as_mut().map(|uses| *uses += 1) }).is_some()
    }

    /// Takes the end out.
    fn close(&self) -> Option<u32> {
        let Ok(_call) = self.turn.enter(Some(&self.debt), wait);
        // SAFETY: as above.
        self.end.with_mut(|end| unsafe { (*end).take() })
    }

    /// Makes a call, over a fabric that is one-sided or not.
    fn call(&self, is_one_sided: bool, then: impl FnOnce()) {
        let Ok(_call) = self.turn.enter((!is_one_sided).then_some(&self.debt), wait);
        assert!(self.work());
        then();
    }

    /// Uses the end between two calls, unless another thread uses it. Returns true if it did. The end then `owes`
    /// something or not.
    fn use_between(&self, barrier: impl FnOnce() -> bool, wait: impl FnMut(u32) -> bool, owes: bool) -> bool {
        let Some(taken) = self.turn.take(&self.debt, barrier, wait) else {
            return false;
        };
        self.work();
        taken.give_back(owes);
        true
    }

    fn settle(&self) {
        self.debt.settle(|| self.work());
    }
}

fn wait(_checks: u32) -> Result<(), Infallible> {
    thread::yield_now();
    Ok(())
}

/// Waits for a call to end.
fn wait_long(_checks: u32) -> bool {
    thread::yield_now();
    true
}

/// Does not wait for a call to end.
fn give_up(_checks: u32) -> bool {
    false
}

/// This thread's part of the barrier; the other's is in `sync::light_fence`.
fn barrier() -> bool {
    fence(Ordering::SeqCst);
    true
}

/// Plays two calls of an application, and another thread that wants the end twice.
fn play(has_barrier: bool, barrier: fn() -> bool) {
    let mut model = Builder::new();
    // Without a bound this takes minutes.
    model.preemption_bound = Some(3);
    model.check(move || {
        let connection = Connection::new(has_barrier);
        let other = {
            let connection = Arc::clone(&connection);
            thread::spawn(move || [(); 2].map(|()| u32::from(connection.use_between(barrier, wait_long, false))))
        };
        for _ in 0..2 {
            connection.call(true, || ());
        }
        let turns: u32 = other.join().unwrap().iter().sum();
        assert_eq!(connection.close(), Some(2 + turns), "each use sees those before it");
    });
}

/// Over a one-sided fabric, calls and another thread's turns use the end one after the other, and each sees what the
/// one before it has done. `has_barrier`: the system has the barrier that makes calls cheap.
pub fn calls_and_turns_never_overlap_and_see_each_other(has_barrier: bool) {
    let never = || panic!("the system has no barrier");
    play(has_barrier, if has_barrier { barrier } else { never });
}

/// Fails: a thread that takes its turn without the barrier may miss a call.
pub fn a_turn_without_the_barrier() {
    play(true, || true);
}

/// Plays calls that leave debts, a thread that settles them and another one that wants the end. The debt is noted in
/// the call, as it must be, or after it.
fn play_with_debts(is_noted_in_call: bool) {
    let mut model = Builder::new();
    // There are three threads, so only the orders with at most three preemptions are tried.
    model.preemption_bound = Some(3);
    model.check(move || {
        let connection = Connection::new(true);
        let control = {
            let connection = Arc::clone(&connection);
            thread::spawn(move || {
                connection.use_between(barrier, give_up, true);
            })
        };
        let settler = {
            let connection = Arc::clone(&connection);
            thread::spawn(move || connection.settle())
        };
        for _ in 0..2 {
            let incur = || {
                connection.debt.incur();
            };
            if is_noted_in_call {
                connection.call(false, incur);
            } else {
                connection.call(false, || ());
                incur();
            }
        }
        control.join().unwrap();
        settler.join().unwrap();
        assert!((2..=4).contains(&connection.close().unwrap()));
    });
}

/// Over a fabric that is not one-sided, calls, another thread's turns and the settling of debts use the end one after
/// the other, and each sees what the one before it has done.
pub fn a_debt_is_settled_in_neither_a_call_nor_a_turn() {
    play_with_debts(true);
}

/// Fails: if a call notes its debt after it has ended, the debt may be settled during a turn.
pub fn a_debt_that_is_noted_after_the_call() {
    play_with_debts(false);
}

/// A connection is closed while another thread wants its end and a third one settles its debt. The end is the closing
/// thread's afterwards.
pub fn a_turn_finds_an_end_or_a_closed_connection() {
    let mut model = Builder::new();
    // There are three threads, as above.
    model.preemption_bound = Some(3);
    model.check(|| {
        let connection = Connection::new(true);
        connection.call(false, || {
            connection.debt.incur();
        });
        let control = {
            let connection = Arc::clone(&connection);
            thread::spawn(move || {
                let mut found = [None; 2];
                for found in &mut found {
                    if let Some(taken) = connection.turn.take(&connection.debt, barrier, give_up) {
                        *found = Some(connection.work());
                        taken.give_back(false);
                    }
                }
                found
            })
        };
        let settler = {
            let connection = Arc::clone(&connection);
            thread::spawn(move || connection.settle())
        };
        let uses = connection.close().expect("it is closed once");
        let found = control.join().unwrap();
        settler.join().unwrap();
        assert_ne!(found, [Some(false), Some(true)], "it stays closed");
        let turns = found.iter().filter(|found| **found == Some(true)).count();
        assert!((1 + turns..=2 + turns).contains(&(uses as usize)));
        assert_eq!(connection.close(), None);
    });
}

/// Two threads want the end while the application makes a call.
pub fn of_two_threads_that_want_the_end_one_has_it() {
    let mut model = Builder::new();
    // There are three threads, as above.
    model.preemption_bound = Some(3);
    model.check(|| {
        let connection = Connection::new(true);
        let others = [(); 2].map(|()| {
            let connection = Arc::clone(&connection);
            thread::spawn(move || u32::from(connection.use_between(barrier, give_up, false)))
        });
        connection.call(true, || ());
        let turns: u32 = others.into_iter().map(|other| other.join().unwrap()).sum();
        assert_eq!(connection.close(), Some(1 + turns));
    });
}
