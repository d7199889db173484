//! The past of each rail: rates for its sparkline, recent latencies, and the share that was said last.

use super::key::Key;
use crate::host::{Job, JobRail};
use railweave_telemetry::Latencies;
use std::collections::{HashMap, VecDeque};

/// The most looks that a sparkline shows.
pub(super) const MOST_RATES: usize = 120;

/// The time over which latencies are recent, and the time whose latencies are kept as one, in nanoseconds.
const RECENT_NS: u64 = 10_000_000_000;
const KEPT_NS: u64 = 1_000_000_000;

/// The time for which a share has to be another one until it is worth an event, in nanoseconds.
const LASTING_NS: u64 = 2_000_000_000;

/// The change of a share that is worth an event.
const NOTED_SHARE: f64 = 0.1;

/// The looks for which it has to be, too.
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
    /// The latencies since some times, the oldest first.
    latencies: VecDeque<(u64, Latencies)>,
    said_share: Option<f64>,
    /// The looks since the share is another one, and the time of the first.
    other_looks: u32,
    other_since_ns: u64,
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
                    let change = rail.share.filter(|_| moves).and_then(|share| history.share(share, now_ns));
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
        if rail.fresh.count() > 0 {
            match self.latencies.back_mut() {
                Some((since_ns, latencies)) if now_ns.saturating_sub(*since_ns) < KEPT_NS => {
                    latencies.merge(&rail.fresh);
                }
                _ => self.latencies.push_back((now_ns, rail.fresh)),
            }
        }
        while self.latencies.front().is_some_and(|(since_ns, _)| now_ns.abs_diff(*since_ns) > RECENT_NS) {
            self.latencies.pop_front();
        }
    }

    /// Returns the share that was said and the present one, if they differ for long enough.
    fn share(&mut self, share: f64, now_ns: u64) -> Option<(f64, f64)> {
        let before = *self.said_share.get_or_insert(share);
        if (share - before).abs() < NOTED_SHARE {
            self.other_looks = 0;
            return None;
        }
        if self.other_looks == 0 {
            self.other_since_ns = now_ns;
        }
        self.other_looks += 1;
        if self.other_looks < LOOKS || now_ns.saturating_sub(self.other_since_ns) < LASTING_NS {
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
        let mut recent = Latencies::default();
        self.latencies.iter().for_each(|(_, latencies)| recent.merge(latencies));
        recent.quantile(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_share_is_said_once_it_has_been_another_one_for_some_time() {
        let mut history = History::default();
        let mut now_ns = 0;
        let mut said = |share, after_ns: u64| {
            now_ns += after_ns;
            history.share(share, now_ns).map(|(before, now)| (before * 100.0, now * 100.0))
        };
        for share in [0.5, 0.55, 0.9, 0.9, 0.5, 0.7, 0.7, 0.7] {
            assert_eq!(said(share, SECOND), None, "{share}");
        }
        assert_eq!(said(0.7, SECOND), Some((50.0, 70.0)));
        assert_eq!(said(0.7, SECOND), None);
        // Many looks at what may be one write.
        assert!((0..199).all(|_| said(0.2, SECOND / 100).is_none()));
        assert_eq!((said(0.2, SECOND / 100), said(0.2, SECOND)), (None, Some((70.0, 20.0))));
    }

    #[test]
    fn latencies_are_those_of_the_last_seconds_however_often_it_is_looked() {
        for looks_per_s in [1, 10, 100] {
            let mut history = History::default();
            let mut look = |second: u64, bucket: usize, count: u32| {
                let mut rail = JobRail::default();
                rail.fresh.0[bucket] = count;
                (0..looks_per_s).for_each(|look| history.take(&rail, second * SECOND + look * SECOND / looks_per_s));
                history.latency(0.99)
            };
            // Slow writes at first, fast ones later.
            (0..10).for_each(|second| assert!(look(second, 14, 1).is_some_and(|latency| latency > 10_000.0)));
            let last = (10..22).map(|second| look(second, 4, 1)).last();
            assert!(last.flatten().is_some_and(|latency| latency <= 32.0), "{looks_per_s}: {last:?}");
            assert_eq!(look(40, 4, 0), None, "nothing was written lately");
            assert_eq!(history.last(3).collect::<Vec<_>>().len(), 3);
        }
    }
}
