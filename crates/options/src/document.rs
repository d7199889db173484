//! `docs/options.md`, made from the table.

use crate::table::{Entry, TABLE};
use std::fmt::Write;

/// The whole text of `docs/options.md`.
pub fn markdown() -> String {
    let mut text = String::from(INTRODUCTION);
    text.push_str("| variable | default | what it does |\n|---|---|---|\n");
    for entry in TABLE {
        let summary = entry.help.split_inclusive(". ").next().unwrap_or(entry.help).trim_end();
        let _ =
            writeln!(text, "| [`{0}`](#{1}) | {2} | {3} |", entry.variable(), anchor(entry), entry.default, summary);
    }
    for entry in TABLE {
        section(&mut text, entry);
    }
    text
}

fn section(text: &mut String, entry: &Entry) {
    let Entry { help, allowed, default, example, .. } = entry;
    let own = entry.variable();
    // Writing to a string cannot fail.
    let _ = write!(text, "\n## {own}\n\n{help}\n\n");
    let _ = writeln!(text, "* allowed: {}", allowed.replace('[', "\\[").replace(']', "\\]"));
    let _ = writeln!(text, "* default: {default}");
    let _ = writeln!(text, "* example: `{own}={example}`");
    let others: Vec<String> = entry
        .variables
        .iter()
        .skip(1)
        .map(|names| names.iter().flatten().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" with "))
        .collect();
    if !others.is_empty() {
        let _ = writeln!(text, "* else: {}", others.join(", then "));
    }
}

fn anchor(entry: &Entry) -> String {
    entry.variable().to_ascii_lowercase()
}

const INTRODUCTION: &str = "\
# Settings

<!-- Made by `cargo xtask docs` from crates/options/src/table.rs; change it there. -->

Every setting is an environment variable, and every one has a default that suits most hosts. Railweave reads its own
`RAILWEAVE_*` variables first, then the `MPIB_*` and `NCCL_MESH_*` variables of earlier plugins, then NCCL's own `NCCL_*`. Of
the variables of one setting, only the first that is set counts, and an empty value counts as unset (but for
`RAILWEAVE_KEY_FILE`). The log says at start which variable each value came from.

A value of `RAILWEAVE_*`, `MPIB_*` and `NCCL_MESH_*` that cannot be used stops Railweave at start, with a line that names the
variable, the value and what is allowed. What NCCL goes on with stops nothing: numbers of its own variables are read as
NCCL reads them (`0x10` is 16, `010` is 8, what follows the number does not count), what is too large counts as the
largest allowed, and what is no value at all as the default, each with a warning. A `RAILWEAVE_*` variable that is not in
this list has no effect and is warned of; variables of NCCL's own IB transport that mean nothing here are named in one line
of level INFO.

";
