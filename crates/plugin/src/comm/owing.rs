//! Connections with debts, handed to the control thread without a lock and without a system call for each.
//!
//! They are a stack whose links are in the connections: a thread that leaves a connection pushes it, and the control
//! thread takes all at once. The top also says whether the control thread is awake, is asleep or has ended.

use std::ptr;

use crate::sync::{Arc, AtomicLink, Ordering};

/// An element of the stack.
pub(crate) trait Linked: Sized {
    /// Returns the link to the element below. Only [`Owing`] uses it, while the element is in the stack.
    fn link(&self) -> &AtomicLink<Self>;
}

/// The stack.
pub(crate) struct Owing<T> {
    top: AtomicLink<T>,
}

// SAFETY: it owns an `Arc` of each element, and moves these from one thread to another.
unsafe impl<T: Send + Sync> Send for Owing<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Owing<T> {}

/// Returns the top that stands for a sleeping control thread.
fn asleep<T>() -> *mut T {
    ptr::without_provenance_mut(1)
}

/// Returns the top that stands for a control thread that has ended.
fn over<T>() -> *mut T {
    ptr::without_provenance_mut(2)
}

impl<T: Linked> Owing<T> {
    /// Returns an empty stack, with the control thread asleep.
    pub(crate) fn new() -> Self {
        Self { top: AtomicLink::new(asleep()) }
    }

    /// Pushes a connection that is not in the stack. Returns true if the control thread must be woken.
    pub(crate) fn push(&self, connection: Arc<T>) -> bool {
        let pushed = Arc::into_raw(connection).cast_mut();
        let mut top = self.top.load(Ordering::Acquire);
        loop {
            if top == over() {
                // SAFETY: into_raw made it above, and no other thread has seen it.
                drop(unsafe { Arc::from_raw(pushed) });
                return false;
            }
            let below = if top == asleep() { ptr::null_mut() } else { top };
            // SAFETY: the `Arc` that is handed over keeps it alive.
            unsafe { &*pushed }.link().store(below, Ordering::Relaxed);
            match self.top.compare_exchange(top, pushed, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return top == asleep(),
                Err(now) => top = now,
            }
        }
    }

    /// Takes all connections. Called by the control thread, which counts as awake once it has taken any.
    pub(crate) fn take(&self, into: &mut Vec<Arc<T>>) {
        let top = self.top.load(Ordering::Acquire);
        if !top.is_null() && top != asleep() {
            self.replace(ptr::null_mut(), into);
        }
    }

    /// Marks the control thread as asleep. Returns false, and does nothing, if a connection was pushed.
    pub(crate) fn sleep(&self) -> bool {
        self.top.compare_exchange(ptr::null_mut(), asleep(), Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Takes all connections, and refuses later ones. Called when the control thread ends.
    pub(crate) fn close(&self, into: &mut Vec<Arc<T>>) {
        self.replace(over(), into);
    }

    fn replace(&self, with: *mut T, into: &mut Vec<Arc<T>>) {
        let mut next = self.top.swap(with, Ordering::AcqRel);
        while !next.is_null() && next != asleep() && next != over() {
            // SAFETY: `push` made it with into_raw, and nobody else takes it: the swap took the whole stack.
            let connection = unsafe { Arc::from_raw(next.cast_const()) };
            next = connection.link().load(Ordering::Relaxed);
            into.push(connection);
        }
    }
}
