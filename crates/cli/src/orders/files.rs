//! The telemetry files of a run dir, one after the other.

use crate::host::{Followed, Seen};
use railweave_telemetry::{FileError, Files, Folder, Presence, Snapshot};
use std::path::Path;
use std::thread;
use std::time::Duration;

/// Attempts to read a file that is being written, and the longest pause between two.
const ATTEMPTS: u64 = 20;
const LONGEST_PAUSE: Duration = Duration::from_millis(12);

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
        match look(folder, &name, &mut buffer) {
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

/// Looks at a file until it is not being written: its process may lose its processor in the middle.
fn look(folder: &Folder, name: &str, buffer: &mut Vec<u8>) -> Option<Seen> {
    let mut followed = Followed::default();
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            thread::sleep(LONGEST_PAUSE.min(Duration::from_millis(attempt)));
        }
        let seen = followed.look(folder, name, buffer);
        if seen.is_some() {
            return seen;
        }
    }
    None
}
