//! The files that git tracks or would track, with their text.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// The files of a tree.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// The paths of all files, relative to the root, in order.
    pub(crate) paths: Vec<String>,
    /// The text of text files, by path.
    pub(crate) texts: BTreeMap<String, String>,
}

impl Tree {
    /// Reads the files at `root` that git tracks or would track. Fails if git does not list them.
    pub(crate) fn read(root: PathBuf) -> Result<Self, String> {
        let mut git = Command::new("git");
        git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(&root);
        let output = git.output().map_err(|error| format!("cannot run git, which lists the files: {error}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("git cannot list the files of {}: {}", root.display(), said.trim()));
        }
        let listed = String::from_utf8_lossy(&output.stdout);
        let mut tree = Self::default();
        for path in listed.split('\0').filter(|path| !path.is_empty()) {
            // Git also lists a file that is deleted, but still in the index.
            let Ok(bytes) = std::fs::read(root.join(path)) else { continue };
            tree.paths.push(path.to_owned());
            if let Ok(text) = String::from_utf8(bytes) {
                tree.texts.insert(path.to_owned(), text);
            }
        }
        tree.paths.sort();
        Ok(tree)
    }

    /// Returns a tree of these files: the path and the text of each.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let texts: BTreeMap<String, String> =
            files.iter().map(|&(path, text)| (path.to_owned(), text.to_owned())).collect();
        Self { paths: texts.keys().cloned().collect(), texts }
    }
}
