//! What this process has allocated. The library's memory comes from the same allocator.

use super::logs;

/// Bytes of the heap that are in use, without the lines that the test keeps of the log.
pub(crate) fn heap_bytes() -> usize {
    logs::forget_info();
    // SAFETY: the call has no arguments and answers numbers (mallinfo(3)).
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}
