//! The limit of open files: each lane, session and control port takes one.

use std::io;

use crate::log;

/// Below this limit, a job of a few hundred connections runs out.
const COMFORTABLE: u64 = 4096;

/// Raises this process's soft limit to its hard one, and warns if that is low. Returns the limit.
pub(crate) fn raise_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes to a variable of this function (getrlimit(2)).
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return u64::MAX;
    }
    if limit.rlim_cur < limit.rlim_max {
        let before = limit.rlim_cur;
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: the call reads a variable of this function (setrlimit(2)).
        match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
            0 => log::info(&format!("the limit of open files was raised from {before} to {}", limit.rlim_max)),
            _ => limit.rlim_cur = before,
        }
    }
    if limit.rlim_cur < COMFORTABLE {
        log::warn(&format!(
            "only {} files may be open (ulimit -Hn); each connection takes one per lane: raise the hard limit \
             to {COMFORTABLE} or more where the job is started",
            limit.rlim_cur
        ));
    }
    limit.rlim_cur
}

/// Returns true if the error says that descriptors have run out, in this process or on the whole host.
pub(crate) fn is_short(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Returns the advice to append to an error that says that descriptors have run out; otherwise "".
pub(crate) fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => "; this process may open no more files: raise its limit (ulimit -Hn)",
        Some(libc::ENFILE) => "; the whole host has too many open files (fs.file-max)",
        _ => "",
    }
}
