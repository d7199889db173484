//! A copy of the tree that chores may damage. It is kept, and only files that differ are copied again, so that builds
//! in it are short.

use crate::process::root;
use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Cargo's build directory in the copy.
const BUILT: &str = "target";

/// A copy of the tree.
pub(crate) struct Scratch {
    root: PathBuf,
    /// Its files, relative to the root.
    files: BTreeSet<PathBuf>,
}

impl Scratch {
    /// Updates the copy in this folder to the current tree: all files that git tracks or would track.
    pub(crate) fn new(root: PathBuf) -> Result<Self, String> {
        let scratch = Self { root, files: files_of_tree()? };
        scratch.fill()?;
        Ok(scratch)
    }

    /// Returns its root.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns a command in the copy, whose builds stay there.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        // Nobody debugs damaged code, and without line tables it builds faster.
        command.current_dir(&self.root).env_remove("CARGO_TARGET_DIR").env("CARGO_PROFILE_DEV_DEBUG", "0");
        command
    }

    fn fill(&self) -> Result<(), String> {
        let mut there = BTreeSet::new();
        collect(&self.root, Path::new(""), &mut there)?;
        for gone in there.difference(&self.files) {
            let path = self.root.join(gone);
            fs::remove_file(&path).map_err(|error| format!("cannot remove {}: {error}", path.display()))?;
            // Removes empty folders: Cargo might take one for a package that has lost its manifest.
            let mut folders = path.ancestors().skip(1).take_while(|folder| *folder != self.root);
            while folders.next().is_some_and(|folder| fs::remove_dir(folder).is_ok()) {}
        }
        for name in &self.files {
            let (from, to) = (root().join(name), self.root.join(name));
            let bytes = fs::read(&from).map_err(|error| format!("cannot read {}: {error}", from.display()))?;
            if fs::read(&to).is_ok_and(|old| old == bytes) {
                continue;
            }
            let folder = to.parent().unwrap_or(&self.root);
            fs::create_dir_all(folder)
                .and_then(|()| fs::write(&to, bytes))
                .map_err(|error| format!("cannot write {}: {error}", to.display()))?;
        }
        Ok(())
    }

    /// Returns a number that changes with any file in one of these folders or with one of these names.
    pub(crate) fn fingerprint(&self, below: &[&str]) -> Result<u64, String> {
        let mut hasher = DefaultHasher::new();
        for name in self.files.iter().filter(|name| below.iter().any(|folder| name.starts_with(folder))) {
            let path = self.root.join(name);
            let bytes = fs::read(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            (name, bytes).hash(&mut hasher);
        }
        Ok(hasher.finish())
    }
}

fn files_of_tree() -> Result<BTreeSet<PathBuf>, String> {
    let mut git = Command::new("git");
    git.args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"]).current_dir(root());
    let output = git.output().map_err(|error| format!("cannot run git: {error}"))?;
    if !output.status.success() {
        return Err(format!("git cannot list the tree's files: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    let names = names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from);
    // Files that were deleted but not committed are still listed.
    Ok(names.filter(|name| root().join(name).is_file()).collect())
}

/// Collects the files below a folder of the copy, except those of cargo's build directory.
fn collect(root: &Path, folder: &Path, into: &mut BTreeSet<PathBuf>) -> Result<(), String> {
    let Ok(entries) = fs::read_dir(root.join(folder)) else { return Ok(()) };
    for entry in entries.filter_map(Result::ok) {
        let name = folder.join(entry.file_name());
        let kind = entry.file_type().map_err(|error| format!("cannot look at {}: {error}", name.display()))?;
        if !kind.is_dir() {
            into.insert(name);
        } else if name != Path::new(BUILT) {
            collect(root, &name, into)?;
        }
    }
    Ok(())
}
