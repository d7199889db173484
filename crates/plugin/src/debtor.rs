//! The connection that a thread has left with a debt, and its settling.

use std::cell::Cell;

use crate::comm::Comm;
use crate::ends::End;
use crate::sync::{Arc, AtomicBool, Ordering};

/// Whether any connection of this process ever left a debt: on one-sided fabrics none does.
static EVER: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The connection that this thread left with a debt.
    static DEBTOR: Cell<Option<Arc<Comm>>> = const { Cell::new(None) };
}

/// A forked child owes nothing: the connection is its parent's, who will settle it.
unsafe extern "C" fn forget_in_child() {
    std::mem::forget(DEBTOR.take());
}

/// Whether this thread may leave `comm` with a debt: it looks after one connection at a time.
#[inline]
pub(crate) fn may_owe(comm: &Comm) -> bool {
    if !EVER.load(Ordering::Relaxed) {
        return true;
    }
    let debtor = DEBTOR.take();
    let free = debtor.as_ref().is_none_or(|debtor| std::ptr::eq(Arc::as_ptr(debtor), comm));
    DEBTOR.set(debtor);
    free
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
    if !EVER.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler is a function of this library, which is never unloaded (-z nodelete).
        unsafe { libc::pthread_atfork(None, None, Some(forget_in_child)) };
    }
    let keep_debt = |debtor: &Arc<Comm>| {
        // SAFETY: the debt says that nobody else uses the connection until it is settled.
        let settled = unsafe { debtor.end() }.is_none_or(End::acknowledge);
        debtor.debt.end_settling();
        // The kernel takes no more: the next call tries again.
        if !settled {
            debtor.debt.incur();
        }
        !settled
    };
    let mut keep = DEBTOR.take().filter(|debtor| {
        if std::ptr::eq(Arc::as_ptr(debtor), comm) { owes } else { debtor.debt.begin_settling() && keep_debt(debtor) }
    });
    if owes && keep.is_none() {
        keep = comm.share();
    }
    if owes && keep.as_ref().is_some_and(|keep| std::ptr::eq(Arc::as_ptr(keep), comm)) {
        comm.debt.incur();
    }
    DEBTOR.set(keep);
}
