//! The mistakes of a program, in words: on standard error, and kept for tests to read.

use std::fmt;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};

static LAST: Mutex<String> = Mutex::new(String::new());

/// Says one sentence.
#[cold]
pub(crate) fn complain(what: fmt::Arguments<'_>) {
    let text = what.to_string();
    // In one piece, so that threads do not mix theirs; a closed standard error is no reason to end the process.
    let _ = std::io::stderr().write_all(format!("fake libibverbs: {text}\n").as_bytes());
    *LAST.lock().unwrap_or_else(PoisonError::into_inner) = text;
}

/// The last sentence; empty if there was none.
pub(crate) fn last() -> String {
    LAST.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
