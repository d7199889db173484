//! Models of what the plugin's threads share without a lock, in every order that the memory model allows (docs/fuzzing.md).
//!
//! The plugin's own files are compiled here with loom's types in place of the standard library's. Run them with
//! `cargo xtask test loom`.
#![cfg(loom)]
#![allow(unexpected_cfgs)] // `--cfg loom` is given by hand; cargo does not know it

#[path = "../src/debt.rs"]
#[allow(dead_code)] // a model needs no more than its own calls
mod debt;
#[path = "../src/per_process.rs"]
#[allow(dead_code, clippy::undocumented_unsafe_blocks)] // its own tests are not for loom
mod per_process;
#[path = "../src/shares.rs"]
mod shares;

mod sync {
    use std::sync::{Mutex, OnceLock};

    pub(crate) use loom::sync::Arc;
    pub(crate) use loom::sync::atomic::{AtomicU8, Ordering};
    pub(crate) use loom::thread::yield_now as spin_loop;

    type Pointer = loom::sync::atomic::AtomicPtr<()>;

    /// The pointer that the next [`AtomicPtr`] will be.
    static PREPARED: Mutex<Option<Pointer>> = Mutex::new(None);

    /// Loom's pointer cannot be made in a constant as the standard library's can, so a model makes it before its threads
    /// begin, and the constant takes it when it is first used.
    pub(crate) struct AtomicPtr<T>(OnceLock<Pointer>, std::marker::PhantomData<*mut T>);

    // SAFETY: it holds a pointer that may be shared, and says nothing about what it points to.
    unsafe impl<T> Sync for AtomicPtr<T> {}
    // SAFETY: as above.
    unsafe impl<T> Send for AtomicPtr<T> {}

    pub(crate) fn prepare() {
        *PREPARED.lock().unwrap() = Some(Pointer::new(std::ptr::null_mut()));
    }

    impl<T> AtomicPtr<T> {
        pub(crate) const fn new(null: *mut T) -> Self {
            assert!(null.is_null());
            Self(OnceLock::new(), std::marker::PhantomData)
        }

        fn pointer(&self) -> &Pointer {
            self.0.get_or_init(|| PREPARED.lock().unwrap().take().expect("the model has prepared the pointer"))
        }

        pub(crate) fn load(&self, order: Ordering) -> *mut T {
            self.pointer().load(order).cast()
        }

        pub(crate) fn compare_exchange(
            &self,
            current: *mut T,
            new: *mut T,
            success: Ordering,
            failure: Ordering,
        ) -> Result<*mut T, *mut T> {
            let result = self.pointer().compare_exchange(current.cast(), new.cast(), success, failure);
            result.map(<*mut ()>::cast).map_err(<*mut ()>::cast)
        }
    }
}

mod model {
    use loom::cell::UnsafeCell;
    use loom::sync::atomic::{AtomicU64, Ordering};
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use crate::debt::Debt;
    use crate::per_process::PerProcess;
    use crate::shares::take_abandoned;

    /// A connection counts and is closed while two others ask for the sum: what was counted is neither lost nor counted
    /// twice, and the sum never falls.
    #[test]
    fn counters_of_closed_connections_are_added_up_once() {
        loom::model(|| {
            let counters = Arc::new(AtomicU64::new(0));
            let sums = Arc::new(Mutex::new((vec![Arc::clone(&counters)], 0)));
            let connection = thread::spawn(move || {
                // As `RailCounters` counts: one writer, so a load and a store.
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
            assert!(sums.lock().unwrap().0.is_empty(), "what is over is not kept");
        });
    }

    /// A value whose making must be seen whole by whoever gets it.
    struct Made(UnsafeCell<u32>);

    // SAFETY: nobody writes after the value was made, which is what the model checks.
    unsafe impl Sync for Made {}
    // SAFETY: as above.
    unsafe impl Send for Made {}

    impl Default for Made {
        fn default() -> Self {
            let cell = UnsafeCell::new(0);
            // SAFETY: nobody else has the cell yet.
            cell.with_mut(|place| unsafe { *place = 7 });
            Self(cell)
        }
    }

    /// Two threads that ask first at the same time get one and the same value, wholly made.
    #[test]
    fn a_process_has_one_value() {
        loom::model(|| {
            crate::sync::prepare();
            let value: Arc<PerProcess<Made>> = Arc::new(PerProcess::new());
            let get = |value: &PerProcess<Made>| {
                let made = value.get();
                // SAFETY: nobody writes any more.
                assert_eq!(made.0.with(|place| unsafe { *place }), 7);
                std::ptr::from_ref(made).addr()
            };
            let other = {
                let value = Arc::clone(&value);
                thread::spawn(move || get(&value))
            };
            let ours = get(&value);
            assert_eq!(other.join().unwrap(), ours);
        });
    }

    /// A thread settles what it left while another closes the connection: never both at once, and who has it last finds
    /// what the other did. Loom's cell panics when two look inside at the same time.
    #[test]
    fn a_debt_is_settled_by_one_thread_at_a_time() {
        loom::model(|| {
            let shared = Arc::new((Debt::new(), UnsafeCell::new(0)));
            shared.0.incur();
            let theirs = Arc::clone(&shared);
            let closing = thread::spawn(move || {
                let (debt, end) = &*theirs;
                debt.take_over();
                // SAFETY: loom checks that nobody else looks.
                end.with_mut(|end| unsafe { *end += 1 });
            });
            let (debt, end) = &*shared;
            if debt.begin_settling() {
                // SAFETY: as above.
                end.with_mut(|end| unsafe { *end += 1 });
                debt.end_settling();
            }
            closing.join().unwrap();
            debt.take_over();
            // SAFETY: as above.
            let times = end.with(|end| unsafe { *end });
            assert!((1..=2).contains(&times));
        });
    }
}
