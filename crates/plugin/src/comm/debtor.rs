//! A connection with a debt, for the steps of NCCL's calls (`railweave_transport::call`): how a thread remembers the
//! one that it has left, how its debt is settled, and how the control thread is told.

use std::sync::Weak;

use railweave_transport::call::Callable;
use railweave_transport::{Debt, Error, Indebted, LastDebtor, Turn};

use super::{Comm, End};
use crate::sync::{AtomicBool, Ordering};

/// The number of checks for the end of another thread's use before the thread yields the processor by a system call.
const SPINS: u32 = 100;

/// True once a thread of this process has left a connection with a debt, which never happens on one-sided fabrics.
static EVER: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The connection that this thread left with a debt. It may be closed since.
    static DEBTOR: LastDebtor<Weak<Comm>> = const { LastDebtor::new() };
}

/// Forgets the debtor in a forked child: the connection is the parent's, which settles it.
unsafe extern "C" fn forget_in_child() {
    // The thread may be ending, and its locals gone.
    let _ = DEBTOR.try_with(|last| std::mem::forget(last.take()));
}

impl Indebted for Comm {
    fn debt(&self) -> &Debt {
        &self.debt
    }

    fn settle(&self) -> bool {
        // SAFETY: the debt says that nobody else uses the connection until it is settled.
        self.debt.settle(|| unsafe { self.end() }.is_none_or(End::acknowledge))
    }
}

impl Callable for Comm {
    type Name = Weak<Self>;

    #[inline(always)]
    fn turn(&self) -> &Turn {
        &self.turn
    }

    fn name(&self) -> Weak<Self> {
        self.itself.clone()
    }

    fn is_named(&self, name: &Weak<Self>) -> bool {
        std::ptr::eq(name.as_ptr(), self)
    }

    fn settle_named(name: Weak<Self>) {
        if let Some(comm) = name.upgrade() {
            comm.settle();
        }
    }

    #[cold]
    fn wait_for_others(&self, checks: u32) -> Result<(), Error> {
        if checks <= SPINS {
            std::hint::spin_loop();
            return Ok(());
        }
        // No thread of a forked child ends what its parent's have begun.
        self.check_process()?;
        std::thread::yield_now();
        Ok(())
    }

    #[inline(always)]
    fn with_last_debtor(&self, owes: bool, leave: impl FnOnce(&LastDebtor<Weak<Self>>)) {
        if owes || EVER.load(Ordering::Relaxed) {
            with_last_debtor_now(leave);
        }
    }

    #[cold]
    fn hand_over(&self) {
        if let Some(comm) = self.itself.upgrade() {
            self.control.look_after(comm);
        }
    }
}

/// Passes this thread's last debtor to `leave`, after some thread has left a connection with a debt.
#[inline(never)]
fn with_last_debtor_now(leave: impl FnOnce(&LastDebtor<Weak<Comm>>)) {
    if !EVER.load(Ordering::Relaxed) && !EVER.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler is a function of this library, which is never unloaded (-z nodelete).
        unsafe { libc::pthread_atfork(None, None, Some(forget_in_child)) };
    }
    DEBTOR.with(leave);
}
