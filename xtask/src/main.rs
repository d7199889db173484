//! The chores: `cargo xtask <command>`.
//!
//! `demo` shows Railweave at work on this machine, `test` is the whole test run, `dist` builds what both use, `sim` plays
//! the protocol in a simulated world, and `docs` writes the pages that are made from the code. Nothing here is part of
//! the plugin.

#![forbid(unsafe_code)]
// The chores talk to the person who runs them.
#![allow(clippy::print_stdout)]

mod aarch64;
mod adapters;
mod connections;
mod dist;
mod docs;
mod fuzz;
mod gpu;
mod instructions;
mod lab;
mod nccl;
mod packages;
mod process;
mod sim;
mod stress;
mod suite;
mod test;
mod tidy;

use process::Outcome;
use std::process::ExitCode;

struct Command {
    name: &'static str,
    help: &'static str,
    run: fn(&[String]) -> Result<ExitCode, String>,
}

const COMMANDS: &[Command] = &[
    Command {
        name: "demo",
        help: "build the release plugin and run `railweave demo` with the arguments that follow",
        run: demo,
    },
    Command {
        name: "dist",
        help: "build the release plugin and program into target/dist",
        run: |arguments| {
            no_arguments("dist", arguments)?;
            let built = dist::dist()?;
            println!("{}\n{}", built.library.display(), built.program.display());
            Ok(ExitCode::SUCCESS)
        },
    },
    Command { name: "test", help: "the whole test run, or only the steps that are named", run: test::run },
    Command {
        name: "tidy",
        help: "circles of modules, long lines, references to nowhere, words that only we know",
        run: |arguments| {
            no_arguments("tidy", arguments)?;
            process::run(tidy::command()).map(|()| ExitCode::SUCCESS)
        },
    },
    Command {
        name: "sim",
        help: "play the protocol in virtual time: [--seeds N] [--from S] [--only WORKLOAD] [--history] [--plants]",
        run: sim::run,
    },
    Command {
        name: "fuzz",
        help: "run the fuzz targets long: all, or [--target T], for [--minutes M] each",
        run: fuzz::run,
    },
    Command {
        name: "stress",
        help: "the long tests about edges: all, or [rounds] [asan] [valgrind] [table]",
        run: stress::run,
    },
    Command {
        name: "adapters",
        help: "the verbs tests over each adapter that the fake libibverbs can be: all, or [NAME...]",
        run: adapters::run,
    },
    Command {
        name: "lab",
        help: "RDMA between emulated machines: all scenarios, or [NAME...] [--short] [--list] [--json] [--install]",
        run: lab::run,
    },
    Command {
        name: "aarch64",
        help: "build for aarch64 and try that out under emulation: [--tests] for unit tests too, [--install]",
        run: aarch64::run,
    },
    Command {
        name: "gpu",
        help: "Railweave under the real NCCL on one GPU: [--quick] [--json] [--only PATTERN] [--backend gloo] [--help]",
        run: gpu::run,
    },
    Command {
        name: "instructions",
        help: "what a message costs, beside NCCL's: [--nccl PATH] or [--fetch], [--functions N] [--json]",
        run: instructions::run,
    },
    Command {
        name: "connections",
        help: "what many connections take over RDMA, beside NCCL's: [--nccl PATH] or [--fetch], [--count N] [--profile NAME]",
        run: connections::run,
    },
    Command {
        name: "docs",
        help: "write the pages in docs/ that are made from the code",
        run: |arguments| {
            no_arguments("docs", arguments)?;
            docs::write()?;
            Ok(ExitCode::SUCCESS)
        },
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.split_first() {
        None => Err(usage("cargo xtask wants a command")),
        Some((name, _)) if matches!(name.as_str(), "help" | "-h" | "--help") => {
            println!("{}", usage("The chores of Railweave"));
            Ok(ExitCode::SUCCESS)
        }
        Some((name, rest)) => match COMMANDS.iter().find(|command| command.name == name) {
            Some(command) => (command.run)(rest),
            None => Err(usage(&format!("cargo xtask has no command \"{}\"", name.escape_debug()))),
        },
    };
    result.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}

/// `sentence`, then the commands with a line each.
fn usage(sentence: &str) -> String {
    let commands = COMMANDS.iter().map(|command| format!("\n  cargo xtask {:<14}{}", command.name, command.help));
    format!("{sentence}; the commands are:{}", commands.collect::<String>())
}

fn no_arguments(command: &str, arguments: &[String]) -> Outcome {
    match arguments.first() {
        None => Ok(()),
        Some(first) => Err(format!("cargo xtask {command} takes no arguments, but got \"{}\"", first.escape_debug())),
    }
}

/// Builds, and runs the demo with the exit status of the program.
fn demo(arguments: &[String]) -> Result<ExitCode, String> {
    let built = dist::dist()?;
    let status = process::status(built.demo(arguments))?;
    // A program that a signal ended has no code of its own.
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
