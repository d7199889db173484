//! Signals: the plugin's threads block all, so that an application's handlers run on the application's own threads.

use std::mem::MaybeUninit;

/// Blocks all signals in this thread until it is dropped. Threads started meanwhile inherit the mask and keep it.
pub(super) struct Blocked {
    before: Option<libc::sigset_t>,
}

impl Blocked {
    pub(super) fn all() -> Self {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: the first call fills a set, which the second one reads. The second one writes the whole previous set
        // if it returns 0 (sigfillset(3), pthread_sigmask(3)).
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
            // SAFETY: the set is initialised, and no previous set is requested (pthread_sigmask(3)).
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
        }
    }
}
