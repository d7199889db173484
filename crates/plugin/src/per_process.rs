//! State that belongs to one process: a forked child gets empty state of its own.
//!
//! Data loaders fork. A child must never touch its parent's queues and sockets, and a lock that another thread held at
//! the fork stays locked in the child forever. So static state that threads share is kept here, one value per process,
//! unless it fits into an atomic.

use crate::forks::ProcessMark;
use crate::sync::{AtomicPtr, Ordering};

/// One value per process, made when it is first used.
pub(crate) struct PerProcess<T: 'static> {
    slot: AtomicPtr<Owned<T>>,
}

struct Owned<T> {
    process: ProcessMark,
    value: T,
}

impl<T: Default + Send + Sync> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self { slot: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Returns this process's value.
    pub(crate) fn get(&self) -> &'static T {
        let process = ProcessMark::own();
        loop {
            let current = self.slot.load(Ordering::Acquire);
            // SAFETY: the slot is NULL or holds a leaked box, which is never freed.
            if let Some(owned) = unsafe { current.as_ref() }
                && owned.process == process
            {
                return &owned.value;
            }
            // A parent's value is never read: another thread may have been changing it at the fork.
            let fresh = Box::into_raw(Box::new(Owned { process, value: T::default() }));
            if self.slot.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // SAFETY: made above, and nobody else has seen it.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_types, reason = "the test is about a lock")]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_process_keeps_its_value_and_a_child_begins_afresh_even_when_the_lock_was_held() {
        static VALUE: PerProcess<Mutex<u32>> = PerProcess::new();
        *VALUE.get().lock().unwrap() = 7;
        let held = VALUE.get().lock().unwrap();
        // SAFETY: the child only takes a lock of its own and ends at once, without unwinding or running destructors.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let fresh = VALUE.get().try_lock().is_ok_and(|value| *value == 0);
            // SAFETY: ends the child without running the parent's destructors.
            unsafe { libc::_exit(if fresh { 0 } else { 1 }) };
        }
        assert_eq!(*held, 7);
        let mut status = 0;
        // SAFETY: the child's id is from fork, and the status is a variable of this function.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child found its parent's state");
    }
}
