//! A defect that a check found.

use std::fmt;

/// A defect, its place, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// The file, relative to the root of the tree.
    pub(crate) path: String,
    /// The line, counted from 1.
    pub(crate) line: usize,
    /// The defect and the remedy.
    pub(crate) sentence: String,
}

impl Finding {
    /// Returns a finding about the file `path` as a whole.
    pub(crate) fn of_file(path: &str, sentence: String) -> Self {
        Self { path: path.to_owned(), line: 1, sentence }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.sentence)
    }
}
