//! The whole test run: one table of steps.

use crate::aarch64;
use crate::dist::{Dist, dist};
use crate::docs;
use crate::process::{cargo, find, run as run_command, target};
use crate::sim;
use crate::{adapters, flaky, lab, packages, suite, tidy};
use clap::Args;
use clap::builder::PossibleValuesParser;
use std::process::{Command, ExitCode};
use std::time::Instant;

/// One step: its name, its purpose, and its work.
struct Step {
    name: &'static str,
    why: &'static str,
    run: fn(&mut Context) -> Result<Done, String>,
}

/// The result of a step that did not fail.
enum Done {
    Passed,
    /// Not run, with the reason and how to change that.
    LeftOut(String),
}

/// The state that steps share.
#[derive(Default)]
struct Context {
    built: Option<Dist>,
    /// True if Debian packages may be installed.
    may_install: bool,
    /// The tests that ran out of time and passed when repeated.
    flaky: Vec<String>,
}

impl Context {
    /// Returns the release build, made on first need.
    fn dist(&mut self) -> Result<&Dist, String> {
        match &mut self.built {
            Some(built) => Ok(built),
            none => Ok(none.insert(dist()?)),
        }
    }
}

/// The steps in order, the fast ones first.
const STEPS: &[Step] = &[
    Step {
        name: "format",
        why: "one layout of the code, by rustfmt",
        run: |_| passes(cargo(&["fmt", "--all", "--check"])),
    },
    Step {
        name: "docs",
        why: "the pages generated from the code are up to date",
        run: |_| docs::check().map(|()| Done::Passed),
    },
    Step {
        name: "tidy",
        why: "no cycle of modules, no long line, no dead reference, no word that CONTRIBUTING.md refuses",
        run: |_| passes(tidy::command()),
    },
    Step { name: "deny", why: "licences, sources and versions of our dependencies", run: deny },
    Step {
        name: "clippy",
        why: "no warnings, including in tests",
        run: |_| passes(cargo(&["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"])),
    },
    Step {
        name: "rustdoc",
        why: "the documentation builds, and its links lead somewhere",
        run: |_| {
            let mut command = cargo(&["doc", "--workspace", "--no-deps", "--document-private-items"]);
            command.env("RUSTDOCFLAGS", "--deny warnings");
            passes(command)
        },
    },
    Step {
        name: "dist",
        why: "the release build that the next steps load, as users install it",
        run: |context| context.dist().map(|_| Done::Passed),
    },
    Step {
        name: "tests",
        why: "every test; tests of the plugin load the release build",
        run: |context| {
            packages_of_tests(context)?;
            let library = context.dist()?.library.clone();
            suite::run_all(&library, &mut context.flaky).map(|()| Done::Passed)
        },
    },
    Step {
        name: "adapters",
        why: "the verbs tests over two adapters that differ as much as any (docs/edge.md)",
        run: |context| {
            let library = context.dist()?.library.clone();
            match adapters::over(&adapters::SHORT, &library, &mut context.flaky)? {
                0 => Ok(Done::Passed),
                failed => Err(format!("{failed} tests failed over an adapter, see above")),
            }
        },
    },
    Step {
        name: "sim",
        why: "2,000 seeds of the simulated world, all workloads mixed",
        run: |_| passes(sim::checked(&["--seeds", "2000"])),
    },
    Step {
        name: "exhaustive",
        why: "every thirteenth of the runs that have each fault at each event of a small scenario",
        run: |_| passes(sim::checked(&["--exhaustive", "--every", "13"])),
    },
    Step {
        name: "sabotage",
        why: "the simulation's checkers find every sabotage at the edge of the protocol",
        run: |_| passes(sim::checked(&["--sabotage"])),
    },
    Step {
        name: "demo",
        why: "a short run of the demonstration works here",
        run: |context| {
            let built = context.dist()?.clone();
            suite::run_program("demo", || built.demo(&["--quick".into()]), &mut context.flaky).map(|()| Done::Passed)
        },
    },
    Step {
        name: "aarch64",
        why: "the plugin and the program for aarch64 and an old glibc, run under emulation",
        run: on_aarch64,
    },
    Step { name: "lab", why: "the plugin over real verbs, between emulated machines (docs/lab.md)", run: short_lab },
];

/// The arguments of the chore.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Run only these steps
    #[arg(value_name = "STEP", value_parser = PossibleValuesParser::new(STEPS.iter().map(|step| step.name)))]
    steps: Vec<String>,
    /// As root: install missing Debian packages
    #[arg(long)]
    install: bool,
}

/// Runs the steps and counts the results.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, String> {
    let may_install = arguments.install || packages::is_continuous_integration();
    let names = &arguments.steps;
    let mut context = Context { may_install, ..Context::default() };
    let (mut passed, mut failures) = (0, Vec::new());
    for step in STEPS.iter().filter(|step| names.is_empty() || names.iter().any(|name| name == step.name)) {
        println!("\n=== {}: {}", step.name, step.why);
        let start = Instant::now();
        let result = (step.run)(&mut context);
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok(Done::Passed) => {
                passed += 1;
                println!("=== {} passed in {seconds:.1} s", step.name);
            }
            Ok(Done::LeftOut(reason)) => println!("=== {} left out: {reason}", step.name),
            Err(error) => {
                println!("=== {} FAILED after {seconds:.1} s: {error}", step.name);
                failures.push(format!("{}: {error}", step.name));
            }
        }
    }
    println!();
    for failure in &failures {
        println!("failed: {failure}");
    }
    flaky::list(&context.flaky);
    println!("{passed} passed, {} failed", failures.len());
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn passes(command: Command) -> Result<Done, String> {
    run_command(command).map(|()| Done::Passed)
}

/// Gets the header with which one test compares our types, and the programs that slow rails for others. Without them
/// these tests say that they are left out.
fn packages_of_tests(context: &Context) -> Result<(), String> {
    let wanted = [
        (packages::HEADERS, "the comparison with libibverbs' header is"),
        (packages::RAILS, "tests with rails of their own are"),
    ];
    for (packages, what) in wanted {
        match packages::require(packages, context.may_install, "test") {
            Err(reason) if context.may_install || is_ci() => return Err(reason),
            Err(reason) => println!("{what} left out: {reason}"),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Runs the step for another processor.
fn on_aarch64(context: &mut Context) -> Result<Done, String> {
    match aarch64::Tools::require(context.may_install || is_ci(), context.may_install, "test") {
        Ok(tools) => tools.check(&mut context.flaky).map(|()| Done::Passed),
        Err(reason) if context.may_install || is_ci() => Err(reason),
        Err(reason) => Ok(Done::LeftOut(reason)),
    }
}

/// Plays the lab's short scenarios, if the machine can.
fn short_lab(context: &mut Context) -> Result<Done, String> {
    if let Err(reason) = lab::require(context.may_install, "test") {
        return if is_ci() { Err(reason) } else { Ok(Done::LeftOut(reason)) };
    }
    let built = context.dist()?.clone();
    lab::run_short(&built, &mut context.flaky).map(|()| Done::Passed)
}

fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|ci| ci == "true")
}

/// Runs cargo-deny. If it is missing, installs it into `target/tools` on a machine for continuous integration,
/// otherwise leaves the step out.
fn deny(_: &mut Context) -> Result<Done, String> {
    let tools = target().join("tools");
    let program = match find("cargo-deny") {
        Some(program) => program,
        None if is_ci() => {
            // It runs once and briefly: optimising it takes far longer than it saves.
            let mut install = cargo(&["install", "cargo-deny", "--locked", "--debug", "--root"]);
            install.arg(&tools).env("CARGO_PROFILE_DEV_DEBUG", "0");
            run_command(install)?;
            tools.join("bin").join("cargo-deny")
        }
        None => {
            let root = tools.display();
            return Ok(Done::LeftOut(format!(
                "cargo-deny is not here; get it with: cargo install cargo-deny --locked --root {root}"
            )));
        }
    };
    let mut command = Command::new(program);
    command.args(["check", "bans", "licenses", "sources"]).current_dir(crate::process::root());
    passes(command)
}
