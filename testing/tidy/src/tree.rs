//! The files that git tracks or would track, with their text.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::process::Command;

use crate::finding::Finding;

/// The endings of the names of files that people write and read.
const WRITTEN: [&str; 7] = [".rs", ".md", ".toml", ".py", ".sh", ".c", ".h"];

/// The files of a tree.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// The paths of all files, relative to the root, in order.
    pub(crate) paths: Vec<String>,
    /// The text of text files, by path.
    pub(crate) texts: BTreeMap<String, String>,
    /// The other files, whose text or name is not UTF-8: the first line that is not, by path.
    pub(crate) broken: BTreeMap<String, usize>,
}

impl Tree {
    /// Reads the files at `root` that git tracks or would track. Fails if git does not list them.
    pub(crate) fn read(root: PathBuf) -> Result<Self, String> {
        let mut git = Command::new("git");
        git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(&root);
        let output = git.output().map_err(|error| {
            format!("cannot run git, which lists the files, in the folder {}: {error}", root.display())
        })?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("git cannot list the files of {}: {}", root.display(), said.trim()));
        }
        let mut tree = Self::default();
        for path in output.stdout.split(|byte| *byte == 0).filter(|path| !path.is_empty()) {
            // Git also lists a file that is deleted, but still in the index.
            let Ok(bytes) = std::fs::read(root.join(OsStr::from_bytes(path))) else { continue };
            tree.add(path, bytes);
        }
        tree.paths.sort();
        Ok(tree)
    }

    /// Adds the file with this path and content.
    fn add(&mut self, path: &[u8], content: Vec<u8>) {
        let name = String::from_utf8_lossy(path).into_owned();
        match (std::str::from_utf8(path), String::from_utf8(content)) {
            (Ok(_), Ok(text)) => {
                self.texts.insert(name.clone(), text);
            }
            (Ok(_), Err(error)) => {
                let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
                let line = good.iter().filter(|byte| **byte == b'\n').count() + 1;
                self.broken.insert(name.clone(), line);
            }
            (Err(_), _) => {
                self.broken.insert(name.clone(), 1);
            }
        }
        self.paths.push(name);
    }

    /// Returns true if there is a file `path`, text or not.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.texts.contains_key(path) || self.broken.contains_key(path)
    }

    /// Returns a tree of these files: the path and the text of each.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let texts: BTreeMap<String, String> =
            files.iter().map(|&(path, text)| (path.to_owned(), text.to_owned())).collect();
        Self { paths: texts.keys().cloned().collect(), texts, ..Self::default() }
    }
}

/// Returns true if people write and read the file `path`.
pub(crate) fn is_written(path: &str) -> bool {
    WRITTEN.iter().any(|ending| path.ends_with(ending))
}

/// Returns the path that `relative` means in `folder`, which is "" for the root; `None` if it leaves the tree.
pub(crate) fn join(folder: &str, relative: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in folder.split('/').chain(relative.split('/')) {
        match part {
            ".." => {
                parts.pop()?;
            }
            "." | "" => {}
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Finds the files that people write and whose text or name is not UTF-8. The other checks do not read them.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let broken = tree.broken.iter().filter(|(path, _)| is_written(path));
    let finding = |(path, line): (&String, &usize)| {
        let sentence = "the text or the name is not UTF-8: convert it".to_owned();
        Finding { path: path.clone(), line: *line, sentence }
    };
    broken.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_names_that_are_not_utf_8_are_found_in_the_files_of_people() {
        let mut tree = Tree::default();
        tree.add(b"a.md", b"one\ncaf\xe9".to_vec());
        tree.add(b"caf\xe9.md", b"text".to_vec());
        tree.add(b"b.png", b"\xe9".to_vec());
        tree.add(b"c.md", b"text".to_vec());
        let places: Vec<_> = check(&tree).into_iter().map(|finding| (finding.path, finding.line)).collect();
        assert_eq!(places, [("a.md".to_owned(), 2), ("caf\u{fffd}.md".to_owned(), 1)]);
    }

    #[test]
    fn a_folder_that_is_missing_or_not_of_git_is_named() {
        for folder in ["/nonexistent", "/proc"] {
            let error = Tree::read(PathBuf::from(folder)).unwrap_err();
            assert!(error.contains(folder), "{error}");
        }
    }
}
