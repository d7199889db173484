//! The lines of the agent on standard error.

use crate::output::is_obeyed;
use railweave_agent::Severity;
use std::io::{self, Write};

/// Says a sentence, in one line whatever names it holds.
pub(super) fn say(text: &str) {
    // Without a reader or room for its lines, the agent goes on.
    let _ = writeln!(io::stderr(), "railweave agent: {}", plain(text));
}

/// Returns the text with the characters escaped that a terminal obeys: names from files of other users may hold any.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_obeyed(letter) {
            plain.extend(letter.escape_default());
        } else {
            plain.push(letter);
        }
    }
    plain
}

/// Says a sentence of some urgency.
pub(super) fn say_as(severity: Severity, text: &str) {
    match severity {
        Severity::Info => say(text),
        Severity::Warning | Severity::Critical => say(&format!("{}: {text}", severity.word())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_make_a_line_of_its_own() {
        assert_eq!(
            plain("job \"a\nrailweave agent: all is well\u{1b}[2J\" ü\u{202e}"),
            "job \"a\\nrailweave agent: all is well\\u{1b}[2J\" ü\\u{202e}"
        );
    }
}
