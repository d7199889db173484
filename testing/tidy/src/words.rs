//! Words that only the authors know, each with the field's own word: the table in CONTRIBUTING.md.

use regex_lite::{Regex, RegexBuilder};

use crate::finding::Finding;
use crate::tree::Tree;

/// The page with the table.
const PAGE: &str = "CONTRIBUTING.md";
/// The first line of the table.
const HEAD: &str = "| not | but |";

/// One row of the table.
#[derive(Debug)]
struct Word {
    not: Regex,
    /// A lower-case part of every text that `not` matches. Looking for it first takes far less time.
    part: String,
    but: String,
}

/// Finds the table's words everywhere but in lock files and in the page's tables. A table that is missing or wrong is a
/// finding too.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let page = tree.texts.get(PAGE).ok_or_else(|| "the page, which holds the table of words, is missing".to_owned());
    match page.and_then(|page| table(page)) {
        Ok(words) => find(tree, &words),
        Err(sentence) => vec![Finding::of_file(PAGE, sentence)],
    }
}

/// Finds `words` in the tree, even if they are spread over two lines.
fn find(tree: &Tree, words: &[Word]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts.iter().filter(|(path, _)| !path.ends_with(".lock")) {
        let in_table = |line: &str| path == PAGE && line.starts_with('|');
        let text: Vec<&str> = text.lines().map(|line| if in_table(line) { "" } else { line }).collect();
        let text = text.join("\n");
        let lower_case = text.to_lowercase();
        for Word { not, but, .. } in words.iter().filter(|word| lower_case.contains(&word.part)) {
            for found in not.find_iter(&text) {
                let line = text[..found.start()].matches('\n').count() + 1;
                let said: Vec<&str> = found.as_str().trim_matches('_').split_whitespace().collect();
                let sentence = format!("\"{}\": say {but} ({PAGE})", said.join(" "));
                findings.push(Finding { path: path.clone(), line, sentence });
            }
        }
    }
    findings.sort();
    findings
}

/// Returns the rows of the table in `page`, one for each of the words that commas separate. A word that ends in " …" is
/// refused only at the beginning of a line of a comment.
fn table(page: &str) -> Result<Vec<Word>, String> {
    let rows = page.lines().skip_while(|line| *line != HEAD).skip(2).take_while(|line| line.starts_with('|'));
    let mut words = Vec::new();
    for row in rows {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        let (Some(nots), Some(but)) = (cells.next(), cells.next()) else {
            return Err(format!("the row \"{row}\" of the table of words does not have two cells"));
        };
        for not in nots.split(',').map(str::trim) {
            if not.is_empty() {
                return Err(format!(
                    "the row \"{row}\" of the table of words lacks a word, and would refuse every line"
                ));
            }
            // In a name of Rust, `_` separates the words; in a comment, a new line may.
            let between = r"[\s_]+(?:(?://[/!]?|#+)\s+)?";
            let literally = |text: &str| regex_lite::escape(text).replace(' ', between);
            let (pattern, ignores_case) = match not.strip_suffix(" …") {
                Some(opening) => (format!(r"^[^\S\n]*(?://[/!]?|#)[^\S\n]+{}\b", literally(opening)), false),
                None => (format!(r"(?:\b|_){}(?:\b|_)", literally(not)), true),
            };
            let part = not.split(' ').next().unwrap_or_default().to_lowercase();
            let not = RegexBuilder::new(&pattern).case_insensitive(ignores_case).multi_line(true).build();
            words.push(Word { not: not.map_err(|error| error.to_string())?, part, but: but.to_owned() });
        }
    }
    if words.is_empty() { Err(format!("the page has no table that begins with \"{HEAD}\"")) } else { Ok(words) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str =
        "# How\n\n| not | but |\n|---|---|\n| make-believe, far afield | the fake libibverbs |\n\nmore\n";

    #[test]
    fn the_words_of_the_table_are_found_in_all_but_the_table() {
        let tree = Tree::of(&[
            (PAGE, TABLE),
            ("a.rs", "// one\n// A Make-believe, on\n// its farafield\n"),
            ("b", "far  afield"),
            ("c.rs", "fn is_far_afield() {}\nfn afar_afield() {}\n"),
        ]);
        let findings = check(&tree);
        let places: Vec<_> = findings.iter().map(|finding| (finding.path.as_str(), finding.line)).collect();
        assert_eq!(places, [("a.rs", 2), ("b", 1), ("c.rs", 1)]);
        assert_eq!(findings[0].sentence, "\"Make-believe\": say the fake libibverbs (CONTRIBUTING.md)");
    }

    #[test]
    fn an_opening_is_found_at_the_beginning_of_a_comment_and_nowhere_else() {
        let table = TABLE.replace("| make-believe, far afield |", "| What …, None where … |");
        let code =
            "/// What a rank does.\nlet what = 1; // it is what\n    // None where none is\n// See: What is there.\n";
        let findings = check(&Tree::of(&[(PAGE, &table), ("a.rs", code), ("b.md", "What is this?")]));
        let lines: Vec<_> = findings.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [1, 3], "{findings:?}");
    }

    #[test]
    fn a_page_without_the_table_is_an_error() {
        assert!(check(&Tree::of(&[("a.rs", "")]))[0].to_string().contains(PAGE));
        assert!(check(&Tree::of(&[(PAGE, "# How\n")]))[0].to_string().contains(HEAD));
    }

    #[test]
    fn an_empty_cell_is_an_error_that_names_its_row() {
        for row in ["|  | nothing |", "| far afield, | nothing |"] {
            let findings =
                check(&Tree::of(&[(PAGE, &TABLE.replace("| make-believe, far afield | the", row)), ("b", "b")]));
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert!(findings[0].sentence.contains(row), "{findings:?}");
        }
    }

    #[test]
    fn words_on_two_lines_are_found() {
        let (page, code) =
            ("not far\nafield, nor far\n\n| afield |", "    /// not far\n    /// afield\n# far\n# afield\n");
        let findings = check(&Tree::of(&[(PAGE, TABLE), ("a.md", page), ("b.rs", code)]));
        let places: Vec<_> = findings.iter().map(|finding| (finding.path.as_str(), finding.line)).collect();
        assert_eq!(places, [("a.md", 1), ("b.rs", 1), ("b.rs", 3)], "{findings:?}");
    }
}
