//! Memory on pages of its own. Unsafe, because the page size is known only at run time, and no collection of the
//! standard library takes its alignment at run time.
#![allow(unsafe_code)] // the allocation, and the slice over it

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// The number of words in a cache line.
pub(crate) const WORDS_PER_LINE: usize = 8;

/// One cache line, so that entries of 64 bytes never straddle two.
#[repr(align(64))]
pub(crate) struct Line(pub(crate) [AtomicU64; WORDS_PER_LINE]);

/// Zeroed lines on whole pages that hold nothing else.
pub(crate) struct Pages {
    first: NonNull<Line>,
    count: usize,
    layout: Layout,
    owned: PhantomData<Line>,
}

// SAFETY: the lines are owned and consist of atomics.
unsafe impl Send for Pages {}
// SAFETY: as for Send.
unsafe impl Sync for Pages {}

impl Pages {
    /// Allocates at least `bytes` bytes, rounded up to whole pages; at least one page.
    ///
    /// # Panics
    /// When no address space can hold this many bytes. If memory is short, the process aborts, as for any allocation.
    pub(crate) fn new(bytes: usize) -> Self {
        let page = page_size();
        let size = bytes.max(1).checked_next_multiple_of(page);
        let layout = size.and_then(|size| Layout::from_size_align(size, page).ok()).expect("the bytes have addresses");
        // SAFETY: the size is not zero.
        let memory = unsafe { alloc_zeroed(layout) };
        // Size and alignment of a page are multiples of those of a line.
        let first = NonNull::new(memory.cast::<Line>()).unwrap_or_else(|| handle_alloc_error(layout));
        Self { first, count: layout.size() / size_of::<Line>(), layout, owned: PhantomData }
    }
}

impl Deref for Pages {
    type Target = [Line];

    #[inline(always)]
    fn deref(&self) -> &[Line] {
        // SAFETY: `count` lines were allocated, all-zero is a valid value of atomic integers, and only `drop` frees
        // them.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed only here. Lines have no destructor.
        unsafe { dealloc(self.first.as_ptr().cast(), self.layout) };
    }
}

/// Returns the page size of this system in bytes: 4 KiB on x86_64, up to 64 KiB on aarch64.
pub fn page_size() -> usize {
    // SAFETY: sysconf touches no memory.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // sysconf(3) does not fail here. If it did, 64 KiB would be a multiple of every page size of x86_64 and aarch64.
    usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(0x1_0000).max(align_of::<Line>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_whole_and_zero() {
        let page = page_size();
        for bytes in [0, 1, 64, page - 1, page, page + 1, 3 * page] {
            let pages = Pages::new(bytes);
            assert_eq!(pages.as_ptr().addr() % page, 0);
            assert_eq!(size_of_val(&*pages), bytes.max(1).next_multiple_of(page));
            assert!(
                pages.iter().flat_map(|line| &line.0).all(|word| word.load(std::sync::atomic::Ordering::Relaxed) == 0)
            );
        }
    }

    #[test]
    #[should_panic(expected = "addresses")]
    fn what_no_address_space_holds_is_refused() {
        Pages::new(usize::MAX - 10);
    }
}
