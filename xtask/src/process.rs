//! Running other programs, and the paths of the repository.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

/// The result of running something: nothing, or a sentence that says what went wrong.
pub(crate) type Outcome = Result<(), String>;

/// Returns the root of the repository.
pub(crate) fn root() -> PathBuf {
    // Cargo says where this package is now; it may have been built elsewhere.
    let package =
        std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    package.parent().map_or_else(|| package.clone(), Path::to_path_buf)
}

/// Returns cargo's build directory.
pub(crate) fn target() -> PathBuf {
    let named = std::env::var_os("CARGO_TARGET_DIR").filter(|name| !name.is_empty());
    root().join(named.map_or_else(|| "target".into(), PathBuf::from))
}

/// Returns a command of the cargo that runs this chore, in the root of the repository.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root());
    command
}

/// Runs `command` to its end and returns its status.
pub(crate) fn status(mut command: Command) -> Result<ExitStatus, String> {
    command.status().map_err(|error| format!("cannot run {}: {error}", command.get_program().display()))
}

/// Builds the program of the package `name`, which has the same name, and returns its path.
pub(crate) fn program(name: &str) -> Result<PathBuf, String> {
    run(cargo(&["build", "--quiet", "--package", name]))?;
    Ok(target().join("debug").join(name))
}

/// Returns the exit status of a chore that ends as a program did.
pub(crate) fn code(status: ExitStatus) -> ExitCode {
    // A program that a signal ended has no code of its own.
    status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Becomes the program of `command`: whoever ends this process ends the program, and sees its status.
///
/// # Errors
/// A sentence, when it cannot be run. Otherwise this does not return.
pub(crate) fn become_program(mut command: Command) -> Result<ExitCode, String> {
    let error = command.exec();
    Err(format!("cannot run {}: {error}", command.get_program().display()))
}

/// Runs `command`; fails unless it succeeds.
pub(crate) fn run(command: Command) -> Outcome {
    let line = line(&command);
    let status = status(command)?;
    if status.success() { Ok(()) } else { Err(format!("{line}: {status}")) }
}

/// Returns a command as a person would type it, without quotes.
pub(crate) fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Finds the program `name` in `target/tools/bin` or on the path.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(target().join("tools").join("bin")).chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join(name)).find(|program: &PathBuf| program.is_file())
}
