//! Registered memory while a system call or a copy uses it.
#![allow(unsafe_code)] // placing bytes in registered memory

use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use crate::entry::Entry;

/// A pinned range. Its bytes stay registered, and thus valid, until this is dropped.
struct Pinned<'table> {
    entry: &'table Entry,
    address: u64,
    length: usize,
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.entry.unpin();
    }
}

/// A pinned range to read from.
pub(crate) struct Source<'table>(Pinned<'table>);

/// A pinned range to write to.
pub(crate) struct Destination<'table>(Pinned<'table>);

impl<'table> Source<'table> {
    /// Takes over one pin of `entry`. The range must be checked against the registration before the first use.
    pub(crate) fn new(entry: &'table Entry, address: u64, length: usize) -> Self {
        Self(Pinned { entry, address, length })
    }

    /// Returns the range, for the kernel to read.
    pub(crate) fn raw(&self) -> (*mut u8, usize) {
        (with_exposed_provenance_mut(self.0.address as usize), self.0.length)
    }
}

impl<'table> Destination<'table> {
    /// Takes over one pin of `entry`. The range and the right to write must be checked against the registration before
    /// the first use.
    pub(crate) fn new(entry: &'table Entry, address: u64, length: usize) -> Self {
        Self(Pinned { entry, address, length })
    }

    /// Returns the range, for the kernel to write.
    pub(crate) fn raw(&self) -> (*mut u8, usize) {
        (with_exposed_provenance_mut(self.0.address as usize), self.0.length)
    }

    /// Copies `bytes` to the range's start, lowest address first. The last whole word becomes visible after all bytes
    /// before it, because it may hold a flag (the sequence number of a CTS entry).
    ///
    /// # Panics
    /// When `bytes` is longer than the range.
    pub(crate) fn place(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.0.length, "{} bytes do not fit into {} pinned ones", bytes.len(), self.0.length);
        let (target, _) = self.raw();
        // SAFETY: the range is registered and pinned, so anybody may write to it at any time (`Memory`'s promise) until
        // `self` is dropped, and it holds `bytes.len()` bytes (asserted above).
        unsafe { store(target, bytes) }
    }
}

/// Writes `bytes` to `target` with atomic stores, because others may read there at the same time.
///
/// # Safety
/// `target` must be valid for writes of `bytes.len()` bytes, and all other access meanwhile must be atomic or by the
/// kernel.
unsafe fn store(target: *mut u8, bytes: &[u8]) {
    let lead = target.align_offset(8).min(bytes.len());
    let (head, rest) = bytes.split_at(lead);
    let (body, tail) = rest.as_chunks::<8>();
    let words = body.len();
    for (at, &byte) in head.iter().enumerate() {
        // SAFETY: `at` < `bytes.len()`; bytes are always aligned.
        unsafe { AtomicU8::from_ptr(target.add(at)) }.store(byte, Ordering::Relaxed);
    }
    for (at, &word) in body.iter().enumerate() {
        let word = u64::from_ne_bytes(word);
        if at + 1 == words {
            fence(Ordering::Release);
        }
        // SAFETY: the word ends at or before `bytes.len()`, and `lead` aligned the pointer to 8.
        unsafe { AtomicU64::from_ptr(target.add(lead + at * 8).cast()) }.store(word, Ordering::Relaxed);
    }
    for (at, &byte) in tail.iter().enumerate() {
        // SAFETY: as for the head.
        unsafe { AtomicU8::from_ptr(target.add(lead + words * 8 + at)) }.store(byte, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Range;
    use railweave_fabric::Region;

    #[test]
    fn bytes_land_exactly_at_any_offset() {
        let region = Region::new(128);
        let entry = Entry::new();
        entry.publish(1, Range { address: region.address(), length: 128, remote_write: true });
        for offset in 0..20 {
            for length in 0..60 {
                region.write(0, &[0xee; 128]);
                let bytes: Vec<u8> = (0..length).map(|at| (at * 3 + offset) as u8).collect();
                entry.pin(1).unwrap();
                Destination::new(&entry, region.address() + offset as u64, length).place(&bytes);
                let mut all = [0; 128];
                region.read(0, &mut all);
                assert_eq!(&all[offset..offset + length], &bytes);
                assert!(all[..offset].iter().chain(&all[offset + length..]).all(|&byte| byte == 0xee));
            }
        }
        entry.revoke();
    }

    #[test]
    #[should_panic(expected = "do not fit")]
    fn more_bytes_than_the_range_are_refused() {
        let entry = Entry::new();
        Destination::new(&entry, 8, 3).place(&[0; 4]);
    }
}
