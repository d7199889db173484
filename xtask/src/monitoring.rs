//! Alert rules, dashboard and metrics in a real Prometheus: builds the program and runs `packaging/check.py` with it
//! (docs/monitoring.md).

use crate::dist::dist;
use crate::packages;
use crate::process::{code, root, status, target};
use clap::Args;
use std::process::{Command, ExitCode};

/// The arguments of the chore.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// As root: install missing Debian packages
    #[arg(long)]
    install: bool,
    /// The arguments of packaging/check.py, after --
    #[arg(last = true, value_name = "ARGUMENTS")]
    passed: Vec<String>,
}

/// Runs the check and returns its exit status.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, String> {
    let may_install = arguments.install || packages::is_continuous_integration();
    packages::require(packages::MONITORING, may_install, "monitoring")?;
    let built = dist()?;
    let mut command = Command::new("python3");
    // -B: no compiled files next to the sources.
    command.arg("-B").arg(root().join("packaging").join("check.py")).arg("--railweave").arg(built.program);
    command.arg("--scratch").arg(target().join("packaging")).args(&arguments.passed);
    status(command).map(code)
}
