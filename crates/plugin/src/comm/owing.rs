//! Connections that were left owing, handed to the control thread without a lock and without a system call each.
//!
//! A stack of links that the connections have in themselves: whoever leaves a connection puts it on top, and the
//! control thread takes all at once. What lies on top also says whether the control thread looks by itself, sleeps, or
//! has ended.

use std::ptr;

use crate::sync::{Arc, AtomicLink, Ordering};

/// What can be handed over.
pub(crate) trait Linked: Sized {
    /// The next one below it in the stack. Only [`Owing`] uses it, while the connection is in there.
    fn link(&self) -> &AtomicLink<Self>;
}

/// The stack.
pub(crate) struct Owing<T> {
    top: AtomicLink<T>,
}

// SAFETY: it owns shares of what is in it, and moves them from one thread to another.
unsafe impl<T: Send + Sync> Send for Owing<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Owing<T> {}

/// On top while the control thread sleeps until it is woken.
fn asleep<T>() -> *mut T {
    ptr::without_provenance_mut(1)
}

/// On top once the control thread has ended.
fn over<T>() -> *mut T {
    ptr::without_provenance_mut(2)
}

impl<T: Linked> Owing<T> {
    /// An empty one, whose control thread sleeps.
    pub(crate) fn new() -> Self {
        Self { top: AtomicLink::new(asleep()) }
    }

    /// Hands a connection over, which is not in here. Whether the control thread must be woken for it.
    pub(crate) fn push(&self, connection: Arc<T>) -> bool {
        let pushed = Arc::into_raw(connection).cast_mut();
        let mut top = self.top.load(Ordering::Acquire);
        loop {
            if top == over() {
                // SAFETY: made from a share above, which nobody has taken.
                drop(unsafe { Arc::from_raw(pushed) });
                return false;
            }
            let below = if top == asleep() { ptr::null_mut() } else { top };
            // SAFETY: the share that is handed over keeps it.
            unsafe { &*pushed }.link().store(below, Ordering::Relaxed);
            match self.top.compare_exchange(top, pushed, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return top == asleep(),
                Err(now) => top = now,
            }
        }
    }

    /// The control thread takes what was handed over. It is awake then.
    pub(crate) fn take(&self, into: &mut Vec<Arc<T>>) {
        let top = self.top.load(Ordering::Acquire);
        if !top.is_null() && top != asleep() {
            self.replace(ptr::null_mut(), into);
        }
    }

    /// The control thread goes to sleep, unless something was handed over; whether it may.
    pub(crate) fn sleep(&self) -> bool {
        self.top.compare_exchange(ptr::null_mut(), asleep(), Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The control thread ends: it takes what was handed over, and from now on nothing is.
    pub(crate) fn close(&self, into: &mut Vec<Arc<T>>) {
        self.replace(over(), into);
    }

    fn replace(&self, with: *mut T, into: &mut Vec<Arc<T>>) {
        let mut next = self.top.swap(with, Ordering::AcqRel);
        while !next.is_null() && next != asleep() && next != over() {
            // SAFETY: `push` made it from a share, which nobody else takes: the swap has taken all.
            let connection = unsafe { Arc::from_raw(next.cast_const()) };
            next = connection.link().load(Ordering::Relaxed);
            into.push(connection);
        }
    }
}
