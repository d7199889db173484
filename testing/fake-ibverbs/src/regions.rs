//! Registered memory for the data path, which finds the slot of a key without a lock.
//!
//! Removing a region is safe although transfers may be in progress: the remover then takes and releases the lock of
//! every queue pair (`world`), and transfers run under such a lock.

use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The number of slots: one more than the maximum number of regions, because slot 0 stays free.
pub(crate) const SLOTS: usize = 1 << 16;

/// The bit that marks remote keys. A key is the slot's index, seven bits that change with each use of the slot, and
/// this bit: so the use of a local key as a remote one, or of an old key, is detected.
const REMOTE: u32 = 1;

struct Slot {
    /// The local key; 0 while the slot is free.
    key: AtomicU32,
    access: AtomicU32,
    domain: AtomicUsize,
    start: AtomicU64,
    end: AtomicU64,
    /// The number to add to an address of the region to get the address in this process.
    shift: AtomicU64,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        key: AtomicU32::new(0),
        access: AtomicU32::new(0),
        domain: AtomicUsize::new(0),
        start: AtomicU64::new(0),
        end: AtomicU64::new(0),
        shift: AtomicU64::new(0),
    }
}; SLOTS];

/// A registered region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    /// The address of its protection domain.
    pub(crate) domain: usize,
    /// Its first address, as work requests name it.
    pub(crate) start: u64,
    /// Its length, in bytes.
    pub(crate) length: u64,
    /// Its first address in this process.
    pub(crate) memory: u64,
    /// The access rights given.
    pub(crate) access: u32,
}

/// Returns the local and the remote key of slot `index` in its use number `uses`.
pub(crate) fn keys(index: usize, uses: u32) -> (u32, u32) {
    let local = (index as u32) << 8 | (uses << 1) & 0xfe;
    (local, local | REMOTE)
}

/// Puts a region into slot `index`, which is free, under its local key.
pub(crate) fn publish(index: usize, key: u32, region: Region) {
    let slot = &TABLE[index];
    slot.access.store(region.access, Ordering::Relaxed);
    slot.domain.store(region.domain, Ordering::Relaxed);
    slot.start.store(region.start, Ordering::Relaxed);
    slot.end.store(region.start + region.length, Ordering::Relaxed);
    slot.shift.store(region.memory.wrapping_sub(region.start), Ordering::Relaxed);
    slot.key.store(key, Ordering::Release);
}

/// Removes the region in slot `index`. Transfers that have found it may still be in progress.
pub(crate) fn withdraw(index: usize) {
    TABLE[index].key.store(0, Ordering::SeqCst);
}

/// Returns the place of the range in this process, if the local key belongs to a region of the domain that contains the
/// range and has all of these rights.
#[inline]
pub(crate) fn find_local(key: u32, domain: usize, address: u64, length: u64, rights: u32) -> Option<*mut u8> {
    if key & REMOTE != 0 {
        return None;
    }
    find(key, domain, address, length, rights)
}

/// Returns the place of the range in this process, if the remote key belongs to a region of the domain that contains
/// the range and has all of these rights.
#[inline]
pub(crate) fn find_remote(key: u32, domain: usize, address: u64, length: u64, rights: u32) -> Option<*mut u8> {
    if key & REMOTE == 0 {
        return None;
    }
    find(key & !REMOTE, domain, address, length, rights)
}

#[inline]
fn find(key: u32, domain: usize, address: u64, length: u64, rights: u32) -> Option<*mut u8> {
    let slot = TABLE.get((key >> 8) as usize)?;
    if slot.key.load(Ordering::Acquire) != key || key == 0 || slot.domain.load(Ordering::Relaxed) != domain {
        return None;
    }
    let (start, end) = (slot.start.load(Ordering::Relaxed), slot.end.load(Ordering::Relaxed));
    let inside = address >= start && address <= end && length <= end - address;
    if !inside || slot.access.load(Ordering::Relaxed) & rights != rights {
        return None;
    }
    Some(with_exposed_provenance_mut(address.wrapping_add(slot.shift.load(Ordering::Relaxed)) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: Region = Region { domain: 7, start: 0x1000, length: 0x100, memory: 0x9000, access: 3 };

    #[test]
    fn a_key_reaches_its_region_and_nothing_beyond() {
        let (local, remote) = keys(40_001, 3);
        publish(40_001, local, REGION);
        let find = |key, domain, address, length, rights| {
            find_local(key, domain, address, length, rights).map(|place| place.addr() as u64)
        };
        assert_eq!(find(local, 7, 0x1010, 0xf0, 1), Some(0x9010));
        assert_eq!(find(local, 7, 0x1100, 0, 1), Some(0x9100), "an empty range at the end");
        assert_eq!(find(local, 7, 0x1010, 0xf1, 1), None, "one byte too long");
        assert_eq!(find(local, 7, 0xfff, 1, 1), None, "before the start");
        assert_eq!(find(local, 7, u64::MAX, 1, 1), None, "an address that overflows");
        assert_eq!(find(local, 7, 0x1000, u64::MAX, 1), None, "a length that overflows");
        assert_eq!(find(local, 8, 0x1000, 1, 1), None, "another domain");
        assert_eq!(find(local, 7, 0x1000, 1, 4), None, "a right that was not given");
        assert_eq!(find(remote, 7, 0x1000, 1, 1), None, "a remote key where a local one belongs");
        assert_eq!(find(keys(40_001, 2).0, 7, 0x1000, 1, 1), None, "the key of the use before");
        assert!(find_remote(remote, 7, 0x1000, 1, 2).is_some());
        assert!(find_remote(local, 7, 0x1000, 1, 2).is_none(), "a local key where a remote one belongs");
        withdraw(40_001);
        assert_eq!(find(local, 7, 0x1010, 1, 1), None, "gone");
        assert_eq!(find(0, 0, 0, 0, 0), None, "no key");
    }
}
