//! The parent's errors about ranks that end badly. The ranks are small shell programs, not this library.

use railweave_bench::ranks::{Ranks, RanksError};
use std::process::Command;
use std::time::{Duration, Instant};

/// The bytes of the first frame with an empty job: head, rank and ranks.
const START_BYTES: usize = 5 + 8;

/// Runs one shell program per rank.
fn run(programs: &[String], silence: Duration) -> Result<(), RanksError> {
    let ranks = Ranks::spawn(programs.len(), b"", |rank| {
        let mut command = Command::new("sh");
        command.args(["-c", &programs[rank]]);
        command
    });
    ranks.unwrap().run(silence, |rank, _| panic!("rank {rank} reports nothing"))
}

/// Returns the program of a rank that ends with `status` once it is told to stop, which is at the first byte after the
/// first frame.
fn until_told(status: i32) -> String {
    format!("head -c {} > /dev/null; exit {status}", START_BYTES + 1)
}

#[test]
fn ranks_that_end_well_are_no_error() {
    let quiet = format!("head -c {START_BYTES} > /dev/null");
    run(&[quiet.clone(), quiet], Duration::from_secs(600)).unwrap();
}

#[test]
fn a_killed_rank_is_named_with_its_signal_and_the_others_are_told_to_stop() {
    let begin = Instant::now();
    let programs = [until_told(4), "kill -KILL $$".to_owned(), until_told(0)];
    let error = run(&programs, Duration::from_secs(600)).unwrap_err().to_string();
    assert!(error.starts_with("rank 1 was killed by signal 9 (SIGKILL)"), "the cause comes first: {error}");
    assert!(error.contains("rank 0 ended with status 4") && !error.contains("rank 2"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(300), "nothing waits for a dead rank");
}

#[test]
fn a_rank_that_ends_with_an_error_is_named() {
    let error = run(&["exit 3".to_owned(), until_told(0)], Duration::from_secs(600)).unwrap_err();
    assert_eq!(error.to_string(), "rank 0 ended with status 3");
}

#[test]
fn silence_ends_all_and_says_so() {
    let error = run(&[until_told(0), until_told(0)], Duration::from_millis(100)).unwrap_err();
    assert!(matches!(error, RanksError::Silent { .. }), "{error}");
    assert!(error.to_string().contains("the plugin may hang inside a call"), "{error}");
}

#[test]
fn a_program_that_does_not_exist_is_an_error_at_once() {
    let error = Ranks::spawn(2, b"", |_| Command::new("/nowhere/railweave")).unwrap_err();
    assert!(error.to_string().starts_with("the process of rank 0 could not be started"), "{error}");
}
