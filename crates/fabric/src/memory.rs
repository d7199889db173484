//! Memory that is to be registered. Naming memory by its address is a promise that nobody can check.
#![allow(unsafe_code)] // the promise of `Memory::from_raw`

use std::os::fd::RawFd;
use std::sync::Arc;

use crate::Region;

/// What a range of memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Host memory (`NCCL_PTR_HOST`).
    Host,
    /// GPU memory by its CUDA address (`NCCL_PTR_CUDA`).
    Cuda,
    /// GPU memory through a dma-buf (`NCCL_PTR_DMABUF`); the descriptor is only valid during the call.
    DmaBuf {
        /// The dma-buf's descriptor.
        fd: RawFd,
        /// Where the range starts inside it, in bytes.
        offset: u64,
    },
}

impl MemoryKind {
    /// The kind's name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Cuda => "CUDA",
            Self::DmaBuf { .. } => "dma-buf",
        }
    }
}

/// What may be done with registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The peer may write into it.
    pub remote_write: bool,
    /// The peer may read from it; only the flush needs that, through a loop-back lane.
    pub remote_read: bool,
    /// Writes become visible in the order in which they were posted (no relaxed ordering): for the CTS stream and the
    /// completion records, in which a flag says that the rest is there.
    pub strict_order: bool,
}

impl Access {
    /// Memory of the application: the peer writes to it, a flush reads it, order does not matter.
    pub const DATA: Self = Self { remote_write: true, remote_read: true, strict_order: false };
    /// Memory of the protocol that the peer writes to and in which order matters.
    pub const CONTROL: Self = Self { remote_write: true, remote_read: false, strict_order: true };
    /// Memory of the protocol that only this side reads.
    pub const SOURCE: Self = Self { remote_write: false, remote_read: false, strict_order: true };
}

/// A range of memory that may be registered: the fabric reads and writes it until the registration is dropped.
#[derive(Clone, Debug)]
pub struct Memory {
    address: u64,
    length: usize,
    kind: MemoryKind,
    region: Option<Arc<Region>>,
}

impl Memory {
    /// A range by its address.
    ///
    /// # Safety
    /// From now until every registration of it is dropped, the range must be memory that may be read and written by
    /// anybody at any time: NCCL promises this from `regMr` to `deregMr` (NCCL, net.h), and no Rust reference
    /// to it may live meanwhile.
    pub unsafe fn from_raw(address: u64, length: usize, kind: MemoryKind) -> Self {
        Self { address, length, kind, region: None }
    }

    /// A [`Region`], which lives as long as this value does.
    pub fn from_region(region: &Arc<Region>) -> Self {
        Self {
            address: region.address(),
            length: region.len(),
            kind: MemoryKind::Host,
            region: Some(Arc::clone(region)),
        }
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// What the range is.
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// The region, when the range is one: a fabric without a real network reads and writes through it.
    pub fn region(&self) -> Option<&Arc<Region>> {
        self.region.as_ref()
    }

    /// The address one past the last byte, unless the range wraps around.
    pub fn end(&self) -> Option<u64> {
        self.address.checked_add(self.length as u64)
    }
}
