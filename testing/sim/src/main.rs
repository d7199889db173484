//! The simulation as a program: plays many seeds, or one with its history, or tests the checkers (docs/simulation.md).

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)] // a program whose output is its result

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use railweave_sim::campaign::{Campaign, replay_command};
use railweave_sim::exhaustive::Exhaustive;
use railweave_sim::trials::{Trial, try_all};
use railweave_sim::{Checker, Outcome, Workload, run};

/// Plays the protocol in a world with faults: many seeds, or one with its history
#[derive(Debug, Parser)]
#[command(name = "cargo xtask sim")]
struct Arguments {
    /// The number of seeds to play [default: 2000]; with --sabotage the most that each may take [default: 3000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "history")]
    seeds: Option<u64>,
    /// The first seed
    #[arg(long, value_name = "S", default_value_t = 1)]
    from: u64,
    /// Play this workload only
    #[arg(long, value_name = "WORKLOAD")]
    only: Option<Workload>,
    /// The number of threads [default: one per processor]
    #[arg(long, value_name = "N", conflicts_with = "history")]
    threads: Option<usize>,
    /// Play the first seed or run only, and print its history, a line per event
    #[arg(long, conflicts_with = "sabotage")]
    history: bool,
    /// Sabotage one thing after another, and print which checker finds each, and the seeds that it takes
    #[arg(long)]
    sabotage: bool,
    /// Play a small scenario with every fault at every event, instead of seeds
    #[arg(long, conflicts_with_all = ["seeds", "from", "only", "sabotage"])]
    exhaustive: bool,
    /// Play every N-th run of the exhaustive ones only
    #[arg(long, value_name = "N", default_value_t = 1, requires = "exhaustive",
        value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "history")]
    every: u64,
    /// Play this one of the exhaustive runs only
    #[arg(long, value_name = "N", requires = "exhaustive", conflicts_with_all = ["every", "threads"])]
    run: Option<u64>,
}

/// The number of lines of a failing seed's history that are printed.
const HISTORY_LINES: usize = 25;

/// The number of seeds that a run plays.
const SEEDS: u64 = 2_000;

/// The number of seeds within which a sabotage must be found.
const SABOTAGE_LIMIT: u64 = 3_000;

/// The page that has the table of sabotages.
const PAGE: &str = include_str!("../../../docs/simulation.md");

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // A panic is a checker's finding, and is reported with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = arguments.threads.unwrap_or(processors);
    if arguments.sabotage {
        return sabotage(&arguments, threads);
    }
    if arguments.exhaustive {
        return exhaustive(&arguments, threads);
    }
    if arguments.history {
        let seed = arguments.from;
        return tell(&run(seed, arguments.only.unwrap_or_else(|| Workload::of_seed(seed)), true));
    }
    let seeds = arguments.seeds.unwrap_or(SEEDS);
    play(&Campaign { from: arguments.from, seeds, only: arguments.only, threads })
}

/// Prints the history of a game, and the finding of a checker if there is one.
fn tell(outcome: &Outcome) -> ExitCode {
    outcome.history.iter().for_each(|line| println!("{line}"));
    let Some(violation) = &outcome.violation else { return ExitCode::SUCCESS };
    println!("{violation}");
    ExitCode::FAILURE
}

/// Prints the end of the history of the first game that failed.
fn tell_end(name: &str, history: &[String]) {
    println!("the end of the history of {name}:");
    history.iter().skip(history.len().saturating_sub(HISTORY_LINES)).for_each(|line| println!("{line}"));
}

fn progress(games: u64) -> ProgressBar {
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new(games) } else { ProgressBar::hidden() };
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len}, {per_sec}, {eta} left") {
        bar.set_style(style);
    }
    bar
}

/// Plays the exhaustive runs, or one of them.
fn exhaustive(arguments: &Arguments, threads: usize) -> ExitCode {
    let all = Exhaustive::new();
    if let Some(number) = arguments.run.or(arguments.history.then_some(0)) {
        let Some(name) = all.describe(number) else {
            println!("there is no run {number}: they end with {}", all.runs() - 1);
            return ExitCode::FAILURE;
        };
        println!("{name}");
        return all.run(number, arguments.history, None).map_or(ExitCode::FAILURE, |outcome| tell(&outcome));
    }
    let bar = progress(all.runs().div_ceil(arguments.every));
    let start = Instant::now();
    let report = all.play(arguments.every, threads, || bar.inc(1));
    bar.finish_and_clear();
    println!("{report}");
    println!("{:.1} s on {threads} threads", start.elapsed().as_secs_f64());
    for (number, outcome) in &report.failures {
        let words = outcome.violation.as_ref().map(ToString::to_string).unwrap_or_default();
        println!("{} FAILED: {words}", all.describe(*number).unwrap_or_default());
        println!("  replay: cargo xtask sim --exhaustive --run {number} --history");
    }
    let Some((first, _)) = report.failures.first() else { return ExitCode::SUCCESS };
    let history = all.run(*first, true, None).map(|outcome| outcome.history).unwrap_or_default();
    tell_end(&format!("run {first}"), &history);
    ExitCode::FAILURE
}

fn play(campaign: &Campaign) -> ExitCode {
    let bar = progress(campaign.seeds);
    let start = Instant::now();
    let report = campaign.play(|| bar.inc(1));
    bar.finish_and_clear();
    let seconds = start.elapsed().as_secs_f64();
    println!("{report}");
    println!("{seconds:.1} s, {:.0} seeds/s on {} threads", report.played as f64 / seconds, campaign.threads);
    for failure in &report.failures {
        let words = failure.outcome.violation.as_ref().map(ToString::to_string).unwrap_or_default();
        println!("seed {} ({}) FAILED: {words}", failure.seed, failure.workload);
        println!("  replay: {}", replay_command(failure));
    }
    let Some(first) = report.failures.first() else { return ExitCode::SUCCESS };
    let history = run(first.seed, first.workload, true).history;
    tell_end(&format!("seed {}", first.seed), &history);
    ExitCode::FAILURE
}

/// Tries every sabotage, then plays the seeds that were needed, without sabotage.
fn sabotage(arguments: &Arguments, threads: usize) -> ExitCode {
    let limit = arguments.seeds.unwrap_or(SABOTAGE_LIMIT);
    let start = Instant::now();
    let trials = try_all(arguments.from, limit, threads, arguments.only);
    let rows: String = trials.iter().map(|trial| format!("{trial}\n")).collect();
    let table = format!("| sabotage | what goes wrong | seeds until caught | checker |\n|---|---|---|---|\n{rows}");
    print!("{table}");
    let caught: Vec<u64> = trials.iter().filter_map(|trial| trial.seeds).collect();
    let most = caught.iter().max().copied().unwrap_or(0);
    println!("{} of {} were caught, each within {most} seeds", caught.len(), trials.len());
    let wrong: Vec<&Trial> = trials.iter().filter(|trial| trial.seeds.is_none()).collect();
    for Trial { sabotage, missed, other, .. } in &wrong {
        println!("{sabotage:?} was not found within {limit} seeds by {missed:?}; the first other finding: {other:?}");
    }
    // Other seeds have another table, and one workload cannot show every sabotage.
    let is_whole = (arguments.from, arguments.seeds, arguments.only) == (1, None, None);
    let is_told = !is_whole || PAGE.contains(&format!("\n{table}\n"));
    if !is_told {
        println!("docs/simulation.md has another table of sabotages: replace it with this one");
    }
    let idle = Checker::ALL.iter().filter(|checker| !trials.iter().any(|trial| trial.is_found_by(**checker)));
    let idle: Vec<&str> = idle.map(|checker| checker.name()).collect();
    if !idle.is_empty() {
        println!("these checkers caught nothing: {}", idle.join(", "));
    }
    let clean = Campaign { from: arguments.from, seeds: most, only: arguments.only, threads }.play(|| ());
    println!("without sabotage {} of these {most} seeds fail", clean.failures.len());
    println!("{:.1} s", start.elapsed().as_secs_f64());
    let is_right = wrong.is_empty() && is_told && idle.is_empty() && clean.failures.is_empty();
    if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_would_be_ignored_is_refused() {
        let read = |line: &str| Arguments::try_parse_from(format!("sim {line}").trim().split(' '));
        for line in [
            "",
            "--from 7 --only all-to-all --history",
            "--sabotage --only ring --seeds 9 --threads 2",
            "--exhaustive --every 7",
            "--exhaustive --run 9 --history",
        ] {
            assert!(read(line).is_ok(), "{line}");
        }
        for line in [
            "--history --seeds 1",
            "--history --threads 1",
            "--history --sabotage",
            "--only quiet",
            "--seeds 0",
            "--exhaustive --seeds 1",
            "--run 1",
            "--exhaustive --every 0",
        ] {
            assert!(read(line).is_err(), "{line}");
        }
    }
}
