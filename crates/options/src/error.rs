//! The errors and warnings about settings, with their texts.

use std::fmt;

/// The longest piece of a user's value that a message repeats, in characters.
const SHOWN_CHARS: usize = 80;

/// A variable with an invalid value. Its text is one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionError {
    /// The variable, as in the environment.
    pub variable: &'static str,
    /// Its value, made printable and cut at 80 characters.
    pub value: String,
    /// The reason: the end of a sentence that begins with the value.
    pub reason: String,
    /// The values that the variable may hold.
    pub allowed: &'static str,
    /// The advice: the end of a sentence that begins with "try".
    pub advice: String,
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OptionError { variable, value, reason, allowed, advice } = self;
        write!(f, "{variable}: \"{value}\" {reason}; allowed: {allowed}; try {advice}")
    }
}

impl std::error::Error for OptionError {}

/// Every variable with an invalid value: at least one, in the order of the table. Its text has a line for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionErrors(pub(crate) Vec<OptionError>);

impl OptionErrors {
    /// Iterates over the errors in the order of the table.
    pub fn iter(&self) -> std::slice::Iter<'_, OptionError> {
        self.0.iter()
    }
}

impl<'a> IntoIterator for &'a OptionErrors {
    type Item = &'a OptionError;
    type IntoIter = std::slice::Iter<'a, OptionError>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for OptionErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for OptionErrors {}

/// A fact that the user should know but that stops nothing. Its text is one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Warning {
    /// A `RAILWEAVE_*` variable is set that no setting reads.
    Unknown {
        /// The variable, made printable and cut at 80 characters.
        variable: String,
        /// The known variable that is closest in spelling, if one is close.
        closest: Option<&'static str>,
    },
    /// A value of one of NCCL's own variables counts as another value; the reason says as which.
    Otherwise(OptionError),
    /// Variables of NCCL's own IB transport are set that have no effect here.
    WithoutEffect(Vec<String>),
}

impl Warning {
    /// Returns true if the user should change a variable. Otherwise it is only information, and should not be shown as
    /// a warning.
    pub fn needs_attention(&self) -> bool {
        !matches!(self, Warning::WithoutEffect(_))
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::Unknown { variable, closest: Some(closest) } => {
                write!(f, "{variable} is not a setting of Railweave and has no effect; did you mean {closest}?")
            }
            Warning::Unknown { variable, closest: None } => {
                write!(f, "{variable} is not a setting of Railweave and has no effect; docs/options.md lists them all")
            }
            Warning::Otherwise(error) => error.fmt(f),
            Warning::WithoutEffect(variables) => write!(
                f,
                "without effect here, because they apply only to NCCL's own IB transport: {}",
                variables.join(", ")
            ),
        }
    }
}

/// Makes `text` fit into one line of a log: escapes control characters and quotes, and cuts at 80 characters.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::new();
    for (count, escaped) in text.chars().map(char::escape_debug).enumerate() {
        if count == SHOWN_CHARS {
            shown.push('…');
            break;
        }
        shown.extend(escaped);
    }
    shown
}

/// Returns the candidate closest to `name` by edit distance if it is close enough for a typing error: at most a third
/// of the part after the common `RAILWEAVE_` differs.
pub(crate) fn closest(name: &str, candidates: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let (distance, best) = candidates
        .map(|candidate| (edit_distance(name, candidate), candidate))
        .min_by_key(|(distance, _)| *distance)?;
    let part = best.len().saturating_sub("RAILWEAVE_".len());
    (distance <= (part / 3).max(1)).then_some(best)
}

/// Returns Levenshtein's distance, ignoring case. Names are cut at 80 characters: longer ones resemble no setting.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(SHOWN_CHARS).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().take(SHOWN_CHARS).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(!from.eq_ignore_ascii_case(to));
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_escapes_and_cuts() {
        assert_eq!(printable("a\nb\"c\u{1b}"), "a\\nb\\\"c\\u{1b}");
        assert_eq!(printable(&"x".repeat(80)), "x".repeat(80));
        assert_eq!(printable(&"x".repeat(81)), format!("{}…", "x".repeat(80)));
    }

    #[test]
    fn distance_counts_edits() {
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("LANES", "lanes"), 0);
    }

    #[test]
    fn closest_requires_a_likeness() {
        let names = ["RAILWEAVE_LANES", "RAILWEAVE_RAILS"];
        assert_eq!(closest("RAILWEAVE_LANE", names.into_iter()), Some("RAILWEAVE_LANES"));
        assert_eq!(closest("RAILWEAVE_COLOUR", names.into_iter()), None);
        assert_eq!(closest("RAILWEAVE_LANE", std::iter::empty()), None);
    }
}
