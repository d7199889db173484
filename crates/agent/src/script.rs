//! The policy `script`: rules of a program, which gets the state of the host and answers with rules, in lines of JSON.

use crate::config::check_rule;
use serde::Deserialize;
use std::time::Duration;

/// The longest answer, in bytes.
pub const LONGEST_ANSWER: usize = 1 << 20;

/// The most rules of an answer.
const MOST_RULES: usize = 1000;

/// An answer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    /// Rules in the language of policy files. They replace those of the last answer.
    rules: Vec<String>,
}

/// The rules of the program.
#[derive(Debug, Default)]
pub(crate) struct Script {
    rules: Vec<String>,
    answered: Option<Duration>,
    /// The time of the first look, from which on it may be asked.
    begun: Option<Duration>,
    /// The reason why the last answer was not taken, or why there is none.
    trouble: Option<String>,
}

impl Script {
    /// Takes in an answer. One that is wrong leaves the rules of the last one.
    pub(crate) fn answer(&mut self, line: &str, up: Duration) {
        match parse(line) {
            Ok(rules) => (self.rules, self.answered, self.trouble) = (rules, Some(up), None),
            Err(reason) => self.trouble = Some(reason),
        }
    }

    /// Notes that the program cannot be asked: the end of a sentence that begins with it.
    pub(crate) fn fail(&mut self, reason: String) {
        self.trouble = Some(reason);
    }

    /// Returns the rules; none once the last answer is older than the program may take.
    pub(crate) fn rules(&self, timeout_s: u64, up: Duration) -> &[String] {
        let is_fresh =
            self.answered.is_some_and(|answered| up.saturating_sub(answered) <= Duration::from_secs(timeout_s));
        if is_fresh { &self.rules } else { &[] }
    }

    /// Notes a look.
    pub(crate) fn look(&mut self, up: Duration) {
        self.begun.get_or_insert(up);
    }

    /// Returns true if its first answer may still come in time, this time after the agent began.
    pub(crate) fn is_awaited(&self, timeout_s: u64, age: Duration) -> bool {
        self.answered.is_none() && self.trouble.is_none() && age <= Duration::from_secs(timeout_s)
    }

    /// Returns the reason why its rules are not those that it wants: the end of a sentence that begins with it.
    pub(crate) fn trouble(&self, timeout_s: u64, up: Duration) -> Option<String> {
        let silent = up.saturating_sub(self.answered.max(self.begun)?);
        let is_silent = silent > Duration::from_secs(timeout_s);
        let silence = || format!("has not answered for {} s, so it orders nothing; try it by hand", silent.as_secs());
        self.trouble.clone().or_else(|| is_silent.then(silence))
    }
}

fn parse(line: &str) -> Result<Vec<String>, String> {
    let example = "try {\"rules\": [\"peer=node3 -> weights 80,20\"]}";
    let answer: Answer = serde_json::from_str(line)
        .map_err(|error| format!("answered with something else: {error}; allowed: one line of JSON; {example}"))?;
    if answer.rules.len() > MOST_RULES {
        return Err(format!("answered with {} rules; allowed: up to {MOST_RULES}; try fewer", answer.rules.len()));
    }
    for rule in &answer.rules {
        check_rule("rules", rule).map_err(|error| format!("answered with a rule that is wrong: {error}"))?;
    }
    Ok(answer.rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn rules_hold_until_the_program_is_silent_for_too_long() {
        let mut script = Script::default();
        assert!(script.rules(10, SECOND).is_empty());
        assert!(script.is_awaited(10, 10 * SECOND) && !script.is_awaited(10, 11 * SECOND));
        script.answer(r#"{"rules": ["any -> policy speed"]}"#, 5 * SECOND);
        assert_eq!(script.rules(10, 15 * SECOND), ["any -> policy speed"]);
        assert!(!script.is_awaited(10, SECOND));
        script.answer("nonsense", 15 * SECOND);
        let trouble = script.trouble(10, 15 * SECOND);
        assert!(trouble.is_some_and(|reason| reason.contains("allowed: one line of JSON")));
        assert_eq!(script.rules(10, 15 * SECOND).len(), 1, "the last good ones");
        assert!(script.rules(10, 16 * SECOND).is_empty());
        script.answer(r#"{"rules": []}"#, 17 * SECOND);
        assert!(script.trouble(10, 27 * SECOND).is_none() && script.rules(10, 17 * SECOND).is_empty());
        assert!(script.trouble(10, 28 * SECOND).is_some_and(|reason| reason.contains("for 11 s")));
    }

    #[test]
    fn an_answer_is_taken_as_a_whole() {
        for (line, expected) in [
            (r#"{"rules": ["any -> policy speed", "any -> fly"]}"#, "action: \"fly\" is not known"),
            (r#"{"rules": ["ttl 5"]}"#, "is not a rule"),
            (r#"{"weights": []}"#, "unknown field"),
            ("{}", "missing field `rules`"),
            ("", "EOF"),
        ] {
            assert!(parse(line).unwrap_err().contains(expected), "{line}: {:?}", parse(line));
        }
        let many = format!(r#"{{"rules": [{}]}}"#, vec!["\"any -> policy speed\""; 1001].join(","));
        assert!(parse(&many).unwrap_err().contains("answered with 1001 rules"));
    }
}
