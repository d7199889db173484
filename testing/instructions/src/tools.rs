//! The libraries that are measured, and the command that measures one of them.

use clap::Args;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The prefixes of the variables with the user's settings, which would change the figures.
const SETTINGS: [&str; 3] = ["RAILWEAVE_", "NCCL_", "MPIB_"];

/// The libraries that were built or found, and the folder for files.
#[derive(Clone, Debug, Args)]
pub(crate) struct Tools {
    /// The plugin as users install it
    #[arg(long, value_name = "LIBRARY")]
    pub(crate) plugin: PathBuf,
    /// NCCL's own library, to measure it too
    #[arg(long, value_name = "LIBRARY")]
    pub(crate) nccl: Option<PathBuf>,
    /// The folder for descriptions of machines and for profiles
    #[arg(long, value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
}

/// The number of lines of a failed run's standard error that are shown.
const LINES: usize = 3;

/// A transport to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transport<'a> {
    /// The plugin as users install it.
    Railweave(&'a Path),
    /// NCCL's own IB transport, in this library.
    Nccl(&'a Path),
}

impl<'a> Transport<'a> {
    /// Returns the library that it is in.
    pub(crate) fn library(self) -> &'a Path {
        match self {
            Self::Railweave(library) | Self::Nccl(library) => library,
        }
    }

    /// Makes `command` measure this transport inside one process, over the fake libibverbs `fake`, which imitates the
    /// machine described in the file `machine`. With `fuse` all its devices become one. The caller still has to add the
    /// task.
    pub(crate) fn measured_by(self, command: &mut Command, fake: &Path, machine: &Path, fuse: bool) {
        without_settings(command);
        command.env("NCCL_IBVERBS_LIB", fake).env("RAILWEAVE_TEST_MACHINE", machine).arg("in-process");
        match self {
            Self::Railweave(plugin) => {
                command.arg("--plugin").arg(plugin);
                command.env("RAILWEAVE_FABRIC", "verbs").env("RAILWEAVE_OOB_IF", "lo");
                command.envs(fuse.then_some(("RAILWEAVE_MODE", "fused")));
                // Under callgrind a message takes fifty times as long, so there would be fifty times as many looks for
                // silent rails per message.
                command.env("RAILWEAVE_RAIL_TIMEOUT", "25");
            }
            Self::Nccl(library) => {
                // Without the variable its logger is silent.
                command.arg("--nccl").arg(library).env("NCCL_DEBUG", "WARN").args(fuse.then_some("--fuse"));
            }
        }
    }
}

/// Links the fake libibverbs, which cargo has built next to this program, and returns its path.
pub(crate) fn fake() -> Result<PathBuf, String> {
    railweave_fake_ibverbs::link(&[]).map_err(|error| error.to_string())
}

/// Returns the path of this program.
pub(crate) fn program() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| format!("the path of this program is unknown: {error}"))
}

/// Removes the user's settings from a program's environment.
fn without_settings(command: &mut Command) {
    for (variable, _) in std::env::vars_os() {
        if SETTINGS.iter().any(|prefix| variable.as_encoded_bytes().starts_with(prefix.as_bytes())) {
            command.env_remove(variable);
        }
    }
}

/// Returns the last lines of a run's standard error, without valgrind's own.
pub(crate) fn last_words(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty() && !line.starts_with("==")).collect();
    lines[lines.len().saturating_sub(LINES)..].join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_are_the_programs() {
        let words = last_words(b"one\ntwo\nthree\n\n==7== Events : Ir\nfour\n==7== \n");
        assert_eq!(words, "two; three; four");
        assert_eq!(last_words(b""), "");
    }
}
