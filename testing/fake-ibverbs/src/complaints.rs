//! Sentences about a program's mistakes, on standard error and for tests to read.

use std::fmt;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};

static LAST: Mutex<String> = Mutex::new(String::new());

/// Prints a sentence to standard error and keeps it.
#[cold]
pub(crate) fn complain(what: fmt::Arguments<'_>) {
    let text = what.to_string();
    // One write per line, so that threads do not mix theirs. A closed standard error must not end the process.
    let _ = std::io::stderr().write_all(format!("fake libibverbs: {text}\n").as_bytes());
    *LAST.lock().unwrap_or_else(PoisonError::into_inner) = text;
}

/// Returns the last sentence; empty if there was none.
pub(crate) fn last() -> String {
    LAST.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
