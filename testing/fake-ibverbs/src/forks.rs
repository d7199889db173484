//! Registered pages and forked children, as on kernels that do not copy pinned pages at a fork (before 5.12): the
//! library then marks every page of a registered range MADV_DONTFORK, with whatever else lies on it (rdma-core,
//! libibverbs/memory.c, ibv_dontfork_range).

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ptr::with_exposed_provenance_mut;

use crate::memory::{last_errno, page_size};

/// The pages that children do not get, each with the number of registered ranges that touch it.
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
