//! The simulation: builds it for speed and runs it with the arguments that follow (docs/simulation.md).

use std::process::{Command, ExitCode};

use crate::process::{cargo, code, status};

/// Returns the command that plays with `arguments`.
pub(crate) fn command(arguments: &[String]) -> Command {
    let mut command = cargo(&["run", "--quiet", "--release", "--package", "railweave-sim", "--bin", "railweave-sim"]);
    command.arg("--").args(arguments);
    command
}

/// Plays, and returns the simulation's exit status.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    status(command(arguments)).map(code)
}
