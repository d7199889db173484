//! The sums of rails and connections that the metrics and policies see as one.

use crate::process::{COUNTERS, TrackedConnection, TrackedRail, Update};
use railweave_telemetry::{BUCKETS, Connection, ConnectionState, Direction, Policy, Rail, RailState, State};
use std::time::Duration;

/// The connections of a user's job to one peer's host by one device.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct GroupKey {
    pub(crate) user: u32,
    /// The job's id; empty if it is not known.
    pub(crate) job: String,
    pub(crate) peer_host: String,
    pub(crate) device: String,
}

impl GroupKey {
    pub(crate) fn of(user: u32, state: &State, connection: &Connection) -> Self {
        let device = connection.device.and_then(|device| state.devices.get(device as usize));
        Self {
            user,
            job: state.process.job.clone(),
            peer_host: connection.peer_host.clone(),
            device: device.map(|device| device.name.clone()).unwrap_or_default(),
        }
    }

    /// Returns the key under which groups are summed that have no room of their own.
    pub(crate) fn without_names(&self, name: &str) -> Self {
        Self { user: self.user, job: name.to_owned(), peer_host: name.to_owned(), device: name.to_owned() }
    }
}

/// The rails of one number and port in a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SeriesKey {
    pub(crate) group: GroupKey,
    pub(crate) rail: u8,
    /// The name of this end's port; empty if it is not known.
    pub(crate) port: String,
}

impl SeriesKey {
    pub(crate) fn of(group: GroupKey, state: &State, rail: &Rail) -> Self {
        let port = state.port_of(rail).map(|port| port.name.clone()).unwrap_or_default();
        Self { group, rail: rail.number, port }
    }
}

/// The connections of a group.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// Receives that were posted.
    pub(crate) messages: u64,
    pub(crate) waited_for_cts: u64,
    /// Open connections by direction and state.
    pub(crate) states: [[u32; ConnectionState::ALL.len()]; Direction::ALL.len()],
    /// The last time at which a process had a connection of it.
    pub(crate) used: Duration,
}

impl Group {
    pub(crate) fn begin_gauges(&mut self) {
        self.states = Default::default();
    }

    pub(crate) fn count(&mut self, connection: &TrackedConnection, is_live: bool, up: Duration) {
        self.used = up;
        if is_live {
            self.states[connection.direction as usize][connection.state as usize] += 1;
        }
    }
}

/// The rails of a series.
#[derive(Debug)]
pub(crate) struct Series {
    /// All counts: sent, received, writes, CTS, retransmitted parts, failovers.
    pub(crate) counters: [u64; COUNTERS],
    pub(crate) latencies: [u64; BUCKETS],
    pub(crate) in_flight: u64,
    /// Rails by state.
    pub(crate) states: [u32; RailState::ALL.len()],
    pub(crate) speed_mbps: Option<u32>,
    /// Bytes per second that were sent and received lately, smoothed.
    pub(crate) sent_rate: f64,
    pub(crate) received_rate: f64,
    /// The bytes per second that were sent in the last look, not smoothed.
    pub(crate) sent_now: f64,
    /// The bytes that were sent and received since the last look.
    window: [u64; 2],
    /// The part of its senders that follow a policy file.
    pub(crate) senders: u32,
    pub(crate) steered: u32,
    /// The last time at which a rail of it sent data or CTS, and at which one received data.
    pub(crate) sent_at: Option<Duration>,
    pub(crate) received_at: Option<Duration>,
    /// The last time at which a process had a rail of it.
    pub(crate) used: Duration,
}

/// The part of a rate that the last second decides.
const SMOOTHING: f64 = 0.5;

impl Series {
    pub(crate) fn new(up: Duration) -> Self {
        Self {
            counters: [0; COUNTERS],
            latencies: [0; BUCKETS],
            in_flight: 0,
            states: Default::default(),
            speed_mbps: None,
            sent_rate: 0.0,
            received_rate: 0.0,
            sent_now: 0.0,
            window: [0; 2],
            senders: 0,
            steered: 0,
            sent_at: None,
            received_at: None,
            used: up,
        }
    }

    /// Adds the counts that a rail has gained.
    pub(crate) fn add(&mut self, update: &Update, up: Duration) {
        for (sum, more) in self.counters.iter_mut().zip(update.counters) {
            *sum = sum.saturating_add(more);
        }
        for (sum, more) in self.latencies.iter_mut().zip(update.latencies) {
            *sum = sum.saturating_add(more.into());
        }
        let [sent, received, writes, cts, ..] = update.counters;
        self.window[0] = self.window[0].saturating_add(sent);
        self.window[1] = self.window[1].saturating_add(received);
        if sent > 0 || writes > 0 || cts > 0 {
            self.sent_at = Some(up);
        }
        if received > 0 {
            self.received_at = Some(up);
        }
    }

    pub(crate) fn begin_gauges(&mut self) {
        (self.in_flight, self.states, self.speed_mbps, self.senders, self.steered) =
            (0, Default::default(), None, 0, 0);
    }

    /// Counts a rail of a process; one that is gone only keeps the series.
    pub(crate) fn count(&mut self, rail: &TrackedRail, is_live: bool, up: Duration) {
        self.used = up;
        if !is_live {
            return;
        }
        self.in_flight = self.in_flight.saturating_add(rail.in_flight);
        self.states[rail.state as usize] += 1;
        self.speed_mbps = self.speed_mbps.max(rail.speed_mbps);
        // One that was never up has no port yet, and sends nothing: it says nothing about the group's rails.
        let is_sender = rail.is_sender && rail.state != RailState::NeverUp;
        self.senders += u32::from(is_sender);
        self.steered += u32::from(is_sender && rail.policy == Policy::Agent);
    }

    /// Computes the rates of the time that ends now.
    pub(crate) fn finish(&mut self, period: Duration) {
        let [sent, received] = std::mem::take(&mut self.window);
        let seconds = period.as_secs_f64();
        if seconds > 0.0 {
            self.sent_now = sent as f64 / seconds;
            let part = 1.0 - (1.0 - SMOOTHING).powf(seconds);
            self.sent_rate += (sent as f64 / seconds - self.sent_rate) * part;
            self.received_rate += (received as f64 / seconds - self.received_rate) * part;
            // A rate that only fades away is none.
            self.sent_rate = if self.sent_rate < 1.0 { 0.0 } else { self.sent_rate };
            self.received_rate = if self.received_rate < 1.0 { 0.0 } else { self.received_rate };
        }
    }

    /// Returns the number of rails in a state.
    pub(crate) fn in_state(&self, state: RailState) -> u32 {
        self.states[state as usize]
    }
}
