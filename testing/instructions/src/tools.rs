//! What measures, and what is measured.

use clap::Args;
use std::path::PathBuf;
use std::process::Command;

/// Settings of the user's, which would change what is measured, begin so.
const SETTINGS: [&str; 3] = ["RAILWEAVE_", "NCCL_", "MPIB_"];

/// What was built and found for measuring.
#[derive(Clone, Debug, Args)]
pub(crate) struct Tools {
    /// The plugin as users install it
    #[arg(long, value_name = "LIBRARY")]
    pub(crate) plugin: PathBuf,
    /// The railweave program, which drives a transport
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) program: PathBuf,
    /// The library in libibverbs' place
    #[arg(long, value_name = "LIBRARY")]
    pub(crate) fake: PathBuf,
    /// NCCL's own library, to measure it too
    #[arg(long, value_name = "LIBRARY")]
    pub(crate) nccl: Option<PathBuf>,
    /// Where descriptions of machines, and profiles, are kept
    #[arg(long, value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
}

/// Keeps the user's settings from a program.
pub(crate) fn without_settings(command: &mut Command) {
    for (variable, _) in std::env::vars_os() {
        if SETTINGS.iter().any(|prefix| variable.as_encoded_bytes().starts_with(prefix.as_bytes())) {
            command.env_remove(variable);
        }
    }
}
