//! The limit of open files: each lane, session and listener takes one.

use std::io;

use crate::log;

/// Below this many, a job of some hundred connections runs out.
const COMFORTABLE: u64 = 4096;

/// Raises this process's soft limit to its hard one, and says so where even that is little. Answers the limit.
pub(crate) fn raise_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes to the place that it is given (getrlimit(2)).
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return u64::MAX;
    }
    if limit.rlim_cur < limit.rlim_max {
        let before = limit.rlim_cur;
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: the call reads what it is given.
        match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
            0 => log::info(&format!("the limit of open files was raised from {before} to {}", limit.rlim_max)),
            _ => limit.rlim_cur = before,
        }
    }
    if limit.rlim_cur < COMFORTABLE {
        log::warn(&format!(
            "only {} files may be open (ulimit -Hn); each connection takes one per lane: raise the hard limit to {COMFORTABLE} \
             or more where the job is started",
            limit.rlim_cur
        ));
    }
    limit.rlim_cur
}

/// Whether an error says that descriptors are short, in this process or on the whole host.
pub(crate) fn is_short(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// What to do about an error, where it says that descriptors are short.
pub(crate) fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => "; this process may open no more files: raise its limit (ulimit -Hn)",
        Some(libc::ENFILE) => "; the whole host has too many open files (fs.file-max)",
        _ => "",
    }
}
