//! Measures the cost of messages and connections over RDMA, ours next to that of NCCL's own IB transport
//! (docs/performance.md).
//!
//! `cargo xtask instructions` and `cargo xtask connections` build everything that this program needs, and start it.
//! It starts itself once more for each measurement (`in_process.rs`), under callgrind if instructions are counted. Both
//! ends are in that one process, over the fake libibverbs: no wire changes the figures.

// Allowed again in in_process/message_loop.rs, for the name of a function and for the bytes of two buffers.
#![deny(unsafe_code)]
#![allow(clippy::print_stdout)] // a program whose output is its result

mod connections;
mod cost;
mod counter;
mod in_process;
mod messages;
mod profile;
mod tools;
mod work;

/// A net in memory.
#[cfg(test)]
#[allow(unsafe_code)]
#[path = "../../../crates/bench/tests/support/mod.rs"]
mod loopback;

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
    /// Carries messages or sets up connections inside this process, over the fake libibverbs; the other two start it
    InProcess(in_process::Arguments),
}

fn main() -> ExitCode {
    let result = match CommandLine::parse().command {
        Command::Messages(arguments) => messages::run(&arguments),
        Command::Connections(arguments) => connections::run(&arguments),
        Command::InProcess(arguments) => in_process::run(&arguments).map_err(|error| error.to_string()),
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
