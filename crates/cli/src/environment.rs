//! The settings in this program's environment.

use railweave_options::{Options, Warning};
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
