//! All files of a run dir, read once.

use railweave_telemetry::{Presence, ReadError, RunDir, RunDirError, Snapshot, read_each};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;

/// The files of a run dir at one moment.
pub(crate) struct Readings {
    /// The files that could be read.
    pub(crate) processes: BTreeMap<PathBuf, Reading>,
    /// The files that could not, with the reason.
    pub(crate) damaged: Vec<(PathBuf, String)>,
}

/// The file of one process.
pub(crate) struct Reading {
    pub(crate) snapshot: Snapshot,
    pub(crate) presence: Presence,
}

impl Readings {
    /// Makes these readings those with which `now` is compared, as long as `last` was taken between them: the last one
    /// of each file that was written since, and otherwise the one before.
    pub(crate) fn advance(&mut self, last: Self, now: &Self) {
        for (path, reading) in last.processes {
            let is_new = |now: &Reading| now.snapshot.written_ns != reading.snapshot.written_ns;
            if now.processes.get(&path).is_none_or(is_new) || !self.processes.contains_key(&path) {
                self.processes.insert(path, reading);
            }
        }
        self.processes.retain(|path, _| now.processes.contains_key(path));
    }

    /// Reads all files.
    ///
    /// # Errors
    /// If the folder cannot be read. A missing folder has no files.
    pub(crate) fn take(dir: &RunDir) -> Result<Self, RunDirError> {
        let mut readings = Self { processes: BTreeMap::new(), damaged: Vec::new() };
        let paths = dir.files()?;
        read_each(&paths, |place, result| match result {
            Ok(snapshot) => {
                let presence = snapshot.state.process.presence();
                readings.processes.insert(paths[place].clone(), Reading { snapshot, presence });
            }
            // It was removed meanwhile.
            Err(ReadError::File { error, .. }) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => readings.damaged.push((paths[place].clone(), error.to_string())),
        });
        readings.damaged.sort();
        Ok(readings)
    }

    /// Returns true if a process may still run.
    pub(crate) fn has_running(&self) -> bool {
        self.processes.values().any(|reading| reading.presence != Presence::Gone)
    }
}
