//! State that belongs to one process: a forked child gets empty state of its own.
//!
//! Data loaders fork. A child must never touch its parent's queues and sockets, and a lock that another thread held at
//! the fork stays locked in the child forever. So static state that threads share is kept here, one value per process,
//! unless it fits into an atomic.

use std::sync::atomic::{AtomicBool, AtomicU32};

use crate::sync::{AtomicPtr, Ordering};

/// The number of forks between this process and the one that first called [`ProcessMark::own`], counted by a handler
/// that the C library calls in each child. Process ids are not enough: a child in a process namespace of its own may
/// have the same id as its parent.
static FORKS: AtomicU32 = AtomicU32::new(0);
static COUNTING: AtomicBool = AtomicBool::new(false);

/// The mark that distinguishes a process from its forked children and from its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessMark {
    forks: u32,
    /// The process id, for a child made without the C library's fork (by `clone`): it is not counted, but nearly always
    /// has another id.
    pid: u32,
}

impl ProcessMark {
    /// Returns this process's mark.
    pub(crate) fn own() -> Self {
        if !COUNTING.load(Ordering::Acquire) {
            count_forks();
        }
        Self { forks: FORKS.load(Ordering::Relaxed), pid: std::process::id() }
    }
}

/// Starts counting forks. If several threads do this at once, each fork counts more than once, which is harmless.
#[cold]
fn count_forks() {
    // SAFETY: the handler is a function of this library, which is never unloaded (-z nodelete), and only adds to a
    // number. If it fails for lack of memory, process ids alone tell processes apart.
    unsafe { libc::pthread_atfork(None, None, Some(count_in_child)) };
    COUNTING.store(true, Ordering::Release);
}

unsafe extern "C" fn count_in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

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
