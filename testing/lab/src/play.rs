//! Playing scenarios, one after the other.

use crate::bench::{self, RanksProgram};
use crate::choice::Choice;
use crate::failure::Failure;
use crate::report::{RunReport, ScenarioReport};
use crate::rig::Rig;
use crate::scenario::{Kind, Run, Scenario};
use crate::scratch::Scratch;
use crate::site::{Paths, Site};
use crate::{image, programs};
use clap::Args;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// The scenarios to play, and the programs for it.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    choice: Choice,
    /// Print results as JSON on standard output, everything else on standard error
    #[arg(long)]
    json: bool,
    /// Cargo's build directory, whose folder "lab" keeps the guests' image and the logs
    #[arg(long, value_name = "FOLDER")]
    target: PathBuf,
    /// The railweave program, next to its plugin
    #[arg(long, value_name = "PROGRAM")]
    railweave: Option<PathBuf>,
    /// NCCL's own library
    #[arg(long, value_name = "LIBRARY")]
    nccl: Option<PathBuf>,
    /// Write the names of scenarios that passed only when repeated into this file, a line each
    #[arg(long, value_name = "FILE")]
    flaky: Option<PathBuf>,
}

/// Plays and prints the results.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, String> {
    let played = play_all(arguments)?;
    if arguments.json {
        let by_name: BTreeMap<&str, &ScenarioReport> =
            played.reports.iter().map(|report| (report.name.as_str(), report)).collect();
        println!("{}", serde_json::to_string_pretty(&by_name).map_err(|error| error.to_string())?);
    } else {
        played.show();
    }
    if let Some(file) = &arguments.flaky {
        let lines: String = played.flaky().map(|name| format!("{name}\n")).collect();
        fs::write(file, lines).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    Ok(if played.failures().next().is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The results of scenarios.
struct Played {
    reports: Vec<ScenarioReport>,
    logs: PathBuf,
}

impl Played {
    fn failures(&self) -> impl Iterator<Item = Failure> {
        self.reports.iter().flat_map(ScenarioReport::failures)
    }

    /// Returns the scenarios that passed only when repeated.
    fn flaky(&self) -> impl Iterator<Item = &str> {
        self.reports.iter().filter(|report| report.is_flaky()).map(|report| report.name.as_str())
    }

    fn show(&self) {
        for failure in self.failures() {
            println!("failed: {failure}");
        }
        for name in self.flaky() {
            println!("flaky: {name}");
        }
        let failed = self.reports.iter().filter(|report| report.failures().next().is_some()).count();
        let passed = self.reports.len() - failed;
        println!("{passed} scenarios passed, {failed} failed; the logs are in {}", self.logs.display());
    }
}

fn play_all(arguments: &Arguments) -> Result<Played, String> {
    let Arguments { choice, target, railweave, nccl, .. } = arguments;
    let scenarios = choice.scenarios()?;
    let folder = target.join("lab");
    fs::create_dir_all(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let is_emulated = scenarios.iter().any(|scenario| !scenario.namespaces);
    let image = is_emulated.then(|| image::prepare(&folder)).transpose()?;
    let scratch = Scratch::new()?;
    let site = Site {
        paths: Paths { root: choice.root.clone(), target: target.clone(), nccl: nccl.clone() },
        railweave: railweave.clone(),
        image,
        program: scratch.program()?,
        scratch: scratch.folder().to_owned(),
        logs: folder.join("log"),
    };
    let mut reports = Vec::new();
    for scenario in &scenarios {
        eprintln!("=== {}: {}", scenario.name, scenario.about);
        let report = play(scenario, &site);
        if let Some(failure) = &report.failure {
            eprintln!("  FAILED: {failure}");
        }
        reports.push(report);
    }
    Ok(Played { reports, logs: site.logs })
}

/// Boots a scenario's guests and plays its runs. If it only ran out of time, plays it once more; the repetition is
/// alone, because scenarios are played one after the other.
fn play(scenario: &Scenario, site: &Site) -> ScenarioReport {
    let first = play_once(scenario, site);
    if !first.ran_out() {
        return first;
    }
    let earlier: Vec<Failure> = first.failures().collect();
    let kept = keep_logs(&site.logs, &scenario.name).unwrap_or_else(|error| error);
    let texts: Vec<&str> = earlier.iter().map(|failure| failure.text.as_str()).collect();
    eprintln!("  once more, because it only ran out of time: {}; {kept}", texts.join("; "));
    ScenarioReport { earlier, ..play_once(scenario, site) }
}

/// Moves the log files of a failed attempt out of the way of the next one. Returns a clause with their place.
fn keep_logs(logs: &Path, scenario: &str) -> Result<String, String> {
    let (from, to) = (logs.join(scenario), logs.join(format!("{scenario}.try1")));
    if to.exists() {
        fs::remove_dir_all(&to).map_err(|error| format!("cannot remove {}: {error}", to.display()))?;
    }
    fs::rename(&from, &to).map_err(|error| format!("cannot move {}: {error}", from.display()))?;
    Ok(format!("its logs are in {}", to.display()))
}

fn play_once(scenario: &Scenario, site: &Site) -> ScenarioReport {
    let begin = Instant::now();
    let mut runs = Vec::new();
    let failure = play_into(&mut runs, scenario, site).err().map(Failure::of_lab);
    let seconds = begin.elapsed().as_secs_f64();
    ScenarioReport { name: scenario.name.clone(), seconds, earlier: Vec::new(), failure, runs }
}

fn play_into(reports: &mut Vec<(String, RunReport)>, scenario: &Scenario, site: &Site) -> Result<(), String> {
    let logs = site.logs.join(&scenario.name);
    if logs.exists() {
        fs::remove_dir_all(&logs).map_err(|error| format!("cannot remove {}: {error}", logs.display()))?;
    }
    fs::create_dir_all(&logs).map_err(|error| format!("cannot make {}: {error}", logs.display()))?;
    let mut tests = BTreeMap::new();
    for run in &scenario.runs {
        if let Kind::Test(test) = run.kind() {
            tests.insert(&run.name, programs::build(test, &site.paths.root)?);
        }
    }
    let rig = Rig::boot(scenario, site, &logs)?;
    // Neighbouring runs with the same number of rounds take turns.
    for block in scenario.runs.chunk_by(|run, next| run.rounds > 1 && run.rounds == next.rounds) {
        let rounds = block[0].rounds;
        let mut played: Vec<Vec<RunReport>> = vec![Vec::new(); block.len()];
        'rounds: for round in 1..=rounds {
            for (run, played) in block.iter().zip(&mut played) {
                let log = logs.join(if rounds == 1 { run.name.clone() } else { format!("{}.{round}", run.name) });
                let report = play_run(run, scenario, site, &rig, &log, tests.get(&run.name).map(PathBuf::as_path));
                let report = report.map_err(|error| format!("run {}: {error}", run.name))?;
                let failed = !report.failures.is_empty();
                played.push(report);
                if failed || rig.check().is_err() {
                    break 'rounds;
                }
            }
        }
        for (run, played) in block.iter().zip(played) {
            // `None` if a run before it failed in the first round.
            let Some(mut report) = RunReport::of_rounds(played) else {
                continue;
            };
            report.check(&run.hold, reports);
            eprint!("{}", report.describe(&run.name, &run.hold));
            if !report.failures.is_empty() {
                rig.keep_state(&logs.join(&run.name));
            }
            reports.push((run.name.clone(), report));
        }
        rig.check()?;
    }
    Ok(())
}

/// Plays one round of a run.
fn play_run(
    run: &Run,
    scenario: &Scenario,
    site: &Site,
    rig: &Rig,
    log: &Path,
    test: Option<&Path>,
) -> Result<RunReport, String> {
    let begin = Instant::now();
    let variables = variables(scenario, run, &site.paths)?;
    let mut report = match (run.kind(), test, &site.railweave) {
        (Kind::Ranks(of, arguments), _, Some(railweave)) => {
            let arguments = site.paths.fill_in(arguments)?;
            let ranks = of.guests(&arguments, scenario.guests);
            let program = RanksProgram { railweave, of, arguments: &arguments, ranks: &ranks };
            bench::run(rig, site, &program, run, &variables, log)
        }
        (Kind::Test(test), Some(program), _) => programs::test(rig, run, test, program, &variables, log),
        (Kind::Commands(commands), ..) => {
            let mut commands = commands.to_vec();
            for command in &mut commands {
                command.line = site.paths.fill_in(&command.line)?;
            }
            programs::commands(rig, run, &commands, &variables, log)
        }
        (Kind::Ranks(of, _), _, None) => {
            Err(format!("a {} needs the railweave program; name it with --railweave", of.name()))
        }
        (Kind::Test(_), None, _) => unreachable!("tests were built before"),
    }?;
    report.seconds = begin.elapsed().as_secs_f64();
    Ok(report)
}

/// Returns the variables of a run; its own override the scenario's.
fn variables(scenario: &Scenario, run: &Run, paths: &Paths) -> Result<Vec<(String, String)>, String> {
    let mut variables = scenario.environment.clone();
    variables.extend(run.environment.clone());
    variables.into_iter().map(|(name, value)| Ok((name, paths.fill_in(&value)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_overrides_the_variables_of_its_scenario() {
        let text = "about = \"\"\n[environment]\nA = \"1\"\nB = \"2\"\n[[run]]\nname = \"a\"\nbench = \"\"\n\
                    environment = { B = \"{root}/3\" }";
        let scenario = Scenario::parse("s", text).unwrap();
        let paths = Paths { root: "/root".into(), target: "/target".into(), nccl: None };
        let variables = variables(&scenario, &scenario.runs[0], &paths).unwrap();
        assert_eq!(variables, [("A", "1"), ("B", "/root/3")].map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}
