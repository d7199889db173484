//! Registered memory with guards around it, which show every byte written out of bounds.

use railweave_nccl_host::LoadedNet;
use railweave_nccl_host::memory::HostMemory;
use railweave_nccl_host::net::{Comm, NetApi, Part, Registration};
use std::ptr::NonNull;

/// Bytes before and after the buffer. They are registered with it, so that only the plugin protects them.
const GUARD: usize = 4096;

/// The value of bytes that were not written.
const UNTOUCHED: [u8; GUARD] = [0xa5; GUARD];

/// One buffer, registered with one end of a connection.
pub(crate) struct Buffer {
    memory: HostMemory,
    bytes: usize,
    registration: Registration,
}

impl Buffer {
    /// Returns an empty buffer.
    pub(crate) fn new(net: &LoadedNet, comm: Comm<'_>, bytes: usize) -> Self {
        let memory = HostMemory::new(bytes + 2 * GUARD);
        // SAFETY: the memory stays until `release`, which ends the registration first.
        let registration = unsafe { net.reg_mr(comm, memory.start(), memory.bytes()) }.expect("memory is registered");
        let mut buffer = Self { memory, bytes, registration };
        buffer.clear();
        buffer
    }

    /// Returns a buffer with a message.
    pub(crate) fn holding(net: &LoadedNet, comm: Comm<'_>, message: &[u8]) -> Self {
        let mut buffer = Self::new(net, comm, message.len());
        buffer.write(message);
        buffer
    }

    /// Ends the registration and frees the memory.
    pub(crate) fn release(self, net: &LoadedNet, comm: Comm<'_>) {
        // SAFETY: made in `new` with this end of the connection.
        unsafe { net.dereg_mr(comm, self.registration) }.expect("memory is deregistered");
    }

    /// Returns the address of the first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        // SAFETY: the memory has a guard before the buffer.
        unsafe { self.memory.start().add(GUARD) }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn registration(&self) -> Registration {
        self.registration
    }

    /// Returns the whole buffer as a part of a receive.
    pub(crate) fn part(&self, tag: i32) -> Part {
        Part { data: self.start(), bytes: self.bytes, tag, registration: self.registration }
    }

    /// Writes a message to the buffer's start.
    pub(crate) fn write(&mut self, message: &[u8]) {
        self.all_mut()[GUARD..][..message.len()].copy_from_slice(message);
    }

    /// Returns the whole buffer.
    pub(crate) fn contents(&self) -> &[u8] {
        &self.all()[GUARD..][..self.bytes]
    }

    /// Clears the buffer.
    pub(crate) fn clear(&mut self) {
        self.all_mut().fill(UNTOUCHED[0]);
    }

    /// Panics unless the buffer holds this message, and no other byte of it or of its guards was written.
    pub(crate) fn assert_holds(&self, message: &[u8]) {
        let (before, rest) = self.all().split_at(GUARD);
        let (received, after) = rest.split_at(message.len());
        assert!(before == UNTOUCHED, "bytes before the buffer were written");
        if received != message
            && let Some(at) = (0..message.len()).find(|at| received[*at] != message[*at])
        {
            panic!("byte {at} of {} is {:#04x}, sent was {:#04x}", message.len(), received[at], message[at]);
        }
        let untouched = |chunk: &[u8]| *chunk == UNTOUCHED[..chunk.len()];
        assert!(after.chunks(GUARD).all(untouched), "bytes were written after a message of {}", message.len());
    }

    fn all(&self) -> &[u8] {
        // SAFETY: the memory is initialised, and no transfer writes to it while a scenario reads it.
        unsafe { std::slice::from_raw_parts(self.memory.start().as_ptr(), self.memory.bytes()) }
    }

    fn all_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and no transfer reads from it either.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start().as_ptr(), self.memory.bytes()) }
    }
}
