//! NCCL's view of a host's adapters: through its own transport, and through Railweave (docs/nccl-view.md).
//!
//! A host is a file in `fixtures/`: a machine for the fake libibverbs, and the files of /sys that tell where its
//! devices are. For each host and setting this program starts itself once for NCCL's transport and once for Railweave's
//! plugin, in a mount namespace where those files are /sys, and asks for the properties of all devices. `cargo xtask
//! view` builds everything and starts it. What NCCL's transport answered is kept in `nccl.json`, so that Railweave's
//! side is checked without NCCL's library.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)] // a program whose output is its result

mod answer;
mod ask;
mod differences;
mod file;
mod fixture;
mod host;
mod observe;
mod page;
mod sysfs;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::differences::Expected;
use crate::fixture::Fixture;
use crate::host::{Answers, Sides};

/// Shows what NCCL sees of a host's adapters; `cargo xtask view` starts it.
#[derive(Debug, Parser)]
#[command(name = "railweave-view")]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Asks both sides about every host, and prints the page
    Compare(Compare),
    /// Asks one side about the host in this process's /sys; the other command starts it
    Observe(observe::Arguments),
}

/// The arguments of `compare`.
#[derive(Debug, Args)]
struct Compare {
    /// Railweave's plugin
    #[arg(long, value_name = "LIBRARY")]
    plugin: PathBuf,
    /// NCCL's library, whose answers replace those in nccl.json
    #[arg(long, value_name = "LIBRARY")]
    nccl: Option<PathBuf>,
    /// The folder of this package
    #[arg(long, value_name = "FOLDER")]
    package: PathBuf,
    /// The page
    #[arg(long, value_name = "FILE")]
    page: PathBuf,
    /// A folder for the hosts' files
    #[arg(long, value_name = "FOLDER")]
    folder: PathBuf,
    /// Fail if the page is not up to date, and write nothing
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    let result = match CommandLine::parse().command {
        Command::Compare(arguments) => compare(&arguments),
        Command::Observe(arguments) => observe::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn compare(arguments: &Compare) -> Result<(), String> {
    let Compare { plugin, nccl, package, page: path, folder, check } = arguments;
    ask::can_be_asked()?;
    let fixtures = Fixture::all(&package.join("fixtures"))?;
    let expected = Expected::read(&package.join("differences.toml"))?;
    let recorded = package.join("nccl.json");
    let answers = match nccl {
        Some(library) => host::nccl(&fixtures, library, folder)?,
        None => Answers::read(&recorded)?,
    };
    let sides = Sides { nccl: answers, railweave: host::railweave(&fixtures, plugin, folder)? };
    let found = differences::find(&fixtures, &sides, &expected);
    let text = page::markdown(&fixtures, &sides, &found, &expected)?;
    print!("{text}");
    let unexpected = found.complaints(&expected);
    if !unexpected.is_empty() {
        return Err(format!(
            "{}\nmend them, or list each with its reason in testing/view/differences.toml",
            unexpected.join("\n")
        ));
    }
    if *check {
        let same = fs::read_to_string(path).is_ok_and(|old| old == text);
        return if same { Ok(()) } else { Err(format!("{} is out of date; run: cargo xtask view", path.display())) };
    }
    if nccl.is_some() {
        sides.nccl.write(&recorded)?;
    }
    file::write(path, &text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_has_no_contradiction() {
        CommandLine::command().debug_assert();
    }
}
