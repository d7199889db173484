//! The programs that measure, and the libraries that they measure.

use clap::Args;
use std::path::PathBuf;
use std::process::Command;

/// The prefixes of the variables with the user's settings, which would change the figures.
const SETTINGS: [&str; 3] = ["RAILWEAVE_", "NCCL_", "MPIB_"];

/// The programs and libraries that were built or found, and the folder for their files.
#[derive(Clone, Debug, Args)]
pub(crate) struct Tools {
    /// The plugin as users install it
    #[arg(long, value_name = "LIBRARY")]
    pub(crate) plugin: PathBuf,
    /// The railweave program, which drives a transport
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) program: PathBuf,
    /// The fake libibverbs
    #[arg(long, value_name = "LIBRARY")]
    pub(crate) fake: PathBuf,
    /// NCCL's own library, to measure it too
    #[arg(long, value_name = "LIBRARY")]
    pub(crate) nccl: Option<PathBuf>,
    /// The folder for descriptions of machines and for profiles
    #[arg(long, value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
}

/// Removes the user's settings from a program's environment.
pub(crate) fn without_settings(command: &mut Command) {
    for (variable, _) in std::env::vars_os() {
        if SETTINGS.iter().any(|prefix| variable.as_encoded_bytes().starts_with(prefix.as_bytes())) {
            command.env_remove(variable);
        }
    }
}
