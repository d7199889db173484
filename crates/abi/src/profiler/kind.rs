//! The kinds of events, which are also the bits of a profiler's mask.

use core::ffi::c_int;

/// The kind of an event: one of `ncclProfileGroup` and the others of `nccl_profiler.h`. It has one bit set, and a
/// profiler's mask is made of these bits.
///
/// In `EventDescr`, it is a byte until v4, which has no room for the kinds from [`Self::GROUP_API`] on.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventType(pub u64);

impl EventType {
    /// A group of operations that one kernel carries out.
    pub const GROUP: Self = Self(1 << 0);
    /// A collective operation of a group.
    pub const COLL: Self = Self(1 << 1);
    /// A send or receive between two ranks.
    pub const P2P: Self = Self(1 << 2);
    /// The part of an operation that one proxy does on one channel, in one direction.
    pub const PROXY_OP: Self = Self(1 << 3);
    /// One message of a [`Self::PROXY_OP`].
    pub const PROXY_STEP: Self = Self(1 << 4);
    /// The progress thread itself: idle, asleep, or at work.
    pub const PROXY_CTRL: Self = Self(1 << 5);
    /// The work of the GPU on one channel (v3 on).
    pub const KERNEL_CH: Self = Self(1 << 6);
    /// An event inside a net plugin, below a [`Self::PROXY_STEP`] (v3 on).
    pub const NET_PLUGIN: Self = Self(1 << 7);
    /// A group of calls of the user (v5 on).
    pub const GROUP_API: Self = Self(1 << 8);
    /// A user's call of a collective (v5 on).
    pub const COLL_API: Self = Self(1 << 9);
    /// A user's call of a send or receive (v5 on).
    pub const P2P_API: Self = Self(1 << 10);
    /// The launch of a kernel (v5 on).
    pub const KERNEL_LAUNCH: Self = Self(1 << 11);
    /// A collective by copy engines (v6 on).
    pub const CE_COLL: Self = Self(1 << 12);
    /// A synchronisation of a [`Self::CE_COLL`] (v6 on).
    pub const CE_SYNC: Self = Self(1 << 13);
    /// A batch of copies of a [`Self::CE_COLL`] (v6 on).
    pub const CE_BATCH: Self = Self(1 << 14);
    /// A phase of a kernel on one channel (v7 on).
    pub const KERNEL_PHASE: Self = Self(1 << 15);

    /// Returns the bit in a profiler's mask.
    #[must_use]
    pub const fn bit(self) -> c_int {
        self.0 as c_int
    }
}
