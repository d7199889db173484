//! Mutants that no operator of cargo-mutants makes: each is a patch with a sentence on top.

use super::judge::{Judge, output};
use super::results::Verdict;
use crate::process::root;
use crate::scratch::Scratch;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Applies one patch after the other to the copy of the tree, and lets the judge test each for at most `limit`. Returns
/// the verdicts.
pub(super) fn run(
    scratch: &Scratch,
    judge: &Judge,
    limit: Duration,
    patches: &[PathBuf],
) -> Result<Vec<Verdict>, String> {
    let mut verdicts = Vec::new();
    for patch in patches {
        apply(scratch.root(), patch, &[])?;
        let (builds, said) = judge.build(scratch)?;
        if !builds {
            return Err(format!("{} does not build:\n{said}", name(patch)));
        }
        let (verdict, said) = judge.test(scratch, limit)?;
        apply(scratch.root(), patch, &["--reverse"])?;
        let by = if verdict == Verdict::Caught { format!(" by {}", witness(&said)) } else { String::new() };
        println!("{}: the patch {}{by}", verdict.name(), name(patch));
        verdicts.push(verdict);
    }
    Ok(verdicts)
}

/// Returns the name of a patch.
fn name(patch: &Path) -> String {
    patch.file_stem().unwrap_or(OsStr::new("?")).display().to_string()
}

/// Returns the paths of the patches whose names contain one of these texts, sorted; of all patches if there are none.
pub(super) fn all(texts: &[String]) -> Result<Vec<PathBuf>, String> {
    let folder = root().join("testing").join("sim").join("mutants");
    let entries = fs::read_dir(&folder).map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
    let mut patches: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    patches.retain(|path| path.extension() == Some(OsStr::new("patch")));
    patches.retain(|path| texts.is_empty() || texts.iter().any(|text| name(path).contains(text)));
    patches.sort();
    Ok(patches)
}

/// Applies a patch to a tree, with the options `more`.
fn apply(tree: &Path, patch: &Path, more: &[&str]) -> Result<(), String> {
    let mut git = Command::new("git");
    git.arg("apply").args(more).arg(patch).current_dir(tree);
    // The copy is inside the repository but no part of it; git would skip files outside its index.
    if let Some(above) = tree.parent() {
        git.env("GIT_CEILING_DIRECTORIES", above);
    }
    match output(git)? {
        (Some(0), _) => Ok(()),
        (_, said) => Err(format!("{} no longer applies: {}", patch.display(), said.trim())),
    }
}

/// Returns the witness of a mutant: the simulation's checker, otherwise the first test that failed.
fn witness(said: &str) -> String {
    let after = |words: &str| said.split_once(words).map(|(_, rest)| rest);
    let word = |text: &str| text.split([',', ' ', '\n']).next().unwrap_or_default().to_owned();
    match (after("Violation { checker: "), after("---- ")) {
        (Some(rest), _) => format!("the checker {}", word(rest)),
        (None, Some(rest)) => word(rest),
        (None, None) => "something that is no test".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_patch_applies() {
        let patches = all(&[]).unwrap();
        assert!(!patches.is_empty());
        for patch in patches {
            apply(&root(), &patch, &["--check"]).unwrap();
        }
    }

    #[test]
    fn the_witness_is_named() {
        let said = "---- a_few stdout ----\nSome(Violation { checker: Leaks, message: \"c0s\" })";
        assert_eq!(witness(said), "the checker Leaks");
        assert_eq!(witness("---- slots::tests::a stdout ----"), "slots::tests::a");
        assert_eq!(witness("signal: 9"), "something that is no test");
    }
}
