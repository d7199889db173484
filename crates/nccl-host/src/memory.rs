//! Memory to register: aligned, never moved, initially zero.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// The smallest page of Linux. If pages are larger, two pieces may share one.
const PAGE_BYTES: usize = 4096;

/// One piece of host memory for transfers.
#[derive(Debug)]
pub struct HostMemory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory belongs to this value alone; nothing about it depends on the thread.
unsafe impl Send for HostMemory {}
// SAFETY: a shared reference exposes only the address and the size.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Allocates `bytes`, rounded up to whole pages of 4096 bytes, at least one.
    ///
    /// # Panics
    /// If `bytes` is more than half of the address space.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let bytes = bytes.max(1).next_multiple_of(PAGE_BYTES);
        let layout = Layout::from_size_align(bytes, PAGE_BYTES).expect("memory of a possible size");
        // SAFETY: the layout's size is not 0.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Self { start, layout }
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}
