//! The traces of the demonstration's ranks, and the file that is made of them.

use crate::commands::trace::Output;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{self, Path, PathBuf};

/// A folder for traces, and the file to make of them.
pub(super) struct Traces {
    folder: Folder,
    output: Output,
}

/// A folder that goes at the end.
struct Folder(PathBuf);

impl Traces {
    /// Makes the folder, and begins the file.
    ///
    /// # Errors
    /// If one of them cannot be made, or the ending of `file` says no format: a sentence.
    pub(super) fn prepare(file: &Path) -> Result<Self, String> {
        let output = Output::by_ending(file)?;
        let folder = std::env::temp_dir().join(format!("railweave-demo-traces-{}", std::process::id()));
        let folder = path::absolute(&folder).map_err(|error| {
            format!("the present folder cannot be told: {error}; try a TMPDIR that is an absolute path")
        })?;
        let made = DirBuilder::new().mode(0o700).create(&folder);
        made.map_err(|error| {
            format!("the folder for traces {} cannot be made: {error}; try another TMPDIR", folder.display())
        })?;
        Ok(Self { folder: Folder(folder), output })
    }

    /// Returns the folder.
    pub(super) fn folder(&self) -> &Path {
        &self.folder.0
    }

    /// Makes the file. Returns a sentence about it.
    ///
    /// # Errors
    /// If there is no trace, or the file cannot be written.
    pub(super) fn finish(self) -> Result<String, Box<dyn std::error::Error>> {
        self.output.finish_with(&self.folder.0)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A user who has removed it needs no word about it.
        let _ = fs::remove_dir_all(&self.0);
    }
}
