//! Comments and pages refer only to files and headings that exist.
//!
//! Files are looked for in comments that begin with `//` or `#`, and in whole lines of C and of Markdown, but not in
//! strings. The links of Markdown are read as GitHub reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use pulldown_cmark::{Event, Parser, Tag, TagEnd};
use regex_lite::Regex;

use crate::finding::Finding;
use crate::tree::{Tree, join};

/// The endings of the files that are looked for. Files of C are left out, because comments cite those of the kernel and
/// of rdma-core.
const ENDINGS: [&str; 8] = [".rs", ".md", ".toml", ".py", ".sh", ".csv", ".patch", ".lock"];

/// The path of a file that the tree could hold.
static FILE: LazyLock<Regex> = LazyLock::new(|| {
    let before = r#"(?:^|[\s`"'(\[<,;:])"#;
    let path = format!(r"(?:[\w.*-]+/)*[\w.*-]+(?:{})", ENDINGS.map(regex_lite::escape).join("|"));
    let after = r"(?:$|[^\w/.*-]|[.](?:$|\s))";
    Regex::new(&format!("{before}({path}){after}")).expect("the pattern is right")
});

/// Finds references to missing files: paths in comments and Markdown, and links of Markdown with their headings. A path
/// may leave out leading folders: `slots.rs` and `transport/src/slots.rs` are the same file.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let ends = Ends::of(tree);
    let texts = tree.texts.iter();
    let pages: BTreeMap<&str, Page> =
        texts.filter(|(path, _)| is_page(path)).map(|(path, text)| (path.as_str(), Page::of(text))).collect();
    let mut findings = Vec::new();
    for (path, text) in &tree.texts {
        let mut report = |line, sentence| findings.push(Finding { path: path.clone(), line, sentence });
        for (index, line) in text.lines().enumerate() {
            for file in files(prose(path, line)).filter(|file| !ends.has(file)) {
                report(index + 1, format!("{file} is not in the tree: name a file that is, or none"));
            }
        }
        for (line, link) in pages.get(path.as_str()).into_iter().flat_map(|page| &page.links) {
            if let Err(sentence) = follow(tree, &pages, path, link) {
                report(*line, sentence);
            }
        }
    }
    findings
}

fn is_page(path: &str) -> bool {
    path.ends_with(".md")
}

/// Returns the paths of files in `prose`. The same character may follow one path and precede the next.
fn files(prose: &str) -> impl Iterator<Item = &str> {
    // Most lines have none, and it is far faster to look for an ending than for a path.
    let mut at = if ENDINGS.iter().any(|ending| prose.contains(ending)) { 0 } else { prose.len() };
    std::iter::from_fn(move || {
        let file = FILE.captures_at(prose, at)?.get(1)?;
        at = file.end();
        Some(file.as_str())
    })
}

/// Returns the part of `line` that is for people: a whole line of a page or of C, the comment in a line of another
/// program.
fn prose<'a>(path: &str, line: &'a str) -> &'a str {
    let mark = match path.rsplit_once('.').map(|(_, ending)| ending) {
        Some("md" | "c" | "h") => return line,
        Some("rs") => "//",
        Some("toml" | "py" | "sh") => "#",
        _ => return "",
    };
    // The slashes after a colon are those of an address.
    let begins = line.match_indices(mark).find(|(at, _)| !line[..*at].ends_with(':'));
    begins.map_or("", |(at, _)| line[at..].trim_start_matches(['/', '!', '#']))
}

/// The links and headings of a page of Markdown.
#[derive(Debug, Default)]
struct Page {
    /// The targets of the links and pictures, with their lines.
    links: Vec<(usize, String)>,
    /// The names by which links reach the headings.
    anchors: BTreeSet<String>,
}

impl Page {
    fn of(text: &str) -> Self {
        let mut page = Self::default();
        let mut heading: Option<String> = None;
        for (event, place) in Parser::new(text).into_offset_iter() {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    let line = text[..place.start].matches('\n').count() + 1;
                    page.links.push((line, dest_url.into_string()));
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::Text(words) | Event::Code(words) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&words);
                    }
                }
                Event::End(TagEnd::Heading(_)) => page.add_heading(&heading.take().unwrap_or_default()),
                _ => {}
            }
        }
        page
    }

    /// Adds the name by which GitHub's pages reach `heading`; a number follows if an earlier heading has the same name.
    fn add_heading(&mut self, heading: &str) {
        let kept = heading.trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let name: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let mut anchor = name.clone();
        let mut number = 0;
        while !self.anchors.insert(anchor) {
            number += 1;
            anchor = format!("{name}-{number}");
        }
    }
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

    /// Returns true if `path` is the end of a path in the tree, the name of a file below `target`, where builds put
    /// theirs, or a pattern for files in general, such as `*.rs`.
    fn has(&self, path: &str) -> bool {
        let plain = path.trim_start_matches("../").trim_start_matches("./");
        plain.contains('*') || plain.starts_with("target/") || self.0.contains(plain)
    }
}

/// Checks that `link` of the page `from` leads to a file or folder, and to a heading if that is a page.
fn follow(tree: &Tree, pages: &BTreeMap<&str, Page>, from: &str, link: &str) -> Result<(), String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return Ok(());
    }
    let (path, heading) = link.split_once('#').map_or((link, None), |(path, heading)| (path, Some(heading)));
    // A path that begins with a slash begins at the root of the tree.
    let folder = if path.starts_with('/') { "" } else { from.rsplit_once('/').map_or("", |(folder, _)| folder) };
    let target = if path.is_empty() { Some(from.to_owned()) } else { join(folder, path) };
    let Some(target) = target else { return Err(format!("the link {link} leaves the tree")) };
    let within = format!("{target}/");
    if !target.is_empty() && !tree.paths.iter().any(|path| *path == target || path.starts_with(&within)) {
        return Err(format!("the link {link} leads to {target}, which is not in the tree"));
    }
    match (heading, pages.get(target.as_str())) {
        (Some(heading), Some(page)) if !page.anchors.contains(heading) => {
            Err(format!("the link #{heading} leads to no heading of {target}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the findings in a page and a module with these texts.
    fn found(page: &str, comment: &str) -> Vec<String> {
        let tree = Tree::of(&[
            ("docs/wire.md", "# The wire\n\n## Every byte, sent\n"),
            ("docs/page.md", page),
            ("crates/plugin/src/debt.rs", &format!("fn debt() {{}} // {comment}\n")),
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
    fn every_file_of_a_line_is_looked_for() {
        for line in ["`gone.rs` ebt.rs", "gone.rs,ebt.rs", "\"gone.rs\" or 'ebt.rs'", "gone.rs: ebt.rs."] {
            assert_eq!(found(line, "").len(), 2, "{line}");
            assert_eq!(found("", line).len(), 2, "{line}");
        }
    }

    #[test]
    fn addresses_are_no_files_of_the_tree() {
        assert_eq!(found("https://x.y/gone.rs", "https://x.y/gone.rs"), [""; 0]);
        let tree = Tree::of(&[("a.rs", "let x = \"https://x.y/gone.rs\";"), ("b.toml", "x = \"gone.rs\"")]);
        assert_eq!(check(&tree), []);
    }

    #[test]
    fn comments_of_c_and_of_scripts_are_read() {
        let tree = Tree::of(&[("a.c", "/* as in gone.rs,\n * and gone.md */"), ("b.py", "x = 1 # as in gone.rs")]);
        let places: Vec<_> = check(&tree).into_iter().map(|finding| (finding.path, finding.line)).collect();
        assert_eq!(places, [("a.c".to_owned(), 1), ("a.c".to_owned(), 2), ("b.py".to_owned(), 1)]);
    }

    #[test]
    fn links_lead_to_files_and_headings() {
        let good = "[a](wire.md#every-byte-sent) [b](../crates/plugin) [c](https://x.y/z) [d](wire.md \"title\")\n\
                    [e](/docs/wire.md) [f](/) [g](../crates/plugin/src/debt.rs#L1)";
        assert_eq!(found(good, ""), [""; 0]);
        for bad in [
            "[a](wire.md#every-byte)",
            "[b](../crates/plugins)",
            "[c](../../x)",
            "[d](#here)",
            "[e](gone \"title\")",
            "[f](/wire)",
            "![g](gone.png)",
            "[h\ni](gone)",
            "[j][k]\n\n[k]: gone",
        ] {
            assert_eq!(found(bad, "").len(), 1, "{bad}");
        }
    }

    #[test]
    fn headings_are_those_that_github_shows() {
        let page = "# A *b* [c](wire.md)\n## The `d::e` f!\nUnder\n---\n# Twice\n# Twice\n";
        for good in ["a-b-c", "the-de-f", "under", "twice", "twice-1"] {
            assert_eq!(found(&format!("{page}[x](#{good})"), ""), [""; 0], "{good}");
        }
        for bad in ["A-b-c", "twice-2"] {
            assert_eq!(found(&format!("{page}[x](#{bad})"), "").len(), 1, "{bad}");
        }
        assert_eq!(found("```\n# no heading\n```\n#none\n\n[x](#no-heading) [y](#none)", "").len(), 2);
    }
}
