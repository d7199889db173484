//! A file in a folder of its own, for readers that take a path.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

static FOLDERS: AtomicU64 = AtomicU64::new(0);

/// A folder that is removed at the end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Makes an empty folder, which only this user may write.
    pub(crate) fn new() -> Self {
        let name = format!("railweave-fuzz-{}-{}", std::process::id(), FOLDERS.fetch_add(1, Ordering::Relaxed));
        // In memory if possible: on a disk, a target runs a tenth as many inputs.
        Self::make(Path::new("/dev/shm").join(&name))
            .or_else(|_| Self::make(std::env::temp_dir().join(name)))
            .expect("a folder can be made")
    }

    fn make(path: PathBuf) -> io::Result<Self> {
        // It is left from a process of the same id that was killed, if there is one.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Puts a file in place by rename, so that it is another file than the one before.
    pub(crate) fn put(&self, name: &str, bytes: &[u8]) {
        let new = self.file("new");
        fs::write(&new, bytes).expect("a file can be written");
        fs::rename(&new, self.file(name)).expect("a file can be renamed");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Checks that a sentence about a file names it, says what is allowed and what to try, in one line of bounded length.
pub(crate) fn assert_helpful(sentence: &str, path: &Path) {
    let rest = sentence.strip_prefix(&format!("\"{}\" ", path.display()));
    let rest = rest.unwrap_or_else(|| panic!("the file is named first: {sentence:?}"));
    assert!(rest.contains("; allowed: ") && rest.contains("; try "), "{sentence:?}");
    assert!(!rest.contains(char::is_control) && rest.len() < 2000, "one line: {sentence:?}");
}
