//! Things that an operator should know now, each said when it begins and when it ends.

use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// The urgency of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// It explains what is seen.
    Info,
    /// Something is slower or less safe than it could be.
    Warning,
    /// A job or the agent cannot do its work.
    Critical,
}

impl Severity {
    /// Returns the word of it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// Something that an operator should know.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Finding {
    /// Its kind: one of [`KINDS`].
    pub kind: &'static str,
    /// The thing that it is about: a port, a job, a file or a user; empty if it is about the agent.
    pub about: String,
    /// Its urgency.
    pub severity: Severity,
    /// The sentence for people: what is so, and what to try.
    pub text: String,
}

/// All kinds of findings, with their meanings.
pub const KINDS: [(&str, &str); 15] = [
    ("rail-down", "rails of jobs on the port are down"),
    ("port-sick", "the link of the port has errors, so the port is kept empty"),
    ("port-congested", "data over the port meets congestion, so the port has less of it"),
    ("port-slow", "the link of the port, or its adapter's slot, is slower than it was or could be"),
    ("counter-full", "a counter of the port's link errors is at its largest value, and counts no more"),
    ("port-drained", "the port is to be empty: an operator, the configuration or avoid-sick says so"),
    ("port-empty", "a port that is to be empty is: no watched job sends over it"),
    ("drain-in-vain", "connections go on using a drained port, or may do so"),
    ("port-unknown", "a port that is to be empty has a name that nothing on this host has"),
    ("process-silent", "processes of a job have not written their files for long"),
    ("file-refused", "a file or run dir cannot be used, or waits"),
    ("not-steering", "the agent writes no policy for a user, or not all of it"),
    ("balance", "ports are shared between jobs by orders"),
    ("script", "the program of the policy script fails"),
    ("config-refused", "the configuration was read again and not taken, so the last one stays in force"),
];

/// The most findings of a kind; those beyond are only counted.
const MOST_OF_A_KIND: usize = 128;

/// The thing that a finding about others is about.
pub(crate) const MORE: &str = "(more)";

/// The present findings.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// By kind and thing: the finding, and the time since which it is there.
    present: BTreeMap<(&'static str, String), (Finding, Duration)>,
}

impl Findings {
    /// Replaces the findings. Returns the sentences about those that begin, change their urgency or end.
    pub(crate) fn set(&mut self, findings: Vec<Finding>, clock: Duration) -> Vec<(Severity, String)> {
        let mut lines = Vec::new();
        let mut next = BTreeMap::new();
        for mut finding in bounded(findings) {
            finding.text = one_line(&finding.text);
            let key = (finding.kind, finding.about.clone());
            // A job may have any name, also the one that stands for others.
            if next.contains_key(&key) {
                continue;
            }
            let before = self.present.remove(&key);
            let is_new = before.as_ref().is_none_or(|(before, _)| before.severity != finding.severity);
            if is_new {
                lines.push((finding.severity, format!("{}: {}", finding.kind, finding.text)));
            }
            let since = before.map_or(clock, |(_, since)| since);
            next.insert(key, (finding, since));
        }
        for (kind, about) in std::mem::replace(&mut self.present, next).into_keys() {
            let about = if about.is_empty() { String::new() } else { format!(" \"{}\"", one_line(&about)) };
            lines.push((Severity::Info, format!("{kind}{about}: is over")));
        }
        lines
    }

    /// Returns the findings, each with the time since which it is there.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Finding, Duration)> {
        self.present.values().map(|(finding, since)| (finding, *since))
    }
}

/// Returns the findings, of each kind no more than [`MOST_OF_A_KIND`] and one that counts the others.
fn bounded(findings: Vec<Finding>) -> Vec<Finding> {
    let mut counts: BTreeMap<&'static str, usize> = BTreeMap::new();
    let mut kept = Vec::with_capacity(findings.len());
    for finding in findings {
        let count = counts.entry(finding.kind).or_default();
        *count += 1;
        if *count <= MOST_OF_A_KIND {
            kept.push(finding);
        }
    }
    for (kind, count) in counts.into_iter().filter(|(_, count)| *count > MOST_OF_A_KIND) {
        let text = format!("there are {} more of this kind; try ending the first ones", count - MOST_OF_A_KIND);
        kept.push(Finding { kind, about: MORE.to_owned(), severity: Severity::Warning, text });
    }
    kept
}

/// Returns a text in which names that processes have made up end no line.
fn one_line(text: &str) -> String {
    if !text.contains(is_unprintable) {
        return text.to_owned();
    }
    let escaped = |letter: char| letter.escape_unicode().collect::<String>();
    text.chars().map(|letter| if is_unprintable(letter) { escaped(letter) } else { letter.to_string() }).collect()
}

fn is_unprintable(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_letter_ends_a_line() {
        assert_eq!(one_line("a\u{2028}b"), "a\\u{2028}b");
        assert_eq!(one_line("a\nb ü"), "a\\u{a}b ü");
    }

    #[test]
    fn a_finding_is_said_once_at_each_end() {
        let finding =
            |text: &str, severity| Finding { kind: "rail-down", about: "p".into(), severity, text: text.into() };
        let mut findings = Findings::default();
        let mut set = |all: Vec<Finding>| {
            let lines = findings.set(all, Duration::ZERO);
            lines.into_iter().map(|(_, line)| line).collect::<Vec<_>>()
        };
        assert_eq!(set(vec![finding("1 rail", Severity::Warning)]), ["rail-down: 1 rail"]);
        assert!(set(vec![finding("2 rails", Severity::Warning)]).is_empty(), "its numbers change");
        assert_eq!(set(vec![finding("all rails", Severity::Critical)]), ["rail-down: all rails"]);
        assert_eq!(set(Vec::new()), ["rail-down \"p\": is over"]);
        assert!(set(Vec::new()).is_empty());
    }
}
