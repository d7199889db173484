//! The registration cache of one domain: memory that is already registered is not registered again.
//!
//! NCCL registers the same buffers for each of hundreds of connections, and users' buffers once more for every part of
//! them (`regIsGlobal`). A range inside a registered range of the same kind shares that registration. A registration
//! ends as soon as its last user is dropped.
#![allow(clippy::disallowed_types, reason = "service threads register memory; the data path does not")]

use std::collections::BTreeMap;
use std::mem::discriminant;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use railweave_fabric::{Access, Domain, Fabric, Memory, MemoryKind, RegisterError, Registration};

/// The registrations of one domain.
pub(crate) struct Registrations<F: Fabric> {
    domain: Arc<F::Domain>,
    cached: Mutex<Cached<F>>,
}

/// The kind of memory, the first address, and a number that makes the key unique.
type Key = (u8, u64, u64);

struct Cached<F: Fabric> {
    ranges: BTreeMap<Key, Range<F>>,
    /// The length of the longest range ever: a search looks no further back.
    longest: u64,
    next: u64,
}

struct Range<F: Fabric> {
    end: u64,
    shared: Weak<Shared<F>>,
}

/// A registration that connections share.
pub(crate) struct Shared<F: Fabric> {
    registration: F::Registration,
    key: Key,
    owner: Weak<Registrations<F>>,
}

impl<F: Fabric> Shared<F> {
    pub(crate) fn local_key(&self) -> u32 {
        self.registration.local_key()
    }

    pub(crate) fn remote_key(&self) -> u32 {
        self.registration.remote_key()
    }
}

impl<F: Fabric> Drop for Shared<F> {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.upgrade() {
            owner.lock().ranges.remove(&self.key);
        }
    }
}

fn kind_number(kind: MemoryKind) -> u8 {
    // A dma-buf's descriptor is closed after the call and its number reused, so only the address identifies the memory.
    let kinds = [MemoryKind::Host, MemoryKind::Cuda, MemoryKind::DmaBuf { fd: 0, offset: 0 }];
    kinds.iter().position(|other| discriminant(other) == discriminant(&kind)).unwrap_or(kinds.len()) as u8
}

impl<F: Fabric> Registrations<F> {
    pub(crate) fn new(domain: Arc<F::Domain>) -> Arc<Self> {
        let cached = Cached { ranges: BTreeMap::new(), longest: 0, next: 0 };
        Arc::new(Self { domain, cached: Mutex::new(cached) })
    }

    pub(crate) fn domain(&self) -> &Arc<F::Domain> {
        &self.domain
    }

    /// Returns a registration that covers `memory` for the application's data.
    ///
    /// # Errors
    /// If no registration covers it and the fabric refuses to register it.
    pub(crate) fn register(self: &Arc<Self>, memory: &Memory) -> Result<Arc<Shared<F>>, RegisterError> {
        let (address, length) = (memory.address(), memory.length());
        let end = memory.end().ok_or(RegisterError::Range { address, length })?;
        let kind = kind_number(memory.kind());
        // Held while the fabric registers, so that threads with the same range register it once.
        let mut cached = self.lock();
        let from = address.saturating_sub(cached.longest);
        let covering = cached.ranges.range((kind, from, 0)..=(kind, address, u64::MAX)).rev();
        let shared = covering.filter(|(_, range)| range.end >= end).find_map(|(_, range)| range.shared.upgrade());
        if let Some(shared) = shared {
            return Ok(shared);
        }
        let registration = self.domain.register(memory.clone(), Access::DATA)?;
        let key = (kind, address, cached.next);
        cached.next += 1;
        cached.longest = cached.longest.max(length as u64);
        let shared = Arc::new(Shared { registration, key, owner: Arc::downgrade(self) });
        cached.ranges.insert(key, Range { end, shared: Arc::downgrade(&shared) });
        Ok(shared)
    }

    fn lock(&self) -> MutexGuard<'_, Cached<F>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.lock().ranges.len()
    }
}

#[cfg(test)]
mod tests {
    use railweave_fabric_tcp::{Tcp, TcpConfig, TcpDomain};

    use super::*;

    fn memory(address: u64, length: usize) -> Memory {
        // SAFETY: nothing is ever read or written through these registrations.
        unsafe { Memory::from_raw(address, length, MemoryKind::Host) }
    }

    fn cache() -> Arc<Registrations<Tcp>> {
        Registrations::new(TcpDomain::new(TcpConfig::default()))
    }

    #[test]
    fn what_lies_inside_a_registered_range_shares_its_registration() {
        let cache = cache();
        let whole = cache.register(&memory(0x10000, 0x10000)).unwrap();
        for (address, length) in [(0x10000, 0x10000), (0x10000, 1), (0x1ffff, 1), (0x12345, 0)] {
            let part = cache.register(&memory(address, length)).unwrap();
            assert!(Arc::ptr_eq(&whole, &part), "{length} bytes at {address:#x}");
        }
        for (address, length) in [(0xffff, 2), (0x1ffff, 2), (0x20000, 1), (0x8000, 0x40000)] {
            let other = cache.register(&memory(address, length)).unwrap();
            assert!(!Arc::ptr_eq(&whole, &other), "{length} bytes at {address:#x}");
        }
    }

    #[test]
    fn a_long_range_is_found_behind_short_ones() {
        let cache = cache();
        let long = cache.register(&memory(0x10_0000, 0x10_0000)).unwrap();
        let shorts: Vec<_> = (0..100).map(|i| cache.register(&memory(0x20_0000 + i * 64, 64)).unwrap()).collect();
        assert!(Arc::ptr_eq(&long, &cache.register(&memory(0x1f_ffff, 1)).unwrap()));
        assert!(Arc::ptr_eq(&shorts[7], &cache.register(&memory(0x20_0000 + 7 * 64 + 1, 63)).unwrap()));
    }

    #[test]
    fn the_last_user_ends_the_registration_at_once() {
        let cache = cache();
        let first = cache.register(&memory(0x1000, 0x1000)).unwrap();
        let second = cache.register(&memory(0x1800, 0x100)).unwrap();
        let key = first.remote_key();
        drop(first);
        assert_eq!((cache.count(), second.remote_key()), (1, key));
        drop(second);
        assert_eq!(cache.count(), 0);
        assert_ne!(cache.register(&memory(0x1000, 0x1000)).unwrap().remote_key(), key, "an ended key never comes back");
    }

    #[test]
    fn threads_that_register_one_range_register_it_once() {
        let cache = cache();
        let keep = cache.register(&memory(0x1000, 0x1000)).unwrap();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let cache = Arc::clone(&cache);
                std::thread::spawn(move || (0..1000).all(|_| cache.register(&memory(0x1000, 0x1000)).is_ok()))
            })
            .collect();
        assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
        assert_eq!(cache.count(), 1);
        drop(keep);
    }

    #[test]
    fn a_range_that_wraps_around_is_refused() {
        assert!(cache().register(&memory(u64::MAX - 10, 100)).is_err());
    }
}
