//! The plugin's log lines in this process.

use railweave_nccl_host::logger::{self, INFO, Line, TRACE, WARN};
use std::sync::{Mutex, PoisonError};

static LINES: Mutex<Vec<Line>> = Mutex::new(Vec::new());

/// Keeps every line from now on, and prints warnings for the output of a failed scenario.
pub(super) fn keep() {
    logger::set_sink(|line| {
        if line.level == WARN {
            eprintln!("WARN {}", line.text);
        }
        LINES.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    });
}

fn texts(level: logger::Level) -> Vec<String> {
    let lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    lines.iter().filter(|line| line.level == level).map(|line| line.text.clone()).collect()
}

/// Returns every warning so far.
pub(crate) fn warnings() -> Vec<String> {
    texts(WARN)
}

/// Returns the warnings so far that contain all of these words.
pub(crate) fn warnings_with(words: &[&str]) -> Vec<String> {
    warnings().into_iter().filter(|text| words.iter().all(|word| text.contains(word))).collect()
}

/// Forgets lines that are not warnings, so that they do not count as memory in use.
pub(super) fn forget_info() {
    let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    lines.retain(|line| line.level == WARN);
    lines.shrink_to_fit();
}

/// Returns every line of level INFO so far.
pub(crate) fn info_lines() -> Vec<String> {
    texts(INFO)
}

/// Returns every line of level TRACE so far.
pub(crate) fn trace_lines() -> Vec<String> {
    texts(TRACE)
}
