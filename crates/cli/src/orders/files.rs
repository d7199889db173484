//! The telemetry files of a run dir, one after the other.

use railweave_telemetry::{Files, Folder, Presence, ReadError, Snapshot, read_each};
use std::io::ErrorKind;
use std::path::Path;

/// Calls `each` with the files of processes that may run, and returns sentences about those that cannot be read. No
/// more than one is in memory at a time, because users may make many and large ones.
///
/// # Errors
/// If the folder cannot be listed: a sentence.
pub(crate) fn read(folder: &Folder, mut each: impl FnMut(&Path, Snapshot)) -> Result<Vec<String>, String> {
    let path = folder.path();
    let shown = path.display();
    let Files { names, more } = folder
        .files()
        .map_err(|error| format!("\"{shown}\" cannot be listed: {error}; allowed: a folder that this user can read"))?;
    let paths: Vec<_> = names.iter().map(|name| path.join(name)).collect();
    let mut damaged = Vec::new();
    read_each(&paths, |place, result| match result {
        Ok(snapshot) if snapshot.state.process.presence() == Presence::Gone => {}
        Ok(snapshot) => each(&paths[place], snapshot),
        // It was removed meanwhile.
        Err(ReadError::File { error, .. }) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => damaged.push(error.to_string()),
    });
    damaged.sort();
    damaged.extend(more.map(|more| format!("\"{shown}\" {more}")));
    Ok(damaged)
}
