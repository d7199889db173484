//! Signals: the control thread takes none, so that an application's handlers run on the application's own threads.

use std::mem::MaybeUninit;

/// All signals are blocked in this thread, and in threads that it starts, until this is dropped.
pub(super) struct Blocked {
    before: Option<libc::sigset_t>,
}

impl Blocked {
    pub(super) fn all() -> Self {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: the first call writes a whole set, which the second one reads, and answers the set before, which is
        // whole when the answer is 0 (sigfillset(3), pthread_sigmask(3)).
        let before = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            let result = libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            (result == 0).then(|| before.assume_init())
        };
        Self { before }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // SAFETY: the set is whole, and nothing is asked for (pthread_sigmask(3)).
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
        }
    }
}
