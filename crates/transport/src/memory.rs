//! Memory that the application hands to a connection: messages, buffers, and their keys.

use railweave_fabric::MAX_RAILS;

/// The keys of registered memory on each rail of a connection, in the order of its rails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryKeys {
    /// For this side's work.
    pub local: [u32; MAX_RAILS],
    /// For the peer's writes.
    pub remote: [u32; MAX_RAILS],
    /// True if it is host memory, which needs no flush.
    pub host: bool,
}

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes, at most 1 GiB.
    pub size: u64,
    /// Chooses the buffer in a grouped receive.
    pub tag: u32,
    /// Keys of the memory.
    pub keys: &'a MemoryKeys,
}

/// A buffer to receive into.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// Address of the first byte.
    pub address: u64,
    /// The most bytes that may be received, at most 1 GiB.
    pub size: u64,
    /// Selects the send that goes here in a grouped receive.
    pub tag: u32,
    /// Keys of the memory.
    pub keys: &'a MemoryKeys,
}
