//! The settings as this program's environment makes them.

use railweave_options::{Options, Warning};
use std::ffi::OsString;

/// Reads the settings; warnings go to standard error.
///
/// # Errors
/// Every setting that cannot be used, a line each.
pub(crate) fn options() -> Result<Options, String> {
    let (options, warnings) = read(std::env::vars_os())?;
    for warning in &warnings {
        eprintln!("railweave: {warning}");
    }
    Ok(options)
}

/// The settings with these variables, as ranks read them, which say themselves what there is to warn of.
///
/// # Errors
/// As [`options`].
pub(crate) fn options_with(variables: impl Iterator<Item = (OsString, OsString)>) -> Result<Options, String> {
    read(std::env::vars_os().chain(variables)).map(|(options, _)| options)
}

fn read(variables: impl Iterator<Item = (OsString, OsString)>) -> Result<(Options, Vec<Warning>), String> {
    Options::from_variables(variables).map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        lines.join("\nrailweave: ")
    })
}
