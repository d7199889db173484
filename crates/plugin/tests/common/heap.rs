//! The heap of this process. The library allocates from it too.

use std::thread;

use railweave_patience::{Deadline, LIMIT};

use super::logs;

/// Returns the bytes of the heap in use, without the log lines that the test keeps.
pub(crate) fn heap_bytes() -> usize {
    logs::forget_info();
    // SAFETY: the call has no arguments and returns numbers (mallinfo(3)).
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}

/// Waits until at most this many bytes of the heap are in use.
#[track_caller]
pub(crate) fn until_heap_is_freed(most: usize) {
    let deadline = Deadline::new(LIMIT);
    loop {
        let bytes = heap_bytes();
        if bytes <= most {
            return;
        }
        assert!(
            !deadline.is_over(),
            "not freed: {bytes} bytes of the heap are in use, and {most} at most were expected"
        );
        thread::yield_now();
    }
}
