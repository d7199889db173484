//! Runs of tests and of plain commands in guests.

use crate::failure::Failure;
use crate::frame::{End, Frame, Program};
use crate::guest::{KILL, Output, Process, shell};
use crate::report::RunReport;
use crate::rig::Rig;
use crate::scenario::{Command, Run, Test};
use railweave_patience::{ran_out, sentence};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The time in which a command in the background may end by itself after the last one in the foreground.
const GRACE: Duration = Duration::from_secs(10);

/// The longest time for one look for a listener.
const LOOK_LIMIT: Duration = Duration::from_secs(30);

/// Builds a test program of the repository `root` and returns its path.
pub(crate) fn build(test: &Test, root: &Path) -> Result<PathBuf, String> {
    let Test { package, name, .. } = test;
    let mut cargo = process::Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["test", "--package", package, "--test", name, "--no-run", "--message-format=json"]);
    let output = cargo
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "cargo cannot build the test {name} of {package}: {}; see its output above",
            output.status
        ));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ours = messages.filter(|message| message["target"]["name"] == name.as_str());
    let mut programs = ours.filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    programs.next_back().ok_or_else(|| format!("cargo built no program for the test {name} of {package}"))
}

/// Runs a built test. Its output goes to a file whose name begins with `log`.
pub(crate) fn test(
    rig: &Rig,
    run: &Run,
    test: &Test,
    program: &Path,
    variables: &[(String, String)],
    log: &Path,
) -> Result<RunReport, String> {
    let words = std::iter::once(program.display().to_string()).chain(test.arguments.iter().cloned());
    let program = Program { words: words.collect(), ..shell("", variables) };
    let process = rig.line(test.guest).start(program)?;
    let (output, late) = finish(&process, Duration::from_secs(run.limit_s))?;
    keep(log, "test", &output)?;
    let mut report = RunReport::new(&output.text);
    report.failures.extend(verdict("the test", run, &output, late));
    Ok(report)
}

/// Runs commands one after the other. Their output goes to files whose names begin with `log`.
pub(crate) fn commands(
    rig: &Rig,
    run: &Run,
    commands: &[Command],
    variables: &[(String, String)],
    log: &Path,
) -> Result<RunReport, String> {
    let begin = Instant::now();
    let left = || Duration::from_secs(run.limit_s).saturating_sub(begin.elapsed());
    let mut started: Vec<(&Command, Process)> = Vec::new();
    let mut ended: Vec<(&Command, Output, bool)> = Vec::new();
    for command in commands {
        let process = rig.line(command.guest).start(shell(&command.line, variables))?;
        if let Some(port) = command.listens {
            wait_for_listener(rig, command, port, left())?;
        }
        if command.background {
            started.push((command, process));
        } else {
            let (output, late) = finish(&process, left())?;
            ended.push((command, output, late));
        }
    }
    for (command, process) in started {
        let (mut output, late) = finish(&process, left().min(GRACE))?;
        if late {
            // A command in the background need not end by itself.
            output.end = End::Status(0);
        }
        ended.push((command, output, false));
    }
    let mut report = RunReport::new("");
    for (index, (command, output, late)) in ended.iter().enumerate() {
        keep(log, &format!("command{index}"), output)?;
        report.add_text(&output.text);
        let line = format!("in guest {}, \"{}\"", command.guest, command.line);
        report.failures.extend(verdict(&line, run, output, *late));
        for reading in &command.figures {
            match reading.pattern.number_in(&output.text) {
                Some(number) => report.figures.add(&reading.name, number * reading.times),
                None => {
                    // A command that was killed might still have written it.
                    let text = format!("{line} wrote nothing like \"{}\"", reading.pattern);
                    report.failures.push(Failure { text, is_late: *late });
                }
            }
        }
    }
    Ok(report)
}

/// Waits for the end of a process and returns its output; after `limit` kills it, and then also returns true.
fn finish(process: &Process, limit: Duration) -> Result<(Output, bool), String> {
    let mut text = Vec::new();
    let mut end = process.wait_into(&mut text, limit)?;
    let late = end.is_none();
    if late {
        process.send(&Frame::Signal(KILL))?;
        end = process.wait_into(&mut text, GRACE)?;
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok((Output { text, end: end.unwrap_or(End::Signal(KILL)) }, late))
}

fn verdict(what: &str, run: &Run, output: &Output, late: bool) -> Option<Failure> {
    if late {
        Some(Failure::late(format_args!("{what} did not end, and was killed, after {} s", run.limit_s)))
    } else if output.end.is_success() {
        None
    } else {
        let is_late = matches!(output.end, End::Status(_)) && ran_out(&output.text);
        Some(Failure { text: format!("{what} {}", output.end), is_late })
    }
}

fn wait_for_listener(rig: &Rig, command: &Command, port: u16, limit: Duration) -> Result<(), String> {
    let begin = Instant::now();
    while begin.elapsed() < limit {
        let listeners = rig.line(command.guest).shell(&format!("ss -Hltn 'sport = :{port}'"), LOOK_LIMIT)?;
        if !listeners.trim().is_empty() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(200));
    }
    let what = format!("in guest {}, \"{}\" does not listen on port {port}", command.guest, command.line);
    Err(sentence(what, limit))
}

fn keep(log: &Path, what: &str, output: &Output) -> Result<(), String> {
    let path = PathBuf::from(format!("{}.{what}.log", log.display()));
    fs::write(&path, &output.text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}
