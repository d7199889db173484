//! The simulation: builds it for speed and runs it with the arguments that follow (docs/simulation.md).

use std::process::{Command, ExitCode};

use crate::process::{cargo, code, status};

/// The command that plays with `arguments`. Planted bugs need a build of their own, so that all other runs play the
/// protocol as it is.
pub(crate) fn command(arguments: &[String]) -> Command {
    let mut command = cargo(&["run", "--quiet", "--release", "--package", "railweave-sim", "--bin", "railweave-sim"]);
    if arguments.iter().any(|argument| argument == "--plants") {
        command.args(["--features", "plants"]);
    }
    command.arg("--").args(arguments);
    command
}

/// Plays, and ends with the exit status of the simulation.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    status(command(arguments)).map(code)
}
