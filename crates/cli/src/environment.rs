//! The settings in this program's environment.

use railweave_options::{Options, Warning};
use railweave_telemetry::RunDir;
use std::ffi::OsString;

/// Reads the settings; warnings go to standard error.
///
/// # Errors
/// If settings have invalid values: one line for each.
pub(crate) fn options() -> Result<Options, String> {
    let (options, warnings) = read(std::env::vars_os())?;
    for warning in &warnings {
        eprintln!("railweave: {warning}");
    }
    Ok(options)
}

/// Returns the run dir of this user's jobs, and prints warnings about it. Other settings may be wrong: they matter to
/// jobs, and not to those who look at jobs or steer them.
///
/// # Errors
/// If the setting has a wrong value: a sentence.
pub(crate) fn run_dir() -> Result<RunDir, String> {
    let (run_dir, warnings) = read_run_dir()?;
    for warning in &warnings {
        eprintln!("railweave: {warning}");
    }
    Ok(run_dir)
}

/// Returns the run dir of this user's jobs; `None` if the setting has a wrong value, which [`run_dir`] says.
pub(crate) fn run_dir_quietly() -> Option<RunDir> {
    read_run_dir().ok().map(|(run_dir, _)| run_dir)
}

fn read_run_dir() -> Result<(RunDir, Vec<Warning>), String> {
    let is_meant = |name: &OsString| name.to_string_lossy().starts_with("RAILWEAVE_RUN");
    let (options, warnings) = read(std::env::vars_os().filter(|(name, _)| is_meant(name)))?;
    Ok((RunDir::named(options.run_dir.value.path()), warnings))
}

/// Reads the settings with these variables added, as ranks read them; the ranks print the warnings themselves.
///
/// # Errors
/// If [`options`] fails.
pub(crate) fn options_with(variables: impl Iterator<Item = (OsString, OsString)>) -> Result<Options, String> {
    read(std::env::vars_os().chain(variables)).map(|(options, _)| options)
}

fn read(variables: impl Iterator<Item = (OsString, OsString)>) -> Result<(Options, Vec<Warning>), String> {
    Options::from_variables(variables).map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        lines.join("\nrailweave: ")
    })
}
