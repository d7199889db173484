//! The orders of an operator: drained ports and rules, which hold until they are taken back.

use crate::config::{MOST_DRAINED, check_port, check_rule};
use std::collections::BTreeSet;
use std::fmt;

/// The most rules of an operator. Each may be two in the policy file, which has 4,096 at most with those of others.
pub(crate) const MOST_RULES: usize = 250;

/// The longest rule of an operator, in bytes: the policy file has a second line that keeps it.
pub const LONGEST_RULE: usize = 1024;

/// A rule of an operator, such as `peer=node3 -> weights 80,20`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorRule {
    /// The matchers, with single spaces: `peer=node3`.
    pub matchers: String,
    /// The actions, with single spaces: `weights 80,20`.
    pub actions: String,
}

impl OperatorRule {
    /// Reads a rule.
    ///
    /// # Errors
    /// If it is too long, or no rule of policy files, or has control characters: a sentence.
    pub(crate) fn parse(rule: &str) -> Result<Self, String> {
        if rule.len() > LONGEST_RULE {
            let size = rule.len();
            return Err(format!("rule: it has {size} bytes; allowed: up to {LONGEST_RULE}; try a rule for each part"));
        }
        check_rule("rule", rule)?;
        let (matchers, actions) = rule.split_once("->").unwrap_or_default();
        let (matchers, actions) = (single_spaced(matchers), single_spaced(actions));
        // Names in policy files may have any, but logs and terminals show this one.
        if matchers.contains(char::is_control) {
            let shown = rule.escape_debug();
            return Err(format!("rule: \"{shown}\" has control characters; allowed: other text; try `peer=node3`"));
        }
        Ok(Self { matchers, actions })
    }

    /// Returns the text by which rules with the same matchers, in whatever order, are recognised.
    pub(crate) fn key(&self) -> String {
        key(&self.matchers)
    }
}

impl fmt::Display for OperatorRule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} -> {}", self.matchers, self.actions)
    }
}

/// Returns the text by which the same matchers, in whatever order, are recognised.
pub fn key(matchers: &str) -> String {
    let words: BTreeSet<&str> = matchers.split_whitespace().collect();
    words.into_iter().collect::<Vec<_>>().join(" ")
}

fn single_spaced(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The orders of an operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Operator {
    drained: BTreeSet<String>,
    /// The newest first. No two have the same matchers.
    rules: Vec<OperatorRule>,
}

impl Operator {
    /// Empties a port. Returns false if it is to be empty already.
    ///
    /// # Errors
    /// If no rule can name it, or too many are drained: a sentence.
    pub(crate) fn drain(&mut self, port: &str) -> Result<bool, String> {
        check_port("port", port)?;
        if self.drained.len() >= MOST_DRAINED && !self.drained.contains(port) {
            return Err(format!(
                "port: \"{port}\" is one too many; allowed: {MOST_DRAINED} ports that are drained; try giving one back"
            ));
        }
        Ok(self.drained.insert(port.to_owned()))
    }

    /// Gives a port back. Returns false if it was not drained.
    pub(crate) fn give_back(&mut self, port: &str) -> bool {
        self.drained.remove(port)
    }

    /// Puts a rule before all others, in place of one with the same matchers. Returns false if that changes nothing.
    ///
    /// # Errors
    /// If there are too many: a sentence.
    pub(crate) fn set(&mut self, rule: OperatorRule) -> Result<bool, String> {
        self.put(0, rule)
    }

    /// Puts a rule at a place, in place of one with the same matchers. Returns false if that changes nothing.
    ///
    /// # Errors
    /// If there are too many: a sentence.
    pub(crate) fn put(&mut self, place: usize, rule: OperatorRule) -> Result<bool, String> {
        let before = self.place(&rule.key());
        if before.is_none() && self.rules.len() >= MOST_RULES {
            return Err(format!(
                "rule: \"{rule}\" is one too many; allowed: {MOST_RULES} rules of an operator; try clearing one"
            ));
        }
        let old = before.map(|before| self.rules.remove(before));
        let place = place.min(self.rules.len());
        let is_kept = before == Some(place) && old.is_some_and(|old| old.actions == rule.actions);
        self.rules.insert(place, rule);
        Ok(!is_kept)
    }

    /// Removes the rule with these matchers. Returns it if there was one.
    pub(crate) fn clear(&mut self, matchers: &str) -> Option<OperatorRule> {
        let place = self.place(&key(matchers))?;
        Some(self.rules.remove(place))
    }

    fn place(&self, key: &str) -> Option<usize> {
        self.rules.iter().position(|rule| rule.key() == key)
    }

    /// Returns the ports that are to be empty, sorted.
    pub(crate) fn drained(&self) -> impl Iterator<Item = &str> {
        self.drained.iter().map(String::as_str)
    }

    /// Returns the rules, the newest first.
    pub(crate) fn rules(&self) -> &[OperatorRule] {
        &self.rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> OperatorRule {
        OperatorRule::parse(text).unwrap()
    }

    fn texts(operator: &Operator) -> Vec<String> {
        operator.rules().iter().map(OperatorRule::to_string).collect()
    }

    #[test]
    fn a_rule_has_single_spaces_and_its_matchers_any_order() {
        let one = rule("  job=a \t peer=b->weights  80,20 ");
        assert_eq!((&*one.matchers, &*one.actions), ("job=a peer=b", "weights 80,20"));
        assert_eq!(one.key(), rule("peer=b job=a -> policy speed").key());
        assert_ne!(one.key(), rule("peer=b,c job=a -> policy speed").key());
    }

    #[test]
    fn the_newest_rule_comes_first_and_replaces_one_with_the_same_matchers() {
        let mut operator = Operator::default();
        assert_eq!(operator.set(rule("peer=a -> policy speed")), Ok(true));
        assert_eq!(operator.set(rule("peer=b job=c -> policy speed")), Ok(true));
        assert_eq!(operator.set(rule("job=c peer=b -> policy speed")), Ok(false), "nothing changes");
        assert_eq!(operator.set(rule("peer=a -> policy speed")), Ok(true), "it comes first now");
        assert_eq!(operator.set(rule("job=c peer=b -> weights 1,2")), Ok(true));
        assert_eq!(texts(&operator), ["job=c peer=b -> weights 1,2", "peer=a -> policy speed"]);
        assert_eq!(operator.clear("peer=b  job=c").map(|rule| rule.actions), Some("weights 1,2".to_owned()));
        assert_eq!(operator.clear("peer=b job=c"), None);
        assert_eq!(texts(&operator), ["peer=a -> policy speed"]);
    }

    #[test]
    fn rules_have_bounds() {
        let mut operator = Operator::default();
        for number in 0..MOST_RULES {
            assert_eq!(operator.set(rule(&format!("peer=n{number} -> policy speed"))), Ok(true));
        }
        let error = operator.set(rule("peer=other -> policy speed")).unwrap_err();
        assert!(error.contains("is one too many; allowed: 250 rules"), "{error}");
        assert_eq!(operator.set(rule("peer=n7 -> policy static")), Ok(true), "it is one of them");
        let long = |letters| OperatorRule::parse(&format!("peer={} -> drain", "p".repeat(letters)));
        assert!(long(LONGEST_RULE).unwrap_err().contains("bytes; allowed: up to 1024"));
        assert!(long(4).unwrap_err().contains("does not say which rail"));
    }

    #[test]
    fn text_that_is_no_rule_is_refused_in_one_line() {
        for (text, words) in [
            ("", "is not a rule"),
            ("peer=a", "is not a rule"),
            ("# peer=a -> policy speed", "is not a rule"),
            ("peer=a -> policy speed\nany -> policy speed", "is not a rule"),
            ("peer=a -> policy speed -> policy speed", "action: \"->\" is not known"),
            ("ttl 5 -> policy speed", "ttl"),
            ("peer=\u{1b}[2J -> policy speed", "has control characters"),
        ] {
            let error = OperatorRule::parse(text).unwrap_err();
            assert!(error.contains(words) && !error.contains(char::is_control), "{text}: {error}");
        }
    }
}
