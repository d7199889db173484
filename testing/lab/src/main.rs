//! The lab as a program: real RDMA (soft-RoCE) between small emulated machines, on any machine (docs/lab.md).
//!
//! `cargo xtask lab` builds its needs and starts it. A [`scenario`] describes guests, the cables between them, the runs
//! and the conditions that must hold. A [`rig`] is a scenario's guests, booted.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)] // a program whose output is its result

mod agent;
mod bench;
mod cable;
mod choice;
mod failure;
mod figure;
mod frame;
mod guest;
mod image;
mod monitor;
mod play;
mod programs;
mod proxy;
mod ranks;
mod report;
mod rig;
mod scenario;
mod scratch;
mod settling;
mod site;
mod step;

use choice::Choice;
use clap::{Parser, Subcommand};
use scenario::Scenario;
use std::process::ExitCode;

/// Plays scenarios between emulated machines; `cargo xtask lab` starts it.
#[derive(Debug, Parser)]
#[command(name = "railweave-lab")]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists the scenarios, a line each
    List(Choice),
    /// Names the options of `play` that the scenarios need, a line each
    Needs(Choice),
    /// Plays the scenarios, one after the other
    Play(play::Arguments),
    /// Serves the lab inside a guest; the guest's init script starts it
    #[command(hide = true)]
    Agent(agent::Arguments),
    /// Takes the place of a rank; `railweave bench` starts it
    #[command(hide = true)]
    Rank(proxy::Arguments),
}

fn main() -> ExitCode {
    let result = match CommandLine::parse().command {
        Command::List(choice) => choice.scenarios().map(|scenarios| list(&scenarios)),
        Command::Needs(choice) => choice.scenarios().map(|scenarios| needs(&scenarios)),
        Command::Play(arguments) => play::run(&arguments),
        Command::Agent(arguments) => agent::serve(&arguments),
        Command::Rank(arguments) => proxy::run(arguments),
    };
    result.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}

fn list(scenarios: &[Scenario]) -> ExitCode {
    for Scenario { name, short, about, .. } in scenarios {
        println!("{name:<16}{}  {about}", if *short { "short" } else { "     " });
    }
    ExitCode::SUCCESS
}

fn needs(scenarios: &[Scenario]) -> ExitCode {
    if scenarios.iter().any(Scenario::has_ranks) {
        println!("railweave");
    }
    if scenarios.iter().any(|scenario| scenario.mentions(site::NCCL)) {
        println!("nccl");
    }
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_has_no_contradiction() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn the_words_of_a_rank_are_its_own() {
        let words = ["railweave-lab", "rank", "a/socket", "1", "/bin/railweave", "rank", "--help", "--", "-x"];
        let Command::Rank(arguments) = CommandLine::try_parse_from(words).unwrap().command else { panic!("a rank") };
        assert_eq!(arguments.words, words[4..]);
    }
}
