//! The judge of mutants: tests that pass on the unchanged tree.

use crate::scratch::Scratch;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

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

    /// Runs the tests in the copy, or with `--no-run` only builds them. Returns true if that succeeds, with the output.
    pub(super) fn test(&self, scratch: &Scratch, more: &[&str]) -> Result<(bool, String), String> {
        let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = scratch.command(Path::new(&program));
        command.arg("test").args(&self.arguments).args(more);
        for package in &self.packages {
            command.args(["--package", package]);
        }
        output(command)
    }

    /// Runs the tests in the unchanged copy and returns the time that they take.
    pub(super) fn pass(&self, scratch: &Scratch) -> Result<Duration, String> {
        println!("building the tests, and running them on the unchanged tree");
        let mut begin = Instant::now();
        for more in [&["--no-run"][..], &[]] {
            begin = Instant::now();
            let (passes, said) = self.test(scratch, more)?;
            if !passes {
                return Err(format!("the unchanged tree fails:\n{said}"));
            }
        }
        Ok(begin.elapsed())
    }
}

/// Runs a command. Returns true if it succeeds, with its output.
pub(super) fn output(mut command: Command) -> Result<(bool, String), String> {
    let output =
        command.output().map_err(|error| format!("cannot run {}: {error}", command.get_program().display()))?;
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Ok((output.status.success(), said))
}
