//! The model of recovery, with the arguments that follow (docs/recovery-model.md).

use std::process::ExitCode;

use crate::process::{cargo, code, status};

/// Builds the model for speed, searches its configurations, and returns its exit status.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    let mut command = cargo(&["run", "--quiet", "--release", "--package", "railweave-recovery-model", "--"]);
    command.args(arguments);
    status(command).map(code)
}
