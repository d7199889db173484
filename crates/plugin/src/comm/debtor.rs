//! The connection that a thread has left with a debt: the thread's next call on another one settles it, so that its
//! peer mostly need not wait for the control thread.

use std::cell::Cell;
use std::sync::Weak;

use super::Comm;
use crate::sync::{AtomicBool, Ordering};

/// Whether any connection of this process ever left a debt: on one-sided fabrics none does.
static EVER: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The connection that this thread left with a debt, if it is not closed.
    static DEBTOR: Cell<Weak<Comm>> = const { Cell::new(Weak::new()) };
}

/// A forked child owes nothing: the connection is its parent's, who will settle it.
unsafe extern "C" fn forget_in_child() {
    std::mem::forget(DEBTOR.take());
}

/// Ends a call on `comm`, which this thread is about to leave, owing or not: what another connection was left with is
/// settled now.
#[inline]
pub(crate) fn leave(comm: &Comm, owes: bool) {
    if owes || EVER.load(Ordering::Relaxed) {
        leave_now(comm, owes);
    }
}

#[inline(never)]
fn leave_now(comm: &Comm, owes: bool) {
    if !EVER.load(Ordering::Relaxed) && !EVER.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler is a function of this library, which is never unloaded (-z nodelete).
        unsafe { libc::pthread_atfork(None, None, Some(forget_in_child)) };
    }
    let mut debtor = DEBTOR.take();
    let is_same = std::ptr::eq(debtor.as_ptr(), comm);
    if !is_same && let Some(debtor) = debtor.upgrade() {
        // Where the kernel takes no more, the control thread tries again.
        debtor.settle();
    }
    if owes {
        if !is_same {
            debtor = comm.itself();
        }
        DEBTOR.set(debtor);
        comm.incur();
    }
}
