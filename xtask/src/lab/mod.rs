//! The lab: real RDMA (soft-RoCE) between small emulated machines, on any machine (docs/lab.md).
//!
//! A [`scenario`] says which guests there are, what the cables between them carry, what runs and what must hold. A [`rig`]
//! is a scenario's guests, booted.

mod agent;
mod bench;
mod cable;
mod failure;
mod figure;
mod frame;
mod guest;
mod image;
mod programs;
mod ranks;
mod report;
mod rig;
mod scenario;
mod stand_in;

use crate::dist::{Dist, dist};
use crate::process::{Outcome, root, target};
use crate::{nccl, packages};
use failure::Failure;
use report::{RunReport, ScenarioReport};
use rig::{Rig, Site};
use scenario::{Kind, Run, Scenario};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Plays the scenarios of the ordinary test run. The names of those that passed only when repeated are added to
/// `flaky`.
pub(crate) fn run_short(flaky: &mut Vec<String>) -> Outcome {
    let wanted = Wanted::read(&["--short".to_owned()], Scenario::read_all(&root().join("lab"))?)?;
    let played = play_all(&wanted.scenarios)?;
    played.show();
    flaky.extend(played.flaky().map(|name| format!("lab: {name}")));
    if played.failures().next().is_none() { Ok(()) } else { Err("a scenario failed, see above".to_owned()) }
}

/// Runs the scenarios that `arguments` name, or all.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    match arguments.split_first() {
        // How the lab starts itself; see `agent` and `stand_in`.
        Some((first, [])) if first == "--as-agent" => return agent::serve(),
        Some((first, rest)) if first == "--as-rank" => return stand_in::run(rest),
        _ => {}
    }
    let wanted = Wanted::read(arguments, Scenario::read_all(&root().join("lab"))?)?;
    if wanted.list {
        for Scenario { name, short, about, .. } in &wanted.scenarios {
            println!("{name:<16}{}  {about}", if *short { "short" } else { "     " });
        }
        return Ok(ExitCode::SUCCESS);
    }
    require(wanted.install || packages::is_continuous_integration(), "lab")?;
    let played = play_all(&wanted.scenarios)?;
    if wanted.json {
        let by_name: BTreeMap<&str, &ScenarioReport> =
            played.reports.iter().map(|report| (report.name.as_str(), report)).collect();
        println!("{}", serde_json::to_string_pretty(&by_name).map_err(|error| error.to_string())?);
    } else {
        played.show();
    }
    Ok(if played.failures().next().is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What came out of scenarios.
struct Played {
    reports: Vec<ScenarioReport>,
    logs: PathBuf,
}

impl Played {
    fn failures(&self) -> impl Iterator<Item = Failure> {
        self.reports.iter().flat_map(ScenarioReport::failures)
    }

    /// The scenarios that passed only when repeated.
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
        println!("{passed} scenarios passed, {failed} failed; what was said: {}", self.logs.display());
    }
}

/// Plays scenarios one after the other.
fn play_all(scenarios: &[Scenario]) -> Result<Played, String> {
    let folder = target().join("lab");
    fs::create_dir_all(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let image = image::prepare(&folder)?;
    let has_bench = |run: &Run| matches!(run.kind(), Kind::Bench(_));
    let needs_dist = scenarios.iter().any(|scenario| scenario.runs.iter().any(has_bench));
    let built = if needs_dist { Some(dist()?) } else { None };
    let scratch = Scratch::new()?;
    let site = Site { image, program: scratch.program()?, scratch: scratch.0.clone(), logs: folder.join("log") };
    let mut reports = Vec::new();
    for scenario in scenarios {
        eprintln!("=== {}: {}", scenario.name, scenario.about);
        let report = play(scenario, &site, built.as_ref());
        if let Some(failure) = &report.failure {
            eprintln!("  FAILED: {failure}");
        }
        reports.push(report);
    }
    Ok(Played { reports, logs: site.logs })
}

/// Makes sure that the lab can run here, or says in a sentence why not. `command` is what needs it, and takes --install.
pub(crate) fn require(may_install: bool, command: &str) -> Outcome {
    if std::env::consts::ARCH != "x86_64" {
        let arch = std::env::consts::ARCH;
        return Err(format!(
            "the lab emulates x86_64 and shares its programs with this machine, which is {arch}; use an x86_64 machine"
        ));
    }
    packages::require(packages::LAB, may_install, command)
}

/// What is wanted.
#[derive(Debug, Default)]
struct Wanted {
    scenarios: Vec<Scenario>,
    list: bool,
    json: bool,
    install: bool,
}

impl Wanted {
    fn read(arguments: &[String], mut known: Vec<Scenario>) -> Result<Self, String> {
        let mut wanted = Self::default();
        let (mut names, mut short) = (Vec::new(), false);
        for argument in arguments {
            match argument.as_str() {
                "--list" => wanted.list = true,
                "--json" => wanted.json = true,
                "--install" => wanted.install = true,
                "--short" => short = true,
                name if known.iter().any(|scenario| scenario.name == name) => names.push(name),
                unknown => {
                    let known: Vec<&str> = known.iter().map(|scenario| scenario.name.as_str()).collect();
                    return Err(format!(
                        "cargo xtask lab cannot use \"{}\"; it takes --list, --short, --json, --install and the names of \
                         scenarios: {}",
                        unknown.escape_debug(),
                        known.join(", ")
                    ));
                }
            }
        }
        known.retain(|scenario| {
            let is_named = names.is_empty() || names.contains(&scenario.name.as_str());
            is_named && (!short || scenario.short)
        });
        wanted.scenarios = known;
        Ok(wanted)
    }
}

/// A folder for sockets, whose names must be short, and for a copy of this program, which a build may replace meanwhile.
/// Dropping it removes it.
struct Scratch(PathBuf);

/// What the names of these folders begin with; a process number follows.
const SCRATCH: &str = "railweave-lab-";

impl Scratch {
    fn new() -> Result<Self, String> {
        let parent = std::env::temp_dir();
        // Those of labs that were killed.
        for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let pid = name.strip_prefix(SCRATCH).filter(|pid| pid.parse::<u32>().is_ok());
            if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                // Another user's stays.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let folder = parent.join(format!("{SCRATCH}{}", std::process::id()));
        let name = folder.display().to_string();
        if name.len() > 60 || name.contains(|c: char| c.is_whitespace() || c == ',') {
            return Err(format!(
                "the lab cannot put its sockets into {name}: QEMU wants a short path without blanks and commas; set TMPDIR to one"
            ));
        }
        fs::create_dir_all(&folder).map_err(|error| format!("cannot make {name}: {error}"))?;
        Ok(Self(folder))
    }

    /// Copies this program into the folder.
    fn program(&self) -> Result<PathBuf, String> {
        let copy = self.0.join("xtask");
        let copied = std::env::current_exe().and_then(|program| fs::copy(program, &copy));
        copied.map(|_| copy).map_err(|error| format!("cannot copy this program to {}: {error}", self.0.display()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The next lab tries again.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Boots a scenario's guests and runs what it says; once more where it ran out of time and nothing else was wrong.
/// Nothing else of the lab runs then.
fn play(scenario: &Scenario, site: &Site, built: Option<&Dist>) -> ScenarioReport {
    let first = play_once(scenario, site, built);
    if !first.ran_out() {
        return first;
    }
    let earlier: Vec<Failure> = first.failures().collect();
    let kept = keep_logs(&site.logs, &scenario.name).unwrap_or_else(|error| error);
    let texts: Vec<&str> = earlier.iter().map(|failure| failure.text.as_str()).collect();
    eprintln!("  once more, because of nothing but time: {}; {kept}", texts.join("; "));
    ScenarioReport { earlier, ..play_once(scenario, site, built) }
}

/// Puts the log files of a try that failed out of the way of the next one. Says where they are.
fn keep_logs(logs: &Path, scenario: &str) -> Result<String, String> {
    let (from, to) = (logs.join(scenario), logs.join(format!("{scenario}.try1")));
    if to.exists() {
        fs::remove_dir_all(&to).map_err(|error| format!("cannot remove {}: {error}", to.display()))?;
    }
    fs::rename(&from, &to).map_err(|error| format!("cannot move {}: {error}", from.display()))?;
    Ok(format!("what was said is in {}", to.display()))
}

fn play_once(scenario: &Scenario, site: &Site, built: Option<&Dist>) -> ScenarioReport {
    let begin = Instant::now();
    let mut runs = Vec::new();
    let failure = play_into(&mut runs, scenario, site, built).err().map(Failure::of_lab);
    let seconds = begin.elapsed().as_secs_f64();
    ScenarioReport { name: scenario.name.clone(), seconds, earlier: Vec::new(), failure, runs }
}

fn play_into(
    reports: &mut Vec<(String, RunReport)>,
    scenario: &Scenario,
    site: &Site,
    built: Option<&Dist>,
) -> Result<(), String> {
    let logs = site.logs.join(&scenario.name);
    if logs.exists() {
        fs::remove_dir_all(&logs).map_err(|error| format!("cannot remove {}: {error}", logs.display()))?;
    }
    fs::create_dir_all(&logs).map_err(|error| format!("cannot make {}: {error}", logs.display()))?;
    let mut tests = BTreeMap::new();
    for run in &scenario.runs {
        if let Kind::Test(test) = run.kind() {
            tests.insert(&run.name, programs::build(test)?);
        }
    }
    let rig = Rig::boot(scenario, site, &logs)?;
    // Runs of as many rounds take turns.
    for block in scenario.runs.chunk_by(|run, next| run.rounds > 1 && run.rounds == next.rounds) {
        let rounds = block[0].rounds;
        let mut played: Vec<Vec<RunReport>> = vec![Vec::new(); block.len()];
        'rounds: for round in 1..=rounds {
            for (run, played) in block.iter().zip(&mut played) {
                let log = logs.join(if rounds == 1 { run.name.clone() } else { format!("{}.{round}", run.name) });
                let report =
                    play_run(run, scenario, site, built, &rig, &log, tests.get(&run.name).map(PathBuf::as_path));
                let report = report.map_err(|error| format!("run {}: {error}", run.name))?;
                let failed = !report.failures.is_empty();
                played.push(report);
                if failed || rig.check().is_err() {
                    break 'rounds;
                }
            }
        }
        for (run, played) in block.iter().zip(played) {
            // None where a run before it failed in the first round.
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

/// One round of a run.
fn play_run(
    run: &Run,
    scenario: &Scenario,
    site: &Site,
    built: Option<&Dist>,
    rig: &Rig,
    log: &Path,
    test: Option<&Path>,
) -> Result<RunReport, String> {
    let begin = Instant::now();
    let variables = variables(scenario, run)?;
    let mut report = match (run.kind(), test, built) {
        (Kind::Bench(arguments), _, Some(built)) => {
            bench::run(rig, site, built, run, &filled_in(arguments)?, &variables, log)
        }
        (Kind::Test(test), Some(program), _) => programs::test(rig, run, test, program, &variables, log),
        (Kind::Commands(commands), ..) => {
            let mut commands = commands.to_vec();
            for command in &mut commands {
                command.line = filled_in(&command.line)?;
            }
            programs::commands(rig, run, &commands, &variables, log)
        }
        (Kind::Bench(_), _, None) | (Kind::Test(_), None, _) => unreachable!("what runs was built before"),
    }?;
    report.seconds = begin.elapsed().as_secs_f64();
    Ok(report)
}

/// The variables of a run; its own win over the scenario's.
fn variables(scenario: &Scenario, run: &Run) -> Result<Vec<(String, String)>, String> {
    let mut variables = scenario.environment.clone();
    variables.extend(run.environment.clone());
    variables.into_iter().map(|(name, value)| Ok((name, filled_in(&value)?))).collect()
}

/// `text` with the paths of the repository, of cargo's build directory and of NCCL's own library where it says {root},
/// {target} and {nccl}. The library is fetched when it is first asked for.
fn filled_in(text: &str) -> Result<String, String> {
    let mut text =
        text.replace("{root}", &root().display().to_string()).replace("{target}", &target().display().to_string());
    if text.contains("{nccl}") {
        text = text.replace("{nccl}", &nccl::library()?.display().to_string());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(arguments: &[&str]) -> Result<Wanted, String> {
        let scenario = |name: &str, short: bool| {
            let text = format!(
                "about = \"\"\nshort = {short}\n[[run]]\nname = \"a\"\ncommand = [{{ guest = 0, line = \"true\" }}]"
            );
            Scenario::parse(name, &text).unwrap()
        };
        let known = vec![scenario("long", false), scenario("quick", true), scenario("other", true)];
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        Wanted::read(&arguments, known)
    }

    #[test]
    fn names_and_options_say_what_is_played() {
        let names = |arguments: &[&str]| -> Vec<String> {
            wanted(arguments).unwrap().scenarios.into_iter().map(|scenario| scenario.name).collect()
        };
        assert_eq!(names(&[]), ["long", "quick", "other"]);
        assert_eq!(names(&["--json", "--short"]), ["quick", "other"]);
        assert_eq!(names(&["other", "long"]), ["long", "other"]);
        assert!(wanted(&["--list"]).unwrap().list);
        assert_eq!(names(&["other", "long", "--short"]), ["other"]);
        for wrong in [&["absent"][..], &["--jsn"]] {
            let error = wanted(wrong).unwrap_err();
            assert!(error.contains("--install") && error.contains("long, quick, other"), "{error}");
        }
    }

    #[test]
    fn a_run_overrides_the_variables_of_its_scenario() {
        let text = "about = \"\"\n[environment]\nA = \"1\"\nB = \"2\"\n[[run]]\nname = \"a\"\nbench = \"\"\n\
                    environment = { B = \"{root}/3\" }";
        let scenario = Scenario::parse("s", text).unwrap();
        let variables = variables(&scenario, &scenario.runs[0]).unwrap();
        let three = format!("{}/3", root().display());
        assert_eq!(variables, [("A".to_owned(), "1".to_owned()), ("B".to_owned(), three)]);
    }

    #[test]
    fn a_folder_for_sockets_goes_with_its_lab() {
        let scratch = Scratch::new().unwrap();
        let folder = scratch.0.clone();
        assert!(scratch.program().unwrap().is_file());
        drop(scratch);
        assert!(!folder.exists());
    }
}
