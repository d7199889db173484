//! `railweave options`: every setting, its value here, and the origin of the value.

use crate::environment;
use crate::output::{print, table};
use clap::Args;
use railweave_options::Row;
use serde::Serialize;
use std::error::Error;

/// Arguments of `railweave options`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Also explains each setting and its allowed values
    #[arg(long, short)]
    verbose: bool,
    /// Prints the settings as JSON
    #[arg(long)]
    json: bool,
}

/// One setting in the output of `--json`.
#[derive(Serialize)]
struct ShownSetting {
    /// The variable that takes precedence over all others.
    variable: &'static str,
    /// Its value, as written in a variable.
    value: String,
    /// The origin of the value: a variable's name, or `default`.
    source: String,
    /// Every variable that is read for it, in order of precedence.
    variables: Vec<&'static str>,
    /// The allowed values of its variable.
    allowed: &'static str,
    /// The default in words.
    default: &'static str,
    /// Its help text.
    help: &'static str,
}

impl ShownSetting {
    fn new(row: Row) -> Self {
        Self {
            variable: row.entry.variable(),
            value: row.value,
            source: row.source.to_string(),
            variables: row.entry.all_variables().collect(),
            allowed: row.entry.allowed,
            default: row.entry.default,
            help: row.entry.help,
        }
    }
}

/// Shows the settings of this environment.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let options = environment::options()?;
    let settings: Vec<ShownSetting> = options.rows().into_iter().map(ShownSetting::new).collect();
    if arguments.json {
        return Ok(print(serde_json::to_string_pretty(&settings)?)?);
    }
    let mut shown = table(&["setting", "value", "from"], 3);
    for setting in &settings {
        shown.add_row([setting.variable, &setting.value, &setting.source]);
    }
    print(shown)?;
    if arguments.verbose {
        for setting in &settings {
            print(format_args!("\n{}\n  {}", setting.variable, setting.help))?;
            print(format_args!("  allowed: {}; default: {}", setting.allowed, setting.default))?;
            if setting.variables.len() > 1 {
                print(format_args!("  also read: {}", setting.variables[1..].join(", ")))?;
            }
        }
    }
    Ok(())
}
