//! The choice of the scenarios to play.

use crate::scenario::{FOLDER, Scenario};
use clap::Args;
use std::path::PathBuf;

/// A choice of scenarios of a repository.
#[derive(Debug, Default, Args)]
pub(crate) struct Choice {
    /// The repository
    #[arg(long, value_name = "FOLDER")]
    pub(crate) root: PathBuf,
    /// Only the scenarios of the ordinary test run
    #[arg(long)]
    short: bool,
    /// Only scenarios with these names
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

impl Choice {
    /// Reads the chosen scenarios, in the order of their names.
    ///
    /// # Errors
    /// If a name is unknown or a scenario is invalid: a sentence.
    pub(crate) fn scenarios(&self) -> Result<Vec<Scenario>, String> {
        self.among(Scenario::read_all(&self.root.join(FOLDER))?)
    }

    fn among(&self, mut known: Vec<Scenario>) -> Result<Vec<Scenario>, String> {
        if let Some(unknown) = self.names.iter().find(|name| !known.iter().any(|scenario| scenario.name == **name)) {
            let known: Vec<&str> = known.iter().map(|scenario| scenario.name.as_str()).collect();
            return Err(format!(
                "the lab has no scenario \"{}\"; the scenarios are: {}",
                unknown.escape_debug(),
                known.join(", ")
            ));
        }
        known.retain(|scenario| {
            let is_named = self.names.is_empty() || self.names.contains(&scenario.name);
            is_named && (!self.short || scenario.short)
        });
        Ok(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(short: bool, names: &[&str]) -> Result<Vec<String>, String> {
        let scenario = |name: &str, short: bool| {
            let text = format!(
                "about = \"\"\nshort = {short}\n[[run]]\nname = \"a\"\ncommand = [{{ guest = 0, line = \"true\" }}]"
            );
            Scenario::parse(name, &text).unwrap()
        };
        let known = vec![scenario("long", false), scenario("quick", true), scenario("other", true)];
        let names = names.iter().map(ToString::to_string).collect();
        let chosen = Choice { short, names, ..Choice::default() }.among(known)?;
        Ok(chosen.into_iter().map(|scenario| scenario.name).collect())
    }

    #[test]
    fn names_and_options_say_what_is_played() {
        assert_eq!(chosen(false, &[]).unwrap(), ["long", "quick", "other"]);
        assert_eq!(chosen(true, &[]).unwrap(), ["quick", "other"]);
        assert_eq!(chosen(false, &["other", "long"]).unwrap(), ["long", "other"]);
        assert_eq!(chosen(true, &["other", "long"]).unwrap(), ["other"]);
        let error = chosen(false, &["long", "absent"]).unwrap_err();
        assert!(error.contains("no scenario \"absent\"") && error.contains("long, quick, other"), "{error}");
    }
}
