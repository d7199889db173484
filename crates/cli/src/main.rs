//! The railweave program: tries out and measures the plugin, or any other NCCL net plugin, without NCCL and without
//! GPUs.
//!
//! It contains the user interface: arguments, progress, tables. `railweave-nccl-host` loads plugins, and
//! `railweave-bench` runs ranks and measures. Each subcommand is a module of [`commands`] with an `Arguments` and a
//! `run`.
#![forbid(unsafe_code)]

mod commands;
mod device;
mod environment;
mod host;
mod job;
mod library;
mod measurement;
mod namespaces;
mod network;
mod orders;
mod output;
mod over_time;
mod profiler;
mod rank;
mod relay;
mod shape;
mod size;
mod span;
mod topo;
mod watch;
mod words;

use clap::{CommandFactory, Parser, Subcommand};
use std::io::Write;
use std::process::ExitCode;

/// Weaves every network path between two hosts into one NCCL device.
#[derive(Parser)]
#[command(name = "railweave", version)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs checked collectives between local processes and shows the traffic of each rail
    Demo(commands::demo::Arguments),
    /// Measures latency, bandwidth and connection set-up between two local processes
    Bench(commands::bench::Arguments),
    /// Shows every setting, its value here, and the origin of the value
    Options(commands::options::Arguments),
    /// Shows the ports, devices and rails of this machine, or their pairing with another host's
    Topo(commands::topo::Arguments),
    /// Shows what runs here now: processes, their connections, and the state and traffic of each rail
    Status(commands::status::Arguments),
    /// Shows jobs, peers and rails on a screen that follows them, and takes orders by key
    Top(commands::top::Arguments),
    /// Watches the jobs of this host, steers them, and serves metrics and an API
    Agent(commands::agent::Arguments),
    /// Shows and gives the orders that steer jobs while they run
    Policy(commands::policy::Arguments),
    /// Makes a file for a viewer out of the traces of a job, or sums them up
    Trace(commands::trace::Arguments),
    /// Prints the completions of this program for a shell
    Completions(commands::completions::Arguments),
    /// The process of one rank, started by demo and bench
    #[command(name = job::SUBCOMMAND, hide = true)]
    Rank,
    /// The process that removes the network namespaces of another one when that ends
    #[command(name = namespaces::SUBCOMMAND, hide = true)]
    RemoveNamespaces {
        /// The process that made them
        owner: u32,
    },
}

fn main() -> ExitCode {
    let result = match CommandLine::parse().command {
        Command::Demo(arguments) => commands::demo::run(&arguments),
        Command::Bench(arguments) => commands::bench::run(&arguments),
        Command::Options(arguments) => commands::options::run(&arguments),
        Command::Topo(arguments) => commands::topo::run(&arguments),
        Command::RemoveNamespaces { owner } => namespaces::remove_at_end_of_input(owner).map_err(Into::into),
        Command::Top(arguments) => commands::top::run(&arguments),
        Command::Status(arguments) => commands::status::run(&arguments),
        Command::Agent(arguments) => commands::agent::run(&arguments),
        Command::Policy(arguments) => match commands::policy::run(&arguments) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Trace(arguments) => commands::trace::run(&arguments),
        Command::Completions(arguments) => commands::completions::run(&arguments, CommandLine::command()),
        Command::Rank => return rank::serve(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be gone, with the terminal.
            let _ = writeln!(std::io::stderr(), "railweave: {error}");
            ExitCode::FAILURE
        }
    }
}
