//! The first files of the crates of a tree, by the rules of Cargo.

use std::collections::BTreeSet;

use crate::finding::Finding;
use crate::tree::{Tree, join};

/// The folders of a package in which each file, and each folder with a `main.rs`, is a crate of its own.
const FOLDERS: [&str; 4] = ["src/bin/", "tests/", "examples/", "benches/"];

/// Returns the first file of every crate in the tree: libraries, programs, tests, examples and benches.
pub(super) fn roots(tree: &Tree, findings: &mut Vec<Finding>) -> BTreeSet<String> {
    let mut roots = BTreeSet::new();
    for (path, text) in &tree.texts {
        let Some(folder) = path.strip_suffix("Cargo.toml").filter(|rest| rest.is_empty() || rest.ends_with('/')) else {
            continue;
        };
        match toml::from_str::<toml::Table>(text) {
            Ok(manifest) => {
                let named = named(&manifest).into_iter().filter_map(|file| join(folder, &file));
                roots.extend(named.filter(|file| tree.has(file)));
            }
            Err(error) => findings.push(Finding::of_file(path, error.message().to_owned())),
        }
        let found = tree.texts.keys().filter(|file| file.strip_prefix(folder).is_some_and(is_root));
        roots.extend(found.cloned());
    }
    roots
}

/// Returns the files that a manifest names, relative to its folder.
fn named(manifest: &toml::Table) -> Vec<String> {
    let several = ["bin", "test", "example", "bench"].iter().filter_map(|key| manifest.get(*key)?.as_array()).flatten();
    let targets = several.chain(manifest.get("lib"));
    targets.filter_map(|target| Some(target.get("path")?.as_str()?.to_owned())).collect()
}

/// Returns true if Cargo finds `file` of a package by itself as the root of a crate.
fn is_root(file: &str) -> bool {
    let in_folder = |folder: &str| {
        let rest = file.strip_prefix(folder)?;
        Some(rest.strip_suffix("/main.rs").or_else(|| rest.strip_suffix(".rs"))).flatten()
    };
    let alone = |name: &str| !name.is_empty() && !name.contains('/');
    ["src/lib.rs", "src/main.rs", "build.rs"].contains(&file)
        || FOLDERS.iter().any(|folder| in_folder(folder).is_some_and(alone))
}
