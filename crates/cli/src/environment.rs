//! The settings as this program's environment makes them.

use railweave_options::Options;

/// Reads the settings; warnings go to standard error.
///
/// # Errors
/// Every setting that cannot be used, a line each.
pub(crate) fn options() -> Result<Options, String> {
    let (options, warnings) = Options::from_env().map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        lines.join("\nrailweave: ")
    })?;
    for warning in &warnings {
        eprintln!("railweave: {warning}");
    }
    Ok(options)
}
