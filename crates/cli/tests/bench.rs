//! `railweave bench` with the built plugin: its results with few connections, processes and bytes.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};

/// Returns the path of the built plugin: `RAILWEAVE_TEST_LIB` if it is set, otherwise the library that cargo builds
/// next to this program's tests.
fn library() -> PathBuf {
    std::env::var_os("RAILWEAVE_TEST_LIB")
        .map_or_else(|| std::env::current_exe().unwrap().with_file_name("libnccl_net_railweave.so"), PathBuf::from)
}

/// Returns a benchmark of the built plugin, without arguments.
fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_railweave"));
    command.arg("bench").arg("--lib").arg(library()).env_remove("RAILWEAVE_RAILS").env_remove("RAILWEAVE_FABRIC");
    command
}

fn bench(arguments: &[&str]) -> Output {
    command().args(arguments).output().unwrap()
}

/// Returns the results of a run that must succeed.
fn results(arguments: &[&str]) -> Value {
    results_of(command().args(arguments))
}

fn results_of(command: &mut Command) -> Value {
    let output = command.arg("--json").output().unwrap();
    succeeded(&output);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Panics with a program's output unless it succeeded.
fn succeeded(output: &Output) {
    if !output.status.success() {
        railweave_patience::fail(output.status, &String::from_utf8_lossy(&output.stderr));
    }
}

/// Returns the one line on standard error of a run that must fail.
fn error(arguments: &[&str]) -> String {
    let output = bench(arguments);
    assert!(!output.status.success() && output.stdout.is_empty());
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[test]
fn many_connections_come_up_and_carry_a_message_each() {
    let results = results(&["--connections", "3", "--idle", "1", "--rails", "127.0.0.1"]);
    assert_eq!((&results["plugin"], &results["connections"]), (&"railweave".into(), &3.into()));
    assert!(results["device"].as_str().unwrap().contains("127.0.0.1"), "{results}");
    assert!(results["set_up_s"].as_f64().unwrap() > 0.0 && results["messages_s"].as_f64().unwrap() > 0.0, "{results}");
    let sides = results["sides"].as_array().unwrap();
    assert_eq!(sides.len(), 2);
    for side in sides {
        // A lane is one socket.
        assert!(side["descriptors_per_connection"].as_f64().unwrap() >= 1.0, "{side}");
        assert!(side["memory_after"].as_u64() > side["memory_before"].as_u64(), "{side}");
        assert!(!side["idle"].as_array().unwrap().is_empty(), "{side}");
    }
}

#[test]
fn latency_and_bandwidth_are_of_the_requested_sizes() {
    let results = results(&["--seconds", "0.01", "--sizes", "0,64KiB", "--connects", "2", "--in-flight", "4"]);
    let sizes: Vec<_> =
        results["bandwidth"].as_array().unwrap().iter().map(|of_size| of_size["bytes"].clone()).collect();
    assert_eq!(sizes, [0, 65536]);
    assert!(results["latency"]["median_us"].as_f64().unwrap() > 0.0, "{results}");
    assert_eq!(results["connect"]["count"], 2);
}

#[test]
fn the_rails_of_each_rank_are_shown_over_time_and_for_each_size() {
    let short = ["--seconds", "0.1", "--sizes", "64KiB,1MiB", "--connects", "1", "--weights", "3,1", "--every", "10ms"];
    let results = results(&[&short[..], &["--rails", "127.0.0.1,127.0.0.2"]].concat());
    let share = |rails: &Value, rail: usize| rails[rail]["share"].as_f64().unwrap();
    for of_size in results["bandwidth"].as_array().unwrap() {
        let rails = &of_size["rails"];
        assert_eq!((&rails[0]["local"], &rails[1]["remote"]), (&"127.0.0.1".into(), &"127.0.0.2".into()));
        assert!((share(rails, 0) - 0.75).abs() < 0.01 && (share(rails, 1) - 0.25).abs() < 0.01, "{of_size}");
    }
    let periods = results["over_time"].as_array().unwrap();
    assert!(!periods.is_empty());
    for period in periods {
        assert_eq!(period["rank"], 0, "rank 1 only sends short answers: {period}");
        assert!((share(&period["rails"], 0) + share(&period["rails"], 1) - 1.0).abs() < 1e-9, "{period}");
        let rate = |rail: usize| period["rails"][rail]["mbit_per_second"].as_f64().unwrap();
        assert!(rate(0) + rate(1) > 0.0, "{period}");
    }
    let seconds: Vec<f64> = periods.iter().map(|period| period["seconds"].as_f64().unwrap()).collect();
    assert!(seconds.is_sorted() && seconds[0] > 0.0, "{seconds:?}");
    let text = bench(&[&short[..], &["--rails", "127.0.0.1,127.0.0.2"]].concat());
    succeeded(&text);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.lines().any(|line| line.contains(" s  rank 0   127.0.0.1 - 127.0.0.1 ")), "{text}");
}

#[test]
fn several_pairs_send_over_the_same_rails_at_once() {
    let results = results(&["--pairs", "3", "--seconds", "0.2", "--sizes", "8,64KiB", "--rails", "127.0.0.1"]);
    assert_eq!((&results["pairs"], &results["over_time"]), (&3.into(), &Value::Array(Vec::new())));
    let sizes = results["bandwidth"].as_array().unwrap();
    assert_eq!(sizes.len(), 2);
    for of_size in sizes {
        let pairs = of_size["pair_mbit_per_second"].as_array().unwrap().iter().map(|rate| rate.as_f64().unwrap());
        let sum: f64 = pairs.clone().sum();
        assert_eq!(pairs.count(), 3);
        let all = of_size["gigabits_per_second"].as_f64().unwrap();
        assert!(sum > 0.0 && (all * 1000.0 - sum).abs() < 1e-6 * sum, "{of_size}");
        assert_eq!(of_size["rails"][0]["share"], 1.0);
    }
    assert!(error(&["--pairs", "2", "--sizes", "0"]).contains("allowed: 1 byte and more"));
    let mixed = ["--pairs", "1", "--small", "3", "--seconds", "0.2", "--sizes", "64KiB", "--rails", "127.0.0.1"];
    let results = self::results(&mixed);
    assert_eq!(results["small"], 3);
    assert!(results["bandwidth"][0]["gigabits_per_second"].as_f64().unwrap() > 0.0, "{results}");
    let text = String::from_utf8(bench(&mixed).stdout).unwrap();
    assert!(text.contains(" 3 x 8 B, 64 KiB "), "{text}");
    // Two messages in the time that is measured would be 100 Gb/s.
    for small in ["0", "9"] {
        let short = ["--pairs", "1", "--small", small, "--seconds", "0.01", "--sizes", "64MiB"];
        let text = String::from_utf8(bench(&[&short[..], &["--rails", "127.0.0.1"]].concat()).stderr).unwrap();
        assert!(text.contains("1 of 1 receivers got fewer than two messages of 64 MiB"), "{text}");
        assert!(text.contains("try a longer --seconds"), "{text}");
    }
}

#[test]
fn many_processes_with_connections_to_each_other_come_up_and_leave_nothing() {
    let wanted = ["--processes", "4", "--connections", "5", "--rails", "127.0.0.1,127.0.0.2", "--stall", "60"];
    let results = results(&wanted);
    assert_eq!((&results["processes"], &results["connections"]), (&4.into(), &5.into()));
    let each = |what: &str| {
        let spread = &results["each"][what];
        (spread["least"].as_f64().unwrap(), spread["most"].as_f64().unwrap())
    };
    // Five connections each way, with a lane on each rail. With each of the three others there are two sessions, one
    // for each direction (docs/wire.md); fewer are allowed here.
    assert_eq!(each("lanes"), (20.0, 20.0), "{results}");
    let (least, most) = each("sessions");
    assert!(least >= 3.0 && most <= 6.0, "{results}");
    assert_eq!(each("threads"), (1.0, 1.0), "the control thread: {results}");
    assert_eq!(each("left_over"), (0.0, 0.0), "{results}");
    for time in ["set_up_s", "messages_s", "teardown_s"] {
        assert!(results[time].as_f64().unwrap() > 0.0, "{results}");
    }
    let text = String::from_utf8(bench(&["--processes", "2", "--connections", "1"]).stdout).unwrap();
    assert!(text.contains("2 processes with 1 connections each as sender") && text.contains("sessions"), "{text}");
    for wrong in [&["--processes", "2"][..], &["--processes", "1", "--connections", "2"]] {
        let refused = bench(wrong);
        let text = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && text.contains("--connections") || text.contains("2..=1000"), "{text}");
    }
}

#[test]
fn every_size_arrives_unchanged() {
    let results = results(&["--sweep", "64KiB", "--seed", "7", "--rails", "127.0.0.1,127.0.0.2"]);
    assert_eq!(
        (&results["max_bytes"], &results["seed"], &results["mismatches"]),
        (&65536.into(), &7.into(), &0.into())
    );
    let phases = results["phases"].as_array().unwrap();
    assert_eq!(phases.len(), 4, "{results}");
    for number in ["messages", "bytes"] {
        let of_phases = phases.iter().map(|phase| phase[number].as_u64().unwrap());
        assert!(of_phases.clone().all(|count| count >= 100), "{results}");
        assert_eq!(results[number], of_phases.sum::<u64>());
    }
    let size = bench(&["--sweep", "1GiB"]);
    let size = String::from_utf8(size.stderr).unwrap();
    assert!(size.contains("a sweep up to 1 GiB is not possible; allowed: 1 KiB to 256 MiB"), "{size}");
    for other in ["--raw", "--connections=2", "--sizes=8", "--in-flight=2"] {
        let refused = bench(&["--sweep=1KiB", other]);
        let text = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && text.contains("cannot be used with"), "{text}");
    }
}

#[test]
fn devices_that_do_not_exist_and_cannot_be_fused_are_named() {
    let index = error(&["--device", "7"]);
    assert!(index.contains("there is no device 7; allowed: 0 to 0"), "{index}");
    let name = error(&["--fuse", "mlx5_0,mlx5_1"]);
    assert!(name.contains("--fuse names the device \"mlx5_0\", which does not exist; allowed: "), "{name}");
}

#[test]
fn ports_are_fused_if_they_are_devices_of_their_own() {
    let short = ["--seconds", "0.01", "--sizes", "64KiB", "--connects", "1", "--rails", "127.0.0.1,127.0.0.2"];
    let run = |mode: &str| {
        let mut command = command();
        command.env("RAILWEAVE_MODE", mode).args(short).args(["--fuse", "all"]);
        command
    };
    let fused = results_of(&mut run("ports"));
    assert!(fused.to_string().contains("lo@127.0.0.1+lo@127.0.0.2"), "{fused}");
    let refused = run("fused").output().unwrap();
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && text.contains("Railweave has fused the ports itself"), "{text}");
}
