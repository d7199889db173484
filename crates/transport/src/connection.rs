//! What both ends of a connection share: keys, names, counters, and the word from outside that the peer is gone.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use railweave_fabric::{MAX_RAILS, WorkId};

use crate::Error;
use crate::sequence::Sequence;

/// What a connection is to be, from the options of both ends.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    /// Messages below this many bytes travel on one rail.
    pub split_min: u64,
    /// Large messages are striped over all lanes of each active rail (`NCCL_IB_SPLIT_DATA_ON_QPS`). The sender decides.
    pub striped: bool,
    /// Messages above this many bytes go as plain writes, then a write-with-immediate that carries only the record
    /// (`NCCL_IB_AR_THRESHOLD`); None for never.
    pub adaptive_routing_above: Option<u64>,
    /// Traffic class of every packet as NCCL asks for it, None for the default. What the user sets is the fabrics'
    /// business.
    pub traffic_class: Option<u8>,
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        Self { split_min: 8192, striped: false, adaptive_routing_above: None, traffic_class: None }
    }
}

/// The keys of registered memory on each rail of a connection, in the order of its rails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryKeys {
    /// For this side's work.
    pub local: [u32; MAX_RAILS],
    /// For the peer's writes.
    pub remote: [u32; MAX_RAILS],
    /// Whether it is host memory: then nothing needs to be flushed.
    pub host: bool,
}

/// What the rest of the process knows about a connection's peer and adapters, told to the data path without a lock.
#[derive(Debug, Default)]
pub struct Link {
    lost: OnceLock<Error>,
    failed: OnceLock<Error>,
}

impl Link {
    /// Says that the peer is gone, and why. Requests that are stuck fail with this, but for flushes, which need no peer; the
    /// first word counts.
    pub fn set_lost(&self, error: Error) {
        let _ = self.lost.set(error);
    }

    /// Says that something of this end's adapters failed for good, and why. All requests that are stuck fail with this; the
    /// first word counts, and more than that of a peer that is gone.
    pub fn set_failed(&self, error: Error) {
        let _ = self.failed.set(error);
    }

    /// Why what needs the peer cannot be done any more, if so.
    #[inline]
    pub fn lost(&self) -> Option<&Error> {
        self.failed().or_else(|| self.lost.get())
    }

    /// Why nothing can be done any more, if so.
    #[inline]
    pub fn failed(&self) -> Option<&Error> {
        self.failed.get()
    }
}

/// The two ends of a rail, for tables and messages.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RailName {
    /// Address of this end.
    pub local: String,
    /// Address of the other end.
    pub remote: String,
}

impl fmt::Display for RailName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} - {}", self.local, self.remote)
    }
}

/// What went over a rail so far. One thread counts, any may read.
#[derive(Debug, Default)]
pub struct RailCounters {
    data_bytes: AtomicU64,
    data_writes: AtomicU64,
    cts_writes: AtomicU64,
    received_bytes: AtomicU64,
}

impl RailCounters {
    #[inline]
    fn add(counter: &AtomicU64, value: u64) {
        // One writer: a load and a store are cheaper than a locked add.
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn count_data(&self, writes: u64, bytes: u64) {
        Self::add(&self.data_writes, writes);
        Self::add(&self.data_bytes, bytes);
    }

    #[inline]
    pub(crate) fn count_cts(&self) {
        Self::add(&self.cts_writes, 1);
    }

    #[inline]
    pub(crate) fn count_received(&self, bytes: u64) {
        Self::add(&self.received_bytes, bytes);
    }

    /// Bytes of messages that this end sent.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes.load(Ordering::Relaxed)
    }

    /// Work requests that carried them, and their records and immediates.
    pub fn data_writes(&self) -> u64 {
        self.data_writes.load(Ordering::Relaxed)
    }

    /// CTS writes that this end sent.
    pub fn cts_writes(&self) -> u64 {
        self.cts_writes.load(Ordering::Relaxed)
    }

    /// Bytes that this end received with immediates.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }
}

/// A rail of a connection, as the rest of the process sees it.
#[derive(Clone, Debug)]
pub struct RailInfo {
    /// Its number in the connection.
    pub index: usize,
    /// Index of this end's port in its device.
    pub local_port: usize,
    /// Its two ends.
    pub name: RailName,
    /// What went over it.
    pub counters: Arc<RailCounters>,
}

/// What a piece of work was, in its [`WorkId`]: a failed completion tells nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// The last write of a receive's data on a lane.
    Data(Sequence),
    /// CTS entries.
    Cts,
    /// A flush; which request, and its use modulo 2^24.
    Flush { request: u8, generation: u32 },
}

impl Work {
    #[inline]
    pub(crate) fn id(self) -> WorkId {
        WorkId(match self {
            Self::Data(sequence) => u64::from(sequence.number()) << 2 | 1,
            Self::Cts => 2,
            Self::Flush { request, generation } => u64::from(generation) << 10 | u64::from(request) << 2 | 3,
        })
    }

    #[inline]
    pub(crate) fn from_id(id: WorkId) -> Option<Self> {
        let number = (id.0 >> 2) as u32;
        match id.0 & 3 {
            1 => Some(Self::Data(Sequence::new(number))),
            2 => Some(Self::Cts),
            3 => Some(Self::Flush { request: number as u8, generation: number >> 8 }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_comes_out_of_its_id() {
        let data = |number| Work::Data(Sequence::new(number));
        for work in [data(u32::MAX), Work::Cts, Work::Flush { request: 31, generation: 0xff_ffff }, data(0)] {
            assert_eq!(Work::from_id(work.id()), Some(work));
        }
        assert_eq!(Work::from_id(WorkId(0)), None);
    }
}
