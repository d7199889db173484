//! The removal of old telemetry files.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use crate::run_dir::{RunDir, is_ours};

/// The age at which a file is removed.
pub const OLD: Duration = Duration::from_secs(24 * 3600);

/// Removes this user's telemetry files that were not written for a day. Anything else in the folder stays. Returns the
/// number of files that were removed: none in a folder that [`RunDir::check`] refuses.
///
/// # Errors
/// If the folder cannot be read. A file that cannot be removed stays, and is no error.
pub fn sweep(dir: &RunDir, now: SystemTime) -> io::Result<usize> {
    if dir.check().is_err() {
        return Ok(0);
    }
    let user = rustix::process::geteuid().as_raw();
    let mut removed = 0;
    for entry in fs::read_dir(dir.path())? {
        let entry = entry?;
        let is_old = || {
            // Not of the file that a link leads to.
            let facts = entry.metadata().ok()?;
            let age = now.duration_since(facts.modified().ok()?).ok()?;
            Some(facts.is_file() && facts.uid() == user && age > OLD)
        };
        if entry.file_name().to_str().is_some_and(is_ours) && is_old() == Some(true) {
            removed += usize::from(fs::remove_file(entry.path()).is_ok());
        }
    }
    Ok(removed)
}
