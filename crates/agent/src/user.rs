//! A user whose jobs the agent watches: the run dir, and the agent's say in it.

use std::collections::BTreeMap;

/// The agent's say in a user's run dir.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Steers {
    /// It writes the policy file if anything is ordered.
    Yes,
    /// It does not, for this reason: a sentence.
    No(String),
    /// Not yet known.
    #[default]
    Unknown,
}

/// A user's run dir.
#[derive(Clone, Debug, Default)]
pub(crate) struct User {
    pub(crate) run_dir: String,
    pub(crate) steers: Steers,
    /// Policy files that were written, and attempts that failed.
    pub(crate) writes: u64,
    pub(crate) failures: u64,
    /// The files that cannot be used, with the end of a sentence that begins with the file.
    pub(crate) refused: BTreeMap<String, String>,
}
