//! The telemetry files of a run dir, one after the other.

use crate::host::{Followed, Seen};
use railweave_telemetry::{FileError, Files, Folder, Presence, Snapshot};
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
    let missing = FileError::Missing.to_string();
    let (mut damaged, mut buffer) = (Vec::new(), Vec::new());
    for name in names {
        let file = path.join(&name);
        match Followed::default().look(folder, &name, &mut buffer) {
            Some(Seen::Changed(_, Presence::Gone)) => {}
            Some(Seen::Changed(snapshot, _)) => each(&file, *snapshot),
            // It was removed meanwhile.
            Some(Seen::Refused(reason)) if reason == missing => {}
            Some(Seen::Refused(reason)) => damaged.push(format!("\"{}\" {reason}", file.display())),
            Some(Seen::Kept(_)) | None => damaged.push(format!("\"{}\" is being written; try again", file.display())),
        }
    }
    damaged.extend(more.map(|more| format!("\"{shown}\" {more}")));
    Ok(damaged)
}
