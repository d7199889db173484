//! The folder of a user's telemetry files and of the policy file.

use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The ending of a telemetry file's name.
const ENDING: &str = ".railweave";

/// A folder that cannot be used, and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// It cannot be made.
    #[error(
        "\"{}\" cannot be made: {error}; allowed: a folder of this user; try one in a folder that \
         exists", path.display()
    )]
    Make {
        /// The folder.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// It cannot be looked at.
    #[error(
        "\"{}\" cannot be read: {error}; allowed: a folder of this user; try another", path.display()
    )]
    Read {
        /// The folder.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// It is something that others may have made or may change.
    #[error(
        "\"{}\" {reason}; allowed: a folder of this user that nobody else may write (mode 0700); \
         try another, or remove this one", path.display()
    )]
    Refused {
        /// The folder.
        path: PathBuf,
        /// The end of a sentence that begins with the folder.
        reason: String,
    },
}

impl RunDirError {
    /// Returns true if there is no such folder.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Read { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }
}

/// The folder of a user's telemetry files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// Returns the folder that the setting names, or the user's own: `/dev/shm/railweave-UID`. Touches nothing.
    pub fn named(setting: Option<&Path>) -> Self {
        let own = || PathBuf::from(format!("/dev/shm/railweave-{}", rustix::process::geteuid().as_raw()));
        Self { path: setting.map_or_else(own, plain) }
    }

    /// Makes the folder with mode 0700 if it is missing, and checks that only this user can write there.
    ///
    /// # Errors
    /// If it cannot be made, is a symbolic link or no folder, or if others own it or may write there. A job then goes
    /// on without telemetry.
    pub fn make(&self) -> Result<(), RunDirError> {
        let path = &self.path;
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(RunDirError::Make { path: path.clone(), error });
            }
            _ => {}
        }
        self.check()
    }

    /// Checks that the folder is there, and that only this user can write there.
    ///
    /// # Errors
    /// See [`Self::make`].
    pub fn check(&self) -> Result<(), RunDirError> {
        let path = &self.path;
        let facts = fs::symlink_metadata(path).map_err(|error| RunDirError::Read { path: path.clone(), error })?;
        match objection(&facts, rustix::process::geteuid().as_raw()) {
            Some(reason) => Err(RunDirError::Refused { path: path.clone(), reason }),
            None => Ok(()),
        }
    }

    /// Returns the folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a process's telemetry file.
    pub fn file_of(&self, process: [u8; 16]) -> PathBuf {
        self.path.join(format!("{:032x}{ENDING}", u128::from_be_bytes(process)))
    }

    /// Returns the path of the policy file.
    pub fn policy_file(&self) -> PathBuf {
        self.path.join("policy")
    }

    /// Returns the paths of the telemetry files, in the order of their names. There are none if the folder is missing.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn files(&self) -> Result<Vec<PathBuf>, RunDirError> {
        let failed = |error| RunDirError::Read { path: self.path.clone(), error };
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut paths = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            if entry.file_name().to_str().is_some_and(is_telemetry) {
                paths.push(entry.path());
            }
        }
        paths.sort();
        Ok(paths)
    }
}

/// Returns the path of the file that becomes the telemetry file `path` once it is complete.
pub(crate) fn unfinished(path: &Path) -> PathBuf {
    path.with_extension("new")
}

/// Returns true if `name` is that of a complete telemetry file.
pub(crate) fn is_telemetry(name: &str) -> bool {
    is_process(name, ENDING)
}

/// Returns true if `name` is that of a telemetry file, complete or not.
pub(crate) fn is_ours(name: &str) -> bool {
    is_process(name, ENDING) || is_process(name, ".new")
}

fn is_process(name: &str, ending: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    name.strip_suffix(ending).is_some_and(|id| id.len() == 32 && id.bytes().all(is_digit))
}

/// Returns the path of a folder without a slash at its end, which would lead through a symbolic link whatever is said
/// about those (path_resolution(7)).
pub(crate) fn plain(path: &Path) -> PathBuf {
    path.components().collect()
}

/// Returns the reason why the folder cannot be trusted, if there is one: the end of a sentence.
pub(crate) fn objection(facts: &Metadata, user: u32) -> Option<String> {
    if facts.is_symlink() {
        Some("is a symbolic link".to_owned())
    } else if !facts.is_dir() {
        Some("is not a folder".to_owned())
    } else if facts.uid() != user {
        Some(format!("belongs to user {}, and this is user {user}", facts.uid()))
    } else if facts.mode() & 0o022 != 0 {
        Some(format!("may be written by others (mode {:04o})", facts.mode() & 0o7777))
    } else {
        None
    }
}
