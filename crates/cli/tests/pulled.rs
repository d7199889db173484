//! The demonstration in which a rail is pulled: it goes on without the rail, which carries data again later.

use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Runs the demonstration with the built plugin: `RAILWEAVE_TEST_LIB` if it is set, otherwise the library that cargo
/// builds next to this program's tests.
fn demo(arguments: &[&str], recovery: &str) -> Output {
    let library = std::env::var_os("RAILWEAVE_TEST_LIB")
        .map_or_else(|| std::env::current_exe().unwrap().with_file_name("libnccl_net_railweave.so"), PathBuf::from);
    let mut command = Command::new(env!("CARGO_BIN_EXE_railweave"));
    command.args(["demo", "--json", "--bytes", "16MiB", "--bucket", "4MiB"]).args(arguments);
    command.arg("--lib").arg(library).env("RAILWEAVE_RECOVERY", recovery).output().unwrap()
}

/// Returns the course of the rail that was pulled, and the lines for people.
fn course(output: Output) -> (Value, String) {
    let text = String::from_utf8(output.stderr).unwrap();
    if !output.status.success() {
        railweave_patience::fail(output.status, &text);
    }
    let mut results: Value = serde_json::from_slice(&output.stdout).unwrap();
    (results["pulled"].take(), text)
}

/// Checks the bytes of each rail in the stages of a pull.
fn assert_goes_on(course: &Value, text: &str) {
    let (stages, pulled) = (course["stages"].as_array().unwrap(), course["pulled"].as_u64().unwrap() as usize);
    let [before, meanwhile, _, afterwards] = &stages[..] else { panic!("four stages: {course}") };
    let received = |stage: &Value, rail: usize| stage["received"][rail].as_u64().unwrap();
    assert!([0, 1].iter().all(|rail| received(before, *rail) > 0), "{course}: {text}");
    let (of_pulled, of_other) = (received(meanwhile, pulled), received(meanwhile, 1 - pulled));
    // The bytes from before the pull may be counted a moment later.
    assert!(of_other > 0 && of_pulled * 10 < of_other, "{course}: {text}");
    assert!(received(afterwards, pulled) > 0, "{course}: {text}");
    for line in ["the rail is pulled", "the rail is given back", "it carries data again"] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn the_demo_goes_on_without_a_rail_whose_sockets_are_closed_and_uses_it_again() {
    let (course, text) = course(demo(&["--pull=sockets", "--away", "1s"], "1"));
    assert_eq!(course["rails"][course["pulled"].as_u64().unwrap() as usize][0], "127.0.0.2");
    assert_goes_on(&course, &text);
}

#[test]
fn without_recovery_the_demo_fails_when_a_rail_is_pulled() {
    let output = demo(&["--pull=sockets", "--away", "1s"], "0");
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{text}");
    assert!(text.contains("the rail is pulled") && text.contains("the demo failed: rank"), "{text}");
}

/// This needs root and iproute2; with `CI=true` it must run.
#[test]
fn the_demo_goes_on_without_a_rail_whose_link_is_down_and_uses_it_again() {
    // The folder belongs to this process's effective user (proc_pid(5)).
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|folder| folder.uid() == 0);
    let version = Command::new("ip").arg("-V").stdout(Stdio::null()).status();
    if !is_root || !version.is_ok_and(|status| status.success()) {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "with CI=true, links must be pulled: as root");
        eprintln!("skipped: network namespaces need root and the package iproute2");
        return;
    }
    // Long enough that a rail's silence is noticed meanwhile.
    let (course, text) = course(demo(&["--pull", "--away", "3s"], "1"));
    assert_eq!(
        course["rails"][course["pulled"].as_u64().unwrap() as usize],
        serde_json::json!(["10.231.1.1", "10.231.1.2"])
    );
    assert_goes_on(&course, &text);
}

#[test]
fn a_pull_that_does_not_fit_is_refused() {
    for (arguments, words, code) in [
        (&["--pull", "--shape", "80,20", "--seconds", "5"][..], "cannot be used with", 2),
        (&["--pull", "--shape", "80"], "needs two speeds or more", 1),
        (&["--pull=sockets", "--shape", "80,20"], "allowed: --pull, which takes a link down", 1),
        (&["--pull", "--rails", "lo"], "cannot be used with", 2),
        (&["--pull=hammer"], "[possible values: link, sockets]", 2),
        (&["--pull", "--away", "1ms"], "allowed: 100ms to 60s", 2),
        (&["--away", "1s"], "--pull", 2),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_railweave")).arg("demo").args(arguments).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(words), "{text}");
    }
}
