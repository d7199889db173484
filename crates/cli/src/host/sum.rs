//! Rails that are shown as one.

use super::rates::Rate;
use railweave_telemetry::{Latencies, Policy, Rail, RailState};
use std::collections::BTreeMap;

/// The sum of rails.
#[derive(Clone, Debug, Default)]
pub(crate) struct RailSum {
    /// The number of rails in each state, and under each policy.
    pub(crate) states: [u32; RailState::ALL.len()],
    pub(crate) policies: [u32; Policy::ALL.len()],
    /// The last time at which one of them changed its state, in nanoseconds since 1970.
    pub(crate) since_ns: Option<u64>,
    pub(crate) speed_mbps: Option<u32>,
    /// The sum of their shares, 0 to 1 each, and the number of rails that have one.
    shares: (f64, u32),
    /// Bytes per second; `None` if no rail has a rate.
    pub(crate) rate: Option<Rate>,
    pub(crate) in_flight: Option<u64>,
    pub(crate) bytes_sent: u64,
    pub(crate) writes_sent: u64,
    pub(crate) cts_writes: u64,
    pub(crate) bytes_received: u64,
    pub(crate) waited_for_cts: Option<u64>,
    pub(crate) retransmitted: u64,
    pub(crate) failovers: u64,
    pub(crate) latencies: Latencies,
}

impl RailSum {
    /// Adds a rail and its rate.
    pub(crate) fn add(&mut self, rail: &Rail, rate: Option<Rate>) {
        self.states[rail.state as usize] += 1;
        self.policies[rail.policy as usize] += 1;
        self.since_ns = self.since_ns.max(Some(rail.since_ns).filter(|since_ns| *since_ns > 0));
        self.speed_mbps = self.speed_mbps.or(rail.speed_mbps);
        if let Some(share) = rail.share {
            self.shares = (self.shares.0 + f64::from(share.min(65_536)) / 65_536.0, self.shares.1 + 1);
        }
        if let Some(Rate { sent, received }) = rate {
            let sum = self.rate.get_or_insert_default();
            (sum.sent, sum.received) = (sum.sent + sent, sum.received + received);
        }
        add(&mut self.in_flight, rail.in_flight);
        add(&mut self.waited_for_cts, rail.waited_for_cts);
        for (sum, more) in [
            (&mut self.bytes_sent, rail.bytes_sent),
            (&mut self.writes_sent, rail.writes_sent),
            (&mut self.cts_writes, rail.cts_writes),
            (&mut self.bytes_received, rail.bytes_received),
            (&mut self.retransmitted, rail.retransmitted),
            (&mut self.failovers, rail.failovers.into()),
        ] {
            *sum = sum.saturating_add(more);
        }
        self.latencies.merge(&rail.latencies);
    }

    /// Returns the mean of the shares that are known, 0 to 1.
    pub(crate) fn mean_share(&self) -> Option<f64> {
        (self.shares.1 > 0).then(|| self.shares.0 / f64::from(self.shares.1))
    }

    /// Returns the number of rails in a state.
    pub(crate) fn in_state(&self, state: RailState) -> u32 {
        self.states[state as usize]
    }

    /// Returns the number of rails by the word of their state, and by that of their policy.
    pub(crate) fn words(&self) -> [BTreeMap<&'static str, u32>; 2] {
        let states = RailState::ALL.iter().map(|state| (state.word(), self.states[*state as usize]));
        let policies = Policy::ALL.iter().map(|policy| (policy.word(), self.policies[*policy as usize]));
        [states.filter(|(_, count)| *count > 0).collect(), policies.filter(|(_, count)| *count > 0).collect()]
    }
}

fn add(sum: &mut Option<u64>, more: Option<u64>) {
    if let Some(more) = more {
        *sum = Some(sum.unwrap_or(0).saturating_add(more));
    }
}

/// Returns the number of times that each word comes.
pub(crate) fn counted<'a>(words: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, u32> {
    let mut counts = BTreeMap::new();
    words.for_each(|word| *counts.entry(word).or_default() += 1);
    counts
}
