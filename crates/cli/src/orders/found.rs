//! The policy file that is in a run dir.

use crate::output::printable;
use railweave_agent::{Standing, Writer, writer, written_s};
use railweave_telemetry::{FileError, Folder, FolderError, FoundPolicy, Rules};
use std::path::PathBuf;
use std::time::Duration;

/// The time by which the clock that wrote a file may be ahead, in seconds: jobs ignore one from further in the future.
const AHEAD_S: u64 = 60;

/// The most letters of the line in which a file names its writer that are shown.
const LONGEST_WRITER: usize = 120;

/// The say of a policy file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Its rules hold.
    InForce,
    /// They do not, because their time is over or has not come.
    Stale,
    /// It is wrong: the end of a sentence that begins with the file.
    Wrong(String),
}

/// A policy file.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    path: PathBuf,
    text: String,
    pub(crate) state: State,
    /// True if its time is over. One whose time has not come is of a clock that was set back since.
    pub(crate) is_over: bool,
    /// The time of writing in seconds since 1970, if it says one.
    pub(crate) written_s: Option<u64>,
    /// The time for which it holds from then on, in seconds; `None` if until it is removed.
    pub(crate) ttl_s: Option<u64>,
}

impl Found {
    /// Reads the policy file of a run dir; `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be read: a sentence.
    pub(crate) fn read(folder: &Folder, now: Duration) -> Result<Option<Self>, String> {
        let path = folder.path().join("policy");
        match folder.policy_since(None) {
            Ok(Some(FoundPolicy { text, .. })) => Ok(Some(Self::of(path, text, now.as_secs()))),
            Ok(None) | Err(FolderError::File(FileError::Missing)) => Ok(None),
            Err(error) => Err(format!("\"{}\" {error}", path.display())),
        }
    }

    fn of(path: PathBuf, text: String, now_s: u64) -> Self {
        let value = |word: &str| {
            let lines = text.lines().map(str::trim);
            lines.filter_map(|line| line.strip_prefix(word)).find(|rest| rest.starts_with(char::is_whitespace))
        };
        let number = |word: &str| value(word).and_then(|value| value.trim().parse::<u64>().ok());
        let ttl_s = number("ttl");
        let is_early = number("written").is_some_and(|written_s| written_s > now_s.saturating_add(AHEAD_S));
        let (state, is_over) = match Rules::parse(&text) {
            Err(error) => (State::Wrong(printable(&error.to_string())), false),
            Ok(rules) if rules.end_s().is_some_and(|end_s| now_s > end_s) => (State::Stale, true),
            Ok(_) if is_early => (State::Stale, false),
            Ok(_) => (State::InForce, false),
        };
        let written_s = written_s(&text);
        Self { path, text, state, is_over, written_s, ttl_s }
    }

    /// Returns the orders of an operator that stand in it.
    ///
    /// # Errors
    /// If somebody else wrote it, and it may be in force: a sentence.
    pub(crate) fn standing(&self) -> Result<Standing, String> {
        match Standing::of(&self.text) {
            // Its end was an order too; but an agent's file only ends because the agent did.
            Some(_) if self.is_over && !self.by_agent() => Ok(Standing::default()),
            Some(standing) => Ok(standing),
            None if self.is_over => Ok(Standing::default()),
            None => Err(format!(
                "\"{}\" was written by somebody else, and is left alone; allowed: a file of an agent or of `railweave \
                 policy`; try removing it, or giving its rules by `railweave policy set` after that",
                self.path.display()
            )),
        }
    }

    /// Returns true if it holds now.
    pub(crate) fn is_in_force(&self) -> bool {
        self.state == State::InForce
    }

    /// Returns true if an agent wrote it, and not `railweave policy`.
    pub(crate) fn by_agent(&self) -> bool {
        writer(&self.text) == Writer::Agent
    }

    /// Returns the words by which it names its writer; `None` if that is neither an agent nor `railweave policy`.
    pub(crate) fn writer(&self) -> Option<String> {
        Standing::of(&self.text)?;
        let line = self.text.lines().nth(1)?;
        let words = line.trim_start_matches("# ").split(" wrote this").next()?;
        Some(printable(&words.chars().take(LONGEST_WRITER).collect::<String>()))
    }

    /// Returns the text after its time to live: its rules, one line each.
    pub(crate) fn lines(&self) -> String {
        let is_rule = |line: &&str| line.contains("->") && !line.trim_start().starts_with('#');
        self.text.lines().filter(is_rule).map(|line| format!("{}\n", line.trim())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, now_s: u64) -> Found {
        Found::of("/run/policy".into(), text.to_owned(), now_s)
    }

    #[test]
    fn a_file_holds_for_its_time() {
        let text = "railweave-policy 1\n written 1000 \n\tttl 30\n any -> policy speed\n# a -> b\n";
        for (now_s, state) in [(939, State::Stale), (940, State::InForce), (1030, State::InForce), (1031, State::Stale)]
        {
            assert_eq!(found(text, now_s).state, state, "{now_s}");
        }
        let found = found(text, 1000);
        assert_eq!((found.written_s, found.ttl_s), (Some(1000), Some(30)));
        assert_eq!(found.lines(), "any -> policy speed\n");
    }

    #[test]
    fn a_file_of_somebody_else_is_left_alone_while_it_may_hold() {
        let text = "railweave-policy 1\nwritten 1000\nttl 30\nany -> policy speed\n";
        assert!(found(text, 1000).standing().unwrap_err().contains("was written by somebody else"));
        assert!(found(text, 1031).standing().unwrap().is_empty());
        assert!(found("rubbish", 1000).standing().is_err(), "jobs may follow the one before it");
        assert_eq!(found(text, 1000).writer(), None);
        assert!(matches!(found("rubbish", 1).state, State::Wrong(text) if text.contains("line 1: the first line")));
    }

    #[test]
    fn orders_end_with_their_time_unless_it_is_that_of_an_agent() {
        let mut standing = Standing::default();
        standing.drain("eth1").unwrap();
        let text = standing.file("0.1.0 on node\u{1b}1", Duration::from_secs(1000), Some(30));
        assert_eq!(found(&text, 1000).standing().unwrap(), standing);
        assert_eq!(found(&text, 1000).writer().as_deref(), Some("railweave policy 0.1.0 on node\u{fffd}1"));
        assert!(found(&text, 1031).standing().unwrap().is_empty());
        let agents = text.replace("# railweave policy", "# railweave agent");
        assert_eq!(found(&agents, 1031).standing().unwrap(), standing);
    }

    #[test]
    fn orders_of_a_clock_that_was_set_back_stand() {
        let mut standing = Standing::default();
        standing.drain("eth1").unwrap();
        for (ttl_s, state) in [(None, State::InForce), (Some(30), State::Stale)] {
            let text = standing.file("0.1.0 on node1", Duration::from_secs(1000), ttl_s);
            let found = found(&text, 500);
            assert_eq!((&found.state, found.written_s), (&state, Some(1000)));
            assert_eq!(found.standing().unwrap(), standing, "{text}");
        }
        let foreign = "railweave-policy 1\nwritten 1000\nttl 30\nany -> policy speed\n";
        assert!(found(foreign, 500).standing().is_err(), "its time comes");
    }
}
