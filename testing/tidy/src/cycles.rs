//! Arrows between the modules of a crate go one way.
//!
//! Here a module is a file. It uses another if its code, without the parts for tests, names something that the other
//! defines, or calls a method of its own type (`self.method()`) that the other defines. A re-export (`pub use`) is no
//! use. The crates are all that Cargo finds: libraries, programs, tests, examples and benches.
//!
//! Some uses are not seen, because seeing them would take Rust's own name resolution: calls of other methods, which
//! name no module; items and modules that macros and `include!` make; a crate's paths by its own name (`extern crate
//! self`). A variable hides the items of its name in the whole function.
//!
//! The methods of a large type may stand in several files that call each other. The type's file then says so, with the
//! reason: `// tidy: TYPE's methods call each other across files: REASON`.

mod conditions;
mod locals;
mod module;
mod names;
mod place;
mod roots;

use std::collections::{BTreeMap, BTreeSet};

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;

use crate::finding::Finding;
use crate::tree::Tree;
use module::{Module, ModuleId};

/// The names that one file uses of another, and the first line that uses one; by the two files.
type Uses<'a> = BTreeMap<(&'a str, &'a str), (usize, BTreeSet<String>)>;

/// Finds the cycles of each crate; returns a finding for each arrow between two modules of the same cycle.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for root in roots::roots(tree, &mut findings) {
        let modules = module::read(tree, &root, &mut findings);
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
    // Several crates may share a file.
    findings.sort();
    findings.dedup();
    findings
}

/// Returns the uses between each two files.
fn uses(modules: &[Module]) -> Uses<'_> {
    let mut uses = Uses::new();
    for (id, module) in modules.iter().enumerate() {
        let paths = module.uses.iter().map(|(parts, line)| (names::home(modules, id, parts), parts.last(), *line));
        let macros = &module.macro_calls;
        let macros = macros.iter().map(|(name, line)| (names::macro_home(modules, id, name), Some(name), *line));
        for (home, name, line) in paths.chain(macros) {
            let Some(home) = home.map(|home| &modules[home]).filter(|home| home.file != module.file) else { continue };
            let entry = uses.entry((&module.file, &home.file)).or_insert_with(|| (line, BTreeSet::new()));
            entry.1.insert(name.cloned().unwrap_or_default());
        }
    }
    uses
}

/// Returns the calls from one file of a method of the same type in another: the two files, the line and the method.
/// Leaves out the types for which `several` returns true, given their file and name.
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
        let findings = check(&Tree::of(&all));
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
        let for_tests = callee.replace("pub(super) fn", "#[cfg(test)] pub(super) fn");
        assert_eq!(found(&[("lib.rs", "mod b;"), ("b.rs", caller), ("b/c.rs", &for_tests)]), [""; 0]);
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
    fn a_module_that_is_missing_and_one_that_is_not_rust_are_findings() {
        let found = |root| {
            let files = [("a/Cargo.toml", MANIFEST), ("a/src/lib.rs", root), ("a/src/c.rs", "")];
            check(&Tree::of(&files)).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let missing = found("mod c;\nmod b;");
        assert_eq!(missing.len(), 1, "{missing:?}");
        assert!(missing[0].starts_with("a/src/lib.rs:2: the module b"), "{missing:?}");
        let wrong = found("mod {");
        assert!(wrong.len() == 1 && wrong[0].starts_with("a/src/lib.rs:1: "), "{wrong:?}");
        assert_eq!(found("mod c; #[cfg(windows)] mod b;"), [""; 0]);
    }

    #[test]
    fn the_error_of_a_crate_does_not_hide_the_cycles_of_another() {
        let tree = Tree::of(&[
            ("a/Cargo.toml", "[["),
            ("b/Cargo.toml", MANIFEST),
            ("b/src/lib.rs", "mod b; mod c;"),
            ("b/src/b.rs", "use crate::c::C; pub struct B;"),
            ("b/src/c.rs", "use crate::b::B; pub struct C;"),
        ]);
        let findings = check(&tree);
        let paths: Vec<_> = findings.iter().map(|finding| finding.path.as_str()).collect();
        assert_eq!(paths, ["a/Cargo.toml", "b/src/b.rs", "b/src/c.rs"]);
    }

    /// Checks that two modules with these places, declared so by a crate's root, are found as a cycle.
    fn is_cycle(manifest: &str, root: (&str, &str), b: (&str, &str), c: (&str, &str)) {
        let tree = Tree::of(&[("a/Cargo.toml", &format!("{MANIFEST}{manifest}")), root, b, c]);
        let paths: BTreeSet<_> = check(&tree).into_iter().map(|finding| finding.path).collect();
        assert_eq!(paths, BTreeSet::from([b.0, c.0].map(str::to_owned)), "{root:?}");
    }

    #[test]
    fn modules_are_looked_for_where_rust_looks() {
        let root = "a/src/lib.rs";
        let places = [
            ("pub mod inner { pub mod b; pub mod c; }", "inner/b.rs", "inner/c/mod.rs"),
            ("pub mod inner { #[path = \"x.rs\"] pub mod b; pub mod c; }", "inner/x.rs", "inner/c.rs"),
            ("#[path = \"x\"] pub mod inner { pub mod b; pub mod c; }", "x/b.rs", "x/c.rs"),
            ("pub mod inner { #[path = \"../../b.rs\"] pub mod b; pub mod c; }", "../b.rs", "inner/c.rs"),
            (
                "pub mod inner { #[cfg_attr(all(), path = \"x.rs\")] pub mod b; pub mod r#c; }",
                "inner/x.rs",
                "inner/c.rs",
            ),
        ];
        for (text, b, c) in places {
            let (b, c) = (format!("src/{b}").replace("src/../", ""), format!("a/src/{c}"));
            let (b, c) =
                ((&*format!("a/{b}"), "use super::c::C; struct B;"), (&*c, "use crate::inner::b::B; struct C;"));
            is_cycle("", (root, text), b, c);
        }
    }

    #[test]
    fn the_children_of_a_file_that_is_named_are_beside_it() {
        let (b, c) = ("use super::c::C; pub struct B;", "use super::b::B; pub struct C;");
        for path in ["x/y.rs", "x/mod.rs"] {
            let root = format!("#[path = \"{path}\"] mod inner;");
            let files = [("lib.rs", &*root), (path, "mod b; mod c;"), ("x/b.rs", b), ("x/c.rs", c)];
            assert_eq!(found(&files), ["x/b.rs>x/c.rs", "x/c.rs>x/b.rs"]);
        }
    }

    #[test]
    fn a_cycle_that_two_crates_share_is_found_once() {
        let (b, c) = ("use crate::c::C; pub struct B;", "use crate::b::B; pub struct C;");
        let files = [("lib.rs", "mod b; mod c;"), ("main.rs", "mod b; mod c;"), ("b.rs", b), ("c.rs", c)];
        assert_eq!(found(&files), ["b.rs>c.rs", "c.rs>b.rs"]);
    }

    #[test]
    fn every_crate_of_a_package_is_read() {
        let crates = [
            ("", "src/bin/x.rs", "src/bin/"),
            ("", "src/bin/x/main.rs", "src/bin/x/"),
            ("", "tests/x.rs", "tests/"),
            ("", "tests/x/main.rs", "tests/x/"),
            ("", "examples/x.rs", "examples/"),
            ("", "benches/x.rs", "benches/"),
            ("[[bin]]\npath = \"src/tool.rs\"", "src/tool.rs", "src/"),
            ("[[test]]\npath = \"more/x.rs\"", "more/x.rs", "more/"),
            ("[[example]]\npath = \"more/x.rs\"", "more/x.rs", "more/"),
            ("[[bench]]\npath = \"more/x.rs\"", "more/x.rs", "more/"),
            ("[lib]\npath = \"./code/lib.rs\"", "code/lib.rs", "code/"),
        ];
        for (manifest, root, folder) in crates {
            let (root, folder) = (format!("a/{root}"), format!("a/{folder}"));
            let (b, c) = (format!("{folder}b/mod.rs"), format!("{folder}c/mod.rs"));
            let (b, c) = ((&*b, "use crate::c::C; struct B;"), (&*c, "use crate::b::B; struct C;"));
            is_cycle(manifest, (&root, "mod b; mod c;"), b, c);
        }
    }

    /// Returns the arrows in cycles of three modules: the root has `root` before `mod b; mod c;`, `b` uses `c`, and the
    /// text of `c` is given.
    fn from_c(root: &str, b: &str, c: &str) -> Vec<String> {
        let root = format!("{root} mod b; mod c; use b::size;");
        found(&[("lib.rs", &root), ("b.rs", &format!("use crate::c::C; pub fn size() {{}} {b}")), ("c.rs", c)])
    }

    #[test]
    fn uses_in_variants_macros_and_attributes_count() {
        let uses = [
            ("", "pub enum B { X }", "use crate::b::B::*; pub struct C;"),
            ("#[macro_use] mod d {} #[macro_use]", "macro_rules! mb { () => {} }", "pub struct C; fn f() { mb!(); }"),
            ("", "#[macro_export] macro_rules! mb { () => {} }", "pub struct C; fn f() { crate::mb!(); }"),
            ("", "", "pub struct C { #[serde(deserialize_with = \"crate::b::size\")] c: u8 }"),
            ("", "pub fn serialize() {}", "pub struct C { #[serde(with = \"crate::b\")] c: u8 }"),
            ("", "", "pub struct C { #[arg(value_parser = crate::b::size)] c: u8 }"),
        ];
        for (root, b, c) in uses {
            assert_eq!(from_c(root, b, c), ["b.rs>c.rs", "c.rs>b.rs"], "{c}");
        }
    }

    #[test]
    fn parts_for_tests_and_names_of_variables_are_no_uses() {
        let none = [
            "pub struct C; impl C { #[cfg(test)] fn t() { crate::b::size(); } }",
            "pub struct C; #[cfg(test)] impl C { fn t() { crate::b::size(); } }",
            "pub trait C { #[cfg(test)] fn t() { crate::b::size(); } }",
            "pub struct C { #[cfg(test)] c: crate::b::B }",
            "pub enum C { #[cfg(test)] X(crate::b::B) }",
            "pub struct C; fn t(c: X) { match c { #[cfg(test)] X::Y => crate::b::size(), X::Z => {} } }",
            "pub struct C; fn t() { X { #[cfg(test)] size: crate::b::size() }; }",
            "pub struct C; fn t() { #[cfg(test)] let c = crate::b::size(); #[cfg(test)] crate::b::size(); }",
            "pub struct C; #[cfg(all(unix, test))] use crate::b::B;",
            "#![cfg(test)] pub struct C; use crate::b::B;",
            "use super::*; pub struct C { #[arg(size)] c: u8 }",
            "use super::*; pub struct C; fn f(size: u8) -> String { format!(\"{}\", size) }",
            "use super::*; pub struct C; fn f(c: &X) { odd!(c.size => 1); }",
            "use super::*; pub struct C; fn f<size>(c: size) {}",
            "use super::*; pub struct C; impl<size> X<size> { fn f(c: size) {} }",
        ];
        for c in none {
            assert_eq!(from_c("", "pub struct B;", c), [""; 0], "{c}");
        }
        let some = [
            "pub struct C; #[cfg(any(unix, test))] use crate::b::B;",
            "pub struct C; #[cfg(not(test))] use crate::b::B;",
            "pub struct C; #[test] fn t() { crate::b::size(); }",
            "pub struct C; fn f() -> Vec<()> { vec![crate::b::size()] }",
            "use super::*; pub struct C; fn f(c: u8) -> String { format!(\"{}\", size()) }",
            "use super::*; pub struct C; fn f(c: &X) { odd!(c..size() => 1); }",
            "use super::*; pub struct C; impl C { fn f(size: u8) {} fn g() { size(); } }",
        ];
        for c in some {
            assert_eq!(from_c("", "pub struct B;", c).len(), 2, "{c}");
        }
    }
}
