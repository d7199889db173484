//! The judge of mutants: tests that pass on the unchanged tree.

use super::results::Verdict;
use crate::scratch::Scratch;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The longest time that the tests of the unchanged tree may take.
const LONGEST: Duration = Duration::from_secs(1800);

/// The exit code of `timeout` if the time has passed.
const TIMED_OUT: i32 = 124;

/// The tests, as cargo-mutants reads them in .cargo/mutants.toml.
pub(super) struct Judge {
    packages: Vec<String>,
    arguments: Vec<String>,
}

impl Judge {
    /// Reads the judge of a copy of the tree.
    pub(super) fn of(scratch: &Scratch) -> Result<Self, String> {
        let path = scratch.root().join(".cargo").join("mutants.toml");
        let text = fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let table: toml::Table = text.parse().map_err(|error| format!("{}: {error}", path.display()))?;
        let words = |key: &str| -> Result<Vec<String>, String> {
            let words = table.get(key).and_then(|value| value.as_array());
            let words = words.ok_or_else(|| format!("{} has no list {key}", path.display()))?;
            Ok(words.iter().filter_map(|word| word.as_str()).map(str::to_owned).collect())
        };
        Ok(Self { packages: words("test_package")?, arguments: words("additional_cargo_args")? })
    }

    /// Builds the tests in the copy. Returns true if that succeeds, with the output.
    pub(super) fn build(&self, scratch: &Scratch) -> Result<(bool, String), String> {
        let mut command = scratch.command(Path::new(&cargo()));
        self.add_words(&mut command, &["--no-run"]);
        output(command).map(|(code, said)| (code == Some(0), said))
    }

    /// Runs the tests in the copy, for at most `limit`. Returns the verdict, with the output.
    pub(super) fn test(&self, scratch: &Scratch, limit: Duration) -> Result<(Verdict, String), String> {
        // `timeout`, of coreutils, also ends the test programs that cargo has started.
        let mut command = scratch.command(Path::new("timeout"));
        command.arg(limit.as_secs().to_string()).arg(cargo());
        self.add_words(&mut command, &[]);
        let (code, said) = output(command)?;
        let verdict = match code {
            Some(0) => Verdict::Missed,
            Some(TIMED_OUT) => Verdict::Timeout,
            _ => Verdict::Caught,
        };
        Ok((verdict, said))
    }

    fn add_words(&self, command: &mut Command, more: &[&str]) {
        command.arg("test").args(&self.arguments).args(more);
        for package in &self.packages {
            command.args(["--package", package]);
        }
    }

    /// Runs the tests in the unchanged copy and returns the time that they take.
    pub(super) fn pass(&self, scratch: &Scratch) -> Result<Duration, String> {
        println!("building the tests, and running them on the unchanged tree");
        let (builds, said) = self.build(scratch)?;
        if !builds {
            return Err(format!("the unchanged tree does not build:\n{said}"));
        }
        let begin = Instant::now();
        match self.test(scratch, LONGEST)? {
            (Verdict::Missed, _) => Ok(begin.elapsed()),
            (_, said) => Err(format!("the unchanged tree fails:\n{said}")),
        }
    }
}

/// Returns the cargo that runs this chore.
fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Runs a command. Returns its exit code, with its output.
pub(super) fn output(mut command: Command) -> Result<(Option<i32>, String), String> {
    let output =
        command.output().map_err(|error| format!("cannot run {}: {error}", command.get_program().display()))?;
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Ok((output.status.code(), said))
}
