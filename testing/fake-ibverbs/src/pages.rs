//! Pages of this process: checks that they are mapped, maps those of a dma-buf, and withholds pages from forked
//! children.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, with_exposed_provenance_mut};

use crate::complaints::complain;

/// The number of pages checked in one system call.
const PAGES_AT_ONCE: usize = 1 << 16;

/// A mapping of a descriptor's memory, for as long as it is registered.
pub(crate) struct Mapping {
    address: *mut c_void,
    length: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps a range of a descriptor. Also returns the address at which it begins in this process.
    pub(crate) fn new(descriptor: c_int, offset: u64, length: usize) -> Result<(Self, u64), c_int> {
        // The mapping begins at the start of the offset's page, because mappings are made of whole pages.
        let before = offset % page_size() as u64;
        let length = length.checked_add(before as usize).ok_or(libc::EINVAL)?;
        // SAFETY: lseek touches no memory. Like that of a file, it returns the size of a dma-buf.
        let size = unsafe { libc::lseek(descriptor, 0, libc::SEEK_END) };
        if u64::try_from(size).is_ok_and(|size| offset - before + length as u64 > size) {
            complain(format_args!("{length} bytes at offset {offset:#x} of a dma-buf of {size} bytes are registered"));
            return Err(libc::EINVAL);
        }
        let from = i64::try_from(offset - before).map_err(|_| libc::EINVAL)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let address = unsafe { libc::mmap(null_mut(), length, protection, libc::MAP_SHARED, descriptor, from) };
        if address == libc::MAP_FAILED {
            return Err(last_errno());
        }
        let start = address.expose_provenance() as u64 + before;
        Ok((Self { address, length }, start))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping, and nothing reaches it: its region was removed before.
        unsafe { libc::munmap(self.address, self.length) };
    }
}

/// The pages withheld from forked children, each with the number of registered ranges that touch it.
///
/// This imitates kernels that do not copy pinned pages at a fork (before 5.12): there libibverbs marks every page of a
/// registered range MADV_DONTFORK, with whatever else lies on it (rdma-core, libibverbs/memory.c, ibv_dontfork_range).
#[derive(Default)]
pub(crate) struct Withheld {
    pages: BTreeMap<usize, u32>,
}

impl Withheld {
    /// Withholds the pages of a range that is being registered: all of them, or none if it fails.
    pub(crate) fn add(&mut self, address: u64, length: usize) -> Result<(), c_int> {
        for page in pages(address, length) {
            let users = self.pages.entry(page).or_default();
            if *users == 0
                && let Err(errno) = advise(page, libc::MADV_DONTFORK)
            {
                self.pages.remove(&page);
                self.remove(address, page.saturating_sub(address as usize));
                return Err(errno);
            }
            *users += 1;
        }
        Ok(())
    }

    /// Releases the pages of a range that is no longer registered.
    pub(crate) fn remove(&mut self, address: u64, length: usize) {
        for page in pages(address, length) {
            let Some(users) = self.pages.get_mut(&page) else { continue };
            *users -= 1;
            if *users == 0 {
                self.pages.remove(&page);
                // This fails if the program has unmapped the page meanwhile, and then there is nothing to undo.
                let _ = advise(page, libc::MADV_DOFORK);
            }
        }
    }
}

/// Returns the pages that a range touches.
fn pages(address: u64, length: usize) -> impl Iterator<Item = usize> {
    let page = page_size();
    let start = address as usize / page * page;
    (start..address as usize + length).step_by(page)
}

fn advise(page: usize, advice: c_int) -> Result<(), c_int> {
    // SAFETY: the advice affects forked children only, not this process.
    let result = unsafe { libc::madvise(with_exposed_provenance_mut(page), page_size(), advice) };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Fails unless the whole range is mapped; pinning its pages would fail too.
pub(crate) fn check_mapped(address: u64, length: usize) -> Result<(), c_int> {
    let page = page_size();
    let start = address as usize / page * page;
    let end = (address as usize).checked_add(length).ok_or(libc::EFAULT)?;
    let mut seen = vec![0_u8; (end - start).div_ceil(page).min(PAGES_AT_ONCE)];
    let mut at = start;
    while at < end {
        let step = (end - at).min(PAGES_AT_ONCE * page);
        // SAFETY: mincore does not touch the range, and writes one byte per page.
        if unsafe { libc::mincore(with_exposed_provenance_mut(at), step, seen.as_mut_ptr()) } != 0 {
            complain(format_args!("{length} bytes at {address:#x} are registered, but not all of them are mapped"));
            return Err(libc::EFAULT);
        }
        at += step;
    }
    Ok(())
}

pub(crate) fn page_size() -> usize {
    // SAFETY: sysconf touches no memory.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

fn last_errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_cannot_be_withheld_leaves_no_page_counted() {
        let page = page_size();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the kernel chooses, whose last page is removed; nothing uses it.
        let start = unsafe {
            let start = libc::mmap(null_mut(), 4 * page, protection, flags, -1, 0);
            assert!(start != libc::MAP_FAILED && libc::munmap(start.byte_add(3 * page), page) == 0);
            start.expose_provenance()
        };
        let mut withheld = Withheld::default();
        assert_eq!(withheld.add(start as u64, 10), Ok(()));
        assert_eq!(withheld.add(start as u64 + 5, 4 * page - 5), Err(libc::ENOMEM));
        assert_eq!(withheld.pages, BTreeMap::from([(start, 1)]));
        assert_eq!(withheld.add(start as u64 + 3 * page as u64 + 5, 8), Err(libc::ENOMEM));
        withheld.remove(start as u64, 10);
        assert!(withheld.pages.is_empty());
        // SAFETY: the first three pages are the rest of the mapping.
        assert_eq!(unsafe { libc::munmap(with_exposed_provenance_mut(start), 3 * page) }, 0);
    }
}
