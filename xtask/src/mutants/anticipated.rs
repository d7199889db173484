//! Bugs that have been anticipated, and that mutants of cargo-mutants make: testing/sim/mutants/anticipated.toml.

use super::name::Name;
use crate::process::root;
use crate::scratch::Scratch;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// An anticipated bug.
#[derive(Debug)]
struct Bug {
    /// The bug in a sentence.
    words: String,
    /// The file of the mutant that makes it, relative to the root of the tree.
    file: String,
    /// The mutant's change and function, in cargo-mutants' words.
    change: String,
    /// The line of the source that it changes, without indentation; `None` if it replaces a function's body.
    at: Option<String>,
}

/// Finds the mutant of each bug whose words or change contain one of these texts, or of every bug if there are none,
/// among all mutants of a copy of the tree. Returns the mutants' names, each with the bug's words.
///
/// # Errors
/// If a bug is not made by exactly one mutant.
pub(super) fn find(scratch: &Scratch, all: &[String], texts: &[String]) -> Result<BTreeMap<String, String>, String> {
    let mut found = BTreeMap::new();
    for bug in read()? {
        let name = bug.find(scratch, all)?;
        if bug.is_among(texts) {
            found.insert(name.clone(), bug.words);
        }
    }
    Ok(found)
}

/// Reads all bugs.
fn read() -> Result<Vec<Bug>, String> {
    let path = root().join("testing").join("sim").join("mutants").join("anticipated.toml");
    let text = fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let table: toml::Table = text.parse().map_err(|error| format!("{}: {error}", path.display()))?;
    let bugs = table.get("bug").and_then(toml::Value::as_array).map_or(&[][..], Vec::as_slice);
    let read = |bug: &toml::Value| {
        let text = |key: &str| bug.get(key).and_then(toml::Value::as_str).map(str::to_owned);
        let needed = |key: &str| text(key).ok_or_else(|| format!("{}: a bug has no {key}", path.display()));
        Ok(Bug { words: needed("bug")?, file: needed("file")?, change: needed("change")?, at: text("at") })
    };
    bugs.iter().map(read).collect()
}

impl Bug {
    fn find<'a>(&self, scratch: &Scratch, all: &'a [String]) -> Result<&'a String, String> {
        let is_there = |name: &Name<'_>| match &self.at {
            None => true,
            Some(at) => line(scratch.root(), name.file, name.line).is_some_and(|line| line.trim() == at),
        };
        let makes = |name: &&String| {
            Name::parse(name)
                .is_some_and(|name| name.file == self.file && name.change == self.change && is_there(&name))
        };
        match all.iter().filter(makes).collect::<Vec<_>>()[..] {
            [name] => Ok(name),
            ref names => Err(format!("{} mutants, not one, make that {}: {}", names.len(), self.words, self.change)),
        }
    }

    fn is_among(&self, texts: &[String]) -> bool {
        texts.is_empty() || texts.iter().any(|text| self.change.contains(text) || self.words.contains(text))
    }
}

/// Returns a line of a file, counted from 1.
fn line(root: &Path, file: &str, number: usize) -> Option<String> {
    let text = fs::read_to_string(root.join(file)).ok()?;
    text.lines().nth(number.checked_sub(1)?).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the name of the function whose signature begins in this line.
    fn function(line: &str) -> Option<&str> {
        let (before, name) = line.split_once("fn ")?;
        let is_signature = before.is_empty() || before.ends_with(' ') && !before.contains("//");
        name.split(['(', '<']).next().filter(|_| is_signature)
    }

    #[test]
    fn every_bug_has_one_place_in_the_source() {
        let bugs = read().unwrap();
        assert!(!bugs.is_empty());
        for Bug { words, file, change, at } in bugs {
            let text = fs::read_to_string(root().join(&file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            let own = change.split(" -> ").next().unwrap().rsplit("::").next().unwrap();
            let own = own.split(' ').next().unwrap();
            let Some(at) = at else {
                let found = lines.iter().filter(|line| function(line) == Some(own)).count();
                assert_eq!(found, 1, "functions {own} in {file}: {words}");
                continue;
            };
            let places: Vec<usize> = (0..lines.len()).filter(|line| lines[*line] == at).collect();
            let [place] = places[..] else { panic!("{} lines, not one, of {file} are {at}: {words}", places.len()) };
            let around = lines[..place].iter().rev().find_map(|line| function(line));
            assert_eq!(around, Some(own), "the function with {at}: {words}");
            let operator = change.strip_prefix("replace ").and_then(|rest| rest.split_once(" with ")).unwrap().0;
            assert_eq!(at.matches(&format!(" {operator} ")).count(), 1, "{operator} in {at}: {words}");
        }
    }
}
