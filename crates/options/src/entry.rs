//! A setting as people see it, without its type: in the documentation, in a log, in what a program shows.

use crate::setting::Source;

/// One setting as people see it: an entry of [`TABLE`](crate::TABLE).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The name of its field in [`Options`](crate::Options).
    pub name: &'static str,
    /// Its variables in order of precedence, the setting's own `RAILWEAVE_*` first. Two variables in one item make one
    /// value together.
    pub variables: &'static [[Option<&'static str>; 2]],
    /// The values that its own variable may hold.
    pub allowed: &'static str,
    /// A value of its own variable, as an example.
    pub example: &'static str,
    /// The default in words.
    pub default: &'static str,
    /// Its help: the first sentence says what it sets, the others give the details.
    pub help: &'static str,
}

impl Entry {
    /// Returns the setting's own variable, which wins over all others.
    pub fn variable(&self) -> &'static str {
        self.all_variables().next().unwrap_or_default()
    }

    /// Returns every variable that can set it, in order of precedence.
    pub fn all_variables(&self) -> impl Iterator<Item = &'static str> {
        self.variables.iter().flatten().flatten().copied()
    }
}

/// A setting with its current value, for a log or a program to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The setting.
    pub entry: &'static Entry,
    /// Its value, written as in a variable if there is such a text.
    pub value: String,
    /// The origin of the value.
    pub source: Source,
}
