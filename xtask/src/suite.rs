//! One test program of the test run, as cargo's runner (`cargo xtask as-runner PROGRAM ARGUMENTS`): shows its output,
//! kills it when it hangs, and repeats, once and alone, a test that ran out of time.
//!
//! Cargo starts the programs one after the other, so nothing else of the test run runs during the repetition.

mod verdict;
mod watch;

use crate::flaky::FlakyFile;
use crate::process::{Outcome, cargo, line, run as run_command};
use clap::Args;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use verdict::Decision;
use watch::{Said, watch};

/// The variable that names the plugin for tests to load.
pub(crate) const LIBRARY: &str = "RAILWEAVE_TEST_LIB";

/// The chore that runs one test program.
pub(crate) const AS_RUNNER: &str = "as-runner";

/// One test program, as cargo names it to its runner.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Program {
    /// Run it with this program, such as an emulator
    #[arg(long)]
    pub(crate) by: Option<PathBuf>,
    program: PathBuf,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<String>,
}

/// A program hangs if none of its tests has ended for this long. Tests give up far earlier by themselves.
const SILENCE: Duration = Duration::from_secs(600);

/// The variable that names the file to which the runner adds tests that passed only when repeated, a line each.
const FLAKY_FILE: &str = "RAILWEAVE_TEST_FLAKY";

/// The number of tests of one program that run at once. They wait for kernels and peers far longer than they work.
pub(crate) const THREADS: &str = "4";

/// The start of the line that names the tests of a program that was killed.
pub(crate) const RAN_WHEN_KILLED: &str = "tests that ran then: ";

/// The end of the line that names a test that is repeated.
const REPEATED: &str = " ran out of time; it is repeated, alone";

/// Packages whose tests do not depend on time: their failures are never repeated.
const NEVER_REPEATED: [&str; 7] = [
    "railweave-fabric-sim",
    "railweave-fuzz",
    "railweave-models",
    "railweave-recovery-model",
    "railweave-sim",
    "railweave-split",
    "railweave-transport",
];

/// Runs every test of the workspace; tests of the plugin load `library`. Tests that passed only when repeated are added
/// to `flaky`.
pub(crate) fn run_all(library: &Path, flaky: &mut Vec<String>) -> Outcome {
    let mut command = cargo(&["test", "--workspace", "--no-fail-fast"]);
    command.env(LIBRARY, library).env("RUST_TEST_THREADS", THREADS);
    guarded(command, None, flaky, run_command)?
}

/// Runs `command`, which is a `cargo test`, by calling `run`. Each test program runs under the runner, and under the
/// program `by` if there is one. Tests that passed only when repeated are added to `flaky`.
pub(crate) fn guarded<T>(
    mut command: Command,
    by: Option<&Path>,
    flaky: &mut Vec<String>,
    run: impl FnOnce(Command) -> T,
) -> Result<T, String> {
    let file = FlakyFile::new();
    command.arg("--config").arg(runner(by)?).env(FLAKY_FILE, file.path());
    let result = run(command);
    flaky.extend(file.read());
    Ok(result)
}

/// Returns the setting that makes this program cargo's runner (The Cargo Book, `target.<cfg>.runner`).
fn runner(by: Option<&Path>) -> Result<String, String> {
    let program = std::env::current_exe().map_err(|error| format!("cannot name this program: {error}"))?;
    let mut words = vec![program.display().to_string(), AS_RUNNER.to_owned()];
    words.extend(by.into_iter().flat_map(|by| ["--by".to_owned(), by.display().to_string()]));
    let words = serde_json::to_string(&words).map_err(|error| error.to_string())?;
    // A JSON array of plain strings is also TOML.
    Ok(format!("target.'cfg(all())'.runner = {words}"))
}

/// Runs a program that starts others, and once more if it ran out of time and nothing else was wrong. If the second run
/// succeeds, `name` is added to `flaky`.
pub(crate) fn run_program(name: &str, command: impl Fn() -> Command, flaky: &mut Vec<String>) -> Outcome {
    run_and_repeat(name, command, true, flaky)
}

fn run_and_repeat(name: &str, command: impl Fn() -> Command, shows: bool, flaky: &mut Vec<String>) -> Outcome {
    let words = line(&command());
    let once = || watch(command(), shows, |_| false).map_err(|error| format!("cannot run {words}: {error}"));
    let (status, said) = once()?;
    let failed = |status: Option<ExitStatus>| match status {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(format!("{words}: {status}")),
        None => Err(format!("{words}: killed")),
    };
    let result = failed(status);
    // A signal is no timeout.
    let is_late = status.is_some_and(|status| status.code().is_some()) && railweave_patience::ran_out(&said.all());
    if result.is_ok() || !is_late {
        return result;
    }
    println!("\n{name} ran out of time; it is repeated, alone");
    failed(once()?.0)?;
    flaky.push(name.to_owned());
    Ok(())
}

/// Returns the line that says that a test of a program is repeated.
pub(crate) fn repeats(program: &str, test: &str) -> String {
    format!("{program}: {test}{REPEATED}")
}

/// Returns the test that a line reports as repeated; `None` if it reports none.
pub(crate) fn repeated(line: &str) -> Option<&str> {
    let (_, test) = line.strip_suffix(REPEATED)?.rsplit_once(' ')?;
    Some(test)
}

/// Runs a test program, and repeats its tests where that is allowed.
pub(crate) fn run(program: Program) -> Result<ExitCode, String> {
    let Program { by, program, arguments } = program;
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    let silence = SILENCE * railweave_patience::factor();
    let suite = Suite { by, program, arguments: &arguments, package, silence, shows: true };
    let Ended { code, flaky } = suite.run()?;
    if let (Some(file), false) = (std::env::var_os(FLAKY_FILE), flaky.is_empty()) {
        let lines: String = flaky.iter().map(|name| format!("{name}\n")).collect();
        let written = OpenOptions::new().append(true).create(true).open(&file);
        let written = written.and_then(|mut file| file.write_all(lines.as_bytes()));
        written.map_err(|error| format!("cannot write {}: {error}", Path::new(&file).display()))?;
    }
    Ok(code)
}

/// A test program.
struct Suite<'a> {
    /// The program that runs it, if it does not run by itself.
    by: Option<PathBuf>,
    program: PathBuf,
    arguments: &'a [String],
    /// The package that it belongs to; empty for documentation tests.
    package: String,
    /// The longest time without the end of a test.
    silence: Duration,
    /// True if its output is shown as it comes.
    shows: bool,
}

/// The result of a test program.
struct Ended {
    code: ExitCode,
    /// The tests that passed only when repeated.
    flaky: Vec<String>,
}

impl Suite<'_> {
    fn run(&self) -> Result<Ended, String> {
        let (status, said) = self.watch(self.arguments)?;
        let failed = Ended { code: code(status), flaky: Vec::new() };
        let Some(status) = status else {
            println!("\n{}: killed, because no test ended in {} s", self.name(), self.silence.as_secs());
            println!("{RAN_WHEN_KILLED}{}", self.running(&said).join(", "));
            return Ok(failed);
        };
        if status.success() || NEVER_REPEATED.contains(&self.package.as_str()) {
            return Ok(failed);
        }
        let late = match verdict::decide(&said, status.code()) {
            Decision::Fails(reason) => {
                println!("{}: nothing is repeated: {reason}", self.name());
                return Ok(failed);
            }
            Decision::Repeat(late) => late,
        };
        let mut flaky = Vec::new();
        for test in late {
            println!("\n{}", repeats(&self.name(), &test));
            let alone = [test.clone(), "--exact".to_owned(), "--test-threads=1".to_owned()];
            let (status, said) = self.watch(&alone)?;
            if !(status.is_some_and(|status| status.success()) && verdict::is_one_passed(&said.out)) {
                println!("{}: {test} failed again", self.name());
                return Ok(failed);
            }
            flaky.push(format!("{}: {test}", self.name()));
        }
        Ok(Ended { code: ExitCode::SUCCESS, flaky })
    }

    /// Returns its name for people: its package, and its own name without cargo's hash.
    fn name(&self) -> String {
        let stem = self.program.file_stem().unwrap_or_default().to_string_lossy();
        let own = match stem.rsplit_once('-') {
            Some((own, hash)) if hash.len() == 16 && hash.chars().all(|c| c.is_ascii_hexdigit()) => own,
            _ => &stem,
        };
        format!("{}, {own}", self.package)
    }

    /// Returns the tests that still run, according to this output: those reported as slow, or all that have not ended
    /// if none was.
    fn running(&self, said: &Said) -> Vec<String> {
        let ended = verdict::ended(&said.out);
        let slow: Vec<String> =
            verdict::slow(&said.out).into_iter().filter(|name| !ended.contains(name)).map(str::to_owned).collect();
        if !slow.is_empty() {
            return slow;
        }
        let list = self.command().args(["--list", "--format", "terse"]).stderr(Stdio::null()).output();
        let list = list.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
        names.filter(|name| !ended.contains(name)).map(str::to_owned).collect()
    }

    fn command(&self) -> Command {
        match &self.by {
            Some(by) => {
                let mut command = Command::new(by);
                command.arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        }
    }

    /// Runs the program to its end and shows its output meanwhile. Returns no status if it hung and was killed.
    fn watch(&self, arguments: &[String]) -> Result<(Option<ExitStatus>, Said), String> {
        let mut command = self.command();
        command.args(arguments);
        let (mut ended, mut since) = (0, Instant::now());
        let hangs = |said: &Said| {
            let count = verdict::ended(&said.out).len();
            if count != ended {
                (ended, since) = (count, Instant::now());
            }
            since.elapsed() > self.silence
        };
        watch(command, self.shows, hangs).map_err(|error| format!("cannot run {}: {error}", self.program.display()))
    }
}

/// Returns the runner's exit code for this status; cargo shows it.
fn code(status: Option<ExitStatus>) -> ExitCode {
    use std::os::unix::process::ExitStatusExt;
    let number = status.and_then(|status| status.code().or_else(|| status.signal().map(|signal| 128 + signal)));
    number.and_then(|number| u8::try_from(number).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// libtest's output for two tests of which `b` failed with `message`.
    fn failing(message: &str) -> String {
        format!(
            "\nrunning 2 tests\ntest a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\n\nthread 'b' (7) \
             panicked at b.rs:1:2:\n{message}\n\n\nfailures:\n    b\n\n\
             test result: FAILED. 1 passed; 1 failed; 0 ignored\n"
        )
    }

    const LATE: &str = "ran out of time: a connection after 60 s";
    const ONE_PASSED: &str = "running 1 test\ntest b ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored\n";

    /// Plays a test program that is a shell script: the whole program runs `first`, b by itself runs `alone`. Returns
    /// its success, the flaky tests, and the number of starts.
    fn played(name: &str, package: &str, first: &str, alone: &str) -> (bool, Vec<String>, usize) {
        played_by(None, name, package, first, alone)
    }

    /// Does the same as [`played`], with another program that runs it.
    fn played_by(by: Option<&str>, name: &str, package: &str, first: &str, alone: &str) -> (bool, Vec<String>, usize) {
        let folder = std::env::temp_dir().join(format!("railweave-suite-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let program = folder.join("edges-0123456789abcdef");
        let script = format!(
            "#!/bin/sh\necho >> {folder}/starts\nif [ \"$*\" = \"b --exact --test-threads=1\" ]; then\n{alone}\nelif [ \
             \"$1\" = --list ]; then\nprintf 'a: test\\nb: test\\n'\nelse\n{first}\nfi\n",
            folder = folder.display()
        );
        let text = folder.join("text");
        std::fs::write(&text, script).unwrap();
        // `install` writes the program, not this process: a child that another test starts may inherit a file that this
        // process has open for writing, and as long as it holds that file, the file cannot be run (ETXTBSY, execve(2)).
        let installed = Command::new("install").args(["-m", "755"]).args([&text, &program]).status().unwrap();
        assert!(installed.success());
        let silence = Duration::from_secs(if first.contains("sleep") { 1 } else { 600 });
        let by = by.map(PathBuf::from);
        let suite = Suite { by, program, arguments: &[], package: package.to_owned(), silence, shows: false };
        let Ended { code, flaky } = suite.run().unwrap();
        let starts = std::fs::read_to_string(folder.join("starts")).unwrap().lines().count();
        std::fs::remove_dir_all(&folder).unwrap();
        (code == ExitCode::SUCCESS, flaky, starts)
    }

    fn says(text: &str, status: i32) -> String {
        format!("cat << 'END'\n{text}\nEND\nexit {status}")
    }

    #[test]
    fn what_ran_out_of_time_and_passes_alone_is_flaky() {
        let played = played("passes", "p", &says(&failing(LATE), 101), &says(ONE_PASSED, 0));
        assert_eq!(played, (true, vec!["p, edges: b".to_owned()], 2));
    }

    #[test]
    fn what_another_program_runs_is_repeated_by_it() {
        let (late, passes) = (says(&failing(LATE), 101), says(ONE_PASSED, 0));
        let by_env = |name: &str, first: &str| played_by(Some("/usr/bin/env"), name, "p", first, &passes);
        assert_eq!(by_env("by-env", &late), (true, vec!["p, edges: b".to_owned()], 2));
        let hang = "echo 'test a ... ok'\nexec sleep 1000";
        assert_eq!(by_env("by-env-hangs", hang), (false, vec![], 2));
        let nobody = Some("/nonexistent/emulator");
        let suite = Suite {
            by: nobody.map(PathBuf::from),
            program: "/bin/true".into(),
            arguments: &[],
            package: String::new(),
            silence: SILENCE,
            shows: false,
        };
        assert!(suite.run().is_err());
        for by in [None, Some("/usr/bin/env")] {
            let run = |program: &str| {
                run(Program { by: by.map(PathBuf::from), program: program.into(), arguments: Vec::new() })
            };
            assert_eq!(run("/bin/true"), Ok(ExitCode::SUCCESS));
            assert_ne!(run("/bin/false"), Ok(ExitCode::SUCCESS));
        }
    }

    #[test]
    fn a_program_that_starts_others_is_repeated_where_it_ran_out_of_time() {
        const WORN_OUT: &str =
            "echo 'railweave: rank 1: ran out of time: a receive after 30 s without progress' >&2; exit 1";
        let played = |name: &str, first: &str, then: &str| {
            let starts = std::env::temp_dir().join(format!("railweave-program-{}-{name}", std::process::id()));
            let _ = std::fs::remove_file(&starts);
            let script = format!("echo >> \"$0\"; if [ $(wc -l < \"$0\") = 1 ]; then {first}; else {then}; fi");
            let command = || {
                let mut command = Command::new("sh");
                command.arg("-c").arg(&script).arg(&starts);
                command
            };
            let mut flaky = Vec::new();
            let result = run_and_repeat(name, command, false, &mut flaky);
            let count = std::fs::read_to_string(&starts).unwrap().lines().count();
            std::fs::remove_file(&starts).unwrap();
            (result.is_ok(), flaky.len(), count)
        };
        assert_eq!(played("well", "exit 0", "exit 1"), (true, 0, 1));
        assert_eq!(played("late", WORN_OUT, "exit 0"), (true, 1, 2));
        assert_eq!(played("late-twice", WORN_OUT, WORN_OUT), (false, 0, 2));
        assert_eq!(played("late-then-wrong", WORN_OUT, "exit 1"), (false, 0, 2));
        let wrong = "echo 'railweave: rank 0: wrong data' >&2; exit 1";
        assert_eq!(played("wrong", wrong, "exit 0"), (false, 0, 1));
        assert_eq!(played("silent", "exit 1", "exit 0"), (false, 0, 1));
        let both = format!("{}; {WORN_OUT}", wrong.replace("; exit 1", ""));
        assert_eq!(played("both", &both, "exit 0"), (false, 0, 1));
        let signal = WORN_OUT.replace("exit 1", "kill -KILL $$");
        assert_eq!(played("signal", &signal, "exit 0"), (false, 0, 1));
    }

    #[test]
    fn what_runs_out_of_time_twice_fails() {
        let late = says(&failing(LATE), 101);
        assert_eq!(played("twice", "p", &late, &late), (false, vec![], 2));
        // Nothing ran: no test passed.
        let none = says("running 0 tests\n\ntest result: ok. 0 passed; 0 failed", 0);
        assert_eq!(played("nothing", "p", &late, &none), (false, vec![], 2));
    }

    #[test]
    fn what_fails_otherwise_is_never_repeated() {
        let (late, passes) = (failing(LATE), says(ONE_PASSED, 0));
        let wrong = says(&failing("byte 7 is 1, but should be 2"), 101);
        assert_eq!(played("wrong", "p", &wrong, &passes), (false, vec![], 1));
        let signal = format!("{}\nkill -SEGV $$", says(&late, 0).replace("\nexit 0", ""));
        assert_eq!(played("signal", "p", &signal, &passes), (false, vec![], 1));
        let other_panic =
            format!("echo \"thread 'x' (8) panicked at x.rs:1:2:\" >&2\necho other >&2\n{}", says(&late, 101));
        assert_eq!(played("stderr", "p", &other_panic, &passes), (false, vec![], 1));
        let late = says(&late, 101);
        for package in NEVER_REPEATED {
            assert_eq!(played(package, package, &late, &passes), (false, vec![], 1));
        }
        assert_eq!(played("well", "p", &says(ONE_PASSED, 0), "exit 1"), (true, vec![], 1));
    }

    #[test]
    fn a_program_that_hangs_is_ended_and_what_ran_is_named() {
        let begin = Instant::now();
        let hang = "echo 'test a ... ok'\nexec sleep 1000";
        assert_eq!(played("hang", "p", hang, "exit 1"), (false, vec![], 2), "the second start lists the tests");
        assert!(begin.elapsed() < Duration::from_secs(500));
        let program = PathBuf::from("/bin/true");
        let suite = Suite { by: None, program, arguments: &[], package: String::new(), silence: SILENCE, shows: false };
        let said = |out: &str| Said { out: out.to_owned(), err: String::new() };
        let slow = "test a has been running for over 60 seconds\ntest b has been running for over 60 seconds\n";
        assert_eq!(suite.running(&said(&format!("{slow}test a ... ok\n"))), ["b"]);
    }

    #[test]
    fn cargo_is_told_of_this_program_in_toml() {
        for (by, more) in [(None, &[][..]), (Some(Path::new("/usr/bin/qemu")), &["--by", "/usr/bin/qemu"])] {
            let toml: toml::Table = runner(by).unwrap().parse().unwrap();
            let words = toml["target"]["cfg(all())"]["runner"].as_array().unwrap();
            let words: Vec<&str> = words.iter().map(|word| word.as_str().unwrap()).collect();
            assert_eq!(words[1..], [&[AS_RUNNER], more].concat());
        }
    }
}
