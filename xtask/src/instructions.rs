//! The cost of messages and connections (docs/performance.md): builds the programs to measure, and starts the one that
//! measures (testing/instructions).

use crate::dist::{Dist, dist};
use crate::nccl::Nccl;
use crate::process::{become_program, cargo, find, run, target};
use clap::Args;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// The arguments of `instructions`.
#[derive(Debug, Args)]
pub(crate) struct Messages {
    #[command(flatten)]
    nccl: Nccl,
    /// Count also what a message of ours costs while a profiler or the trace watches it
    #[arg(long)]
    watched: bool,
    /// List the N most costly functions of ours for each case, 1 to 1000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    functions: Option<u16>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The arguments of `connections`.
#[derive(Debug, Args)]
pub(crate) struct Connections {
    #[command(flatten)]
    nccl: Nccl,
    /// Number of connections, 1 to 100000 [default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: Option<u32>,
    /// An adapter, such as ionic; may be repeated [default: connectx-7 and ionic]
    #[arg(long = "profile", value_name = "NAME")]
    profiles: Vec<String>,
}

/// Counts the instructions of a message.
pub(crate) fn count_messages(arguments: &Messages) -> Result<ExitCode, String> {
    let nccl = arguments.nccl.library()?;
    let valgrind = find("valgrind").ok_or(
        "valgrind, which counts the instructions, is not on the path; install it with \"apt-get install valgrind\"",
    )?;
    let mut command = command("messages", "instructions", nccl)?;
    command.arg("--valgrind").arg(valgrind);
    if arguments.watched {
        command.arg("--watched");
    }
    if let Some(functions) = arguments.functions {
        command.arg("--functions").arg(functions.to_string());
    }
    command.args(arguments.json.then_some("--json"));
    become_program(command)
}

/// Measures many connections.
pub(crate) fn measure_connections(arguments: &Connections) -> Result<ExitCode, String> {
    let mut command = command("connections", "connections", arguments.nccl.library()?)?;
    if let Some(count) = arguments.count {
        command.arg("--count").arg(count.to_string());
    }
    for profile in &arguments.profiles {
        command.arg("--profile").arg(profile);
    }
    become_program(command)
}

/// Builds all that the program needs and returns its command `name`. It keeps its files in `folder` of cargo's build
/// directory.
fn command(name: &str, folder: &str, nccl: Option<PathBuf>) -> Result<Command, String> {
    let Dist { library, .. } = dist()?;
    run(cargo(&["build", "--release", "--package", "railweave-instructions"]))?;
    let mut command = Command::new(target().join("release").join("railweave-instructions"));
    command.arg(name).arg("--plugin").arg(library).arg("--folder").arg(target().join(folder));
    if let Some(nccl) = nccl {
        command.arg("--nccl").arg(nccl);
    }
    Ok(command)
}
