//! `docs/options.md`, made from the table of settings.

use railweave_options::{Entry, TABLE};
use std::fmt::Write;
use textwrap::{Options, WordSplitter, WrapAlgorithm};

/// The columns of a line.
const COLUMNS: usize = 120;

/// Returns the whole text of `docs/options.md`.
pub(super) fn markdown() -> String {
    let mut text = String::from(INTRODUCTION);
    for entry in TABLE {
        item(&mut text, &overview(entry));
    }
    for entry in TABLE {
        section(&mut text, entry);
    }
    text
}

/// Returns the setting's line of the overview: its name, its default and the first sentence of its help.
fn overview(entry: &Entry) -> String {
    let own = entry.variable();
    let anchor = own.to_ascii_lowercase();
    let sentence = entry.help.split_inclusive(". ").next().unwrap_or(entry.help).trim_end();
    format!("[`{own}`](#{anchor}) ({}): {sentence}", entry.default)
}

/// Writes everything about one setting under a heading of its own.
fn section(text: &mut String, entry: &Entry) {
    let Entry { help, allowed, default, example, .. } = entry;
    let own = entry.variable();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "\n## {own}\n\n{}\n", filled(help, "", ""));
    item(text, &format!("allowed: {}", allowed.replace('[', "\\[").replace(']', "\\]")));
    item(text, &format!("default: {default}"));
    item(text, &format!("example: `{own}={example}`"));
    let others: Vec<String> = entry
        .variables
        .iter()
        .skip(1)
        .map(|names| names.iter().flatten().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" with "))
        .collect();
    if !others.is_empty() {
        item(text, &format!("also set by: {}", others.join(", then ")));
    }
}

/// Writes one item of a list.
fn item(text: &mut String, sentence: &str) {
    let _ = writeln!(text, "{}", filled(sentence, "* ", "  "));
}

/// Breaks a paragraph at its blanks; `first` begins its first line, `rest` the lines that follow.
fn filled(paragraph: &str, first: &str, rest: &str) -> String {
    let options = Options::new(COLUMNS)
        .initial_indent(first)
        .subsequent_indent(rest)
        .break_words(false)
        .word_splitter(WordSplitter::NoHyphenation)
        .wrap_algorithm(WrapAlgorithm::FirstFit);
    textwrap::fill(&with_whole_code(paragraph), options).replace(NO_BREAK, " ")
}

/// Replaces the blanks inside code, where no line may break, by [`NO_BREAK`].
fn with_whole_code(paragraph: &str) -> String {
    let parts = paragraph.split('`').enumerate();
    let kept = parts.map(|(index, part)| if index % 2 == 1 { part.replace(' ', NO_BREAK) } else { part.to_owned() });
    kept.collect::<Vec<_>>().join("`")
}

/// A blank at which `textwrap` breaks no line.
const NO_BREAK: &str = "\u{a0}";

const INTRODUCTION: &str = "\
# Settings

<!-- Made by `cargo xtask docs` from crates/options/src/table.rs and xtask/src/docs/settings.rs; change it there. -->

Every setting is an environment variable with a default that suits most hosts. Railweave reads its own `RAILWEAVE_*`
variables first, then the `MPIB_*` and `NCCL_MESH_*` variables of earlier plugins, then NCCL's own `NCCL_*`. Only the
first variable of a setting that is set counts, and an empty value counts as unset (except for `RAILWEAVE_KEY_FILE`,
where it is an error). `railweave options` shows each setting's value and the variable that it came from.

An invalid value of a `RAILWEAVE_*`, `MPIB_*` or `NCCL_MESH_*` variable stops Railweave at start, with a line that names
the variable, the value and what is allowed. A value of NCCL's own variables stops nothing, because NCCL continues with
it too. Numbers are read as NCCL reads them (`0x10` is 16, `010` is 8, anything after the number is ignored). A number
outside the allowed range counts as the nearest allowed number, as the value that NCCL makes of it, or as the default; a
value that cannot be read counts as the default. Each of these causes a warning.

A `RAILWEAVE_*` variable that is not in this list has no effect and causes a warning. Variables that only NCCL's own IB
transport understands are named in one log line of level INFO.

";
