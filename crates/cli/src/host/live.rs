//! The telemetry files of run dirs, followed at the cost of their changes.

use super::followed::{Followed, Seen};
use super::jobs::{Job, Source, jobs};
use super::rates::{Counts, Rates, seconds_since};
use railweave_telemetry::{Event, Files, Folder, Presence, Snapshot};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The time over which rates are, at least: those of a shorter time jump too much to be read.
const RATE_NS: u64 = 400_000_000;

/// The longest time for which a look reads files: those that are left come first in the next one.
const LONGEST: Duration = Duration::from_millis(200);

/// The most events of a file that are taken in at once: whoever begins to look wants the last ones.
const MOST_EVENTS: usize = 256;

/// Something that a process has noted.
#[derive(Clone, Debug)]
pub(crate) struct Noted {
    /// The process: its rank, or its process id.
    pub(crate) process: String,
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
    presence: Presence,
    /// The reason why it cannot be used: the end of a sentence that begins with it.
    trouble: Option<String>,
}

impl Live {
    /// Looks at all files of these folders. Returns the events that are new, the oldest first.
    pub(crate) fn look(&mut self, run_dirs: &[PathBuf]) -> Vec<Noted> {
        self.folders.retain(|path, _| run_dirs.contains(path));
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
        noted.sort_by_key(|noted| noted.event.time_ns);
        noted
    }

    /// Returns the jobs at the time `now_ns`.
    pub(crate) fn jobs(&self, now_ns: u64) -> Vec<Job> {
        let mut sources = Vec::new();
        for followed in self.folders.values() {
            let user = followed.folder.as_ref().map_or(0, Folder::owner);
            for file in followed.files.values() {
                let Some(snapshot) = &file.snapshot else { continue };
                sources.push(Source {
                    user,
                    file: &file.path,
                    state: &snapshot.state,
                    presence: file.presence,
                    written_s_ago: seconds_since(snapshot.written_ns, now_ns),
                    rates: Rates::new(file.counts.front(), snapshot.written_ns, now_ns),
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

    /// Takes in the file as it is now.
    fn take(&mut self, mut snapshot: Snapshot, noted: &mut Vec<Noted>) {
        self.trouble = None;
        let process = &snapshot.state.process;
        let is_same = self.snapshot.as_ref().is_some_and(|before| before.state.process == *process);
        if !is_same {
            self.counts.clear();
        }
        let name = match process.rank {
            Some(rank) => format!("rank {rank}"),
            None => format!("pid {}", process.pid),
        };
        let skipped = snapshot.events.len().saturating_sub(MOST_EVENTS);
        let events = std::mem::take(&mut snapshot.events).into_iter().skip(skipped);
        noted.extend(events.map(|event| Noted { process: name.clone(), event }));
        self.counts.push_back(Counts::of(&snapshot));
        // The oldest is the last one that is old enough.
        while self.counts.get(1).is_some_and(|next| snapshot.written_ns.saturating_sub(next.written_ns) >= RATE_NS) {
            self.counts.pop_front();
        }
        // A clock that is set back, or a file that lies, could make these any number.
        while self.counts.len() > MOST_COUNTS {
            self.counts.pop_front();
        }
        self.snapshot = Some(snapshot);
    }
}

/// The most counts that are kept of a file: it is written ten times a second.
const MOST_COUNTS: usize = 16;
