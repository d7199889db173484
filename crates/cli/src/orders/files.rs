//! The telemetry files of a run dir, one after the other.

use crate::host::{Followed, Seen};
use railweave_telemetry::{Damage, FileError, Files, Folder, Presence, Snapshot};
use std::path::Path;
use std::thread;
use std::time::Duration;

/// The longest pause between two attempts to read a file that is being written, and of all pauses for the files of a
/// folder: a writer may lose its processor, but a user may also leave any number of damaged files.
const LONGEST_PAUSE: Duration = Duration::from_millis(12);
const LONGEST_PAUSES: Duration = Duration::from_millis(500);

/// The most attempts to read a file.
const ATTEMPTS: u32 = 20;

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
    let mut patience = LONGEST_PAUSES;
    let (mut damaged, mut buffer) = (Vec::new(), Vec::new());
    for name in names {
        let file = path.join(&name);
        match look(folder, &name, &mut buffer, &mut patience) {
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

/// Looks at a file until it is not being written, or the patience for a folder is over. The file of a process that has
/// lost its processor in the middle of a write looks like a damaged one.
fn look(folder: &Folder, name: &str, buffer: &mut Vec<u8>, patience: &mut Duration) -> Option<Seen> {
    let damaged = Damage::Checksum.to_string();
    let mut followed = Followed::default();
    let mut pause = Duration::from_millis(1);
    for _ in 0..ATTEMPTS {
        let seen = followed.look(folder, name, buffer);
        let may_change = match &seen {
            None => true,
            Some(Seen::Refused(reason)) => *reason == damaged,
            Some(_) => false,
        };
        if !may_change || patience.is_zero() {
            return seen;
        }
        pause = (pause * 2).min(LONGEST_PAUSE).min(*patience);
        *patience -= pause;
        thread::sleep(pause);
    }
    followed.look(folder, name, buffer)
}
