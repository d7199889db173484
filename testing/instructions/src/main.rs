//! Measures the cost of messages and connections over RDMA, ours next to that of NCCL's own IB transport
//! (docs/performance.md).
//!
//! `cargo xtask instructions` and `cargo xtask connections` build everything that this program needs, and start it.
//! Both ends are in one process, over the fake libibverbs: no wire changes the figures.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)] // a program whose output is its result

mod connections;
mod cost;
mod counter;
mod messages;
mod profile;
mod tools;
mod work;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Measures the cost of a transport; `cargo xtask instructions` and `cargo xtask connections` start it.
#[derive(Debug, Parser)]
#[command(name = "railweave-instructions")]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Counts the instructions of a message
    Messages(messages::Arguments),
    /// Measures many connections
    Connections(connections::Arguments),
}

fn main() -> ExitCode {
    let result = match CommandLine::parse().command {
        Command::Messages(arguments) => messages::run(&arguments),
        Command::Connections(arguments) => connections::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
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
