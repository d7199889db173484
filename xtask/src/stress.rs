//! The long forms of the tests of the edges (docs/edge.md): more rounds, AddressSanitizer, valgrind, and the table of
//! hostile peers.

use crate::process::{cargo, find, run as run_command, target};
use clap::Args;
use clap::builder::PossibleValuesParser;
use std::fs;
use std::process::{Command, ExitCode};

/// The tests of the edges.
const TESTS: [&str; 11] = [
    "threads",
    "connections",
    "hostile",
    "floods",
    "setups",
    "unaccepted",
    "lanes",
    "embedding",
    "peers",
    "processes",
    "paths",
];

/// One part: its name, its purpose, and its work.
struct Part {
    name: &'static str,
    why: &'static str,
    run: fn() -> Result<(), String>,
}

const PARTS: &[Part] = &[
    Part {
        name: "rounds",
        why: "NCCL's threads in every version of the API, forty times",
        run: || {
            let mut command = tests(&["threads"]);
            command.env("RAILWEAVE_TEST_ROUNDS", "40").env("RAILWEAVE_TEST_PATIENCE", "5");
            run_command(command)
        },
    },
    Part { name: "asan", why: "the same and the other edge tests under AddressSanitizer", run: asan },
    Part { name: "valgrind", why: "fewer of NCCL's threads, and connections, under valgrind", run: valgrind },
    Part {
        name: "table",
        why: "the effects of hostile peers, for docs/edge.md, and the refusals of init, for docs/refusals.md",
        run: table,
    },
];

/// The arguments of the chore.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Run only these parts
    #[arg(value_name = "PART", value_parser = PossibleValuesParser::new(PARTS.iter().map(|part| part.name)))]
    parts: Vec<String>,
}

/// Runs the parts.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, String> {
    let names = &arguments.parts;
    let mut failures = 0;
    for part in PARTS.iter().filter(|part| names.is_empty() || names.iter().any(|name| name == part.name)) {
        println!("\n=== {}: {}", part.name, part.why);
        match (part.run)() {
            Ok(()) => println!("=== {} passed", part.name),
            Err(error) => {
                println!("=== {} FAILED: {error}", part.name);
                failures += 1;
            }
        }
    }
    Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the cargo command that runs these tests of the plugin.
fn tests(names: &[&str]) -> Command {
    let mut command = cargo(&["test", "--package", "railweave-plugin", "--no-fail-fast"]);
    for name in names {
        command.args(["--test", name]);
    }
    command
}

/// Returns the triple of this machine; naming it keeps cargo from instrumenting build scripts.
fn host() -> Result<String, String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").output().map_err(|error| format!("cannot run rustc -vV: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc -vV names no host; is this rustc?".to_owned())
}

/// Runs the tests under AddressSanitizer. Sanitizers belong to nightly compilers; RUSTC_BOOTSTRAP makes the stable
/// compiler accept them too.
fn asan() -> Result<(), String> {
    let mut command = tests(&TESTS);
    command
        .args(["--target", &host()?])
        .env("RUSTC_BOOTSTRAP", "1")
        // The library takes the sanitizer from the program that loads it, which must export its symbols for that.
        .env("RUSTFLAGS", "-Zsanitizer=address -Clink-arg=-rdynamic")
        // The tests count memory themselves, and leave some when a process ends abruptly.
        .env("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=1")
        .env("RAILWEAVE_TEST_PATIENCE", "5")
        .env("CARGO_TARGET_DIR", target().join("asan"));
    run_command(command)
}

fn valgrind() -> Result<(), String> {
    if find("valgrind").is_none() {
        return Err("valgrind is not on the path; install it, or name only the other parts".to_owned());
    }
    let mut command = tests(&["threads", "connections"]);
    let runner = format!("CARGO_TARGET_{}_RUNNER", host()?.to_uppercase().replace('-', "_"));
    command
        .env(runner, "valgrind --quiet --error-exitcode=99 --trace-children=yes --fair-sched=yes --max-threads=100")
        // Optimised code compares bytes that it then ignores, which valgrind cannot know.
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "0")
        .env("CARGO_TARGET_DIR", target().join("valgrind"))
        .env("RAILWEAVE_TEST_SMALL", "1")
        .env("RAILWEAVE_TEST_PATIENCE", "20");
    run_command(command)
}

fn table() -> Result<(), String> {
    let path = target().join("hostile-peers.md");
    let cannot = |error: std::io::Error| format!("cannot use {}: {error}", path.display());
    if path.exists() {
        fs::remove_file(&path).map_err(cannot)?;
    }
    for (programs, head) in [
        (&["hostile"][..], ""),
        (&["refusals", "fabrics", "keys"], ""),
        (
            &["floods"],
            "| flood | control thread | memory | descriptors | honest connect | longest pause | lines a minute |\n\
             |---|---|---|---|---|---|---|\n",
        ),
    ] {
        let mut command = tests(programs);
        command.env("RAILWEAVE_TEST_TABLE", &path);
        run_command(command)?;
        let rows = fs::read_to_string(&path).map_err(cannot)?;
        println!("{head}{rows}");
        fs::remove_file(&path).map_err(cannot)?;
    }
    Ok(())
}
