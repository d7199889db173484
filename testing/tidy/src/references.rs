//! The files and headings to which comments and pages refer exist.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;

use crate::finding::Finding;
use crate::tree::{Tree, join};

/// The path of a file that the tree could hold. Files of C are left out, because comments cite those of the kernel and
/// of rdma-core.
static FILE: LazyLock<Regex> = LazyLock::new(|| {
    let pattern =
        r"(?:^|[\s`(\[<,;:])((?:[\w.*-]+/)*[\w.*-]+\.(?:rs|md|toml|py|sh|csv|patch|lock))(?:$|[^\w/.*-]|[.](?:$|\s))";
    Regex::new(pattern).expect("the pattern is right")
});
/// A link of Markdown: its file, and its heading.
static LINK: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)").expect("the pattern is right"));

/// Finds references to missing files: paths in comments and Markdown, and links of Markdown with their headings. A path
/// may leave out leading folders: `slots.rs` and `transport/src/slots.rs` are the same file.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let ends = Ends::of(tree);
    let mut findings = Vec::new();
    for (path, text) in &tree.texts {
        let markdown = path.ends_with(".md");
        for (index, line) in text.lines().enumerate() {
            let Some(prose) = prose(path, line) else { continue };
            let mut report = |sentence| findings.push(Finding { path: path.clone(), line: index + 1, sentence });
            for found in FILE.captures_iter(prose) {
                if !ends.has(&found[1]) {
                    report(format!("{} is not in the tree: name a file that is, or none", &found[1]));
                }
            }
            for found in LINK.captures_iter(prose).filter(|_| markdown) {
                if let Err(sentence) = follow(tree, path, &found[1], found.get(2).map(|heading| heading.as_str())) {
                    report(sentence);
                }
            }
        }
    }
    findings
}

/// Returns the part of `line` that is for people: a whole line of a page, the comment in a line of a program.
fn prose<'a>(path: &str, line: &'a str) -> Option<&'a str> {
    let mark = match path.rsplit_once('.').map(|(_, ending)| ending) {
        Some("md") => return Some(line),
        Some("rs" | "c" | "h") => "//",
        Some("toml" | "py" | "sh") => "#",
        _ => return None,
    };
    line.find(mark).map(|at| &line[at + mark.len()..]).map(|rest| rest.trim_start_matches(['/', '!', '#']))
}

/// The ends of all paths, folder by folder.
struct Ends(BTreeSet<String>);

impl Ends {
    fn of(tree: &Tree) -> Self {
        let mut ends = BTreeSet::new();
        for path in &tree.paths {
            let mut rest = path.as_str();
            ends.insert(rest.to_owned());
            while let Some((_, shorter)) = rest.split_once('/') {
                rest = shorter;
                ends.insert(rest.to_owned());
            }
            // A module's file may also be named without its crate's `src` folder.
            if let Some((head, tail)) = path.split_once("/src/") {
                let name = head.rsplit('/').next().unwrap_or(head);
                ends.insert(format!("{name}/{tail}"));
            }
        }
        Self(ends)
    }

    /// Returns true if `path` is the end of a path, the name of a file below `target`, which builds make, or a pattern
    /// for files in general, such as `*.rs`.
    fn has(&self, path: &str) -> bool {
        let plain = path.trim_start_matches("../").trim_start_matches("./");
        plain.contains('*') || plain.starts_with("target/") || self.0.contains(plain)
    }
}

/// Checks that `link` of the page `from` leads to a file or folder, and its `heading` to a heading there.
fn follow(tree: &Tree, from: &str, link: &str, heading: Option<&str>) -> Result<(), String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return Ok(());
    }
    let target = if link.is_empty() {
        Some(from.to_owned())
    } else {
        join(from.rsplit_once('/').map_or("", |(folder, _)| folder), link)
    };
    let Some(target) = target else { return Err(format!("the link {link} leaves the tree")) };
    let folder = format!("{target}/");
    if !tree.paths.iter().any(|path| *path == target || path.starts_with(&folder)) {
        return Err(format!("the link {link} leads to {target}, which is not in the tree"));
    }
    let (Some(heading), Some(text)) = (heading, tree.texts.get(&target)) else { return Ok(()) };
    let found = text.lines().filter(|line| line.starts_with('#')).any(|line| anchor(line) == heading);
    if found { Ok(()) } else { Err(format!("the link #{heading} leads to no heading of {target}")) }
}

/// Returns the name by which GitHub's pages reach a heading.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the findings in a page and a module with these texts.
    fn found(page: &str, comment: &str) -> Vec<String> {
        let tree = Tree::of(&[
            ("docs/wire.md", "# The wire\n\n## Every byte, sent\n"),
            ("docs/page.md", page),
            ("crates/plugin/src/debt.rs", &format!("fn debt() {{}} // {comment}\nlet x = \"nowhere.rs\";\n")),
        ]);
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn files_that_are_there_are_found_by_the_end_of_their_path() {
        assert_eq!(found("`debt.rs`, docs/wire.md.", "plugin/debt.rs (docs/wire.md) *.rs target/a.toml"), [""; 0]);
        let nowhere = found("see `gone.rs`", "see\nplugin/ebt.rs");
        assert_eq!(nowhere.len(), 1, "{nowhere:?}");
        assert!(nowhere[0].starts_with("docs/page.md:1: gone.rs is not in the tree"), "{nowhere:?}");
        let nowhere = found("", "see plugin/ebt.rs, and docs/gone.md.");
        assert_eq!(nowhere.len(), 2, "{nowhere:?}");
    }

    #[test]
    fn links_lead_to_files_and_headings() {
        let good = "[a](wire.md#every-byte-sent) [b](../crates/plugin) [c](https://x.y/z) [d](wire.md)";
        assert_eq!(found(good, ""), [""; 0]);
        for bad in ["[a](wire.md#every-byte)", "[b](../crates/plugins)", "[c](../../x)", "[d](#here)"] {
            assert_eq!(found(bad, "").len(), 1, "{bad}");
        }
    }
}
