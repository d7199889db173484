//! Text on standard output, which may be a pipe that its reader closes.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write};

/// Writes lines to standard output. A closed pipe is an error like any other, and does not panic.
pub(crate) fn print(text: impl Display) -> io::Result<()> {
    let written = writeln!(io::stdout().lock(), "{text}");
    written.map_err(|error| io::Error::new(error.kind(), format!("standard output cannot be written: {error}")))
}

/// Returns true for control characters, which a file may hold and a terminal would obey, and for those that break lines
/// or change the direction of writing.
pub(crate) fn is_obeyed(letter: char) -> bool {
    let changes_lines = matches!(letter, '\u{2028}' | '\u{2029}');
    let changes_direction =
        matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    letter.is_control() || changes_lines || changes_direction
}

/// Replaces the characters that a terminal would obey.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|letter| if is_obeyed(letter) { char::REPLACEMENT_CHARACTER } else { letter }).collect()
}

/// Prints the results, as JSON or by `show` for people.
pub(crate) fn print_as<T: Serialize>(
    outcome: &T,
    json: bool,
    show: impl FnOnce(&T) -> io::Result<()>,
) -> Result<(), Box<dyn Error>> {
    if json {
        print(serde_json::to_string_pretty(outcome)?)?;
    } else {
        show(outcome)?;
    }
    Ok(())
}

/// Returns an empty table in this program's style; all columns except the first `text_columns` are numbers.
pub(crate) fn table(header: &[&str], text_columns: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(header.to_vec());
    for column in table.column_iter_mut().skip(text_columns) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
