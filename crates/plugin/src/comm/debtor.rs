//! The connection that a thread has left with a debt. If the thread's next call on another connection posts nothing,
//! that call settles the debt, so that the peer rarely waits for the control thread.

use std::sync::Weak;

use railweave_transport::{Indebted, LastDebtor};

use super::Comm;
use crate::sync::{AtomicBool, Ordering};

/// True once a thread of this process has left a connection with a debt, which never happens on one-sided fabrics.
static EVER: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The connection that this thread left with a debt. It may be closed since.
    static DEBTOR: LastDebtor<Weak<Comm>> = const { LastDebtor::new() };
}

/// Forgets the debtor in a forked child: the connection is the parent's, which settles it.
unsafe extern "C" fn forget_in_child() {
    std::mem::forget(DEBTOR.with(LastDebtor::take));
}

/// Ends this thread's call on `comm`, and settles the debt of the connection that the thread left before, if that is
/// another one.
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
    DEBTOR.with(|debtor| {
        debtor.leave(
            owes,
            |name| std::ptr::eq(name.as_ptr(), comm),
            || comm.itself(),
            |other| {
                if let Some(other) = other.upgrade() {
                    // If the kernel takes no more, the control thread retries.
                    other.settle();
                }
            },
        );
    });
    if owes {
        comm.incur();
    }
}
