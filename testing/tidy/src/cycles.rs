//! Arrows between the modules of a crate go one way.
//!
//! A module is a file here. It uses another if its code, without tests, names something that the other defines, or
//! calls a method of its own type (`self.method()`) that the other defines; a re-export (`pub use`) does not count.
//! Other method calls are not seen, because they name no module.
//!
//! The methods of a large type may stand in several files that call each other. The type's file then says so, with the
//! reason: `// tidy: TYPE's methods call each other across files: REASON`.

mod module;
mod names;

use std::collections::{BTreeMap, BTreeSet};

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;

use crate::finding::Finding;
use crate::tree::Tree;
use module::{Module, ModuleId};

/// The names that one file uses of another, and the first line that uses one; by the two files.
type Uses<'a> = BTreeMap<(&'a str, &'a str), (usize, BTreeSet<String>)>;

/// Finds the cycles of each crate; returns a finding for each arrow between two modules of the same cycle.
pub(crate) fn check(tree: &Tree) -> Result<Vec<Finding>, String> {
    let mut findings = Vec::new();
    for root in roots(tree)? {
        let modules = module::read(tree, &root)?;
        let several = |file: &str, name: &str| {
            let marker = format!("// tidy: {name}'s methods call each other across files: ");
            tree.texts[file].lines().any(|line| line.starts_with(&marker))
        };
        let mut uses = uses(&modules);
        for (from, to, line, method) in calls(&modules, several) {
            uses.entry((from, to)).or_insert_with(|| (line, BTreeSet::new())).1.insert(method.to_owned());
        }
        findings.extend(cycles(&uses));
    }
    Ok(findings)
}

/// Returns the first file of every crate in the tree, library or program.
fn roots(tree: &Tree) -> Result<Vec<String>, String> {
    let mut roots = Vec::new();
    for (path, text) in &tree.texts {
        let Some(folder) = path.strip_suffix("Cargo.toml") else { continue };
        let manifest: toml::Table = toml::from_str(text).map_err(|error| format!("{path}: {error}"))?;
        let named = |table: &toml::Value| Some(format!("{folder}{}", table.get("path")?.as_str()?));
        let bins = manifest.get("bin").and_then(toml::Value::as_array).into_iter().flatten();
        let mut files: BTreeSet<String> = bins.filter_map(named).collect();
        files.extend(manifest.get("lib").and_then(named));
        files.extend(["src/lib.rs", "src/main.rs"].map(|file| format!("{folder}{file}")));
        roots.extend(files.into_iter().filter(|file| tree.texts.contains_key(file)));
    }
    Ok(roots)
}

/// Returns the uses between each two files.
fn uses(modules: &[Module]) -> Uses<'_> {
    let mut uses = Uses::new();
    for (id, module) in modules.iter().enumerate() {
        for (parts, line) in &module.uses {
            let Some(home) = names::home(modules, id, parts) else { continue };
            let home = &modules[home];
            if home.file != module.file {
                let name = parts.last().cloned().unwrap_or_default();
                let entry = uses.entry((&module.file, &home.file)).or_insert_with(|| (*line, BTreeSet::new()));
                entry.1.insert(name);
            }
        }
    }
    uses
}

/// The calls between files whose methods are of one type: the two files, the line and the method. Leaves out the types
/// for which `several` returns true, given their file and name.
fn calls(modules: &[Module], several: impl Fn(&str, &str) -> bool) -> Vec<(&str, &str, usize, &str)> {
    let of = |id: ModuleId, of: &[String]| Some((names::home(modules, id, of)?, of.last()?.clone()));
    let mut files = BTreeMap::new();
    for (id, module) in modules.iter().enumerate() {
        for method in &module.methods {
            files.insert((of(id, &method.of), method.name.as_str()), module.file.as_str());
        }
    }
    let mut calls = Vec::new();
    for (id, module) in modules.iter().enumerate() {
        for (method, line) in &module.calls {
            let Some((home, name)) = of(id, &method.of) else { continue };
            let excused = several(&modules[home].file, &name);
            let Some(file) = files.get(&(Some((home, name)), method.name.as_str())) else { continue };
            if *file != module.file && !excused {
                calls.push((module.file.as_str(), *file, *line, method.name.as_str()));
            }
        }
    }
    calls
}

/// Returns a finding for each arrow of each cycle.
fn cycles(uses: &Uses<'_>) -> Vec<Finding> {
    let graph: DiGraphMap<&str, ()> = uses.keys().copied().collect();
    let mut findings = Vec::new();
    for (number, cycle) in tarjan_scc(&graph).into_iter().filter(|files| files.len() > 1).enumerate() {
        let name = format!("cycle {} of {} modules", number + 1, cycle.len());
        for (&(from, to), (line, names)) in uses {
            if cycle.contains(&from) && cycle.contains(&to) {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let sentence = format!("uses {to} ({}) in {name}: move what both need below both", names.join(" "));
                findings.push(Finding { path: from.to_owned(), line: *line, sentence });
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[package]\nname = \"a\"\n";

    /// Returns the arrows in cycles of a crate with these files below `a/src`.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<(String, &str)> = files.iter().map(|(path, text)| (format!("a/src/{path}"), *text)).collect();
        let mut all = vec![("a/Cargo.toml", MANIFEST)];
        all.extend(files.iter().map(|(path, text)| (path.as_str(), *text)));
        let findings = check(&Tree::of(&all)).unwrap();
        findings
            .iter()
            .map(|finding| {
                let to = finding.sentence.split_whitespace().nth(1).unwrap_or_default();
                format!("{}>{to}", finding.path).replace("a/src/", "")
            })
            .collect()
    }

    #[test]
    fn two_modules_that_use_each_other_are_a_cycle() {
        let one_way =
            [("lib.rs", "mod b; mod c;"), ("b.rs", "use crate::c::C; pub struct B;"), ("c.rs", "pub struct C;")];
        assert_eq!(found(&one_way), [""; 0]);
        let both = [
            ("lib.rs", "mod b; mod c;"),
            ("b.rs", "use super::c::C; pub struct B;"),
            ("c.rs", "struct C(crate::b::B);"),
        ];
        assert_eq!(found(&both), ["b.rs>c.rs", "c.rs>b.rs"]);
    }

    #[test]
    fn names_are_followed_to_the_module_that_defines_them() {
        // c uses B through the crate's root, and through a glob of d.
        for root in ["mod b; mod c; mod d; pub use b::B;", "mod b; mod c; mod d; pub(crate) use d::*;"] {
            let files = [
                ("lib.rs", root),
                ("b.rs", "use crate::c; pub struct B; fn b() { c::c(); }"),
                ("c.rs", "use crate::B as Other; pub fn c() {}"),
                ("d/mod.rs", "pub(crate) use crate::b::B;"),
            ];
            assert_eq!(found(&files), ["b.rs>c.rs", "c.rs>b.rs"], "{root}");
        }
    }

    #[test]
    fn a_parent_that_calls_its_child_and_a_child_that_uses_its_parent_are_a_cycle() {
        let files = [
            ("lib.rs", "mod b;"),
            ("b.rs", "mod c; pub(super) struct B; fn b() { self::c::c(); }"),
            ("b/c.rs", "use super::B; pub(super) fn c() {}"),
        ];
        assert_eq!(found(&files), ["b.rs>b/c.rs", "b/c.rs>b.rs"]);
        let re_exported = [
            ("lib.rs", "mod b;"),
            ("b.rs", "mod c; pub(super) struct B; pub use c::c;"),
            ("b/c.rs", "use super::B; pub(super) fn c() {}"),
        ];
        assert_eq!(found(&re_exported), [""; 0]);
    }

    #[test]
    fn methods_of_one_type_that_call_each_other_across_files_are_a_cycle_unless_the_type_says_so() {
        let caller = "mod c; pub struct B; impl B { fn b(&self) -> bool { assert!(self.c()); Self::d() } fn e() {} }";
        let callee =
            "use super::B; impl B { pub(super) fn c(&self) -> bool { true } pub(super) fn d() -> bool { true } }";
        assert_eq!(
            found(&[("lib.rs", "mod b;"), ("b.rs", caller), ("b/c.rs", callee)]),
            ["b.rs>b/c.rs", "b/c.rs>b.rs"]
        );
        let excused = format!("// tidy: B's methods call each other across files: b is short, c is long.\n{caller}");
        assert_eq!(found(&[("lib.rs", "mod b;"), ("b.rs", &excused), ("b/c.rs", callee)]), [""; 0]);
        let another = excused.replace("tidy: B", "tidy: C");
        assert_eq!(found(&[("lib.rs", "mod b;"), ("b.rs", &another), ("b/c.rs", callee)]).len(), 2);
        // A type that calls only itself, and one that only another file extends.
        let alone = "mod c; pub struct B; impl B { fn b(&self) { self.e(); } fn e(&self) {} }";
        assert_eq!(found(&[("lib.rs", "mod b;"), ("b.rs", alone), ("b/c.rs", callee)]), [""; 0]);
    }

    #[test]
    fn paths_inside_macros_and_blocks_are_seen() {
        let files = [
            ("lib.rs", "mod b; mod c;"),
            ("b.rs", "pub fn b() -> String { format!(\"{}\", crate::c::C) }"),
            ("c.rs", "pub const C: u8 = 1; mod inner { fn f() { use super::super::b; b::b(); } }"),
        ];
        assert_eq!(found(&files), ["b.rs>c.rs", "c.rs>b.rs"]);
    }

    #[test]
    fn tests_may_use_what_they_like() {
        let files = [
            ("lib.rs", "mod b; mod c;"),
            ("b.rs", "use crate::c::C; pub struct B;"),
            ("c.rs", "pub struct C; #[cfg(test)] mod tests { use crate::b::B; } #[cfg(test)] use crate::b::B;"),
        ];
        assert_eq!(found(&files), [""; 0]);
    }

    #[test]
    fn a_module_that_is_missing_is_an_error() {
        let error = check(&Tree::of(&[("a/Cargo.toml", MANIFEST), ("a/src/lib.rs", "mod b;")])).unwrap_err();
        assert!(error.contains("the module b"), "{error}");
        let error = check(&Tree::of(&[("a/Cargo.toml", MANIFEST), ("a/src/lib.rs", "mod {")])).unwrap_err();
        assert!(error.starts_with("a/src/lib.rs:1:5"), "{error}");
    }
}
