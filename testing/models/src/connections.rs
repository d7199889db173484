//! A connection in the plugin: its counters, its debts, and the list in which it is handed to the control thread.

use std::convert::Infallible;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::debt::{Debt, Look};
use crate::owing::{Linked, Owing};
use crate::shares::take_abandoned;
use crate::sync::AtomicLink;

/// A connection counts and is closed while two threads ask for the sum: nothing is lost or counted twice, and the
/// sum never falls.
pub fn counters_of_closed_connections_are_added_up_once() {
    loom::model(|| {
        let counters = Arc::new(AtomicU64::new(0));
        let sums = Arc::new(Mutex::new((vec![Arc::clone(&counters)], 0)));
        let connection = thread::spawn(move || {
            // Like `RailCounters`: one writer, so a load and a store.
            for _ in 0..2 {
                counters.store(counters.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
        });
        let read = |sums: &Mutex<(Vec<Arc<AtomicU64>>, u64)>| {
            let mut sums = sums.lock().unwrap();
            let (open, closed) = &mut *sums;
            take_abandoned(open, |counter| *closed += counter.load(Ordering::Relaxed));
            *closed + open.iter().map(|counter| counter.load(Ordering::Relaxed)).sum::<u64>()
        };
        let other = {
            let sums = Arc::clone(&sums);
            thread::spawn(move || assert!(read(&sums) <= 2))
        };
        let (first, second) = (read(&sums), read(&sums));
        assert!(first <= second && second <= 2, "{first}, then {second}");
        connection.join().unwrap();
        other.join().unwrap();
        assert_eq!(read(&sums), 2);
        assert!(sums.lock().unwrap().0.is_empty(), "a closed connection is not kept");
    });
}

/// Waits for a settling in progress.
fn wait(_checks: u32) -> Result<(), Infallible> {
    thread::yield_now();
    Ok(())
}

/// Uses the end, as the thread that has the connection may. Loom's cell panics if two do so at once.
fn work(end: &UnsafeCell<u32>) {
    // SAFETY: loom checks that no other thread uses it.
    end.with_mut(|end| unsafe { *end += 1 });
}

/// A thread settles its debt, at first in vain because the kernel takes no more. Meanwhile another thread uses or
/// closes the connection, and the control thread settles too. No two of them do so at once, and the last one sees the
/// effects of the others.
pub fn a_debt_is_settled_by_one_thread_at_a_time() {
    // There are three threads, so only the orders with at most three preemptions are tried.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Arc::new((Debt::new(), UnsafeCell::new(0)));
        assert!(shared.0.incur(), "the control thread does not know it yet");
        let (theirs, controls) = (Arc::clone(&shared), Arc::clone(&shared));
        let other = thread::spawn(move || {
            let (debt, end) = &*theirs;
            assert!(debt.take_over(wait).is_ok());
            work(end);
        });
        let control = thread::spawn(move || {
            let (debt, end) = &*controls;
            if debt.look() == Look::Old || debt.look() == Look::Old {
                debt.settle(|| {
                    work(end);
                    true
                });
            }
        });
        let (debt, end) = &*shared;
        for settles in [false, true] {
            debt.settle(|| {
                work(end);
                settles
            });
        }
        other.join().unwrap();
        control.join().unwrap();
        assert!(debt.take_over(wait).is_ok());
        // SAFETY: as above.
        let times = end.with(|end| unsafe { *end });
        assert!((1..=4).contains(&times));
    });
}

/// A connection that a thread leaves with a debt.
struct Left {
    debt: Debt,
    link: AtomicLink<Left>,
}

impl Linked for Left {
    fn link(&self) -> &AtomicLink<Self> {
        &self.link
    }
}

/// Plays one round of the control thread, which here forgets a settled connection at once; the real one waits for quiet
/// looks. Returns true if it sleeps afterwards.
fn look(owing: &Owing<Left>, known: &mut Vec<Arc<Left>>) -> bool {
    owing.take(known);
    known.retain(|left| match left.debt.look() {
        Look::Settled => !left.debt.forget(),
        Look::Fresh => true,
        Look::Old => {
            left.debt.settle(|| true);
            true
        }
    });
    known.is_empty() && owing.sleep()
}

/// Connections are left with debts again and again while the control thread takes them, lets them go and falls asleep.
/// None that owes is forgotten, and the thread is woken for each that is handed to it while it sleeps.
pub fn connections_left_with_debts_are_looked_after() {
    loom::model(|| {
        let owing: Arc<Owing<Left>> = Arc::new(Owing::new());
        let connection = || Arc::new(Left { debt: Debt::new(), link: AtomicLink::new(std::ptr::null_mut()) });
        let left = [connection(), connection()];
        let wakes = Arc::new(AtomicU64::new(0));
        let (theirs, handed, woken) = (left.clone(), Arc::clone(&owing), Arc::clone(&wakes));
        let application = thread::spawn(move || {
            for left in [&theirs[0], &theirs[1], &theirs[0]] {
                assert!(left.debt.take_over(wait).is_ok());
                if left.debt.incur() && handed.push(Arc::clone(left)) {
                    woken.fetch_add(1, Ordering::Release);
                }
            }
        });
        let mut known = Vec::new();
        let sleeps = [look(&owing, &mut known), look(&owing, &mut known)];
        application.join().unwrap();
        if sleeps[1] {
            let before = known.len();
            owing.take(&mut known);
            assert!(known.len() == before || wakes.load(Ordering::Acquire) > 0, "it sleeps on");
        }
        owing.take(&mut known);
        for left in &left {
            let is_known = known.iter().any(|known| Arc::ptr_eq(known, left));
            assert!(is_known || left.debt.look() == Look::Settled, "nobody looks after it");
        }
        let mut rest = Vec::new();
        owing.close(&mut rest);
        assert!(rest.is_empty() && !owing.push(Arc::clone(&left[0])), "nothing is handed over afterwards");
    });
}
