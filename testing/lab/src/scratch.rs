//! The folder of one lab.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A folder for sockets, whose names must be short, and for a copy of this program, which a build may replace
/// meanwhile. Dropping it removes it.
pub(crate) struct Scratch(PathBuf);

/// The start of these folders' names; the number of the process follows, a point, and a number of its own.
const SCRATCH: &str = "railweave-lab-";

impl Scratch {
    /// Makes the folder.
    pub(crate) fn new() -> Result<Self, String> {
        let parent = std::env::temp_dir();
        // Removes the folders of labs that were killed.
        for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let owner = name.strip_prefix(SCRATCH).and_then(|numbers| numbers.split('.').next());
            let owner = owner.filter(|pid| pid.parse::<u32>().is_ok());
            if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                // Another user's folder stays.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        for count in 0_u32.. {
            let folder = parent.join(format!("{SCRATCH}{}.{count}", std::process::id()));
            let name = folder.display().to_string();
            if name.len() > 60 || name.contains(|c: char| c.is_whitespace() || c == ',') {
                return Err(format!(
                    "the lab cannot put its sockets into {name}: QEMU wants a short path without blanks and commas; \
                     set TMPDIR to one"
                ));
            }
            match fs::create_dir(&folder) {
                Ok(()) => return Ok(Self(folder)),
                // Another of this process, or one left by an earlier process of this number.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(format!("cannot make {name}: {error}")),
            }
        }
        Err(format!("{} has no room for one more folder of the lab", parent.display()))
    }

    /// Returns the folder's path.
    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    /// Copies this program into the folder.
    pub(crate) fn program(&self) -> Result<PathBuf, String> {
        let copy = self.0.join("railweave-lab");
        let copied = std::env::current_exe().and_then(|program| fs::copy(program, &copy));
        copied.map(|_| copy).map_err(|error| format!("cannot copy this program to {}: {error}", self.0.display()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If this fails, the next run of the lab removes it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_for_sockets_goes_with_its_lab() {
        let scratch = Scratch::new().unwrap();
        let folder = scratch.0.clone();
        drop(Scratch::new().unwrap());
        assert!(folder.is_dir(), "another folder of this process went, not this one");
        assert!(scratch.program().unwrap().is_file());
        drop(scratch);
        assert!(!folder.exists());
    }

    #[test]
    fn the_folder_of_a_lab_that_was_killed_goes_with_the_next_lab() {
        let mut gone = std::process::Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        let left = std::env::temp_dir().join(format!("{SCRATCH}{}.0", gone.id()));
        fs::create_dir_all(&left).unwrap();
        drop(Scratch::new().unwrap());
        assert!(!left.exists());
    }
}
