//! A run of ranks: `railweave bench` or `railweave demo` on this machine, its ranks in guests.

use crate::failure::Failure;
use crate::figure::Figures;
use crate::frame::End;
use crate::ranks::Ranks;
use crate::report::RunReport;
use crate::rig::Rig;
use crate::scenario::{RankEnd, RanksOf, Run, Status};
use crate::settling::Course as Sender;
use crate::site::Site;
use crate::step::{CableEnd, Deed, Rate, Silence};
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// The interval between two looks for a due step or the end.
const LOOK: Duration = Duration::from_millis(20);

/// The number of a rank's last lines that are shown when its output is wrong.
const LAST_LINES: usize = 3;

/// Prefixes of variables in the user's environment that would change the meaning of a scenario.
const OURS: [&str; 3] = ["RAILWEAVE_", "NCCL_", "MPIB_"];

/// A program that runs ranks.
pub(crate) struct RanksProgram<'a> {
    /// The file of `railweave`.
    pub(crate) railweave: &'a Path,
    /// The program.
    pub(crate) of: RanksOf,
    /// Its arguments.
    pub(crate) arguments: &'a str,
    /// The guest of each of its ranks.
    pub(crate) ranks: &'a [usize],
}

/// Runs a program with these `variables`. Log files have names that begin with `log`.
pub(crate) fn run(
    rig: &Rig,
    site: &Site,
    program: &RanksProgram<'_>,
    run: &Run,
    variables: &[(String, String)],
    log: &Path,
) -> Result<RunReport, String> {
    let RanksProgram { railweave, of, arguments, ranks: guests } = *program;
    let count = guests.len();
    let lines = guests.iter().map(|guest| Arc::clone(rig.line(*guest))).collect();
    let ranks = Ranks::listen(&site.scratch.join("ranks"), lines, log)?;
    let log_file = |kind: &str| log_file(log, &format!("{}.{kind}", of.name()));
    let (output, errors) = (log_file("json"), log_file("log"));
    let create = |path: &Path| File::create(path).map_err(|error| format!("cannot write {}: {error}", path.display()));
    let mut command = Command::new(railweave);
    let proxy = format!("{} rank {} {{rank}}", site.program.display(), ranks.socket().display());
    command.args([of.name(), "--json", "--rank-command", &proxy]).args(arguments.split_whitespace());
    if of == RanksOf::Demo {
        command.args(["--ranks", &count.to_string()]);
    }
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_ours(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    command.envs(variables.iter().cloned()).stdin(Stdio::null()).stdout(create(&output)?).stderr(create(&errors)?);
    let child = command.spawn().map_err(|error| format!("cannot run {}: {error}", railweave.display()))?;
    let course = watch(rig, run, (&ranks, count), Parent(child));
    // The next run finds the cables in their original state.
    let restored = if run.steps.is_empty() { Ok(()) } else { rig.restore() };
    let course = course?;
    let text = fs::read_to_string(&errors).unwrap_or_default();
    let mut report = RunReport::new(&text);
    if let Ok(json) = serde_json::from_slice(&fs::read(&output).unwrap_or_default()) {
        let mut json: Value = json;
        // The traffic of each rail is a figure of its cable.
        let rails = if of == RanksOf::Demo { json.as_object_mut().and_then(|json| json.remove("rails")) } else { None };
        let over_time = json.as_object_mut().and_then(|json| json.remove("over_time")).unwrap_or_default();
        report.figures = Figures::of_program(&json);
        if !run.is_flapping() {
            let steps: Vec<_> = course.changes.iter().map(|change| [change.begin_s, change.end_s]).collect();
            report.figures.add_pauses(&json, &steps);
        }
        add_settling(rig, &Sender::of_sender(&over_time), &course.changes, &mut report.figures);
        report.figures.add_parts_of_cables(&rails.unwrap_or_default());
    }
    judge((run, of), (&ranks, count), &course, railweave_patience::ran_out(&text), &mut report);
    report.failures.extend(restored.err().map(Failure::of_lab));
    Ok(report)
}

/// The course of a program.
struct Course {
    /// The exit status of the ranks' parent; `None` if it took too long.
    status: Option<ExitStatus>,
    /// The time of the last step.
    last_step: Option<Instant>,
    /// Steps that were not taken.
    steps_left: usize,
    /// The steps that were taken.
    changes: Vec<Change>,
}

/// A step that was taken. Times are in seconds since 1970.
struct Change {
    begin_s: f64,
    end_s: f64,
    /// The rates of all cables together from then on, in Mbit/s.
    mbit: f64,
}

/// The parent of the ranks; dropping it kills it, and then its ranks end too.
struct Parent(Child);

impl Drop for Parent {
    fn drop(&mut self) {
        // Both fail only for a process that has ended and was waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for the end of the program, and takes the steps when they are due.
fn watch(rig: &Rig, run: &Run, (ranks, count): (&Ranks, usize), mut parent: Parent) -> Result<Course, String> {
    let begin = Instant::now();
    let mut due = run.steps.iter().peekable();
    let mut last_step = None;
    let mut changes = Vec::new();
    let mut rates = rig.rates();
    loop {
        let status = parent.0.try_wait().map_err(|error| format!("cannot wait for railweave: {error}"))?;
        if status.is_some() || begin.elapsed() > Duration::from_secs(run.limit_s) {
            return Ok(Course { status, last_step, steps_left: due.count(), changes });
        }
        let all: Option<Vec<_>> = (0..count).map(|number| ranks.rank(number)).collect();
        if let Some(all) = all
            && let Some(started) = all.iter().map(|rank| rank.started).max()
        {
            while let Some(step) = due.next_if(|step| started.elapsed().as_secs_f64() >= step.after_s) {
                if run.alone && last_step.is_none() {
                    ranks.leave_alone(true);
                }
                let (deed, begin_s) = (step.deed()?, unix_seconds());
                if !run.is_flapping() {
                    eprintln!("  {:.2} s: {deed:?}", started.elapsed().as_secs_f64());
                }
                match deed.clone() {
                    Deed::Kill(rank) => ranks.kill(rank)?,
                    deed => rig.carry_out(deed)?,
                }
                match deed {
                    Deed::Rate(Rate { cable, mbit }) => rates[cable] = mbit,
                    Deed::Down(CableEnd { cable, .. }) | Deed::Silence(Silence { cable, .. }) => rates[cable] = 0.0,
                    Deed::Up(CableEnd { cable, .. }) | Deed::Restore(cable) => rates[cable] = rig.rates()[cable],
                    Deed::Kill(_) | Deed::Loss(_) | Deed::Shell(_) => {}
                }
                changes.push(Change { begin_s, end_s: unix_seconds(), mbit: rates.iter().sum() });
                last_step = Some(Instant::now());
            }
            let patience = run.ends.iter().filter_map(|end| end.within_s).fold(0.0, f64::max);
            let is_late = last_step.is_some_and(|step| step.elapsed().as_secs_f64() > patience + 1.0);
            if all.iter().all(|rank| rank.ended.is_some()) || is_late {
                ranks.leave_alone(false);
            }
        }
        thread::sleep(LOOK);
    }
}

/// Adds the time until the sender used all of its cables: from its beginning, `start.settled_s`, and from each step,
/// `stepN.settled_s`, as far as it did before the next one.
fn add_settling(rig: &Rig, sender: &Sender, changes: &[Change], figures: &mut Figures) {
    let Some(begin) = sender.begin() else { return };
    let first = (begin, rig.rates().iter().sum());
    let all: Vec<(f64, f64)> =
        std::iter::once(first).chain(changes.iter().map(|change| (change.end_s, change.mbit))).collect();
    for (index, (from, mbit)) in all.iter().enumerate() {
        let until = all.get(index + 1).map_or(f64::INFINITY, |(next, _)| *next);
        if let Some(settled) = sender.settled_after(*from, until, *mbit) {
            let name = if index == 0 { "start".to_owned() } else { format!("step{}", index - 1) };
            figures.add(&format!("{name}.settled_s"), settled);
        }
    }
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Adds the findings from the ranks' ends to the report. `ran_out` is true if the program itself reports only that it
/// waited too long.
fn judge(
    (run, of): (&Run, RanksOf),
    (ranks, count): (&Ranks, usize),
    course: &Course,
    ran_out: bool,
    report: &mut RunReport,
) {
    let expected = |number: usize| run.ends.iter().find(|end| end.rank == number);
    match course.status {
        None => {
            report
                .failures
                .push(Failure::late(format_args!("it did not end, and was killed, after {} s", run.limit_s)));
        }
        Some(status) => {
            let should_succeed = run.ends.iter().all(|end| end.status == Status::Succeeds);
            if status.success() != should_succeed {
                let text = report.text.lines().last().unwrap_or_default();
                let text = format!("railweave {} ended with {status}: {text}", of.name());
                // A program that a signal ended has no code.
                let is_late = ran_out && status.code().is_some_and(|code| code != 0);
                report.failures.push(Failure { text, is_late });
            }
        }
    }
    if course.steps_left > 0 {
        report.failures.push(Failure::wrong(format!("it ended before {} of its steps", course.steps_left)));
    }
    for number in 0..count {
        let Some(rank) = ranks.rank(number) else {
            report.failures.push(Failure::wrong(format!("rank {number} never started")));
            continue;
        };
        let after_s = match (&rank.ended, course.last_step) {
            (Some((ended, _)), Some(step)) => Some(ended.saturating_duration_since(step).as_secs_f64()),
            _ => None,
        };
        if let Some(after_s) = after_s {
            report.figures.add(&format!("rank{number}.ended_after_step_s"), after_s);
        }
        let Some(wanted) = expected(number) else { continue };
        let RankEnd { status, within_s, says, .. } = wanted;
        match &rank.ended {
            None => report.failures.push(Failure::late(format_args!("rank {number} did not end"))),
            Some((_, end)) if !is_as_wanted(end, *status) => {
                let wanted = match status {
                    Status::Succeeds => "should have succeeded",
                    Status::Fails => "should have failed by itself",
                    Status::Killed => "should have been killed",
                };
                report.failures.push(Failure::wrong(format!("rank {number} {end}, but {wanted}")));
            }
            Some(_) => {}
        }
        if let (Some(limit), Some(after_s)) = (within_s, after_s)
            && after_s > *limit
        {
            report.failures.push(Failure::late(format_args!(
                "rank {number} ended {after_s:.1} s after the last step, but should within {limit} s"
            )));
        }
        if let Some(pattern) = says
            && !pattern.is_in(&rank.said)
        {
            let lines: Vec<&str> = rank.said.lines().filter(|line| !line.trim().is_empty()).collect();
            let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("; ");
            let text = format!("rank {number} said nothing like \"{pattern}\"; its last lines are: {last}");
            // A rank that has not ended might still have said it.
            report.failures.push(Failure { text, is_late: rank.ended.is_none() });
        }
    }
}

fn is_as_wanted(end: &End, wanted: Status) -> bool {
    match end {
        End::Status(0) => wanted == Status::Succeeds,
        End::Status(_) => wanted == Status::Fails,
        End::Signal(_) => wanted == Status::Killed,
        End::NotStarted(_) => false,
    }
}

fn is_ours(name: &str) -> bool {
    OURS.iter().any(|prefix| name.starts_with(prefix))
}

fn log_file(log: &Path, what: &str) -> PathBuf {
    PathBuf::from(format!("{}.{what}", log.display()))
}
