//! The verdicts on mutants, kept in files, so that a later run continues where one ended.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The verdict on a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    /// A test failed.
    Caught,
    /// No test failed.
    Missed,
    /// It does not compile.
    Unviable,
    /// The tests did not end in time.
    Timeout,
}

impl Verdict {
    /// All of them.
    pub(super) const ALL: [Self; 4] = [Self::Caught, Self::Missed, Self::Unviable, Self::Timeout];

    /// Returns its name, which is also that of cargo-mutants' file.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Caught => "caught",
            Self::Missed => "missed",
            Self::Unviable => "unviable",
            Self::Timeout => "timeout",
        }
    }
}

/// The verdicts on the mutants of one state of the tree, by their names.
pub(super) struct Results {
    folder: PathBuf,
    verdicts: BTreeMap<String, Verdict>,
}

impl Results {
    /// Reads the results in a folder if they have this stamp; others are removed.
    pub(super) fn read(folder: PathBuf, own: &str) -> Result<Self, String> {
        let fault = |error: std::io::Error| format!("cannot keep results in {}: {error}", folder.display());
        let stamp = folder.join("stamp");
        let mut results = Self { folder: folder.clone(), verdicts: BTreeMap::new() };
        let last = fs::read_to_string(&stamp).unwrap_or_default();
        if last == own {
            results.add(&folder);
            // The last run may have been interrupted before it collected its findings.
            results.collect()?;
            return Ok(results);
        }
        if folder.is_dir() {
            println!(
                "the results in {} are those of another tree, compiler or cargo-mutants: starting again",
                folder.display()
            );
            fs::remove_dir_all(&folder).map_err(fault)?;
        }
        fs::create_dir_all(&folder).map_err(fault)?;
        fs::write(&stamp, own).map_err(fault)?;
        Ok(results)
    }

    /// Returns the folder of cargo-mutants' findings, with a log and a diff for each mutant.
    pub(super) fn last(&self) -> PathBuf {
        self.folder.join("last")
    }

    /// Keeps the findings of the last run of cargo-mutants.
    pub(super) fn collect(&mut self) -> Result<(), String> {
        self.add(&self.last().join("mutants.out"));
        self.write()
    }

    fn add(&mut self, folder: &Path) {
        for verdict in Verdict::ALL {
            let text = fs::read_to_string(folder.join(verdict.name()).with_extension("txt")).unwrap_or_default();
            self.verdicts.extend(text.lines().map(|name| (name.to_owned(), verdict)));
        }
    }

    fn write(&self) -> Result<(), String> {
        for verdict in Verdict::ALL {
            let path = self.folder.join(verdict.name()).with_extension("txt");
            let lines: String = self.of(verdict, |_| true).map(|name| format!("{name}\n")).collect();
            fs::write(&path, lines).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        }
        Ok(())
    }

    /// Returns the verdict on a mutant, if it is known.
    pub(super) fn verdict(&self, name: &str) -> Option<Verdict> {
        self.verdicts.get(name).copied()
    }

    /// Returns true if a mutant's verdict is known.
    pub(super) fn has(&self, name: &str) -> bool {
        self.verdicts.contains_key(name)
    }

    /// Returns the mutants with this verdict among those that `among` admits.
    pub(super) fn of(&self, verdict: Verdict, among: impl Fn(&str) -> bool) -> impl Iterator<Item = &str> {
        let alike = self.verdicts.iter().filter(move |(_, found)| **found == verdict);
        alike.map(|(name, _)| name.as_str()).filter(move |name| among(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_last_as_long_as_the_tree_does() {
        let folder = std::env::temp_dir().join(format!("railweave-results-{}", std::process::id()));
        let mut results = Results::read(folder.clone(), "7").unwrap();
        let left = results.last().join("mutants.out");
        fs::create_dir_all(&left).unwrap();
        fs::write(left.join("missed.txt"), "one\ntwo\n").unwrap();
        fs::write(left.join("caught.txt"), "three\n").unwrap();
        results.collect().unwrap();
        fs::write(left.join("missed.txt"), "").unwrap();
        fs::write(left.join("caught.txt"), "one\n").unwrap();
        let again = Results::read(folder.clone(), "7").unwrap();
        let missed: Vec<&str> = again.of(Verdict::Missed, |_| true).collect();
        assert_eq!(missed, ["two"], "a later verdict counts, whoever collects it");
        assert!(again.has("one") && again.has("three") && !again.has("four"));
        assert!(!Results::read(folder.clone(), "8").unwrap().has("one"));
        fs::remove_dir_all(folder).unwrap();
    }
}
