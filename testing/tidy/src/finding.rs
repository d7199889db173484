//! A defect that a check found.

use std::fmt;

/// A defect, its place, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The file, relative to the root of the tree.
    pub(crate) path: String,
    /// The line, counted from 1.
    pub(crate) line: usize,
    /// The defect and the remedy.
    pub(crate) sentence: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.sentence)
    }
}
