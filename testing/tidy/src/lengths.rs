//! Lines are at most 120 columns wide, also in comments and in files other than Rust's, which rustfmt does not touch;
//! modules have at most 600 lines.

use crate::finding::Finding;
use crate::tree::{self, Tree};

/// The width that rustfmt.toml sets for code.
const WIDTH: usize = 120;

/// The most lines of a module, its tests included.
const LINES: usize = 600;

/// Finds the modules that are too long.
pub(crate) fn modules(tree: &Tree) -> Vec<Finding> {
    let texts = tree.texts.iter().filter(|(path, _)| path.ends_with(".rs"));
    let counts = texts.map(|(path, text)| (path, text.lines().count())).filter(|(_, count)| *count > LINES);
    let finding = |(path, count): (&String, usize)| {
        let sentence = format!("{count} lines, but at most {LINES} are allowed: move a noun with its tests to a file");
        Finding { path: path.clone(), line: LINES + 1, sentence }
    };
    counts.map(finding).collect()
}

/// Finds the lines that are too wide. A line that is a single word, such as an address, cannot be broken and passes.
pub(crate) fn lines(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts.iter().filter(|(path, _)| tree::is_written(path)) {
        for (index, line) in text.lines().enumerate() {
            let width = line.chars().count();
            let words = line.split_whitespace().filter(|word| word.chars().any(char::is_alphanumeric)).count();
            if width > WIDTH && words > 1 {
                let sentence = format!("{width} columns, but at most {WIDTH} are allowed: break the line");
                findings.push(Finding { path: path.clone(), line: index + 1, sentence });
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_too_wide_from_121_columns_unless_they_are_one_word() {
        let wide = format!("// {}", "two ".repeat(30));
        let just = format!("{}x", "two ".repeat(29).replace("two ", "äüö "));
        let address = format!("// https://{}", "x".repeat(200));
        let tree =
            Tree::of(&[("a.md", &just), ("b.rs", &format!("fn b() {{}}\n{wide}\n{address}\n")), ("c.bin", &wide)]);
        let findings = lines(&tree);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!((findings[0].path.as_str(), findings[0].line), ("b.rs", 2));
        assert!(findings[0].sentence.starts_with("123 columns"), "{findings:?}");
    }

    #[test]
    fn modules_are_too_long_from_601_lines() {
        let (just, long) = ("//\n".repeat(600), "//\n".repeat(601));
        let findings = modules(&Tree::of(&[("a.rs", &just), ("b.rs", &long), ("c.md", &long)]));
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!((findings[0].path.as_str(), findings[0].line), ("b.rs", 601));
    }
}
