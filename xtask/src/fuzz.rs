//! Long runs of the fuzz targets (docs/fuzzing.md), on stable Rust: libFuzzer through cargo-fuzz, without a sanitizer.

use crate::process::{root, run as run_command, status, target};
use crate::tools;
use clap::Args;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The default time for each target.
const MINUTES: u64 = 10;

/// The longest input, in bytes. Longer ones find nothing that shorter ones do not.
const LONGEST_INPUT: usize = 4096;

/// An input that takes longer than this is a finding: libFuzzer stops it, or reports it as slow if it looks at its
/// clock too late. By default libFuzzer already calls an input slow after half this time, which on a busy machine is no
/// finding.
const TIMEOUT_S: u64 = 20;

/// The arguments of the chore.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Run only this target; repeat the option for more than one
    #[arg(long = "target", value_name = "TARGET")]
    targets: Vec<String>,
    /// Minutes for each target, at least 1
    #[arg(long, value_name = "MINUTES", default_value_t = MINUTES, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
}

/// Builds the targets, and runs the chosen ones one after the other.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, String> {
    let wanted = arguments.among(targets()?)?;
    let programs = build()?;
    let mut findings = 0;
    for name in &wanted {
        findings += run_target(name, &programs.join(name), arguments.minutes)?;
    }
    Ok(if findings == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Arguments {
    /// Returns the chosen targets; fails if one is not among the known ones.
    fn among(&self, known: Vec<String>) -> Result<Vec<String>, String> {
        match self.targets.iter().find(|name| !known.contains(name)) {
            Some(unknown) => Err(format!(
                "cargo xtask fuzz has no target \"{}\"; the targets are: {}",
                unknown.escape_debug(),
                known.join(", ")
            )),
            None if self.targets.is_empty() => Ok(known),
            None => Ok(self.targets.clone()),
        }
    }
}

/// Returns the folder of the targets, their programs and their seeds.
fn folder() -> PathBuf {
    root().join("testing").join("fuzz")
}

/// Returns the targets' names, which are those of their programs.
fn targets() -> Result<Vec<String>, String> {
    let folder = folder().join("targets").join("fuzz_targets");
    let entries = fs::read_dir(&folder).map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.path().file_stem()?.to_str().map(str::to_owned)).collect();
    names.sort();
    Ok(names)
}

/// Builds every target and returns the folder of the programs.
fn build() -> Result<PathBuf, String> {
    let cargo_fuzz = tools::FUZZ.require()?;
    let built = target().join("fuzz");
    let mut command = Command::new(cargo_fuzz);
    // Sanitizers need a nightly compiler; the coverage that leads the fuzzer does not.
    command.args(["fuzz", "build", "--sanitizer", "none", "--target-dir"]).arg(&built);
    command.arg("--fuzz-dir").arg(folder().join("targets")).current_dir(root());
    run_command(command)?;
    let folders = fs::read_dir(&built).map_err(|error| format!("cannot read {}: {error}", built.display()))?;
    let name = targets()?.into_iter().next().unwrap_or_default();
    folders
        .filter_map(|folder| Some(folder.ok()?.path().join("release")))
        .find(|folder| folder.join(&name).is_file())
        .ok_or_else(|| format!("cargo-fuzz built nothing in {}", built.display()))
}

/// Runs one target and returns the number of its findings.
fn run_target(name: &str, program: &Path, minutes: u64) -> Result<usize, String> {
    let seeds = folder().join("corpus").join(name);
    let corpus = target().join("fuzz-corpus").join(name);
    let findings = target().join("fuzz-findings").join(name);
    let log = target().join("fuzz-logs").join(format!("{name}.log"));
    for folder in [&corpus, &findings].into_iter().map(PathBuf::as_path).chain(log.parent()) {
        fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    }
    println!("{name}: {minutes} min; {} grows with it", log.display());
    let before = count(&findings);
    let cannot_log = |error: std::io::Error| format!("cannot write {}: {error}", log.display());
    let out = File::create(&log).map_err(cannot_log)?;
    let mut command = Command::new(program);
    command
        .arg(&corpus)
        .arg(&seeds)
        .arg(format!("-max_total_time={}", minutes * 60))
        .arg(format!("-max_len={LONGEST_INPUT}"))
        .arg(format!("-artifact_prefix={}/", findings.display()))
        .args([format!("-timeout={TIMEOUT_S}"), format!("-report_slow_units={TIMEOUT_S}")])
        .args(["-rss_limit_mb=2048", "-print_final_stats=1"])
        .stdout(out.try_clone().map_err(cannot_log)?)
        .stderr(out);
    let status = status(command)?;
    let text = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
    println!("{name}: {}", summary(&text));
    let found = count(&findings) - before;
    if !status.success() || found > 0 {
        println!(
            "{name}: FOUND {found} input(s); see the last lines of the log. To replay one and keep it, copy it from {} \
             to {}/found-<what>, then run: cargo test --package railweave-fuzz",
            findings.display(),
            seeds.display()
        );
        return Ok(found.max(1));
    }
    Ok(0)
}

fn count(folder: &Path) -> usize {
    fs::read_dir(folder).map_or(0, Iterator::count)
}

/// Sums up libFuzzer's output: executions, edges reached out of all edges, and features.
fn summary(log: &str) -> String {
    let after = |line: &str, word: &str| -> Option<String> {
        let rest = line.split_once(word)?.1.trim_start();
        Some(rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default().to_owned())
    };
    let last = |word: &str| log.lines().rev().find_map(|line| after(line, word)).unwrap_or_else(|| "?".to_owned());
    // A run that ends with a finding prints no statistics of its own.
    let executions = match last("stat::number_of_executed_units:") {
        unknown if unknown == "?" => {
            log.lines().rev().find_map(|line| after(line.trim_start(), "#").filter(|n| !n.is_empty()))
        }
        known => Some(known),
    };
    format!(
        "{} executions, {} of {} edges, {} features",
        executions.unwrap_or_else(|| "?".to_owned()),
        last(" cov: "),
        last("Loaded 1 modules   ("),
        last(" ft: ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
INFO: Loaded 1 modules   (23456 inline 8-bit counters): 23456 [0x1, 0x2),
#8      INITED cov: 500 ft: 700 corp: 3/1Kb exec/s: 0 rss: 30Mb
#4096   DONE   cov: 1081 ft: 4000 corp: 300/40Kb lim: 4096 exec/s: 5000 rss: 50Mb
Done 4096 runs in 11 second(s)
stat::number_of_executed_units: 4096
stat::average_exec_per_sec:     372
";

    #[test]
    fn a_log_is_summed_up() {
        assert_eq!(summary(LOG), "4096 executions, 1081 of 23456 edges, 4000 features");
        let cut: String = LOG.lines().take(3).map(|line| format!("{line}\n")).collect();
        assert_eq!(summary(&cut), "4096 executions, 1081 of 23456 edges, 4000 features");
        assert_eq!(summary(""), "? executions, ? of ? edges, ? features");
    }

    #[test]
    fn only_targets_that_are_known_are_run() {
        let among = |names: &[&str]| {
            let targets = names.iter().map(ToString::to_string).collect();
            Arguments { targets, minutes: MINUTES }.among(vec!["send".to_owned(), "wire".to_owned()])
        };
        assert_eq!(among(&[]).unwrap(), ["send", "wire"]);
        assert_eq!(among(&["wire"]).unwrap(), ["wire"]);
        let error = among(&["send", "absent"]).unwrap_err();
        assert!(error.contains("\"absent\"") && error.contains("send, wire"), "{error}");
    }
}
