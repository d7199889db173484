//! Ranks on rails that are slowed on purpose, between network namespaces. They need root and iproute2.

use railweave_patience::until;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Returns true if this machine can slow rails. Otherwise says why not; with `CI=true` that is a failure.
fn can_slow() -> bool {
    let runs = |program: &str| {
        let version = Command::new(program).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
        version.is_ok_and(|status| status.success())
    };
    // The folder belongs to this process's effective user (proc_pid(5)).
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|folder| folder.uid() == 0);
    let can = is_root && runs("ip") && runs("tc");
    if !can {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "with CI=true, slowed rails must be tested: as root");
        eprintln!("skipped: slowed rails need root and the package iproute2");
    }
    can
}

/// Returns a command with the built plugin: `RAILWEAVE_TEST_LIB` if it is set, otherwise the library that cargo builds
/// next to this program's tests.
fn railweave(arguments: &[&str]) -> Command {
    let library = std::env::var_os("RAILWEAVE_TEST_LIB")
        .map_or_else(|| std::env::current_exe().unwrap().with_file_name("libnccl_net_railweave.so"), PathBuf::from);
    let mut command = Command::new(env!("CARGO_BIN_EXE_railweave"));
    command.args(arguments).arg("--lib").arg(library).env_remove("RAILWEAVE_RAILS").env_remove("RAILWEAVE_FABRIC");
    command
}

/// Returns the JSON and the lines for people of a run that must succeed.
fn results(arguments: &[&str]) -> (Value, String) {
    let output = railweave(arguments).arg("--json").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    if !output.status.success() {
        railweave_patience::fail(output.status, &text);
    }
    (serde_json::from_slice(&output.stdout).unwrap(), text)
}

/// Returns the names of the namespaces that the process `owner` made.
fn namespaces(owner: u32) -> Vec<String> {
    let output = Command::new("ip").args(["netns", "list"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().filter_map(|line| line.split_whitespace().next());
    names.filter(|name| name.starts_with(&format!("railweave-{owner}-"))).map(str::to_owned).collect()
}

fn ip(words: &str) {
    assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success(), "ip {words}");
}

/// Makes a namespace as a process would that ended without removing it, and returns that process's id.
fn left_behind() -> u32 {
    let mut owner = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    // The owner lives until the namespace is whole: demos of other tests remove what belongs to the dead.
    ip(&format!("netns add railweave-{}-0", owner.id()));
    // Waiting closes its standard input, which ends it.
    owner.wait().unwrap();
    owner.id()
}

#[test]
fn the_demo_shows_the_split_over_rails_whose_speeds_change() {
    if !can_slow() {
        return;
    }
    let left_behind = left_behind();
    let wanted = ["demo", "--shape", "80,20", "--then", "1s:20,20", "--seconds", "2", "--every", "100ms"];
    let (results, text) = results(&wanted);
    assert_eq!(namespaces(left_behind), Vec::<String>::new(), "{text}");
    let number = |value: &Value| value.as_f64().unwrap();
    let stages = results["stages"].as_array().unwrap();
    let shapes: Vec<_> = stages.iter().map(|stage| (stage["shape"].to_string(), number(&stage["end_s"]))).collect();
    assert_eq!(shapes, [("[80,20]".to_owned(), 1.0), ("[20,20]".to_owned(), 2.0)]);
    let (messages, bytes) = (number(&results["messages"]), number(&results["message_bytes"]));
    // No more can come in a second than all rails together carry, and the rest of the messages in flight before it.
    let in_flight_mbit = number(&results["in_flight"]) * bytes * 8.0 / 1e6;
    for stage in stages {
        let (reached, possible) = (number(&stage["mbit_per_second"]), number(&stage["mbit_possible"]));
        assert!(reached > 0.0 && reached < possible * 1.05 + in_flight_mbit, "{stage}");
    }
    let rails = results["rails"].as_array().unwrap();
    let sent: f64 = rails.iter().map(|rail| number(&rail["bytes"])).sum();
    assert!(messages > 0.0 && (sent - messages * bytes).abs() < 0.5, "{sent} bytes of {messages} messages");
    let names: Vec<_> = rails.iter().map(|rail| (rail["local"].as_str(), rail["remote"].as_str())).collect();
    let name = |rail: u8| (format!("10.231.{rail}.1"), format!("10.231.{rail}.2"));
    assert_eq!(names, [0, 1].map(name).each_ref().map(|(local, remote)| (Some(&**local), Some(&**remote))));
    for period in results["over_time"].as_array().unwrap() {
        let shares: f64 = period["rails"].as_array().unwrap().iter().map(|rail| number(&rail["share"])).sum();
        assert!((shares - 1.0).abs() < 1e-9, "{period}");
    }
    assert!(text.contains("the rails can carry 80 + 20 = 100 Mbit/s"), "{text}");
    assert!(text.contains("the rails can carry 20 + 20 = 40 Mbit/s"), "{text}");
    assert!(text.lines().any(|line| line.contains("rank 0   10.231.0.1 - 10.231.0.2 ")), "{text}");
}

/// The queue of a cable empties after the change too.
#[test]
fn traffic_goes_on_when_a_fast_rail_becomes_slow() {
    if !can_slow() {
        return;
    }
    let (results, text) = results(&["demo", "--shape", "800,200", "--then", "1s:200,200", "--seconds", "3"]);
    let reached = results["stages"][1]["mbit_per_second"].as_f64().unwrap();
    assert!(reached > 50.0, "{reached} of 400 Mbit/s: {text}");
}

#[test]
fn several_pairs_share_slowed_rails() {
    if !can_slow() {
        return;
    }
    let wanted = ["bench", "--shape", "100,100", "--pairs", "3", "--sizes", "64KiB", "--seconds", "1.5"];
    let (results, text) = results(&[&wanted[..], &["--then", "600s:50,50"]].concat());
    assert!(text.contains("the change of --then 600s was not made: the traffic had ended"), "{text}");
    let rate = results["bandwidth"][0]["gigabits_per_second"].as_f64().unwrap();
    assert!(rate > 0.0 && rate < 0.26, "three pairs over 200 Mbit/s: {results}");
    assert_eq!(results["shape"].to_string(), "[100,100]");
}

/// A demo that has begun to send.
fn running() -> Child {
    let mut command = railweave(&["demo", "--shape", "50,50", "--seconds", "60"]);
    let mut child = command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("the rails can carry")), "the demo begins");
    assert_eq!(namespaces(child.id()).len(), 2);
    child
}

#[test]
fn the_namespaces_go_away_with_a_demo_that_is_interrupted_or_killed() {
    if !can_slow() {
        return;
    }
    // Ctrl-C reaches the whole group, SIGKILL only the process.
    for (signal, whole_group) in [("INT", true), ("KILL", false)] {
        let mut child = running();
        let id = child.id();
        let target = if whole_group { format!("-{id}") } else { id.to_string() };
        assert!(Command::new("kill").args(["-s", signal, "--", &target]).status().unwrap().success());
        assert!(!child.wait().unwrap().success());
        until("the namespaces to go away", || namespaces(id).is_empty().then_some(()));
    }
}

#[test]
fn rails_that_cannot_be_slowed_are_one_sentence() {
    let text = |command: &mut Command| {
        let output = command.output().ok()?;
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        Some(text)
    };
    // Another user may not be able to start the program where it lies; then there is nothing to read.
    let user = text(railweave(&["demo", "--shape", "80,20"]).uid(65_534).gid(65_534));
    assert!(user.is_none_or(|text| text.contains("slowed rails need root") && text.contains("sudo")));
    if can_slow() {
        let text = text(railweave(&["bench", "--shape", "80,20"]).env("PATH", "/nowhere")).unwrap();
        assert!(text.contains("the program ip, which is not on the PATH") && text.contains("iproute2"), "{text}");
    }
}

#[test]
fn the_demo_moves_the_traffic_to_the_other_rail_and_back() {
    if !can_slow() {
        return;
    }
    let run_dir = std::env::temp_dir().join(format!("railweave-steered-{}", std::process::id()));
    let wanted = ["demo", "--shape", "80,80", "--seconds", "6", "--every", "100ms", "--steer", "--json"];
    let output = railweave(&wanted).env("RAILWEAVE_RUN_DIR", &run_dir).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    let is_left = run_dir.join("policy").exists();
    std::fs::remove_dir_all(&run_dir).unwrap();
    if !output.status.success() {
        railweave_patience::fail(output.status, &text);
    }
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let steered = &results["steered"];
    let share = |index: usize| steered["shares"][index].as_f64().unwrap();
    assert!(share(0) > 0.2 && share(1) < 0.1 && share(2) > 0.2, "{steered}: {text}");
    assert!(steered["from_s"].as_f64() < steered["to_s"].as_f64(), "{steered}");
    assert!(!is_left, "the order is taken back");
    let mut none = railweave(&wanted);
    let error = String::from_utf8(none.env("RAILWEAVE_RUN_DIR", "none").output().unwrap().stderr).unwrap();
    assert!(error.contains("--steer gives orders, which jobs follow only with a run dir"), "{error}");
}
