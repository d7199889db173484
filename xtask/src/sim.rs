//! The simulation, with the arguments that follow (docs/simulation.md).

use std::process::{Command, ExitCode};

use crate::process::{cargo, code, status};

/// Returns the command that plays with `arguments` in the build of the tests, which takes twice as long for a seed but
/// is there already, and has the checks of a debug build.
pub(crate) fn checked(arguments: &[&str]) -> Command {
    let mut command = cargo(&["run", "--quiet", "--package", "railweave-sim", "--bin", "railweave-sim", "--"]);
    command.args(arguments);
    command
}

/// Builds the simulation for speed, plays, and returns its exit status.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    let mut command = cargo(&["run", "--quiet", "--release", "--package", "railweave-sim", "--bin", "railweave-sim"]);
    command.arg("--").args(arguments);
    status(command).map(code)
}
