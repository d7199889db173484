//! The application's memory: buffers that are registered on every port of their process, filled and compared.

use std::sync::{Arc, Mutex, PoisonError};

use railweave_fabric::{Access, MAX_RAILS, MemoryKind, Region, Registration};
use railweave_transport::{MemoryKeys, RailInfo};

use super::habits::Kinds;
use crate::Seen;
use crate::history::{Kind, Who};
use crate::witness::{Note, SimDomain, SimRegistration, World};

/// The number of bytes before and after every buffer.
const GUARD: u64 = 128;

/// A buffer of the application.
#[derive(Debug)]
pub(crate) struct Buffer {
    region: Arc<Region>,
    /// The address of the region's first byte in the world.
    base: u64,
    kind: MemoryKind,
    registrations: Vec<SimRegistration>,
    /// The number of the end that used it last.
    user: usize,
    /// True once it was an early receive's. Parts of that receive may come again after its application has read them,
    /// so only later receives of its connection may use it, as in NCCL.
    is_private: bool,
}

impl Buffer {
    pub(crate) fn address(&self) -> u64 {
        self.base + GUARD
    }

    fn capacity(&self) -> u64 {
        self.region.len() as u64 - 2 * GUARD
    }

    pub(crate) fn keys(&self, rails: &[RailInfo]) -> MemoryKeys {
        let mut keys =
            MemoryKeys { local: [0; MAX_RAILS], remote: [0; MAX_RAILS], host: self.kind == MemoryKind::Host };
        for rail in rails {
            let Some(registration) = self.registrations.get(rail.local_port) else { continue };
            keys.local[rail.index] = registration.local_key();
            keys.remote[rail.index] = registration.remote_key();
        }
        keys
    }

    pub(crate) fn keep_private(&mut self) {
        self.is_private = true;
    }

    pub(crate) fn deregister(&mut self) {
        self.registrations.clear();
    }
}

/// Buffers that nobody uses at present; several ends of one process may share them.
pub(crate) type SharedBuffers = Mutex<Vec<Buffer>>;

/// The memory of one end's application.
#[derive(Debug)]
pub(crate) struct Memory<const ONE_SIDED: bool> {
    world: Arc<World>,
    domains: Vec<Arc<SimDomain<ONE_SIDED>>>,
    who: Who,
    /// The number of its end.
    number: usize,
    kinds: Kinds,
    /// The number of buffers that it has taken.
    taken: u64,
    next_address: u64,
    free: Arc<SharedBuffers>,
    /// Its private buffers that it does not use at present.
    private: Vec<Buffer>,
    /// Ranges of addresses that were freed: the first address of each, and its length.
    freed: Vec<(u64, u64)>,
    pattern: Vec<u8>,
    seen: Vec<u8>,
}

/// Returns the number of addresses that a region takes up.
fn span(region: &Region) -> u64 {
    (region.len() as u64).next_multiple_of(4096)
}

/// Fills `out` with the `size` bytes of message `message` of `connection`.
fn fill(connection: usize, message: u64, size: u64, out: &mut Vec<u8>) {
    out.clear();
    out.reserve(size as usize + 8);
    let mut word = (connection as u64 + 1) << 48 ^ message.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    while out.len() < size as usize {
        out.extend_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(0x0123_4567_89ab_cdef);
    }
    out.truncate(size as usize);
}

impl<const ONE_SIDED: bool> Memory<ONE_SIDED> {
    pub(crate) fn new(
        world: &Arc<World>,
        domains: &[Arc<SimDomain<ONE_SIDED>>],
        who: Who,
        (number, kinds): (usize, Kinds),
        free: Arc<SharedBuffers>,
    ) -> Self {
        Self {
            world: Arc::clone(world),
            domains: domains.to_vec(),
            who,
            number,
            kinds,
            taken: 0,
            next_address: (number as u64 + 1) << 36,
            free,
            private: Vec::new(),
            freed: Vec::new(),
            pattern: Vec::new(),
            seen: Vec::new(),
        }
    }

    /// Returns a buffer of at least `size` bytes.
    pub(crate) fn take(&mut self, size: u64) -> Buffer {
        // Much larger buffers are kept for large messages, because there are few of them.
        self.taken += 1;
        let kind = match self.kinds {
            Kinds::Only(kind) => kind,
            Kinds::Mixed if self.taken.is_multiple_of(2) => MemoryKind::Cuda,
            Kinds::Mixed => MemoryKind::Host,
        };
        let fits = |buffer: &Buffer| {
            buffer.kind == kind && buffer.capacity() >= size && buffer.capacity() <= size.max(1024) * 4
        };
        if let Some(found) = self.private.iter().position(fits) {
            return self.private.swap_remove(found);
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = free.iter().position(fits) {
            let mut buffer = free.swap_remove(found);
            if std::mem::replace(&mut buffer.user, self.number) != self.number {
                self.world.lock().saw(Seen::BufferShared);
            }
            return buffer;
        }
        drop(free);
        let capacity = size.max(64).next_power_of_two();
        let region = Arc::new(Region::new((capacity + 2 * GUARD) as usize));
        let base = self.address(span(&region));
        let mut buffer = Buffer { region, base, kind, registrations: Vec::new(), user: self.number, is_private: false };
        self.register(&mut buffer);
        buffer
    }

    /// Returns the first of this many unused addresses, which may have been another buffer's.
    fn address(&mut self, length: u64) -> u64 {
        if let Some(found) = self.freed.iter().rposition(|(_, freed)| *freed >= length) {
            self.world.lock().saw(Seen::AddressReused);
            return self.freed.swap_remove(found).0;
        }
        self.next_address += length;
        self.next_address - length
    }

    fn register(&self, buffer: &mut Buffer) {
        for domain in &self.domains {
            let registration = domain.register_as(&buffer.region, buffer.base, buffer.kind, Access::DATA);
            buffer.registrations.push(registration);
        }
        let numbers = [buffer.base, buffer.region.len() as u64, self.domains[0].port() as u64, 0];
        self.world.lock().record(Kind::Register, self.who, numbers);
    }

    /// Takes a buffer back. If `again` is true, it is registered again first; in seeds whose keys come again, it is
    /// freed instead, so that its addresses come again too.
    pub(crate) fn put(&mut self, mut buffer: Buffer, again: bool) {
        if again {
            buffer.deregister();
            let port = self.domains[0].port() as u64;
            self.world.lock().record(Kind::Deregister, self.who, [buffer.base, port, 0, 0]);
            if self.world.lock().faults.key_reuse_permille > 0 {
                return self.freed.push((buffer.base, span(&buffer.region)));
            }
            self.register(&mut buffer);
        }
        if buffer.is_private {
            return self.private.push(buffer);
        }
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }

    /// Writes a message into a buffer.
    pub(crate) fn write(&mut self, buffer: &Buffer, connection: usize, message: u64, size: u64) {
        fill(connection, message, size, &mut self.pattern);
        buffer.region.write(GUARD as usize, &self.pattern);
    }

    /// Overwrites a message that was sent: its memory is the application's again.
    pub(crate) fn scrub(&mut self, buffer: &Buffer, size: u64) {
        self.pattern.clear();
        self.pattern.resize(size as usize, 0xdb);
        buffer.region.write(GUARD as usize, &self.pattern);
    }

    /// Returns the index of the first byte of a buffer that differs from a message; `None` if the buffer holds the
    /// message.
    pub(crate) fn compare(&mut self, buffer: &Buffer, connection: usize, message: u64, size: u64) -> Option<usize> {
        fill(connection, message, size, &mut self.pattern);
        self.seen.resize(size as usize, 0);
        buffer.region.read(GUARD as usize, &mut self.seen);
        if self.seen == self.pattern {
            return None;
        }
        self.seen.iter().zip(&self.pattern).position(|(have, want)| have != want)
    }
}
