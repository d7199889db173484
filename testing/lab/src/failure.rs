//! A condition that did not hold, in a sentence.

use railweave_patience::RAN_OUT;
use serde::Serialize;
use std::fmt;

/// A condition that did not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub(crate) struct Failure {
    /// The sentence.
    pub(crate) text: String,
    /// True if it is only a matter of time: something took too long or was slow.
    pub(crate) is_late: bool,
}

impl Failure {
    /// Returns the failure of something that took too long.
    pub(crate) fn late(text: impl fmt::Display) -> Self {
        Self { text: format!("{RAN_OUT}{text}"), is_late: true }
    }

    /// Returns the failure of something that was wrong, whatever the time it took.
    pub(crate) fn wrong(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_late: false }
    }

    /// Returns a failure of the lab itself; its text says if the lab waited too long.
    pub(crate) fn of_lab(text: String) -> Self {
        Self { is_late: text.contains(RAN_OUT), text }
    }

    /// Returns the same failure with the name of its subject `before` the sentence.
    pub(crate) fn about(&self, before: impl fmt::Display) -> Self {
        Self { text: format!("{before}: {}", self.text), is_late: self.is_late }
    }
}

impl From<Failure> for String {
    fn from(failure: Failure) -> Self {
        failure.text
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}
