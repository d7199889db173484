//! The looks of the agent: everything is read, the agent decides, and the policy files are written.

use super::folders::Watched;
use super::log;
use super::settings::{Settings, run_dirs};
use super::shared::Shared;
use railweave_counters::Source;
use railweave_telemetry::Folder;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The work of looks.
pub(super) struct Looks {
    settings: Settings,
    source: Source,
    watched: BTreeMap<PathBuf, Watched>,
    /// The run dirs of all users that were found last.
    users: Vec<PathBuf>,
    /// The folders that cannot be used, with the reasons that were said.
    refused: BTreeMap<PathBuf, String>,
    buffer: Vec<u8>,
}

impl Looks {
    pub(super) fn new(root: &Path, settings: &Settings) -> Self {
        Self {
            settings: settings.clone(),
            source: Source::new(root),
            watched: BTreeMap::new(),
            users: Vec::new(),
            refused: BTreeMap::new(),
            buffer: Vec::new(),
        }
    }

    pub(super) fn set_settings(&mut self, settings: &Settings) {
        self.settings = settings.clone();
    }

    /// Looks at everything once.
    pub(super) fn look(&mut self, shared: &Shared) {
        let begin = Instant::now();
        self.find_folders(shared);
        for watched in self.watched.values_mut() {
            watched.read(shared, &mut self.buffer);
        }
        // Those of the last look: a port that is new is read one look later.
        let used = shared.agent().used_ports();
        let readings = self.source.read_used(|name| used.contains(name));
        let mut lines = {
            let mut agent = shared.agent();
            agent.set_look_took(begin.elapsed());
            agent.end_look(readings, shared.now())
        };
        for watched in self.watched.values_mut() {
            watched.steer(shared);
        }
        lines.sort_by_key(|(severity, _)| std::cmp::Reverse(*severity));
        for (severity, text) in lines {
            log::say_as(severity, &text);
        }
    }

    /// Leaves the policy files as they should be after the agent's end.
    pub(super) fn leave(&mut self, shared: &Shared) {
        for watched in self.watched.values_mut() {
            watched.leave(shared);
        }
    }

    /// Opens the folders that are new, and forgets those that are gone.
    fn find_folders(&mut self, shared: &Shared) {
        let wanted: BTreeSet<PathBuf> = run_dirs(&self.settings, &mut self.users).into_iter().collect();
        // Otherwise there would be nothing that keeps orders while no job runs.
        let own = self.settings.own_run_dir();
        if wanted.contains(own.path()) && !self.watched.contains_key(own.path()) {
            // The reason why it cannot be made is that for which it cannot be opened.
            let _ = own.make();
        }
        self.watched.retain(|path, watched| {
            let stays = wanted.contains(path) && watched.is_in_place();
            if !stays {
                watched.forget(&mut shared.agent());
            }
            stays
        });
        self.refused.retain(|path, _| wanted.contains(path));
        for path in wanted.into_iter().filter(|path| !self.watched.contains_key(path)).collect::<Vec<_>>() {
            match Folder::open(&path) {
                Ok(folder) => {
                    if self.refused.remove(&path).is_some() {
                        log::say(&format!("\"{}\" is watched now", path.display()));
                    }
                    self.watched.insert(path, Watched::new(folder));
                }
                Err(error) => {
                    let reason = error.to_string();
                    if self.refused.get(&path) != Some(&reason) {
                        log::say(&format!("not watched: {reason}"));
                        self.refused.insert(path, reason);
                    }
                }
            }
        }
    }
}
