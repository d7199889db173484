//! The list of tests that passed only when repeated. Each is a defect, of the test or of the code.

use crate::process::target;
use std::path::{Path, PathBuf};

/// A file to which other programs add the names of tests that passed only when repeated, a line each.
pub(crate) struct FlakyFile(PathBuf);

impl FlakyFile {
    /// Names this process's file, and removes one that is left over. The other programs create it.
    pub(crate) fn new() -> Self {
        let path = target().join(format!("flaky-{}", std::process::id()));
        // An earlier process with the same number may have left one.
        let _ = std::fs::remove_file(&path);
        Self(path)
    }

    /// Returns the file's path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns its lines and removes it.
    pub(crate) fn read(self) -> Vec<String> {
        // It does not exist if nothing was flaky.
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        let _ = std::fs::remove_file(&self.0);
        text.lines().map(str::to_owned).collect()
    }
}

/// Prints the names of tests that passed only when repeated.
pub(crate) fn list(flaky: &[String]) {
    for name in flaky {
        println!("flaky: {name}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_wrote_is_read_once() {
        let file = FlakyFile::new();
        let path = file.path().to_owned();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "a\nb: c\n").unwrap();
        assert_eq!(file.read(), ["a", "b: c"]);
        assert!(!path.exists());
        assert_eq!(FlakyFile::new().read(), Vec::<String>::new());
    }
}
