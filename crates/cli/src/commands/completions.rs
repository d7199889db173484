//! `railweave completions`: what a shell completes.

use crate::output::print;
use clap::{Args, Command, ValueEnum};
use clap_complete::Shell;
use std::error::Error;

/// Arguments of `railweave completions`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// The shell
    #[arg(value_enum)]
    shell: Name,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Name {
    Bash,
    Zsh,
    Fish,
    Elvish,
}

/// Prints the completions of a command, without the parts of it that the program starts itself.
pub(crate) fn run(arguments: &Arguments, whole: Command) -> Result<(), Box<dyn Error>> {
    let shell = match arguments.shell {
        Name::Bash => Shell::Bash,
        Name::Zsh => Shell::Zsh,
        Name::Fish => Shell::Fish,
        Name::Elvish => Shell::Elvish,
    };
    let shown = whole.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let mut command = Command::new("railweave")
        .version(env!("CARGO_PKG_VERSION"))
        .args(whole.get_arguments().cloned())
        .subcommands(shown);
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "railweave", &mut text);
    Ok(print(String::from_utf8(text)?.trim_end())?)
}
