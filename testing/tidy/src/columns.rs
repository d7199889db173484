//! Lines are at most 120 columns wide, also in comments and in files other than Rust's, which rustfmt does not touch.

use crate::finding::Finding;
use crate::tree::Tree;

/// The width that rustfmt.toml sets for code.
const WIDTH: usize = 120;

/// The endings of the names of files that people write and read.
const WRITTEN: [&str; 7] = [".rs", ".md", ".toml", ".py", ".sh", ".c", ".h"];

/// Finds the lines that are too wide. A line with a single word, such as an address, cannot be broken and passes.
pub(crate) fn check(tree: &Tree) -> Result<Vec<Finding>, String> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts.iter().filter(|(path, _)| WRITTEN.iter().any(|ending| path.ends_with(ending))) {
        for (index, line) in text.lines().enumerate() {
            let width = line.chars().count();
            let words = line.split_whitespace().filter(|word| word.chars().any(char::is_alphanumeric)).count();
            if width > WIDTH && words > 1 {
                let sentence = format!("{width} columns, but at most {WIDTH} are allowed: break the line");
                findings.push(Finding { path: path.clone(), line: index + 1, sentence });
            }
        }
    }
    Ok(findings)
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
        let findings = check(&tree).unwrap();
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!((findings[0].path.as_str(), findings[0].line), ("b.rs", 2));
        assert!(findings[0].sentence.starts_with("123 columns"), "{findings:?}");
    }
}
