//! The looks of the agent: everything is read, the agent decides, and the policy files are written.

use super::folders::Watched;
use super::log;
use super::settings::{Settings, run_dirs};
use super::shared::Shared;
use crate::host::Users;
use railweave_agent::{DrainChange, Reason};
use railweave_counters::Source;
use railweave_telemetry::{Folder, RunDir};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The longest time for which a look reads telemetry, so that policy files are written before their time to live is
/// over whatever users put into their folders.
const LONGEST: Duration = Duration::from_millis(800);

/// The longest time for which a look reads files of one folder. Those of 64 processes take a few milliseconds; only a
/// user who makes files for the purpose comes near it.
const LONGEST_FOLDER: Duration = Duration::from_millis(250);

/// The work of looks.
pub(super) struct Looks {
    settings: Settings,
    source: Source,
    watched: BTreeMap<PathBuf, Watched>,
    users: Users,
    /// The folders that cannot be used, with the reasons that were said.
    refused: BTreeMap<PathBuf, String>,
    /// The folders that were there before: files that are there when one of them is opened again are not new.
    known: BTreeSet<PathBuf>,
    /// The folders that were not there at the last look.
    missing: BTreeSet<PathBuf>,
    /// The policy files that this agent wrote last into its user's folders that it does not watch now.
    written: BTreeMap<PathBuf, String>,
    buffer: Vec<u8>,
    /// True if it was said that nothing keeps orders.
    is_said: bool,
    /// True if the last entry of the history could not be written.
    is_history_lost: bool,
}

impl Looks {
    pub(super) fn new(root: &Path, settings: &Settings) -> Self {
        Self {
            settings: settings.clone(),
            source: Source::new(root),
            watched: BTreeMap::new(),
            users: Users::default(),
            refused: BTreeMap::new(),
            known: BTreeSet::new(),
            missing: BTreeSet::new(),
            written: BTreeMap::new(),
            buffer: Vec::new(),
            is_said: false,
            is_history_lost: false,
        }
    }

    pub(super) fn set_settings(&mut self, settings: &Settings) {
        if settings.config.run_dirs != self.settings.config.run_dirs {
            (self.users, self.missing) = (Users::default(), BTreeSet::new());
        }
        self.settings = settings.clone();
    }

    /// Looks at everything once.
    pub(super) fn look(&mut self, shared: &Shared) {
        let begin = Instant::now();
        self.find_folders(shared);
        self.read_folders(shared, LONGEST, LONGEST_FOLDER);
        // Those of the last look: a port that is new is read one look later.
        let used = shared.agent().used_ports();
        let readings = self.source.read_used(|name| used.contains(name));
        let mut lines = {
            let mut agent = shared.agent();
            agent.set_look_took(begin.elapsed());
            agent.end_look(readings, shared.now())
        };
        // This user's own comes first: its policy file says which ports the agent before this one had drained.
        let first = self.settings.own_run_dir().path();
        let mut folders: Vec<_> = self.watched.iter_mut().collect();
        folders.sort_by_key(|(path, watched)| (!watched.is_own(), *path != first));
        for (_, watched) in folders {
            watched.steer(shared);
        }
        self.write_history(shared);
        self.say_if_nothing_keeps_orders();
        lines.sort_by_key(|(severity, _)| std::cmp::Reverse(*severity));
        for (severity, text) in lines {
            log::say_as(severity, &text);
        }
    }

    /// Leaves the policy files as they should be after the agent's end.
    pub(super) fn leave(&mut self, shared: &Shared) {
        let mut folders: Vec<_> = self.watched.values_mut().collect();
        // There may be many in which nothing is to be done.
        folders.sort_by_key(|watched| (!watched.is_own(), !watched.has_written()));
        for watched in folders {
            watched.leave(shared);
        }
        self.write_history(shared);
    }

    /// Writes the orders since the last look to the history in the agent's own run dir. The first of several failures
    /// is said.
    fn write_history(&mut self, shared: &Shared) {
        let changes = shared.agent().take_drain_changes();
        for DrainChange { port, reason, begins } in changes {
            let who = if reason == Reason::Sick { "avoid-sick" } else { reason.word() };
            shared.note(who, format!("{} {port}", if begins { "drain" } else { "give back" }));
        }
        let own = self.watched.get(self.settings.own_run_dir().path()).filter(|own| own.is_own());
        let Some(own) = own else { return };
        for entry in shared.take_history() {
            match own.append_history(&entry) {
                Ok(()) => self.is_history_lost = false,
                Err(error) => {
                    if !std::mem::replace(&mut self.is_history_lost, true) {
                        log::say(&format!("an order is missing in the history: {error}"));
                    }
                }
            }
        }
    }

    /// Says once that orders are forgotten at the agent's end: only a file of the agent's own user keeps them.
    fn say_if_nothing_keeps_orders(&mut self) {
        let is_kept = self.watched.is_empty() || self.watched.values().any(Watched::is_own);
        if !is_kept && !self.is_said {
            log::say(&format!(
                "no run dir belongs to this agent's user, so what the API is told, such as a port to drain, holds \
                 until the agent ends; try a folder of its own in run_dirs, such as \"{}\"",
                RunDir::named(None).path().display()
            ));
        }
        self.is_said = !is_kept;
    }

    /// Reads the files of all folders, at least of one. If that takes too long, those that were read last wait for the
    /// next look.
    fn read_folders(&mut self, shared: &Shared, longest: Duration, longest_folder: Duration) {
        let begin = Instant::now();
        let mut folders: Vec<&mut Watched> = self.watched.values_mut().collect();
        folders.sort_by_key(|watched| watched.read_at);
        for (count, watched) in folders.into_iter().enumerate() {
            if count == 0 || begin.elapsed() < longest {
                watched.read(shared, &mut self.buffer, longest_folder);
            } else {
                watched.wait(shared);
            }
        }
    }

    /// Opens the folders that are new, and forgets those that are gone.
    fn find_folders(&mut self, shared: &Shared) {
        let wanted: BTreeSet<PathBuf> = run_dirs(&self.settings, &mut self.users).into_iter().collect();
        // Otherwise there would be nothing that keeps orders while no job runs.
        let own = self.settings.own_run_dir();
        let is_made = !wanted.contains(own.path()) || self.watched.contains_key(own.path());
        let mut unmade = if is_made { None } else { own.make().err() };
        let is_certain = !self.settings.config.run_dirs.is_empty() || self.users.are_known();
        self.watched.retain(|path, watched| {
            let is_in_place = watched.is_in_place();
            let stays = is_in_place && (wanted.contains(path) || !is_certain);
            if !stays {
                if is_in_place {
                    watched.give_up(shared);
                }
                watched.forget(&mut shared.agent());
                if let Some(text) = watched.written() {
                    self.written.insert(path.clone(), text.to_owned());
                }
            }
            stays
        });
        self.refused.retain(|path, _| wanted.contains(path));
        let was_missing = std::mem::take(&mut self.missing);
        for path in wanted.into_iter().filter(|path| !self.watched.contains_key(path)).collect::<Vec<_>>() {
            match Folder::open(&path) {
                Ok(folder) => {
                    // Root opens also one that somebody else has made.
                    if let Some(error) = unmade.take_if(|_| path == own.path()) {
                        log::say(&error.to_string());
                    }
                    if self.refused.remove(&path).is_some() {
                        log::say(&format!("\"{}\" is watched now", path.display()));
                    }
                    let is_new = was_missing.contains(&path) || self.users.began(&path);
                    let is_old = !self.known.insert(path.clone()) || !is_new;
                    let written = self.written.remove(&path);
                    self.watched.insert(path, Watched::new(folder, is_old, written));
                }
                Err(error) => {
                    // The reason for which it is missing.
                    let unmade = unmade.take_if(|_| path == own.path() && error.is_missing());
                    let error = unmade.unwrap_or(error);
                    let reason = error.to_string();
                    if error.is_missing() {
                        self.missing.insert(path.clone());
                    } else {
                        self.known.insert(path.clone());
                    }
                    if self.refused.get(&path) != Some(&reason) {
                        log::say(&format!("not watched: {reason}"));
                        self.refused.insert(path, reason);
                    }
                }
            }
        }
        let refused = self.refused.iter().filter(|(path, _)| !self.missing.contains(*path));
        let refused = refused.map(|(path, reason)| (path.display().to_string(), reason.clone()));
        let more = self.users.more.iter();
        let more = more.map(|(path, reason)| (path.display().to_string(), format!("\"{}\" {reason}", path.display())));
        shared.agent().set_refused_folders(refused.chain(more).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::agent::Arguments;
    use crate::commands::agent::scratch::Scratch;
    use railweave_telemetry::{Connection, Process, Publisher, Rail, State};

    #[test]
    fn folders_and_files_take_turns_if_there_is_no_time_for_all() {
        let scratch = Scratch::new("turns");
        let path = scratch.path();
        let run_dir: Vec<PathBuf> = ["a", "b"].map(|name| path.join(name)).into();
        for number in 1..=4_u8 {
            let folder = RunDir::named(Some(&run_dir[usize::from(number) % 2]));
            let process = Process::of_this_process([number; 16], None, None, |_| None);
            let (connections, rails) = (vec![Connection::default()], vec![Rail::default()]);
            let state = State { process, connections, rails, ..State::default() };
            folder.make().unwrap();
            assert!(Publisher::new(folder, [number; 16]).publish(&state, 1).is_none());
        }
        let arguments =
            Arguments { config: None, listen: None, run_dir, token_file: None, root: path.to_owned(), check: false };
        let settings = Settings::read(&arguments).unwrap();
        let shared = Shared::new(&settings);
        let mut looks = Looks::new(path, &settings);
        looks.find_folders(&shared);
        let mut look = |longest| {
            looks.read_folders(&shared, longest, longest);
            let mut agent = shared.agent();
            agent.end_look(Vec::new(), shared.now());
            let state = serde_json::to_value(agent.state()).unwrap();
            let refused = agent.metrics().contains("railweave_findings{kind=\"file-refused\"");
            (state["jobs"][0]["processes"].as_array().map(Vec::len), refused)
        };
        for count in 1..=4 {
            assert_eq!(look(Duration::ZERO), (Some(count), true));
        }
        assert_eq!(look(LONGEST), (Some(4), false));
    }
}
