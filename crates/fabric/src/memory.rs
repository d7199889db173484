//! Memory to register. Naming memory by its address is a promise that nothing can check.
#![allow(unsafe_code)] // the promise of `Memory::from_raw`

use std::os::fd::RawFd;
use std::sync::Arc;

use crate::Region;

/// The kind of a range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Host memory (`NCCL_PTR_HOST`).
    Host,
    /// GPU memory by its CUDA address (`NCCL_PTR_CUDA`).
    Cuda,
    /// GPU memory through a dma-buf (`NCCL_PTR_DMABUF`); the descriptor is valid only during the call.
    DmaBuf {
        /// The dma-buf's descriptor.
        fd: RawFd,
        /// Start of the range in the dma-buf, in bytes.
        offset: u64,
    },
}

impl MemoryKind {
    /// Returns the kind's name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Cuda => "CUDA",
            Self::DmaBuf { .. } => "dma-buf",
        }
    }
}

/// Access rights to registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The peer may write to it.
    pub remote_write: bool,
    /// The peer may read from it; only the flush needs this, through a loop-back lane.
    pub remote_read: bool,
    /// Writes become visible in the order in which they were posted (no relaxed ordering). The CTS stream and the
    /// completion records need this: a flag in them says that the rest has arrived.
    pub strict_order: bool,
}

impl Access {
    /// Memory of the application: the peer writes to it, a flush reads it, and order does not matter.
    pub const DATA: Self = Self { remote_write: true, remote_read: true, strict_order: false };
    /// Memory of the protocol that the peer writes to; order matters.
    pub const CONTROL: Self = Self { remote_write: true, remote_read: false, strict_order: true };
    /// Memory of the protocol that only this side reads.
    pub const SOURCE: Self = Self { remote_write: false, remote_read: false, strict_order: true };
}

/// A range of memory to register: the fabric reads and writes it until the registration is dropped.
#[derive(Clone, Debug)]
pub struct Memory {
    address: u64,
    length: usize,
    kind: MemoryKind,
    region: Option<Arc<Region>>,
}

impl Memory {
    /// Names a range by its address.
    ///
    /// # Safety
    /// From now until every registration of it is dropped, the range must be memory that anybody may read and write at
    /// any time, and no Rust reference to it may exist. NCCL promises this from `regMr` to `deregMr` (NCCL, net.h).
    pub unsafe fn from_raw(address: u64, length: usize, kind: MemoryKind) -> Self {
        Self { address, length, kind, region: None }
    }

    /// Names a [`Region`], and keeps it alive for as long as this value exists.
    pub fn from_region(region: &Arc<Region>) -> Self {
        Self {
            address: region.address(),
            length: region.len(),
            kind: MemoryKind::Host,
            region: Some(Arc::clone(region)),
        }
    }

    /// Returns the address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns the kind of the range.
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// Returns the region if the range is one: a fabric without a real network reads and writes through it.
    pub fn region(&self) -> Option<&Arc<Region>> {
        self.region.as_ref()
    }

    /// Returns the address one past the last byte, or `None` if the range wraps around.
    pub fn end(&self) -> Option<u64> {
        self.address.checked_add(self.length as u64)
    }
}
