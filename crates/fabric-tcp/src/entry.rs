//! One registration's place in the key table: the concurrency core of this crate.
//!
//! The thread that registers or deregisters calls `publish` and `revoke`; the table's free list ensures that there is
//! only one such thread per entry. Any number of data paths call `pin` and `unpin`. Key, rights and the number of pins
//! share one atomic word, so each pin is either before or after a revocation.

use crate::sync::{AtomicU64, Ordering, yield_now};

/// The low bits count the pins. A thread holds at most 16 pins at a time, one for each frame of a sending system call,
/// so there is room for a million threads.
const PINS: u64 = (1 << 24) - 1;
/// The peer may write.
const REMOTE_WRITE: u64 = 1 << 24;
const KEY_SHIFT: u32 = 32;

/// The range of a pinned entry. Valid until it is unpinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// Address of the first registered byte.
    pub(crate) address: u64,
    /// Number of registered bytes.
    pub(crate) length: u64,
    /// True if the peer may write there.
    pub(crate) remote_write: bool,
}

/// One place in the table. Empty while its key is 0.
pub(crate) struct Entry {
    /// Bits 63 to 32: the key, 0 for none. Bit 24: the peer may write. Bits 23 to 0: pins.
    state: AtomicU64,
    /// Read only under a pin, and written only while there is no key.
    address: AtomicU64,
    length: AtomicU64,
}

impl Entry {
    /// Makes an empty place.
    pub(crate) fn new() -> Self {
        Self { state: AtomicU64::new(0), address: AtomicU64::new(0), length: AtomicU64::new(0) }
    }

    /// Makes `key` valid. The entry must be empty, and `key` not 0.
    pub(crate) fn publish(&self, key: u32, range: Range) {
        debug_assert_ne!(key, 0);
        self.address.store(range.address, Ordering::Relaxed);
        self.length.store(range.length, Ordering::Relaxed);
        let rights = if range.remote_write { REMOTE_WRITE } else { 0 };
        // Release: a thread that pins with this key sees the range. Not a store, because a look-up with a stale key may
        // hold a pin for an instant.
        let before = self.state.fetch_or(u64::from(key) << KEY_SHIFT | rights, Ordering::Release);
        assert_eq!(before & !PINS, 0, "the key table gave the place of key {:#010x} away twice", before >> KEY_SHIFT);
    }

    /// Ends the registration: from now on no pin succeeds. Returns once no pin is left.
    pub(crate) fn revoke(&self) {
        self.state.fetch_and(PINS, Ordering::AcqRel);
        // Acquire: everything done under a pin happens before this returns. The wait is short, because a pin is held
        // for one system call or one copy.
        while self.state.load(Ordering::Acquire) & PINS != 0 {
            yield_now();
        }
    }

    /// Holds the registration of `key`, if that is the entry's present key. Returns its range.
    pub(crate) fn pin(&self, key: u32) -> Option<Range> {
        let matches = |state: u64| key != 0 && (state >> KEY_SHIFT) as u32 == key;
        // Checks first, so that a peer's wrong keys do not touch the count.
        if !matches(self.state.load(Ordering::Relaxed)) {
            return None;
        }
        let before = self.state.fetch_add(1, Ordering::Acquire);
        if !matches(before) {
            self.unpin();
            return None;
        }
        Some(Range {
            address: self.address.load(Ordering::Relaxed),
            length: self.length.load(Ordering::Relaxed),
            remote_write: before & REMOTE_WRITE != 0,
        })
    }

    /// Releases a successful `pin`.
    pub(crate) fn unpin(&self) {
        // Release: pairs with the load in `revoke`.
        self.state.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: Range = Range { address: 4096, length: 100, remote_write: true };

    #[test]
    fn a_key_is_valid_from_publish_to_revoke() {
        let entry = Entry::new();
        assert_eq!(entry.pin(7), None);
        assert_eq!(entry.pin(0), None);
        entry.publish(7, RANGE);
        assert_eq!(entry.pin(8), None);
        assert_eq!(entry.pin(7), Some(RANGE));
        entry.unpin();
        entry.revoke();
        assert_eq!(entry.pin(7), None);
        entry.publish(9, Range { remote_write: false, ..RANGE });
        assert_eq!(entry.pin(7), None);
        assert!(!entry.pin(9).unwrap().remote_write);
    }

    #[test]
    fn revoke_waits_for_the_last_pin() {
        let entry = Entry::new();
        entry.publish(7, RANGE);
        entry.pin(7).unwrap();
        std::thread::scope(|scope| {
            let revoking = scope.spawn(|| entry.revoke());
            while entry.state.load(Ordering::Relaxed) >> KEY_SHIFT != 0 {
                yield_now();
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!revoking.is_finished());
            entry.unpin();
        });
    }
}
