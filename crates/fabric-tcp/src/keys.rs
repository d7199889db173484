//! The keys of a domain, which decide what memory the peer's writes and this side's sends may touch.
//!
//! The data path only looks keys up and pins them ([`crate::entry`]), without a lock; the mutex here is for making and
//! dropping registrations. A key consists of a place in the table and 16 random bits, which differ from those of the
//! place's previous key. The key of a dropped registration is thus refused while the next one uses its place; each
//! later one has the same key with a chance of about 1 in 65,535.
#![allow(
    clippy::disallowed_types,
    reason = "only registration uses the list of free keys; looking a key up takes no lock"
)]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use railweave_fabric::{Access, Fabric, Memory, MemoryKind, RegisterError, Registration};

use crate::entry::{Entry, Range};
use crate::pinned::{Destination, Source};
use crate::tcp::Tcp;

/// The maximum number of registrations of one domain.
pub const KEY_CAPACITY: usize = 1 << 16;

const CHUNK: usize = 256;
/// While there are places that were never used, a freed place is reused only once this many are free, so that it stays
/// without a key for a while.
const RESTING: usize = 256;

/// The reason why a key does not cover a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum KeyError {
    /// There is no such registration.
    #[error("key {0:#010x} is not (or no longer) registered here")]
    Unknown(u32),
    /// The range is not inside the registration.
    #[error(
        "{length} bytes at {address:#x} lie outside the {} bytes at {:#x} of key {key:#010x}",
        range.length, range.address
    )]
    Bounds {
        /// The key.
        key: u32,
        /// First byte asked for.
        address: u64,
        /// Bytes asked for.
        length: usize,
        /// The registered range.
        range: Range,
    },
    /// The registration does not let the peer write.
    #[error("the memory of key {0:#010x} may not be written by the peer")]
    NoWrite(u32),
}

/// All registrations of a domain.
pub(crate) struct KeyTable {
    /// Made when first needed, and kept until the table is dropped.
    chunks: Box<[OnceLock<Box<[Entry]>>]>,
    free: Mutex<Free>,
    capacity: usize,
}

/// The free places.
struct Free {
    /// The first place that was never used; the places after it were not used either.
    unused: usize,
    /// The last key of each place that was used and is free; the place that has been free longest comes first.
    rested: VecDeque<u32>,
}

impl KeyTable {
    /// Makes an empty table for at most `capacity` registrations.
    pub(crate) fn new(capacity: usize) -> Arc<Self> {
        assert!(capacity <= KEY_CAPACITY, "{capacity} keys do not fit into 16 bits");
        Arc::new(Self {
            chunks: (0..capacity.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect(),
            free: Mutex::new(Free { unused: 0, rested: VecDeque::new() }),
            capacity,
        })
    }

    /// Gives `memory` a key.
    pub(crate) fn register(self: &Arc<Self>, memory: Memory, access: Access) -> Result<TcpRegistration, RegisterError> {
        if memory.kind() != MemoryKind::Host {
            return Err(RegisterError::Unsupported { fabric: Tcp::NAME, kind: memory.kind().name() });
        }
        let (address, length) = (memory.address(), memory.length());
        let fits = memory.end().is_some_and(|end| end <= isize::MAX as u64);
        if !fits || (address == 0 && length != 0) {
            return Err(RegisterError::Range { address, length });
        }
        let random = getrandom::u32().map_err(|error| RegisterError::NoKey { why: error.to_string() })?;
        let key = self.take_place(random)?;
        self.entry(key).publish(key, Range { address, length: length as u64, remote_write: access.remote_write });
        Ok(TcpRegistration { table: Arc::clone(self), key, _memory: memory })
    }

    /// Pins the range for reading by this side.
    #[inline]
    pub(crate) fn source(&self, key: u32, address: u64, length: usize) -> Result<Source<'_>, KeyError> {
        let (entry, range) = self.pin(key)?;
        // From here on `source` owns the pin, and releases it even on an error.
        let source = Source::new(entry, address, length);
        range.check(key, address, length)?;
        Ok(source)
    }

    /// Pins the range for writing by the peer.
    #[inline]
    pub(crate) fn destination(&self, key: u32, address: u64, length: usize) -> Result<Destination<'_>, KeyError> {
        let (entry, range) = self.pin(key)?;
        let destination = Destination::new(entry, address, length);
        range.check(key, address, length)?;
        if !range.remote_write {
            return Err(KeyError::NoWrite(key));
        }
        Ok(destination)
    }

    fn pin(&self, key: u32) -> Result<(&Entry, Range), KeyError> {
        let place = (key >> 16) as usize;
        let chunk = self.chunks.get(place / CHUNK).and_then(OnceLock::get);
        let entry = chunk.map(|entries| &entries[place % CHUNK]).ok_or(KeyError::Unknown(key))?;
        let range = entry.pin(key).ok_or(KeyError::Unknown(key))?;
        Ok((entry, range))
    }

    /// Returns the entry of a key that this table has given out.
    fn entry(&self, key: u32) -> &Entry {
        let place = (key >> 16) as usize;
        let make = || (0..CHUNK).map(|_| Entry::new()).collect();
        &self.chunks[place / CHUNK].get_or_init(make)[place % CHUNK]
    }

    /// Takes a free place, and returns a key for it.
    fn take_place(&self, random: u32) -> Result<u32, RegisterError> {
        let mut free = self.free();
        let unused_left = free.unused < self.capacity;
        let reuse = free.rested.len() >= RESTING || !unused_left;
        if let Some(last) = if reuse { free.rested.pop_front() } else { None } {
            return Ok(new_key(last >> 16, random, Some(last)));
        }
        if !unused_left {
            return Err(RegisterError::Full { most: self.capacity });
        }
        let place = free.unused as u32;
        free.unused += 1;
        Ok(new_key(place, random, None))
    }

    fn release(&self, key: u32) {
        self.entry(key).revoke();
        self.free().rested.push_back(key);
    }

    /// Locks the free list. A poisoned lock is harmless, because no change to the list can stop halfway.
    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes a key for `place`: never 0, and never `last`.
fn new_key(place: u32, random: u32, last: Option<u32>) -> u32 {
    let key = |low: u32| place << 16 | low;
    let low = random % 0xffff + 1;
    if Some(key(low)) == last { key(low % 0xffff + 1) } else { key(low) }
}

impl Range {
    #[inline]
    fn check(self, key: u32, address: u64, length: usize) -> Result<(), KeyError> {
        let offset = address.checked_sub(self.address);
        let end = offset.and_then(|offset| offset.checked_add(length as u64));
        if end.is_some_and(|end| end <= self.length) {
            return Ok(());
        }
        Err(KeyError::Bounds { key, address, length, range: self })
    }
}

/// Memory registered with a [`crate::TcpDomain`]. Dropping it ends the registration; the drop waits for system calls
/// and copies on other threads that are using the memory.
pub struct TcpRegistration {
    table: Arc<KeyTable>,
    key: u32,
    /// Keeps a region alive until the key is revoked.
    _memory: Memory,
}

impl Registration for TcpRegistration {
    fn local_key(&self) -> u32 {
        self.key
    }

    fn remote_key(&self) -> u32 {
        self.key
    }
}

impl Drop for TcpRegistration {
    fn drop(&mut self) {
        self.table.release(self.key);
    }
}

impl std::fmt::Debug for TcpRegistration {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "TcpRegistration({:#010x})", self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use railweave_fabric::Region;

    fn unknown(table: &KeyTable, key: u32, address: u64) -> bool {
        matches!(table.source(key, address, 1), Err(KeyError::Unknown(_)))
    }

    #[test]
    fn ranges_and_rights_are_checked() {
        let table = KeyTable::new(16);
        let region = Arc::new(Region::new(4096));
        let start = region.address();
        let data = table.register(Memory::from_region(&region), Access::DATA).unwrap();
        let source = table.register(Memory::from_region(&region), Access::SOURCE).unwrap();
        let key = data.remote_key();
        assert_ne!(key, source.local_key());
        for (address, length) in [(start, 4096), (start + 4095, 1), (start + 4096, 0), (start + 64, 64)] {
            assert!(table.destination(key, address, length).is_ok());
            assert!(table.source(source.local_key(), address, length).is_ok());
            let refused = table.destination(source.remote_key(), address, length);
            assert!(matches!(refused, Err(KeyError::NoWrite(_))));
        }
        let outside = [
            (start - 1, 1),
            (start - 1, 4096),
            (start, 4097),
            (start + 4096, 1),
            (start + 1, usize::MAX),
            (u64::MAX, 2),
        ];
        for (address, length) in outside {
            assert!(matches!(table.destination(key, address, length), Err(KeyError::Bounds { .. })), "{address:#x}");
            assert!(matches!(table.source(key, address, length), Err(KeyError::Bounds { .. })), "{address:#x}");
        }
        for wrong in [0, key ^ 1, key ^ 0x8000, key ^ 0x10_0000, u32::MAX] {
            assert!(unknown(&table, wrong, start), "{wrong:#x}");
        }
        drop(data);
        assert!(unknown(&table, key, start));
        drop(source);
    }

    #[test]
    fn only_host_memory_and_true_ranges_are_taken() {
        let table = KeyTable::new(16);
        // Never accessed, even by the registration of 0 bytes.
        #[allow(unsafe_code)]
        let at = |address, length, kind| {
            // SAFETY: no byte of it is ever registered, so nobody reads or writes the range.
            unsafe { Memory::from_raw(address, length, kind) }
        };
        for (kind, name) in [(MemoryKind::Cuda, "CUDA"), (MemoryKind::DmaBuf { fd: 3, offset: 0 }, "dma-buf")] {
            let refused = table.register(at(4096, 1, kind), Access::DATA).unwrap_err();
            assert_eq!(refused, RegisterError::Unsupported { fabric: "tcp", kind: name });
        }
        for (address, length) in [(u64::MAX, 2), (0, 1), (4096, usize::MAX - 8192)] {
            let refused = table.register(at(address, length, MemoryKind::Host), Access::DATA).unwrap_err();
            assert_eq!(refused, RegisterError::Range { address, length });
        }
        assert!(table.register(at(4096, 0, MemoryKind::Host), Access::DATA).is_ok());
    }

    #[test]
    fn a_full_table_refuses_in_words_and_recovers() {
        let table = KeyTable::new(600);
        let region = Arc::new(Region::new(64));
        let register = || table.register(Memory::from_region(&region), Access::DATA);
        let mut all: Vec<_> = (0..600).map(|_| register().unwrap()).collect();
        let refused = register().unwrap_err();
        assert!(refused.to_string().contains("600 registrations"), "{refused}");
        let old = all.pop().unwrap().remote_key();
        let new = register().unwrap();
        assert_eq!(new.remote_key() >> 16, old >> 16);
        assert!(unknown(&table, old, region.address()));
    }

    #[test]
    fn a_key_is_never_its_predecessor_and_never_zero() {
        for random in [0, 1, 0xfffe, 0xffff, u32::MAX] {
            let first = new_key(0, random, None);
            assert_ne!(first, 0);
            assert_ne!(new_key(0, random, Some(first)), first);
            assert_ne!(new_key(0, random, Some(first)), 0);
        }
    }

    #[test]
    fn a_region_lives_as_long_as_its_registration() {
        let table = KeyTable::new(4);
        let region = Arc::new(Region::new(64));
        let weak = Arc::downgrade(&region);
        let registration = table.register(Memory::from_region(&region), Access::DATA).unwrap();
        drop(region);
        assert!(weak.upgrade().is_some());
        drop(registration);
        assert!(weak.upgrade().is_none());
    }

    /// Two threads register memory and drop the registration; two others look keys up and write under the pin. A write
    /// after a drop has returned would show in the region.
    #[test]
    fn no_write_lands_after_a_registration_is_dropped() {
        const ROUNDS: u32 = 3000;
        // On a busy machine all rounds may end before a single write is placed; then more rounds follow.
        const PATIENCE: Duration = Duration::from_secs(60);
        let began = Instant::now();
        let table = KeyTable::new(64);
        let shared: [AtomicU32; 2] = Default::default();
        let bases: [AtomicU64; 2] = Default::default();
        let done = AtomicBool::new(false);
        let placed = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2)
                .map(|which| {
                    let (table, slot, base, placed) = (&table, &shared[which], &bases[which], &placed);
                    scope.spawn(move || {
                        let region = Arc::new(Region::new(64));
                        base.store(region.address(), Ordering::SeqCst);
                        let unwritten = || placed.load(Ordering::Relaxed) == 0 && began.elapsed() < PATIENCE;
                        for round in (0..).take_while(|&round| round < ROUNDS || unwritten()) {
                            let registration = table.register(Memory::from_region(&region), Access::DATA).unwrap();
                            slot.store(registration.remote_key(), Ordering::SeqCst);
                            if round % 7 == 0 {
                                std::thread::yield_now();
                            }
                            drop(registration);
                            region.store(0, 0, Ordering::SeqCst);
                            for _ in 0..20 {
                                assert_eq!(region.load(0, Ordering::SeqCst), 0, "a write after the drop");
                            }
                        }
                    })
                })
                .collect();
            for which in 0..2 {
                let (table, slot, base, done, placed) = (&table, &shared[which], &bases[which], &done, &placed);
                scope.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        let (key, address) = (slot.load(Ordering::SeqCst), base.load(Ordering::SeqCst));
                        if let Ok(destination) = table.destination(key, address, 8) {
                            destination.place(&[0xff; 8]);
                            placed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            let results: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            done.store(true, Ordering::Relaxed);
            assert!(results.iter().all(Result::is_ok), "a writer failed");
        });
        assert!(placed.load(Ordering::Relaxed) > 0);
    }
}
