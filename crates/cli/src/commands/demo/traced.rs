//! The traces of the demonstration's ranks, and the file that is made of them.

use crate::commands::trace;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A folder for traces, which goes at the end, and the file to make of them.
#[derive(Debug)]
pub(super) struct Traces {
    folder: PathBuf,
    file: PathBuf,
}

impl Traces {
    /// Makes the folder.
    ///
    /// # Errors
    /// If it cannot be made, or the ending of `file` says no format: a sentence.
    pub(super) fn prepare(file: &Path) -> Result<Self, String> {
        trace::check_ending(file)?;
        let folder = std::env::temp_dir().join(format!("railweave-demo-traces-{}", std::process::id()));
        let made = DirBuilder::new().mode(0o700).create(&folder);
        made.map_err(|error| {
            format!("the folder for traces {} cannot be made: {error}; try another TMPDIR", folder.display())
        })?;
        Ok(Self { folder, file: file.to_owned() })
    }

    /// Returns the folder.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes the file. Returns a sentence about it.
    ///
    /// # Errors
    /// If there is no trace, or the file cannot be written.
    pub(super) fn finish(self) -> Result<String, Box<dyn std::error::Error>> {
        trace::make_file(&self.folder, &self.file)
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        // A user who has removed it needs no word about it.
        let _ = fs::remove_dir_all(&self.folder);
    }
}
