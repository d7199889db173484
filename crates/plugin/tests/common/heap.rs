//! The heap of this process. The library allocates from it too.

use super::logs;

/// Returns the bytes of the heap in use, without the log lines that the test keeps.
pub(crate) fn heap_bytes() -> usize {
    logs::forget_info();
    // SAFETY: the call has no arguments and returns numbers (mallinfo(3)).
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}
