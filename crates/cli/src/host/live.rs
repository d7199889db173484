//! The telemetry files of run dirs, followed at the cost of their changes.

use super::followed::{Followed, Seen};
use super::jobs::{Job, Source, jobs};
use super::rates::{ByRail, Counts, Rates, id, seconds_since};
use railweave_telemetry::{Event, Files, Folder, Latencies, Presence, Snapshot, State};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The time over which rates are, at least: those of a shorter time jump too much to be read.
const RATE_NS: u64 = 400_000_000;

/// The longest time for which a look reads files: those that are left come first in the next one.
const LONGEST: Duration = Duration::from_millis(200);

/// The most rails that are followed, and the most of one user; and as many connections. A file has up to 65,536.
const MOST_RAILS: usize = 300_000;
const MOST_OF_A_USER: usize = 100_000;

/// The most rails of a file for which more counts than three are kept, and the room of its last content.
const MANY_RAILS: usize = 4096;

/// The rails and connections by which the room of a file's last content may be larger than the present one.
const FEW_RAILS: usize = 64;

/// The most events of a file that are taken in at once: whoever begins to look wants the last ones.
const MOST_EVENTS: usize = 256;

/// Something that a process has noted.
#[derive(Clone, Debug)]
pub(crate) struct Noted {
    /// The process: its rank, or its process id.
    pub(crate) process: String,
    /// Its job; empty if it is not known.
    pub(crate) job: String,
    /// The path of its file, which no other process has.
    pub(crate) file: String,
    pub(crate) event: Event,
}

/// The files of run dirs.
#[derive(Default)]
pub(crate) struct Live {
    folders: BTreeMap<PathBuf, RunDirFiles>,
    /// The files that were read last: the folder's path and the file's name.
    last: Option<(PathBuf, String)>,
    buffer: Vec<u8>,
}

/// A run dir.
#[derive(Default)]
struct RunDirFiles {
    folder: Option<Folder>,
    /// The reason why it cannot be used, or is not used as a whole: a sentence.
    trouble: Option<String>,
    files: BTreeMap<String, File>,
}

/// A file.
struct File {
    path: String,
    followed: Followed,
    snapshot: Option<Snapshot>,
    /// The counts at its last writes, as many as rates need.
    counts: VecDeque<Counts>,
    /// The latencies of each rail that came since the last look.
    fresh: ByRail<Latencies>,
    presence: Presence,
    /// The reason why it cannot be used: the end of a sentence that begins with it.
    trouble: Option<String>,
}

impl Live {
    /// Looks at all files of these folders. Returns the events that are new, the oldest first.
    pub(crate) fn look(&mut self, run_dirs: &[PathBuf]) -> Vec<Noted> {
        let wanted: BTreeSet<&PathBuf> = run_dirs.iter().collect();
        self.folders.retain(|path, _| wanted.contains(path));
        self.folders.values_mut().flat_map(|followed| followed.files.values_mut()).for_each(|file| file.fresh.clear());
        let mut names = Vec::new();
        for path in run_dirs {
            let followed = self.folders.entry(path.clone()).or_default();
            names.extend(followed.list(path).into_iter().map(|name| (path.clone(), name)));
        }
        // Those that had no time the last time come first.
        names.sort();
        let first = self.last.as_ref().map_or(0, |last| names.partition_point(|name| name <= last));
        names.rotate_left(first);
        let begin = Instant::now();
        let mut noted = Vec::new();
        for (count, (path, name)) in names.into_iter().enumerate() {
            if count > 0 && begin.elapsed() > LONGEST {
                break;
            }
            if let Some(followed) = self.folders.get_mut(&path)
                && let (Some(folder), Some(file)) = (&followed.folder, followed.files.get_mut(&name))
            {
                file.look(folder, &name, &mut self.buffer, &mut noted);
            }
            self.last = Some((path, name));
        }
        self.bound();
        noted.sort_by_key(|noted| noted.event.time_ns);
        noted
    }

    /// Drops what is too much: a user may write files of any size, and root looks at those of all users.
    fn bound(&mut self) {
        let (mut all, mut of_user) = (0, HashMap::new());
        for followed in self.folders.values_mut() {
            let user = followed.folder.as_ref().map_or(0, Folder::owner);
            let of_user: &mut usize = of_user.entry(user).or_default();
            for file in followed.files.values_mut() {
                let Some(Snapshot { state, .. }) = &file.snapshot else { continue };
                let count = state.rails.len().max(state.connections.len());
                if all + count > MOST_RAILS || *of_user + count > MOST_OF_A_USER {
                    file.drop_snapshot();
                } else {
                    (all, *of_user) = (all + count, *of_user + count);
                }
            }
        }
    }

    /// Returns the jobs at the time `now_ns`.
    pub(crate) fn jobs(&self, now_ns: u64) -> Vec<Job> {
        let mut sources = Vec::new();
        for (run_dir, followed) in &self.folders {
            let user = followed.folder.as_ref().map_or(0, Folder::owner);
            for file in followed.files.values() {
                let Some(snapshot) = &file.snapshot else { continue };
                sources.push(Source {
                    user,
                    run_dir,
                    file: &file.path,
                    state: &snapshot.state,
                    presence: file.presence,
                    written_s_ago: seconds_since(snapshot.written_ns, now_ns),
                    rates: Rates::new(file.counts.front(), snapshot.written_ns, now_ns),
                    fresh: Some(&file.fresh),
                });
            }
        }
        jobs(&sources)
    }

    /// Returns the reasons why folders and files cannot be used, a sentence each.
    pub(crate) fn troubles(&self) -> Vec<String> {
        let mut troubles = Vec::new();
        for followed in self.folders.values() {
            troubles.extend(followed.trouble.clone());
            let files = followed.files.values();
            troubles.extend(files.filter_map(|file| Some(format!("\"{}\" {}", file.path, file.trouble.as_ref()?))));
        }
        troubles
    }
}

impl RunDirFiles {
    /// Opens the folder if it is not open, or not the one at its path any more. Returns the names of its files.
    fn list(&mut self, path: &Path) -> Vec<String> {
        if !self.folder.as_ref().is_some_and(Folder::is_in_place) {
            (self.folder, self.trouble) = (None, None);
            self.files.clear();
            match Folder::open(path) {
                Ok(folder) => self.folder = Some(folder),
                // No job has begun yet.
                Err(error) if error.is_missing() => {}
                Err(error) => self.trouble = Some(error.to_string()),
            }
        }
        let Some(folder) = &self.folder else { return Vec::new() };
        let shown = path.display();
        match folder.files() {
            Ok(Files { names, more }) => {
                self.trouble = more.map(|more| format!("\"{shown}\" {more}"));
                self.files.retain(|name, _| names.binary_search(name).is_ok());
                for name in &names {
                    self.files.entry(name.clone()).or_insert_with(|| File::new(path.join(name).display().to_string()));
                }
                names
            }
            Err(error) => {
                self.trouble = Some(format!(
                    "\"{shown}\" cannot be listed: {error}; allowed: a folder that this user can read; try `ls`"
                ));
                Vec::new()
            }
        }
    }
}

impl File {
    fn new(path: String) -> Self {
        Self {
            path,
            followed: Followed::default(),
            snapshot: None,
            counts: VecDeque::new(),
            fresh: ByRail::default(),
            presence: Presence::Unknown,
            trouble: None,
        }
    }

    /// Looks at the file, and adds its new events.
    fn look(&mut self, folder: &Folder, name: &str, buffer: &mut Vec<u8>, noted: &mut Vec<Noted>) {
        match self.followed.look(folder, name, buffer) {
            Some(Seen::Changed(snapshot, presence)) => {
                self.presence = presence;
                self.take(*snapshot, noted);
            }
            Some(Seen::Kept(presence)) => self.presence = presence,
            Some(Seen::Refused(reason)) => {
                self.trouble = Some(reason);
                self.presence = self.followed.presence().unwrap_or(self.presence);
            }
            None => {}
        }
    }

    /// Forgets the file's content but for the process, because there is no room for it.
    fn drop_snapshot(&mut self) {
        if let Some(Snapshot { state, .. }) = &mut self.snapshot {
            *state = State { process: std::mem::take(&mut state.process), ..State::default() };
        }
        (self.counts, self.fresh) = (VecDeque::new(), ByRail::default());
        self.followed.reuse(Snapshot::default());
        self.trouble = Some(format!(
            "is one too many: rails and connections that are shown are bounded; allowed: {MOST_OF_A_USER} of a user, \
             {MOST_RAILS} of all; try fewer connections"
        ));
    }

    /// Takes in the file as it is now.
    fn take(&mut self, mut snapshot: Snapshot, noted: &mut Vec<Noted>) {
        self.trouble = None;
        let is_same = self.snapshot.as_ref().is_some_and(|before| before.state.process == snapshot.state.process);
        // A clock that is set back would leave nothing to compare with until it has caught up.
        let is_back = self.counts.back().is_some_and(|last| snapshot.written_ns < last.written_ns);
        if !is_same || is_back {
            self.counts.clear();
        }
        // Without counts, the rails before are not known.
        if let Some(before) = self.snapshot.as_ref().filter(|_| is_same && (is_back || !self.counts.is_empty())) {
            self.fresh = fresh(before, &snapshot);
        }
        let process = &snapshot.state.process;
        let name = match process.rank {
            Some(rank) => format!("rank {rank}"),
            None => format!("pid {}", process.pid),
        };
        let skipped = snapshot.events.len().saturating_sub(MOST_EVENTS);
        let events = std::mem::take(&mut snapshot.events).into_iter().skip(skipped);
        let (job, file) = (snapshot.state.process.job.clone(), self.path.clone());
        noted.extend(events.map(|event| Noted { process: name.clone(), job: job.clone(), file: file.clone(), event }));
        self.counts.push_back(Counts::of(&snapshot));
        // The oldest is the last one that is old enough.
        while self.counts.get(1).is_some_and(|next| snapshot.written_ns.saturating_sub(next.written_ns) >= RATE_NS) {
            self.counts.pop_front();
        }
        // A file that lies could make these any number. The oldest stays, and the next
        // ones.
        let most = if snapshot.state.rails.len() > MANY_RAILS { 3 } else { MOST_COUNTS };
        while self.counts.len() > most {
            self.counts.remove(self.counts.len() - 2);
        }
        // Twice the room for many rails would be much, and only that of the present content counts for the bounds.
        let most = size(&snapshot).min(MANY_RAILS) + FEW_RAILS;
        let old = self.snapshot.replace(snapshot).filter(|old| size(old) <= most);
        self.followed.reuse(old.unwrap_or_default());
    }
}

/// Returns the number of rails and connections.
fn size(snapshot: &Snapshot) -> usize {
    snapshot.state.rails.len() + snapshot.state.connections.len()
}

/// Returns the latencies of each rail that came between two states of a process.
fn fresh(before: &Snapshot, now: &Snapshot) -> ByRail<Latencies> {
    let known: ByRail<_> = before.state.rails.iter().map(|rail| (id(rail), rail.latencies)).collect();
    let more = now.state.rails.iter().filter_map(|rail| {
        let before = known.get(id(rail)).copied().unwrap_or_default();
        let more = Latencies(std::array::from_fn(|place| rail.latencies.0[place].saturating_sub(before.0[place])));
        (more.count() > 0).then(|| (id(rail), more))
    });
    more.collect()
}

/// The most counts that are kept of a file: it is written ten times a second.
const MOST_COUNTS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::agent::scratch::Scratch;
    use railweave_telemetry::{Connection, EventKind, Process, Publisher, Rail, RunDir};

    const MS: u64 = 1_000_000;

    /// A process that writes its file at times of its own.
    struct Writer {
        publisher: Publisher,
        state: State,
    }

    impl Writer {
        fn new(dir: &RunDir, id: u8, rails: u32) -> Self {
            let process = Process::of_this_process([id; 16], None, None, |_| None);
            let connection = |number| Connection { number, ..Connection::default() };
            let rail = |connection| Rail { connection, ..Rail::default() };
            let state = State {
                process,
                connections: (0..rails).map(connection).collect(),
                rails: (0..rails).map(rail).collect(),
                ..State::default()
            };
            Self { publisher: Publisher::new(dir.clone(), [id; 16]), state }
        }

        fn write(&mut self, at_ns: u64) {
            assert!(self.publisher.publish(&self.state, at_ns).is_none());
        }

        fn send(&mut self, at_ns: u64, bytes: u64) {
            self.state.rails[0].bytes_sent += bytes;
            self.state.rails[0].latencies.0[3] += 1;
            self.write(at_ns);
        }
    }

    fn first(live: &Live, now_ns: u64) -> (Option<f64>, u64) {
        let rail = &live.jobs(now_ns)[0].peers[0].rails[0];
        (rail.sum.rate.map(|rate| rate.sent), rail.fresh.count())
    }

    #[test]
    fn rates_are_over_some_writes_and_latencies_since_the_last_look() {
        let scratch = Scratch::new("live-rates");
        let dir = RunDir::named(Some(&scratch.path().join("run")));
        let run_dirs = [dir.path().to_owned()];
        let mut live = Live::default();
        assert!(live.look(&run_dirs).is_empty() && live.troubles().is_empty() && live.jobs(0).is_empty());
        dir.make().unwrap();
        let mut writer = Writer::new(&dir, 1, 1);
        writer.send(1000 * MS, 7);
        live.look(&run_dirs);
        assert_eq!(first(&live, 1000 * MS), (None, 0), "nothing is known of the time before");
        // Ten writes a second, in turn with much and with nothing.
        for write in 1..=20 {
            writer.send((1000 + 100 * write) * MS, 1000 * (write % 2));
            live.look(&run_dirs);
            let (rate, fresh) = first(&live, (1000 + 100 * write) * MS);
            assert_eq!(fresh, 1);
            assert!(write < 4 || rate.is_some_and(|rate| (4000.0..6000.0).contains(&rate)), "{write}: {rate:?}");
        }
        live.look(&run_dirs);
        assert_eq!(first(&live, 3000 * MS).1, 0, "no write came since");
        assert_eq!(first(&live, 6000 * MS).0, Some(0.0), "it is quiet");
    }

    #[test]
    fn a_clock_that_is_set_back_costs_rates_for_a_moment_only() {
        let scratch = Scratch::new("live-back");
        let dir = RunDir::named(Some(&scratch.path().join("run")));
        dir.make().unwrap();
        let (mut live, run_dirs) = (Live::default(), [dir.path().to_owned()]);
        let mut writer = Writer::new(&dir, 1, 1);
        for (round, at_ms) in [9000, 9500, 1000, 1500].into_iter().enumerate() {
            writer.send(at_ms * MS, 500);
            live.look(&run_dirs);
            let (rate, fresh) = first(&live, at_ms * MS);
            assert_eq!(rate, (round % 2 == 1).then_some(1000.0), "{at_ms}");
            assert_eq!(fresh, u64::from(round > 0), "latencies are counted on");
        }
    }

    #[test]
    fn events_come_once_and_of_the_past_only_the_last() {
        let scratch = Scratch::new("live-events");
        let dir = RunDir::named(Some(&scratch.path().join("run")));
        dir.make().unwrap();
        let mut writer = Writer::new(&dir, 1, 1);
        let event = |number| Event { time_ns: number, kind: EventKind::PORT, ..Event::default() };
        (0..1000).for_each(|number| writer.publisher.add(&event(number)));
        writer.write(MS);
        let (mut live, run_dirs) = (Live::default(), [dir.path().to_owned()]);
        let times = |noted: Vec<Noted>| noted.iter().map(|noted| noted.event.time_ns).collect::<Vec<_>>();
        assert_eq!(times(live.look(&run_dirs)), (744..1000).collect::<Vec<_>>());
        assert!(live.look(&run_dirs).is_empty());
        writer.publisher.add(&event(2000));
        writer.write(2 * MS);
        assert_eq!(times(live.look(&run_dirs)), [2000]);
    }

    #[test]
    fn files_beyond_what_is_followed_are_named() {
        let scratch = Scratch::new("live-bounds");
        let dir = RunDir::named(Some(&scratch.path().join("run")));
        dir.make().unwrap();
        let mut writers = [1, 2, 3].map(|id| Writer::new(&dir, id, 40_000));
        writers.iter_mut().for_each(|writer| writer.write(MS));
        let (mut live, run_dirs) = (Live::default(), [dir.path().to_owned()]);
        // Files may wait for the next look.
        (0..3).for_each(|_| assert!(live.look(&run_dirs).is_empty()));
        let troubles = live.troubles();
        assert!(troubles.len() == 1 && troubles[0].contains("is one too many"), "{troubles:?}");
        let job = &live.jobs(MS)[0];
        assert_eq!(job.processes.len(), 3, "the third one has not ended");
        assert_eq!(job.peers[0].rails[0].sum.states.iter().sum::<u32>(), 80_000);
    }
}
