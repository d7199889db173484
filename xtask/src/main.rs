//! The chores: `cargo xtask <command>`.
//!
//! `demo` shows Railweave at work on this machine, `test` is the whole test run, `dist` builds what both use, `sim`
//! plays the protocol in a simulated world, and `docs` writes the pages that are generated from the code; `--help`
//! lists the others. Nothing here is part of the plugin.

#![forbid(unsafe_code)]
// The chores talk to the person who runs them.
#![allow(clippy::print_stdout)]

mod aarch64;
mod adapters;
mod dist;
mod docs;
mod flaky;
mod fuzz;
mod gpu;
mod instructions;
mod lab;
mod model;
mod monitoring;
mod mutants;
mod nccl;
mod packages;
mod process;
mod scratch;
mod sim;
mod split;
mod stress;
mod suite;
mod test;
mod tidy;
mod tools;
mod trace;
mod view;

use clap::error::{ContextKind, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// The chores of Railweave
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct CommandLine {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// Build the release plugin and run `railweave demo` with the arguments that follow
    Demo(Passed),
    /// Build the release plugin and program into target/dist
    Dist,
    /// Run all tests and checks, or only the named steps
    Test(test::Arguments),
    /// Run one test program of the test run; cargo calls this
    #[command(name = suite::AS_RUNNER, hide = true)]
    AsRunner(suite::Program),
    /// Check for module cycles, long lines, dead references and words that CONTRIBUTING.md refuses
    Tidy,
    /// Play the protocol in virtual time: [--seeds N] [--from S] [--only WORKLOAD] [--history] [--sabotage]
    /// [--exhaustive [--every N] [--run N]]
    Sim(Passed),
    /// Judge how messages are split in random worlds: [--worlds N] [--from S] [--rested] [--equal] [--shares]
    Split(Passed),
    /// Search the model of recovery in every order of steps: [--only NAME] [--small] [--mutations]
    Model(Passed),
    /// Test mutants of the protocol's source, and list those that no test notices
    Mutants(mutants::Arguments),
    /// Run all fuzz targets, or only the named ones, for --minutes each
    Fuzz(fuzz::Arguments),
    /// Run all long tests of the edges, or only the named parts
    Stress(stress::Arguments),
    /// Run the verbs tests over every adapter that the fake libibverbs can imitate, or only over the named ones
    Adapters(adapters::Arguments),
    /// Play all scenarios of RDMA between emulated machines, or only the named ones
    Lab(lab::Arguments),
    /// Build for aarch64, and run the result under emulation
    Aarch64(aarch64::Arguments),
    /// Run Railweave under the real NCCL on one GPU: [--quick] [--json] [--only PATTERN] [--backend gloo] [--help]
    Gpu(Passed),
    /// Count the instructions of a message, ours next to NCCL's
    Instructions(instructions::Messages),
    /// Measure the cost of many RDMA connections, ours next to NCCL's
    Connections(instructions::Connections),
    /// Compare what NCCL sees of a host through its own transport and through Railweave, and write docs/nccl-view.md
    View(view::Arguments),
    /// Try metrics, alert rules and dashboard with a real Prometheus, and check the units and Kubernetes' files
    Monitoring(monitoring::Arguments),
    /// Trace a demo, and read the file that is made of it with Perfetto's own definitions, which pip fetches
    Trace,
    /// Write the pages in docs/ that are generated from the code
    Docs,
}

/// Arguments that a chore passes on unchanged, including --help.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
struct Passed {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<String>,
}

fn main() -> ExitCode {
    let result = match CommandLine::try_parse() {
        Ok(CommandLine { chore }) => run(chore),
        Err(error) => return refuse(error),
    };
    result.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}

fn run(chore: Chore) -> Result<ExitCode, String> {
    match chore {
        Chore::Demo(passed) => demo(&passed.arguments),
        Chore::Dist => {
            let built = dist::dist()?;
            println!("{}\n{}", built.library.display(), built.program.display());
            Ok(ExitCode::SUCCESS)
        }
        Chore::Test(arguments) => test::run(&arguments),
        Chore::AsRunner(program) => suite::run(program),
        Chore::Tidy => process::run(tidy::command()).map(|()| ExitCode::SUCCESS),
        Chore::Sim(passed) => sim::run(&passed.arguments),
        Chore::Split(passed) => split::run(&passed.arguments),
        Chore::Model(passed) => model::run(&passed.arguments),
        Chore::Mutants(arguments) => mutants::run(&arguments),
        Chore::Fuzz(arguments) => fuzz::run(&arguments),
        Chore::Stress(arguments) => stress::run(&arguments),
        Chore::Adapters(arguments) => adapters::run(&arguments),
        Chore::Lab(arguments) => lab::run(&arguments),
        Chore::Aarch64(arguments) => aarch64::run(&arguments),
        Chore::Gpu(passed) => gpu::run(&passed.arguments),
        Chore::Instructions(messages) => instructions::count_messages(&messages),
        Chore::Connections(connections) => instructions::measure_connections(&connections),
        Chore::View(arguments) => view::run_view(&arguments),
        Chore::Monitoring(arguments) => monitoring::run(&arguments),
        Chore::Trace => trace::check(),
        Chore::Docs => docs::write().map(|()| ExitCode::SUCCESS),
    }
}

/// Prints the error of a command line and the help of its chore; prints only the help if that was asked for.
fn refuse(mut error: clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // Fails only if the terminal is gone.
        let _ = error.print();
        return if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    // The help shows the usage too.
    error.remove(ContextKind::Usage);
    let mut command = CommandLine::command();
    command.build();
    let chore = std::env::args().nth(1).and_then(|name| command.find_subcommand(name).cloned());
    eprintln!("{error}\n{}", chore.unwrap_or(command).render_help());
    ExitCode::FAILURE
}

/// Builds, and runs the demo; returns the program's exit status.
fn demo(arguments: &[String]) -> Result<ExitCode, String> {
    let built = dist::dist()?;
    process::status(built.demo(arguments)).map(process::code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_has_no_contradiction() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn numbers_out_of_range_and_two_sources_of_nccl_are_refused() {
        let read = |line: &str| CommandLine::try_parse_from(format!("xtask {line}").split(' '));
        for line in [
            "instructions",
            "instructions --fetch --functions 1000 --json",
            "connections --nccl a/libnccl.so.2 --count 100000 --profile rxe --profile mana",
            "view",
            "view --fetch",
        ] {
            assert!(read(line).is_ok(), "{line}");
        }
        for (line, error) in [
            ("instructions --nccl", "a value is required"),
            ("instructions --fetch --nccl a", "cannot be used with"),
            ("instructions --functions", "a value is required"),
            ("instructions --functions 0", "0 is not in 1..=1000"),
            ("instructions --functions many", "invalid value 'many'"),
            ("instructions --quick", "unexpected argument '--quick'"),
            ("view --fetch --nccl a", "cannot be used with"),
            ("connections --count 0", "0 is not in 1..=100000"),
            ("connections --nccl", "a value is required"),
        ] {
            let text = read(line).expect_err(line).to_string();
            assert!(text.contains(error), "{line}: {text}");
        }
    }

    #[test]
    fn a_wrong_name_is_told_which_are_possible() {
        for (line, known) in
            [("test tsts", "format, docs, tidy, deny"), ("stress all", "rounds, asan, valgrind, table")]
        {
            let text = CommandLine::try_parse_from(format!("xtask {line}").split(' ')).expect_err(line).to_string();
            assert!(text.contains(known), "{text}");
        }
    }

    #[test]
    fn a_test_program_gets_its_own_arguments() {
        for words in [&["b", "--exact", "--test-threads=1"][..], &["--list", "--format", "terse"], &["--help"], &[]] {
            for by in [&[][..], &["--by", "/usr/bin/env"]] {
                let all = [&["xtask", suite::AS_RUNNER], by, &["/bin/true"], words].concat();
                let Chore::AsRunner(program) = CommandLine::try_parse_from(all).unwrap().chore else { panic!("it") };
                assert_eq!(program.arguments, words);
                assert_eq!(program.by.is_some(), !by.is_empty());
            }
        }
    }

    #[test]
    fn arguments_that_are_passed_on_are_not_parsed() {
        for words in [&["--quick", "--help"][..], &["-h"], &["a", "--", "--json"], &[]] {
            let all = ["cargo xtask", "demo"].iter().chain(words);
            let Chore::Demo(passed) = CommandLine::try_parse_from(all).unwrap().chore else { panic!("demo") };
            assert_eq!(passed.arguments, words);
        }
    }
}
