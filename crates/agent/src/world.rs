//! The jobs of the host, as their telemetry files show them.

use crate::arena::Arena;
use crate::ports::{PortUse, SHORTEST};
use crate::process::{Change, Life, Process};
use crate::series::{Group, GroupKey, Series, SeriesKey};
use crate::time::Now;
use railweave_telemetry::{EventKind, Presence, RailState, Snapshot};
use std::collections::BTreeMap;
use std::time::Duration;

/// The time for which a series stays after the last process that used it.
const KEPT: Duration = Duration::from_secs(900);

/// The most rails of a user, and the most connections: more than any host's jobs have, and few enough for the agent's
/// memory.
const MOST_RAILS: usize = 100_000;

/// The time between two looks for jobs that are over.
const SWEEP: Duration = Duration::from_secs(60);

/// The most series of a user for rails that have none of their own: the product of the most rails of a connection and
/// the ports of a large host.
const MOST_OTHERS: usize = 64;

/// The text that stands for names in series that had no room of their own.
pub(crate) const OTHER: &str = "(other)";

/// A file: the user whose run dir it is in, and its name.
pub(crate) type FileKey = (u32, String);

/// All processes, and the sums of their traffic.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) processes: BTreeMap<FileKey, Process>,
    pub(crate) series: Arena<SeriesKey, Series>,
    pub(crate) groups: Arena<GroupKey, Group>,
    /// Events by user, job and kind.
    pub(crate) events: BTreeMap<(u32, String, String), u64>,
    most_series: usize,
    /// The rails that have no series of their own, in all looks so far.
    pub(crate) left_out: u64,
    /// By user, the series for rails that have none of their own.
    others: BTreeMap<u32, usize>,
    /// By user and job of events, the last time at which a process had it; and the time of the last look at all.
    jobs: BTreeMap<(u32, String), Duration>,
    swept: Duration,
    last_up: Option<Duration>,
    /// The time over which rates are not yet computed.
    period: Duration,
}

impl World {
    pub(crate) fn new(most_series: usize) -> Self {
        Self { most_series, ..Self::default() }
    }

    pub(crate) fn set_most_series(&mut self, most: usize) {
        self.most_series = most;
    }

    /// Returns the reason why a file cannot be taken in, if there is one: the end of a sentence that begins with it.
    pub(crate) fn objection(&self, file: &FileKey, snapshot: &Snapshot) -> Option<String> {
        let (mut rails, mut connections) = (snapshot.state.rails.len(), snapshot.state.connections.len());
        for (_, process) in self.processes.iter().filter(|(key, _)| key.0 == file.0 && *key != file) {
            rails += process.rails().len();
            connections += process.connections().len();
        }
        (rails.max(connections) > MOST_RAILS).then(|| {
            format!(
                "is one too many: its user has {rails} rails and {connections} connections here; allowed: \
                 {MOST_RAILS} of each; try fewer connections"
            )
        })
    }

    /// Takes in a process's file that was written. With `is_old`, the process ran before the agent began: what it has
    /// counted so far does not count again, so that a restart of the agent repeats nothing.
    pub(crate) fn take(&mut self, file: FileKey, snapshot: &Snapshot, presence: Presence, is_old: bool, now: Now) {
        let Snapshot { state, events, written_ns, .. } = snapshot;
        let user = file.0;
        let mut process = self.processes.remove(&file).unwrap_or_else(|| Process::new(&state.process));
        let is_baseline = is_old && process.is_new();
        let job = &process.facts.job;
        let mut has_room = false;
        if process.is_new() {
            // A count that begins at 1 is no increase to who only sees its later values.
            for (_, word) in EventKind::ALL {
                has_room |= self.count_event(user, job, (*word).to_owned(), 0);
            }
        }
        for event in events.iter().filter(|_| !is_baseline) {
            has_room |= self.count_event(user, job, event.kind.to_string(), 1);
        }
        // Jobs whose events have no room of their own may be any number.
        if has_room {
            self.jobs.insert((user, job.clone()), now.up);
        }
        process.note_written(*written_ns, presence, now.up);
        let changes = process.take(state, is_baseline);
        let taken = changes.len();
        process.left_out = process.left_out.saturating_add(snapshot.left_out[2]);
        for connection in &state.connections {
            let find = || self.find_group(GroupKey::of(user, state, connection), now);
            let (group, messages, waited) = process.take_connection(connection, find);
            if let Some(group) = self.groups.get_mut(group) {
                group.messages = group.messages.saturating_add(messages);
                group.waited_for_cts = group.waited_for_cts.saturating_add(waited);
            }
        }
        for Change { place, update } in changes {
            let known = process.series_at(place);
            let series = known.or_else(|| {
                let rail = &state.rails[place.rail_index];
                let group = self.groups.get(process.group_of(rail.connection)?)?.0.clone();
                let series = self.find_series(SeriesKey::of(group, state, rail), now);
                process.set_series(place, series);
                Some(series)
            });
            if let Some(series) = series.and_then(|series| self.series.get_mut(series)) {
                series.add(&update, now.up);
            }
        }
        process.retire(state, taken);
        self.processes.insert(file, process);
    }

    /// Notes that a file was not written since the last look.
    pub(crate) fn keep(&mut self, file: &FileKey, presence: Presence) {
        if let Some(process) = self.processes.get_mut(file) {
            process.presence = presence;
        }
    }

    /// Notes that a file cannot be used.
    pub(crate) fn refuse(&mut self, file: &FileKey) {
        if let Some(process) = self.processes.get_mut(file) {
            process.is_refused = true;
        }
    }

    /// Forgets a file that is gone.
    pub(crate) fn forget(&mut self, file: &FileKey) {
        self.processes.remove(file);
    }

    /// Ends a look: computes rates and gauges, and removes what nobody has used for long.
    pub(crate) fn finish(&mut self, now: Now) {
        let is_first = self.last_up.is_none();
        let period = self.last_up.replace(now.up).map_or(Duration::ZERO, |last| now.up.saturating_sub(last));
        for process in self.processes.values_mut() {
            process.judge(now.up);
        }
        self.series.values_mut().for_each(Series::begin_gauges);
        self.groups.values_mut().for_each(Group::begin_gauges);
        for process in self.processes.values() {
            let is_live = process.life != Life::Gone && !process.is_refused;
            for rail in process.rails() {
                if let Some(series) = self.series.get_mut(rail.series) {
                    series.count(rail, is_live, now.up);
                }
            }
            for connection in process.connections() {
                if let Some(group) = self.groups.get_mut(connection.group) {
                    group.count(connection, is_live, now.up);
                }
            }
        }
        self.period += period;
        // The first look only has a time. One that soon follows another counts with the next one.
        if is_first || self.period >= SHORTEST {
            let period = std::mem::take(&mut self.period);
            self.series.values_mut().for_each(|series| series.finish(period));
        }
        self.series.retain(|series| now.up.saturating_sub(series.used) <= KEPT);
        self.groups.retain(|group| now.up.saturating_sub(group.used) <= KEPT);
        if now.up.saturating_sub(self.swept) >= SWEEP {
            self.sweep(now.up);
        }
    }

    /// Returns the use of ports whose names are not known: files of an older version have none, rails beyond the series
    /// lose them, and others had no room in the file.
    pub(crate) fn nameless(&self) -> PortUse {
        let mut usage = PortUse::default();
        for (key, series) in self.series.iter().filter(|(key, _)| key.port.is_empty()) {
            usage.add(key, series, self.last_up.unwrap_or_default());
        }
        let live = self.processes.values().filter(|process| process.life != Life::Gone && !process.is_refused);
        let up = &mut usage.states[RailState::Up as usize];
        *up = live.map(|process| process.left_out).fold(*up, u32::saturating_add);
        usage
    }

    /// Forgets the events of jobs that are over, and counts the series of others again.
    fn sweep(&mut self, up: Duration) {
        self.swept = up;
        for ((user, _), process) in &self.processes {
            if let Some(used) = self.jobs.get_mut(&(*user, process.facts.job.clone())) {
                *used = up;
            }
        }
        self.jobs.retain(|_, used| up.saturating_sub(*used) <= KEPT);
        let jobs = &self.jobs;
        let mut key = (0, String::new());
        self.events.retain(|(user, job, _), _| {
            if (key.0, &key.1) != (*user, job) {
                key = (*user, job.clone());
            }
            job == OTHER || jobs.contains_key(&key)
        });
        self.others.clear();
        for (key, _) in self.series.iter().filter(|(key, _)| key.group.job == OTHER) {
            *self.others.entry(key.group.user).or_default() += 1;
        }
    }

    /// Counts an event. Returns true if those of its kind and job have room of their own.
    fn count_event(&mut self, user: u32, job: &str, kind: String, count: u64) -> bool {
        let mut key = (user, job.to_owned(), kind);
        // Jobs and kinds that nobody knows are many only if a process makes them up.
        let has_room = self.events.contains_key(&key) || self.events.len() < self.most_series;
        if !has_room {
            key = (user, OTHER.to_owned(), OTHER.to_owned());
        }
        *self.events.entry(key).or_default() += count;
        has_room
    }

    /// Returns the number of a group, which is made if it is new.
    fn find_group(&mut self, mut key: GroupKey, now: Now) -> usize {
        if self.groups.find(&key).is_none() && self.groups.len() >= self.most_series {
            key = key.without_names(OTHER);
        }
        self.groups.find(&key).unwrap_or_else(|| self.groups.add(key, Group { used: now.up, ..Group::default() }))
    }

    /// Returns the number of a series, which is made if it is new.
    fn find_series(&mut self, mut key: SeriesKey, now: Now) -> usize {
        if let Some(number) = self.series.find(&key) {
            return number;
        }
        if self.series.len() >= self.most_series {
            key.group = key.group.without_names(OTHER);
            self.left_out += 1;
            let others = self.others.entry(key.group.user).or_default();
            // Rails and ports stay apart, so that it is known when a port is empty; but their names can be made up too.
            if self.series.find(&key).is_none() && *others >= MOST_OTHERS {
                (key.rail, key.port) = (0, String::new());
            }
            if let Some(number) = self.series.find(&key) {
                return number;
            }
            *others += 1;
        }
        self.series.add(key, Series::new(now.up))
    }
}
