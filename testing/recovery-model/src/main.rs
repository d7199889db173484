//! Searches the configurations, and prints what was found in each.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)] // The program talks to the person who runs it.

use clap::Parser;
use railweave_recovery_model::config::Config;
use railweave_recovery_model::configurations;
use railweave_recovery_model::mutation::Mutation;
use railweave_recovery_model::property::Property;
use railweave_recovery_model::recovery::{Recovery, tell};
use railweave_recovery_model::refutations::refutations;
use railweave_recovery_model::search::search;
use std::process::ExitCode;

/// The most states of a search for the property that refutes a mutation.
const LIMIT_OF_MUTATIONS: usize = 20_000_000;

/// The page with the states and the depth of each large configuration.
const PAGE: &str = include_str!("../../../docs/recovery-model.md");

/// Play the recovery of a connection in every order of steps
#[derive(Debug, Parser)]
struct Arguments {
    /// Search the small configurations, those of the tests
    #[arg(long)]
    small: bool,
    /// Search the mutations, until the property that refutes each
    #[arg(long)]
    mutations: bool,
    /// Search only the configurations, of both sets, or mutations whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Give up a configuration with more states, in millions
    #[arg(long, value_name = "MILLIONS", default_value_t = 30)]
    limit: usize,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.mutations {
        return refute(&arguments.only);
    }
    let configurations = select(&arguments);
    if configurations.is_empty() {
        println!("no configuration has a name that contains {:?}", arguments.only);
        return ExitCode::FAILURE;
    }
    let mut has_failed = false;
    println!(
        "{:<34} {:>12} {:>12} {:>6} {:>10} {:>8}",
        "configuration", "states", "steps", "depth", "rests", "seconds"
    );
    for config in configurations {
        has_failed |= !run(config, arguments.limit * 1_000_000);
    }
    println!("\n{}:", if has_failed { "Not every property holds" } else { "All properties hold" });
    Property::ALL.iter().for_each(|property| println!("  {property}"));
    if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Returns the configurations that the arguments ask for.
fn select(arguments: &Arguments) -> Vec<Config> {
    let is_of_both = !arguments.only.is_empty() && !arguments.small;
    let small = if arguments.small || is_of_both { configurations::small() } else { Vec::new() };
    let large = if arguments.small { Vec::new() } else { configurations::large() };
    small.into_iter().chain(large).filter(|config| config.name.contains(&arguments.only)).collect()
}

/// Searches one configuration, and returns true if it was searched whole and every property holds.
fn run(config: Config, limit: usize) -> bool {
    let name = config.name;
    let outline = config.outline();
    let is_large = configurations::large().iter().any(|large| large.name == name);
    let model = Recovery { config };
    let report = search(&model, limit);
    let seconds = report.time.as_secs_f64();
    println!(
        "{name:<34} {:>12} {:>12} {:>6} {:>10} {seconds:>8.1}",
        report.states, report.steps, report.depth, report.rests
    );
    if let Some((property, steps)) = &report.violation {
        println!("  does not hold: {property}");
        for (number, line) in (1..).zip(tell(&model, steps)) {
            println!("  {number:>3} {line}");
        }
    } else if !report.is_complete {
        println!("  not searched whole: the limit is too low");
    }
    let row = format!("{outline} {} | {} |", report.states, report.depth);
    if report.violation.is_none() && is_large && !PAGE.lines().any(|line| line.starts_with(&row)) {
        println!("  not as on the page, which needs: {row} {seconds:.0} |");
    }
    report.is_complete && report.violation.is_none()
}

/// Searches the mutations whose name contains `only`, and tells the run that refutes each. The same configuration must
/// hold without the mutation.
fn refute(only: &str) -> ExitCode {
    let is_selected = |mutation: Mutation| mutation.to_string().contains(only);
    let rows: Vec<_> = refutations().into_iter().filter(|row| is_selected(row.0)).collect();
    if rows.is_empty() {
        println!("no mutation has a name that contains {only:?}");
        return ExitCode::FAILURE;
    }
    let mut has_failed = false;
    for (mutation, property, config) in rows {
        let without = Config { mutation: None, is_reduced: true, ..config.clone() };
        let sound = search(&Recovery { config: without }, LIMIT_OF_MUTATIONS);
        let is_sound = sound.is_complete && sound.violation.is_none();
        let model = Recovery { config };
        let report = search(&model, LIMIT_OF_MUTATIONS);
        let refuted = report.violation.as_ref().map(|(property, _)| *property);
        has_failed |= refuted != Some(property) || !is_sound;
        let by = refuted.map_or_else(|| "nothing".to_owned(), |property| property.to_string());
        println!("{mutation}: refuted by: {by} ({} states, {:.1} s)", report.states, report.time.as_secs_f64());
        let holds = if is_sound { "every property holds" } else { "NOT sound" };
        println!("  without it: {holds} ({} states)", sound.states);
        let run = report.violation.map(|(_, steps)| tell(&model, &steps)).unwrap_or_default();
        (1..).zip(run).for_each(|(number, line)| println!("  {number:>3} {line}"));
    }
    if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
