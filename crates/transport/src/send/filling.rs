//! The slot that is being filled.

use railweave_fabric::MAX_RAILS;

use crate::MAX_BUFFERS;
use crate::cts::CtsEntry;

/// A message that waits for the others of its slot.
#[derive(Clone, Copy, Default)]
pub(super) struct Part {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) local: [u32; MAX_RAILS],
    pub(super) host: bool,
    pub(super) request: u8,
}

/// The oldest slot that still has unfilled buffers.
#[derive(Default)]
pub(super) struct Filling {
    pub(super) count: usize,
    pub(super) filled: u8,
    pub(super) entries: [CtsEntry; MAX_BUFFERS],
    pub(super) parts: [Part; MAX_BUFFERS],
}
