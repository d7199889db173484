//! The trace files in folders, by the processes that wrote them.

use railweave_timeline::Rank;
use railweave_trace::{TraceFile, is_trace};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The bytes at the beginning of a file that tell whose it is.
const HEAD_BYTES: u64 = 64 << 10;

/// The trace files that were found.
pub(super) struct Found {
    /// The files of each process, by its id.
    by_process: BTreeMap<Vec<u8>, Vec<PathBuf>>,
    /// Sentences about the files that are left out.
    pub(super) skipped: Vec<String>,
}

impl Found {
    /// Finds the files, and tells by their beginnings whose they are.
    pub(super) fn find(sources: &[PathBuf]) -> Result<Self, String> {
        let mut found = Self { by_process: BTreeMap::new(), skipped: Vec::new() };
        let mut files = Vec::new();
        for source in sources {
            let said = |error| {
                format!(
                    "\"{}\" cannot be read: {error}; name trace files, or the folder of RAILWEAVE_TRACE",
                    source.display()
                )
            };
            let found = fs::metadata(source).map_err(said)?;
            if found.is_dir() {
                files.extend(in_folder(source).map_err(said)?);
            } else if found.is_file() {
                files.push(source.clone());
            } else {
                return Err(format!(
                    "\"{}\" is neither a regular file nor a folder; of a pipe or a device, make a file first",
                    source.display()
                ));
            }
        }
        files.sort();
        files.dedup();
        if files.is_empty() {
            let sources: Vec<_> = sources.iter().map(|it| format!("\"{}\"", it.display())).collect();
            return Err(format!(
                "{} has no trace files (*.rwtrace); to get some, start the job with RAILWEAVE_TRACE=FOLDER on all \
                 ranks, with a folder that all hosts share, or with one on each host and copy their files together",
                sources.join(" and ")
            ));
        }
        for path in files {
            match head(&path) {
                Ok(id) => found.by_process.entry(id).or_default().push(path),
                Err(reason) => found.skipped.push(format!("skipped: \"{}\" {reason}", path.display())),
            }
        }
        Ok(found)
    }

    /// Returns true if this path leads to one of the files.
    pub(super) fn has(&self, path: &Path) -> bool {
        let Ok(path) = fs::canonicalize(path) else { return false };
        self.by_process.values().flatten().any(|file| fs::canonicalize(file).is_ok_and(|file| file == path))
    }

    /// Reads the files of one process after another: only the records of one are in memory at the same time.
    pub(super) fn read(&mut self) -> Vec<Rank> {
        let mut ranks = Vec::new();
        for paths in self.by_process.values() {
            let mut parts = Vec::new();
            for path in paths {
                let read = fs::read(path).map_err(|error| format!("cannot be read: {error}"));
                match read.and_then(|bytes| TraceFile::read(&bytes).map_err(|error| error.to_string())) {
                    Ok(part) => parts.push(part),
                    Err(reason) => self.skipped.push(format!("skipped: \"{}\" {reason}", path.display())),
                }
            }
            if !parts.is_empty() {
                ranks.push(Rank::read(parts));
            }
        }
        ranks
    }
}

/// Returns the trace files in a folder.
fn in_folder(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_one = path.file_name().and_then(|name| name.to_str()).is_some_and(is_trace);
        // A pipe of that name would never end.
        if is_one && path.is_file() {
            files.push(path);
        }
    }
    Ok(files)
}

/// Returns the id of the process that wrote a file.
fn head(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut bytes));
    read.map_err(|error| format!("cannot be read: {error}"))?;
    TraceFile::read(&bytes).map(|file| file.process.id).map_err(|error| error.to_string())
}
