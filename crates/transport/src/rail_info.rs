//! A rail as the rest of the process sees it: its name and its traffic.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

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

/// The traffic of a rail so far. One thread counts, any thread may read.
#[derive(Debug, Default)]
pub struct RailCounters {
    data_bytes: AtomicU64,
    data_writes: AtomicU64,
    cts_writes: AtomicU64,
    received_bytes: AtomicU64,
    in_flight: AtomicU64,
    is_down: AtomicBool,
    latencies: [AtomicU32; LATENCIES],
    repaired: AtomicU64,
    failovers: AtomicU32,
}

/// The number of latencies that [`RailCounters::latencies`] tells apart: below 2 µs, from 2^n to below 2^(n+1) µs, and
/// all from 2^15 µs, which is 33 ms.
pub const LATENCIES: usize = 16;

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

    #[inline]
    pub(crate) fn set_in_flight(&self, bytes: u64) {
        self.in_flight.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_latency(&self, micros: u64) {
        let place = &self.latencies[(micros.max(1).ilog2() as usize).min(LATENCIES - 1)];
        place.store(place.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
    }

    /// Counts a part that the rail has lost, and that is sent again over another.
    pub(crate) fn count_repaired(&self) {
        Self::add(&self.repaired, 1);
    }

    pub(crate) fn set_down(&self, is_down: bool) {
        if !self.is_down.swap(is_down, Ordering::Relaxed) && is_down {
            self.failovers.store(self.failovers().wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// Returns the number of parts of messages that the rail has lost and that were sent again, each time counted.
    pub fn repaired(&self) -> u64 {
        self.repaired.load(Ordering::Relaxed)
    }

    /// Returns the times that the rail failed and its connection went on without it.
    pub fn failovers(&self) -> u32 {
        self.failovers.load(Ordering::Relaxed)
    }

    /// Returns true while the connection goes on without the rail, because it has failed.
    pub fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Relaxed)
    }

    /// Returns the bytes that the rail was given and has not completed, of the messages that are measured
    /// (docs/telemetry.md).
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Returns the times that sampled messages took on the rail: for each n the number of those from 2^n µs to below
    /// 2^(n+1) µs. The first place has all shorter ones too, the last all longer ones.
    pub fn latencies(&self) -> [u32; LATENCIES] {
        std::array::from_fn(|place| self.latencies[place].load(Ordering::Relaxed))
    }

    /// Returns the bytes of messages that this end has sent.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of work requests that carried these bytes, their records and their immediates.
    pub fn data_writes(&self) -> u64 {
        self.data_writes.load(Ordering::Relaxed)
    }

    /// Returns the number of CTS writes that this end has sent.
    pub fn cts_writes(&self) -> u64 {
        self.cts_writes.load(Ordering::Relaxed)
    }

    /// Returns the bytes that this end has received with immediates.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }
}

/// A rail of a connection, as the rest of the process sees it.
#[derive(Clone, Debug)]
pub struct RailInfo {
    /// Its number in the connection.
    pub index: usize,
    /// Index of this end's port among those that it offered: its device's, then others of its host.
    pub local_port: usize,
    /// Its two ends.
    pub name: RailName,
    /// The speed that both ends' ports reach by their own reports, in Mbit/s; `None` if one of them is not known.
    pub speed_mbps: Option<u32>,
    /// The number of its lanes.
    pub lanes: u8,
    /// Its traffic.
    pub counters: Arc<RailCounters>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_counts_its_own_traffic() {
        let counters = RailCounters::default();
        let read = || [counters.data_bytes(), counters.data_writes(), counters.cts_writes(), counters.received_bytes()];
        assert_eq!(read(), [0; 4]);
        for _ in 0..2 {
            counters.count_data(3, 500);
            counters.count_cts();
            counters.count_received(70);
        }
        assert_eq!(read(), [1000, 6, 2, 140]);
    }

    #[test]
    fn a_latency_counts_in_its_power_of_two() {
        let counters = RailCounters::default();
        for micros in [0, 1, 2, 3, 4, 7, 8, (1 << 15) - 1, 1 << 15, u64::MAX] {
            counters.count_latency(micros);
        }
        let latencies = counters.latencies();
        assert_eq!(latencies[..5], [2, 2, 2, 1, 0]);
        assert_eq!(latencies[14..], [1, 2]);
    }
}
