//! The judge of the split, with the arguments that follow (docs/simulation.md).

use std::process::ExitCode;

use crate::process::{cargo, code, status};

/// Builds the judge for speed, lets it play, and returns its exit status.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    let mut command = cargo(&["run", "--quiet", "--release", "--package", "railweave-split", "--"]);
    command.args(arguments);
    status(command).map(code)
}
