//! Acknowledgements that a connection owes its peer while its thread turns to another connection.
//!
//! A receive that is done need not be acknowledged at once: its thread mostly posts the next receive, which carries the
//! acknowledgement, and a small message's way is shorter by a system call. But the peer waits for it. So the thread
//! remembers the connection, and its next call on the data path, whatever it is for, sends what is still owed.
//!
//! The connection may be closed, or used by another thread, in the meantime: [`Debt`] says whose turn it is.

use std::cell::Cell;

use crate::comm::Comm;
use crate::network::End;
use crate::sync::{Arc, AtomicBool, AtomicU8, Ordering, spin_loop};

const SETTLED: u8 = 0;
const OWED: u8 = 1;
const SETTLING: u8 = 2;

/// Whose turn it is to look after a connection's debt.
pub(crate) struct Debt {
    state: AtomicU8,
}

impl Debt {
    pub(crate) fn new() -> Self {
        Self { state: AtomicU8::new(SETTLED) }
    }

    /// The thread that uses the connection leaves it with a debt, which it will look after.
    fn incur(&self) {
        self.state.store(OWED, Ordering::Release);
    }

    /// The thread that left the debt wants to settle it; false when somebody else has the connection now.
    fn begin_settling(&self) -> bool {
        self.state.compare_exchange(OWED, SETTLING, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Done with settling: whoever waits for the connection may have it.
    fn end_settling(&self) {
        self.state.store(SETTLED, Ordering::Release);
    }

    /// Somebody uses or closes the connection: its debt is theirs from now on. Waits for a settling that is under way,
    /// which takes one system call at most per lane.
    #[inline]
    pub(crate) fn take_over(&self) {
        if self.state.load(Ordering::Acquire) != SETTLED {
            self.take_over_now();
        }
    }

    #[cold]
    fn take_over_now(&self) {
        loop {
            match self.state.compare_exchange(OWED, SETTLED, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) | Err(SETTLED) => return,
                Err(_) => spin_loop(),
            }
        }
    }
}

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
