//! One process: its counters at the last look.

use railweave_telemetry::{
    BUCKETS, Connection, ConnectionState, Direction, Policy, Presence, Process as Facts, RailState, SILENT, State,
};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// The time without a write after which a process that nobody can look for from here counts as gone.
const GIVEN_UP: Duration = Duration::from_secs(300);

/// The presence of a process as a reader judges it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Life {
    Running,
    /// It may run, but has not written for long: it is stopped, or hangs.
    Silent,
    Gone,
    /// It belongs to another container or host.
    Unknown,
}

impl Life {
    pub(crate) const ALL: [Self; 4] = [Self::Running, Self::Silent, Self::Gone, Self::Unknown];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Silent => "silent",
            Self::Gone => "gone",
            Self::Unknown => "unknown",
        }
    }
}

/// The counters of a rail: sent, received, writes, CTS, retransmitted parts, failovers.
pub(crate) const COUNTERS: usize = 6;

/// A rail of a process at the last look.
#[derive(Clone, Debug)]
pub(crate) struct TrackedRail {
    /// The place of its series; not yet known if it is [`NO_SERIES`].
    pub(crate) series: usize,
    counters: [u64; COUNTERS],
    latencies: [u32; BUCKETS],
    pub(crate) state: RailState,
    pub(crate) policy: Policy,
    pub(crate) is_sender: bool,
    pub(crate) in_flight: u64,
    pub(crate) speed_mbps: Option<u32>,
}

const NO_SERIES: usize = usize::MAX;

/// The counts that a rail has gained between two looks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Update {
    pub(crate) counters: [u64; COUNTERS],
    pub(crate) latencies: [u32; BUCKETS],
}

/// The place of a rail: in the process, and in the list of the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    id: (u32, u8),
    pub(crate) rail_index: usize,
}

/// The counts that a rail has gained.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) place: Place,
    pub(crate) update: Update,
}

/// A connection of a process at the last look.
#[derive(Clone, Debug)]
pub(crate) struct TrackedConnection {
    /// The number of its group.
    pub(crate) group: usize,
    pub(crate) direction: Direction,
    pub(crate) state: ConnectionState,
    messages: u64,
    waited: u64,
}

/// A process at the last look.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) facts: Facts,
    pub(crate) presence: Presence,
    pub(crate) life: Life,
    /// The time at which its file was found to be written again.
    pub(crate) written: Duration,
    written_ns: u64,
    rails: HashMap<(u32, u8), TrackedRail>,
    connections: HashMap<u32, TrackedConnection>,
    /// The rails that may send but had no room in its file, or whose connections had none.
    pub(crate) left_out: u32,
    /// True while its file cannot be used: what it has counted stays, so that it does not count again later.
    pub(crate) is_refused: bool,
    /// True until its first counters were taken.
    is_new: bool,
    /// True if the counters of the present look are only noted.
    is_baseline: bool,
}

impl Process {
    pub(crate) fn new(facts: &Facts) -> Self {
        Self {
            facts: facts.clone(),
            presence: Presence::Unknown,
            life: Life::Unknown,
            written: Duration::ZERO,
            written_ns: 0,
            rails: HashMap::new(),
            connections: HashMap::new(),
            left_out: 0,
            is_refused: false,
            is_new: true,
            is_baseline: false,
        }
    }

    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    pub(crate) fn rails(&self) -> impl ExactSizeIterator<Item = &TrackedRail> {
        self.rails.values()
    }

    pub(crate) fn connections(&self) -> impl ExactSizeIterator<Item = &TrackedConnection> {
        self.connections.values()
    }

    pub(crate) fn note_written(&mut self, written_ns: u64, presence: Presence, up: Duration) {
        (self.presence, self.is_refused) = (presence, false);
        if written_ns != self.written_ns {
            (self.written_ns, self.written) = (written_ns, up);
        }
    }

    /// Decides if the process runs, is silent or is gone. Its clock is not trusted: only looks that found a new write.
    pub(crate) fn judge(&mut self, up: Duration) {
        let silence = up.saturating_sub(self.written);
        let is_silent = silence > SILENT;
        self.life = match self.presence {
            Presence::Gone => Life::Gone,
            _ if self.is_refused => Life::Unknown,
            Presence::Running if is_silent => Life::Silent,
            Presence::Running => Life::Running,
            // Nobody can tell from here whether it has ended; but a process that runs writes, and its file stays.
            Presence::Unknown if silence > GIVEN_UP => Life::Gone,
            Presence::Unknown if is_silent => Life::Silent,
            Presence::Unknown => Life::Unknown,
        };
    }

    /// Takes in the rails of a file. Returns the counts that each has gained. With `is_baseline`, counts so far count
    /// for nothing.
    pub(crate) fn take(&mut self, state: &State, is_baseline: bool) -> Vec<Change> {
        let senders: HashMap<u32, bool> =
            state.connections.iter().map(|it| (it.number, it.direction == Direction::Send)).collect();
        (self.is_new, self.is_baseline, self.left_out) = (false, is_baseline, 0);
        let mut changes = Vec::with_capacity(state.rails.len());
        for (rail_index, rail) in state.rails.iter().enumerate() {
            // A rail whose connection had no room in the file belongs to nothing.
            let Some(is_sender) = senders.get(&rail.connection) else {
                self.left_out += u32::from(matches!(rail.state, RailState::Up | RailState::Suspected));
                continue;
            };
            let counters = [
                rail.bytes_sent,
                rail.bytes_received,
                rail.writes_sent,
                rail.cts_writes,
                rail.retransmitted,
                rail.failovers.into(),
            ];
            let id = (rail.connection, rail.number);
            let tracked = self.rails.entry(id).or_insert_with(|| TrackedRail {
                series: NO_SERIES,
                counters: if is_baseline { counters } else { [0; COUNTERS] },
                latencies: if is_baseline { rail.latencies.0 } else { [0; BUCKETS] },
                state: rail.state,
                policy: rail.policy,
                is_sender: *is_sender,
                in_flight: 0,
                speed_mbps: None,
            });
            // A counter that goes back is a file that lies: it counts for nothing.
            let update = Update {
                counters: std::array::from_fn(|place| counters[place].saturating_sub(tracked.counters[place])),
                latencies: std::array::from_fn(|place| {
                    rail.latencies.0[place].saturating_sub(tracked.latencies[place])
                }),
            };
            (tracked.counters, tracked.latencies) = (counters, rail.latencies.0);
            (tracked.state, tracked.policy) = (rail.state, rail.policy);
            tracked.in_flight = rail.in_flight.unwrap_or(0);
            tracked.speed_mbps = rail.speed_mbps;
            changes.push(Change { place: Place { id, rail_index }, update });
        }
        changes
    }

    pub(crate) fn series_at(&self, place: Place) -> Option<usize> {
        self.rails.get(&place.id).map(|rail| rail.series).filter(|series| *series != NO_SERIES)
    }

    pub(crate) fn set_series(&mut self, place: Place, series: usize) {
        if let Some(rail) = self.rails.get_mut(&place.id) {
            rail.series = series;
        }
    }

    /// Forgets rails and connections that are not in the file any more, of which it took in this many rails.
    pub(crate) fn retire(&mut self, state: &State, taken: usize) {
        if self.connections.len() != state.connections.len() {
            let present: HashSet<u32> = state.connections.iter().map(|connection| connection.number).collect();
            self.connections.retain(|number, _| present.contains(number));
        }
        if self.rails.len() != taken {
            let present: HashSet<(u32, u8)> = state.rails.iter().map(|rail| (rail.connection, rail.number)).collect();
            let connections = &self.connections;
            self.rails.retain(|id, _| present.contains(id) && connections.contains_key(&id.0));
        }
    }

    /// Takes in a connection of a file, whose group `find` returns if it is new here. Returns its group, and the
    /// receives and the waits for CTS that it has gained.
    pub(crate) fn take_connection(
        &mut self,
        connection: &Connection,
        find: impl FnOnce() -> usize,
    ) -> (usize, u64, u64) {
        let now = (connection.messages.unwrap_or(0), connection.waited_for_cts);
        let is_baseline = self.is_baseline;
        let tracked = self.connections.entry(connection.number).or_insert_with(|| TrackedConnection {
            group: find(),
            direction: connection.direction,
            state: connection.state,
            messages: if is_baseline { now.0 } else { 0 },
            waited: if is_baseline { now.1 } else { 0 },
        });
        let gained = (now.0.saturating_sub(tracked.messages), now.1.saturating_sub(tracked.waited));
        (tracked.messages, tracked.waited, tracked.state) = (now.0, now.1, connection.state);
        (tracked.group, gained.0, gained.1)
    }

    /// Returns the group of a connection that was taken in.
    pub(crate) fn group_of(&self, connection: u32) -> Option<usize> {
        self.connections.get(&connection).map(|tracked| tracked.group)
    }
}
