//! A user whose jobs the agent watches: the run dirs, and the agent's say in them.

use std::collections::BTreeMap;

/// The agent's say in a user's run dir.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Steers {
    /// It writes the policy file if anything is ordered.
    Yes,
    /// It does not, for this reason: a sentence.
    No(String),
    /// It has the right to, and the last attempt has failed, for this reason: a sentence. Each look retries it.
    Failing(String),
    /// Not yet known.
    #[default]
    Unknown,
}

/// A user.
#[derive(Clone, Debug, Default)]
pub(crate) struct User {
    /// The agent's say in each run dir.
    pub(crate) run_dirs: BTreeMap<String, Steers>,
    /// Policy files that were written, and attempts that failed.
    pub(crate) writes: u64,
    pub(crate) failures: u64,
    /// The files that cannot be used, with the end of a sentence that begins with the file.
    pub(crate) refused: BTreeMap<String, String>,
}

impl User {
    /// Returns true if the agent writes policy files in all of the user's run dirs.
    pub(crate) fn is_steered(&self) -> bool {
        self.run_dirs.values().all(|steers| *steers == Steers::Yes)
    }
}
