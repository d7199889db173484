//! Programs for development that cargo can install.

use crate::process::{cargo, find, run, target};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A subcommand of cargo, in the version whose options and output the chores rely on.
pub(crate) struct Tool {
    /// The word after `cargo`.
    subcommand: &'static str,
    pub(crate) version: &'static str,
}

/// Fuzzing.
pub(crate) const FUZZ: Tool = Tool { subcommand: "fuzz", version: "0.13.2" };

/// Mutants.
pub(crate) const MUTANTS: Tool = Tool { subcommand: "mutants", version: "27.1.0" };

impl Tool {
    /// Returns the program; installs it into target/tools if this version is neither there nor on the path.
    pub(crate) fn require(&self) -> Result<PathBuf, String> {
        let (name, version) = (format!("cargo-{}", self.subcommand), self.version);
        if let Some(program) = find(&name)
            && self.is_right(&program)
        {
            return Ok(program);
        }
        let tools = target().join("tools");
        println!("{name} {version} is not here; installing it into {}", tools.display());
        let mut install = cargo(&["install", &name, "--version", version, "--locked", "--root"]);
        install.arg(&tools);
        run(install)?;
        Ok(tools.join("bin").join(name))
    }

    /// Returns true if a program is of this version: the output of `--version` ends with it.
    fn is_right(&self, program: &Path) -> bool {
        let output = Command::new(program).args([self.subcommand, "--version"]).output();
        output
            .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim().ends_with(&format!(" {}", self.version)))
    }
}
