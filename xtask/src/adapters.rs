//! The verbs tests over adapters: each a profile of the fake libibverbs (testing/fake-ibverbs/profiles).

use crate::dist::dist;
use crate::process::{cargo, root};
use crate::{flaky, packages, suite};
use clap::Args;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, ExitCode};

/// The variable that names the profile of devices that name none.
const PROFILE: &str = "RAILWEAVE_TEST_PROFILE";

/// The two adapters of the test run, as different as adapters are: one with shared receive queues, ECE and both
/// versions of RoCE, the other without any of these.
pub(crate) const SHORT: [&str; 2] = ["connectx-7", "ionic"];

/// The tests that run over each adapter, as arguments of cargo. The second line runs tests of the plugin only. It names
/// the whole workspace, so that the build of the plugin's other tests is reused.
const TESTS: [&[&str]; 2] = [
    &["--package", "railweave-fabric-verbs", "--package", "railweave-discovery", "--tests"],
    &["--workspace", "--test", "verbs"],
];

/// The arguments of the chore.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Run only over these adapters
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// As root: first install the Debian package with libibverbs' headers, without which a comparison is left out
    #[arg(long)]
    install: bool,
}

/// Runs the tests over the adapters, and prints a table.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, String> {
    let (known, names) = (profiles()?, &arguments.names);
    if let Some(unknown) = names.iter().find(|name| !known.contains(*name)) {
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        return Err(format!(
            "cargo xtask adapters knows no profile \"{}\"; the profiles are: {}",
            unknown.escape_debug(),
            known.join(", ")
        ));
    }
    let wanted: Vec<&str> = match names.as_slice() {
        [] => known.iter().map(String::as_str).collect(),
        named => named.iter().map(String::as_str).collect(),
    };
    if arguments.install || packages::is_continuous_integration() {
        packages::require(packages::HEADERS, true, "adapters")?;
    }
    let mut flaky = Vec::new();
    let failed = over(&wanted, &dist()?.library, &mut flaky)?;
    flaky::list(&flaky);
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the tests, which load the plugin `library`, over some adapters, prints a table and returns the number of failed
/// tests. Tests that passed only when repeated are added to `flaky`.
pub(crate) fn over(profiles: &[&str], library: &Path, flaky: &mut Vec<String>) -> Result<usize, String> {
    let mut rows = Vec::new();
    for profile in profiles {
        let tally = tally(profile, library, flaky)?;
        println!("{profile}: {} passed, {} failed", tally.passed, tally.failures.len());
        rows.push((*profile, tally));
    }
    print!("\n{}", table(&rows));
    Ok(rows.iter().map(|(_, tally)| tally.failures.len()).sum())
}

/// Returns the names of the adapters: of all profiles except `plain`, which describes none.
fn profiles() -> Result<BTreeSet<String>, String> {
    let folder = root().join("testing").join("fake-ibverbs").join("profiles");
    let cannot = |error: std::io::Error| format!("cannot list {}: {error}", folder.display());
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(&folder).map_err(cannot)? {
        let name = entry.map_err(cannot)?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".toml").filter(|name| *name != "plain").map(str::to_owned));
    }
    Ok(names)
}

/// The results of the tests over one adapter.
#[derive(Debug, Default, PartialEq)]
struct Tally {
    passed: usize,
    failures: Vec<String>,
}

fn tally(profile: &str, library: &Path, flaky: &mut Vec<String>) -> Result<Tally, String> {
    let mut tally = Tally::default();
    for tests in TESTS {
        let mut command = cargo(&["test", "--no-fail-fast"]);
        command.args(tests).env(PROFILE, profile).env(suite::LIBRARY, library).env("RUST_TEST_THREADS", suite::THREADS);
        let mut repeated = Vec::new();
        let output = suite::guarded(command, None, &mut repeated, |mut command: Command| command.output())?;
        let output = output.map_err(|error| format!("cannot run cargo: {error}"))?;
        flaky.extend(repeated.iter().map(|name| format!("{name}, over {profile}")));
        let text = String::from_utf8_lossy(&output.stdout);
        let before = tally.failures.len();
        tally.read(&text);
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            print!("{text}\n{words}");
            if tally.failures.len() == before {
                return Err(format!("the tests could not be run over {profile}, see above: {}", output.status));
            }
        }
    }
    Ok(tally)
}

impl Tally {
    /// Adds the lines of the test programs and their runner about tests: `test NAME ... ok`, or `FAILED`; the tests
    /// that are repeated; and the tests that ran in a program that was killed.
    fn read(&mut self, text: &str) {
        for line in text.lines() {
            if let Some(name) = suite::repeated(line) {
                // The result of the repetition follows.
                let last = self.failures.iter().rposition(|failure| failure == name);
                last.map(|index| self.failures.remove(index));
            } else if let Some(names) = line.strip_prefix(suite::RAN_WHEN_KILLED) {
                self.failures.extend(names.split(", ").map(str::to_owned));
            } else if let Some((name, how)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ")) {
                match how {
                    "ok" => self.passed += 1,
                    "FAILED" => self.failures.push(name.to_owned()),
                    _ => {}
                }
            }
        }
    }
}

/// Returns the table, in Markdown.
fn table(rows: &[(&str, Tally)]) -> String {
    let mut text = "| adapter | passed | failed | which |\n|---|---|---|---|\n".to_owned();
    for (profile, Tally { passed, failures }) in rows {
        text += &format!("| {profile} | {passed} | {} | {} |\n", failures.len(), failures.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_test_programs_print_is_counted() {
        let mut tally = Tally::default();
        tally.read(
            "running 3 tests\ntest a::b ... ok\ntest c ... FAILED\ntest d ... ignored\ntest e - should panic ... ok\n\
             test result: FAILED. 2 passed; 1 failed; 1 ignored\n",
        );
        assert_eq!(tally, Tally { passed: 2, failures: vec!["c".to_owned()] });
        let text = table(&[("mana", tally)]);
        assert!(text.ends_with("\n| mana | 2 | 1 | c |\n"), "{text}");
    }

    #[test]
    fn of_a_test_that_is_repeated_the_second_time_counts() {
        let first = "test c ... FAILED\ntest result: FAILED. 0 passed; 1 failed\n\
                     Running another program\ntest c ... FAILED\ntest d ... FAILED\n";
        for (how, failures) in [("ok", ["c", "d"].as_slice()), ("FAILED", &["c", "d", "c"])] {
            let mut tally = Tally::default();
            tally.read(&format!("{first}\n{}\ntest c ... {how}\n", suite::repeats("railweave-plugin, verbs", "c")));
            assert_eq!(
                (tally.passed, tally.failures),
                (usize::from(how == "ok"), failures.iter().map(ToString::to_string).collect())
            );
        }
    }

    #[test]
    fn what_ran_in_a_program_that_was_killed_has_failed() {
        let mut tally = Tally::default();
        tally.read(&format!("test a ... ok\nrailweave-plugin, verbs: killed\n{}b, c\n", suite::RAN_WHEN_KILLED));
        assert_eq!(tally, Tally { passed: 1, failures: vec!["b".to_owned(), "c".to_owned()] });
    }

    #[test]
    fn the_adapters_of_the_test_run_are_there_and_a_wrong_name_is_told_which_are() {
        let known = profiles().unwrap();
        assert!(SHORT.iter().all(|name| known.contains(*name)) && !known.contains("plain"), "{known:?}");
        let error = run(&Arguments { names: vec!["connectx-3".to_owned()], install: false }).unwrap_err();
        assert!(error.contains("no profile \"connectx-3\"") && error.contains("bnxt_re, connectx-5"), "{error}");
    }
}
