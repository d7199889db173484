//! Pages of this process: are they mapped, those of a dma-buf, and what forked children get of them.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, with_exposed_provenance_mut};

use crate::complaints::complain;

/// Pages looked at in one system call.
const PAGES_AT_ONCE: usize = 1 << 16;

/// Memory of a descriptor, mapped for as long as it is registered.
pub(crate) struct Mapping {
    address: *mut c_void,
    length: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps a range of a descriptor; also returns where it begins in this process.
    pub(crate) fn new(descriptor: c_int, offset: u64, length: usize) -> Result<(Self, u64), c_int> {
        // The memory before the offset in its page is mapped too: mappings begin at pages.
        let before = offset % page_size() as u64;
        let length = length.checked_add(before as usize).ok_or(libc::EINVAL)?;
        // SAFETY: lseek on any descriptor touches no memory; that of a dma-buf answers its size, as a file's does.
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
        // SAFETY: this mapping, made above, which nobody reaches any more: its region was taken out before.
        unsafe { libc::munmap(self.address, self.length) };
    }
}

/// The pages that children do not get, each with the number of registered ranges that touch it.
///
/// So it is on kernels that do not copy pinned pages at a fork (before 5.12): the library then marks every page of a
/// registered range MADV_DONTFORK, with whatever else lies on it (rdma-core, libibverbs/memory.c, ibv_dontfork_range).
#[derive(Default)]
pub(crate) struct Withheld {
    pages: BTreeMap<usize, u32>,
}

impl Withheld {
    /// A range is registered.
    pub(crate) fn add(&mut self, address: u64, length: usize) -> Result<(), c_int> {
        for page in pages(address, length) {
            let users = self.pages.entry(page).or_default();
            if *users == 0 {
                advise(page, libc::MADV_DONTFORK)?;
            }
            *users += 1;
        }
        Ok(())
    }

    /// It is registered no more.
    pub(crate) fn remove(&mut self, address: u64, length: usize) {
        for page in pages(address, length) {
            let Some(users) = self.pages.get_mut(&page) else { continue };
            *users -= 1;
            if *users == 0 {
                self.pages.remove(&page);
                // Where the program has unmapped it meanwhile there is nothing to give back.
                let _ = advise(page, libc::MADV_DOFORK);
            }
        }
    }
}

/// The pages that a range touches.
fn pages(address: u64, length: usize) -> impl Iterator<Item = usize> {
    let page = page_size();
    let start = address as usize / page * page;
    (start..address as usize + length).step_by(page)
}

fn advise(page: usize, advice: c_int) -> Result<(), c_int> {
    // SAFETY: the advice changes what children get, and nothing in this process.
    let result = unsafe { libc::madvise(with_exposed_provenance_mut(page), page_size(), advice) };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Fails unless all of the range is mapped, as pinning its pages would.
pub(crate) fn check_mapped(address: u64, length: usize) -> Result<(), c_int> {
    let page = page_size();
    let start = address as usize / page * page;
    let end = (address as usize).checked_add(length).ok_or(libc::EFAULT)?;
    let mut seen = vec![0_u8; (end - start).div_ceil(page).min(PAGES_AT_ONCE)];
    let mut at = start;
    while at < end {
        let step = (end - at).min(PAGES_AT_ONCE * page);
        // SAFETY: mincore only looks at the range, and writes one byte a page.
        if unsafe { libc::mincore(with_exposed_provenance_mut(at), step, seen.as_mut_ptr()) } != 0 {
            complain(format_args!("{length} bytes at {address:#x} are registered, which are not all mapped"));
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
