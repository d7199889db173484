//! The past of each rail: rates for its sparkline, recent latencies, and the share that was said last.

use super::key::Key;
use crate::host::{Job, JobRail};
use railweave_telemetry::Latencies;
use std::collections::{HashMap, VecDeque};

/// The most looks that a sparkline shows.
pub(super) const MOST_RATES: usize = 120;

/// The time over which latencies are recent, and the time between two that are kept, in nanoseconds.
const RECENT_NS: u64 = 10_000_000_000;
const KEPT_NS: u64 = 1_000_000_000;

/// The change of a share that is worth an event.
const NOTED_SHARE: f64 = 0.1;

/// The looks for which a share has to be that far from the one that was said.
const LOOKS: u32 = 4;

/// The pasts of all rails that are shown.
#[derive(Default)]
pub(super) struct Histories {
    rails: HashMap<Key, History>,
    look: u64,
}

/// The past of a rail.
#[derive(Default)]
pub(super) struct History {
    /// Bytes per second, sent and received, the oldest first.
    rates: VecDeque<f64>,
    /// The counts of latencies at some times, the oldest first.
    latencies: VecDeque<(u64, Latencies)>,
    /// The latencies of the recent past.
    recent: Latencies,
    said_share: Option<f64>,
    /// The looks since the share is another one.
    other_looks: u32,
    look: u64,
}

/// A rail whose share is another one now.
pub(super) struct ShareChange {
    pub(super) key: Key,
    pub(super) before: f64,
    pub(super) now: f64,
}

impl Histories {
    /// Takes in a look. Returns the rails whose shares have changed.
    pub(super) fn look(&mut self, jobs: &[Job], now_ns: u64) -> Vec<ShareChange> {
        self.look += 1;
        let mut changes = Vec::new();
        for job in jobs {
            let job_key = Key::of_job(job);
            for peer in &job.peers {
                let peer_key = job_key.with_peer(peer);
                // Without traffic, shares say nothing.
                let moves = peer.rails.iter().any(|rail| rail.sum.rate.is_some_and(|rate| rate.sent > 0.0));
                for rail in &peer.rails {
                    let key = peer_key.with_rail(rail);
                    let history = self.rails.entry(key.clone()).or_default();
                    history.look = self.look;
                    history.take(rail, now_ns);
                    let change = rail.share.filter(|_| moves).and_then(|share| history.share(share));
                    changes.extend(change.map(|(before, now)| ShareChange { key, before, now }));
                }
            }
        }
        let look = self.look;
        self.rails.retain(|_, history| history.look == look);
        changes
    }

    pub(super) fn of(&self, key: &Key) -> Option<&History> {
        self.rails.get(key)
    }

    /// Returns the largest rate of the last `count` looks of all rails, in bytes per second.
    pub(super) fn largest(&self, count: usize) -> f64 {
        self.rails.values().flat_map(|history| history.last(count)).fold(0.0, f64::max)
    }
}

impl History {
    fn take(&mut self, rail: &JobRail, now_ns: u64) {
        let rate = rail.sum.rate.map_or(0.0, |rate| rate.sent + rate.received);
        self.rates.push_back(rate);
        if self.rates.len() > MOST_RATES {
            self.rates.pop_front();
        }
        let now = rail.sum.latencies;
        if self.latencies.back().is_none_or(|(at_ns, _)| now_ns.abs_diff(*at_ns) >= KEPT_NS) {
            self.latencies.push_back((now_ns, now));
        }
        while self.latencies.len() > (RECENT_NS / KEPT_NS) as usize + 1 {
            self.latencies.pop_front();
        }
        let before = self.latencies.front().map(|(_, latencies)| *latencies).unwrap_or_default();
        // Counts fall when a process ends.
        self.recent = Latencies(std::array::from_fn(|place| now.0[place].saturating_sub(before.0[place])));
    }

    /// Returns the share that was said and the present one, if they differ for long enough.
    fn share(&mut self, share: f64) -> Option<(f64, f64)> {
        let before = *self.said_share.get_or_insert(share);
        if (share - before).abs() < NOTED_SHARE {
            self.other_looks = 0;
            return None;
        }
        self.other_looks += 1;
        if self.other_looks < LOOKS {
            return None;
        }
        (self.said_share, self.other_looks) = (Some(share), 0);
        Some((before, share))
    }

    /// Returns the rates of the last `count` looks, the oldest first.
    pub(super) fn last(&self, count: usize) -> impl Iterator<Item = f64> {
        self.rates.iter().skip(self.rates.len().saturating_sub(count)).copied()
    }

    /// Returns the latency that this part of the recent writes did not exceed, in microseconds.
    pub(super) fn latency(&self, part: f64) -> Option<f64> {
        self.recent.quantile(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_said_once_it_has_been_another_one_for_some_looks() {
        let mut history = History::default();
        let mut said = |share| history.share(share).map(|(before, now)| (before * 100.0, now * 100.0));
        for share in [0.5, 0.55, 0.9, 0.9, 0.5, 0.7, 0.7, 0.7] {
            assert_eq!(said(share), None, "{share}");
        }
        assert_eq!(said(0.7), Some((50.0, 70.0)));
        assert_eq!(said(0.7), None);
    }

    #[test]
    fn latencies_are_those_of_the_last_seconds() {
        let mut history = History::default();
        let mut rail = JobRail::default();
        let second = 1_000_000_000;
        for look in 0..30_u64 {
            // Slow writes at first, fast ones later.
            rail.sum.latencies.0[if look < 10 { 14 } else { 4 }] += 1;
            history.take(&rail, look * second);
        }
        assert!(history.latency(0.99).is_some_and(|latency| latency <= 32.0));
        assert_eq!(history.latencies.len(), 11);
        for look in 30..50 {
            history.take(&rail, look * second);
        }
        assert_eq!(history.latency(0.5), None, "nothing was written lately");
        assert_eq!(history.last(3).collect::<Vec<_>>(), [0.0; 3]);
    }
}
