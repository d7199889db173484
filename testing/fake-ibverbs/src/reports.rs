//! The library's reports about itself, shared by the library and by the programs that load it.

use std::ffi::c_int;

use railweave_fabric_verbs::sys;
use serde::{Deserialize, Serialize};

use crate::mirrors;

/// The work done since the library was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Writes without an immediate that were posted.
    pub writes: u64,
    /// Writes with an immediate that were posted.
    pub writes_with_immediate: u64,
    /// Reads that were posted.
    pub reads: u64,
    /// Work requests with inline data.
    pub inline: u64,
    /// Work requests that ask for a completion.
    pub signalled: u64,
    /// Bytes that writes and reads copied.
    pub bytes: u64,
    /// Calls of ibv_post_recv and ibv_post_srq_recv.
    pub receive_posts: u64,
    /// Receives that were posted.
    pub receives: u64,
    /// Receives that a write with an immediate consumed.
    pub receives_consumed: u64,
    /// Completions that were polled.
    pub completions: u64,
}

impl Counts {
    /// Returns the number of work requests that were posted to send queues.
    #[must_use]
    pub fn work_requests(&self) -> u64 {
        self.writes + self.writes_with_immediate + self.reads
    }

    /// Returns the counts since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.with(earlier, u64::wrapping_sub)
    }

    /// Returns the sum of all counts.
    pub(crate) fn sum<'counts>(all: impl Iterator<Item = &'counts Self>) -> Self {
        all.fold(Self::default(), |sum, counts| sum.with(counts, u64::wrapping_add))
    }

    fn with(&self, other: &Self, apply: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            writes: apply(self.writes, other.writes),
            writes_with_immediate: apply(self.writes_with_immediate, other.writes_with_immediate),
            reads: apply(self.reads, other.reads),
            inline: apply(self.inline, other.inline),
            signalled: apply(self.signalled, other.signalled),
            bytes: apply(self.bytes, other.bytes),
            receive_posts: apply(self.receive_posts, other.receive_posts),
            receives: apply(self.receives, other.receives),
            receives_consumed: apply(self.receives_consumed, other.receives_consumed),
            completions: apply(self.completions, other.completions),
        }
    }
}

/// The numbers of open objects, and their sizes. After a clean shutdown all are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// Device lists that were not freed.
    pub device_lists: u32,
    /// Open devices.
    pub contexts: u32,
    /// Protection domains.
    pub domains: u32,
    /// Memory regions.
    pub regions: u32,
    /// Completion queues.
    pub completion_queues: u32,
    /// Shared receive queues.
    pub shared_receive_queues: u32,
    /// Queue pairs.
    pub queue_pairs: u32,
    /// The total size of the memory regions in bytes.
    pub region_bytes: u64,
    /// Entries in send and receive queues, shared ones included.
    pub work_places: u64,
    /// Entries in completion queues.
    pub completion_places: u64,
}

/// The report on an open queue pair.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QpReport {
    /// Its number.
    pub number: u32,
    /// Its state: a `sys::QPS_` value.
    pub state: c_int,
    /// The name of its device.
    pub device: String,
    /// The capabilities that ibv_create_qp was asked for.
    #[serde(with = "mirrors::QpCapabilities")]
    pub capabilities: sys::QpCapabilities,
    /// True if it takes its receives from a shared queue.
    pub shared_receives: bool,
    /// Receives that wait in its queue, or in the shared one.
    pub receives: u32,
    /// The ECE options that ibv_set_ece accepted; zeros if it was not called.
    #[serde(with = "mirrors::Ece")]
    pub ece: sys::Ece,
    /// The attributes of all ibv_modify_qp calls since the last reset, merged.
    #[serde(with = "mirrors::QpAttributes")]
    pub attributes: sys::QpAttributes,
}
