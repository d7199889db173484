//! A lock that spins, for completion queues, receive queues and the sending sides of queue pairs. A sending side is
//! locked while its bytes are copied, the others for a few instructions.

use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::yield_now;

/// The number of looks before a waiting thread yields: the holder may have been preempted.
const LOOKS: u32 = 100;

/// A value that one thread at a time uses. An uncontended lock makes no system call.
pub(crate) struct SpinLock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the flag lets one thread at a time reach the value. The values point to each other (a queue pair to its
// peer); those pointers are followed under the rules of `world`, from any thread.
unsafe impl<T> Sync for SpinLock<T> {}
// SAFETY: as above.
unsafe impl<T> Send for SpinLock<T> {}

impl<T> SpinLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
        if self.taken.swap(true, Ordering::Acquire) {
            self.wait();
        }
        SpinGuard(self)
    }

    #[cold]
    fn wait(&self) {
        let mut looks = 0;
        while self.taken.swap(true, Ordering::Acquire) {
            while self.taken.load(Ordering::Relaxed) {
                looks += 1;
                if looks % LOOKS == 0 {
                    yield_now();
                }
                spin_loop();
            }
        }
    }
}

/// Access to the value, until dropped.
pub(crate) struct SpinGuard<'lock, T>(&'lock SpinLock<T>);

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: only the holder of the guard reaches the value.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: only the holder of the guard reaches the value.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_has_it() {
        let lock = SpinLock::new(0_u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 40_000);
    }
}
