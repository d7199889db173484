//! `railweave bench` with the built plugin: its results, for small numbers.

use object::{Object, ObjectSymbol, SymbolKind};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

/// Returns the built plugin: the one that the whole test run names, or the one that cargo builds next to this program's
/// tests.
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
fn one_process_sends_to_itself_over_the_given_rails() {
    for (in_flight, size, bytes) in [("1", "0", 0), ("8", "8", 8), ("3", "300001", 300_001)] {
        let wanted = ["--in-process", "--messages", "50", "--rails", "127.0.0.3"];
        let results = results(&[&wanted[..], &["--in-flight", in_flight, "--bytes", size]].concat());
        assert_eq!((&results["messages"], &results["message_bytes"]), (&50.into(), &bytes.into()));
        assert_eq!(results["in_flight"].to_string(), in_flight);
        assert!(results["device"].as_str().unwrap().contains("127.0.0.3"), "{results}");
        assert!(results["devices"].is_null(), "nothing counts the work over TCP: {results}");
    }
}

/// The fake libibverbs, and its description of two devices of equal speed.
static FAKE: LazyLock<(PathBuf, PathBuf)> = LazyLock::new(|| {
    let machine = Path::new(env!("CARGO_TARGET_TMPDIR")).join("two-devices");
    std::fs::write(
        &machine,
        "[[device]]\nname = 'sim0'\n[[device.port]]\n\
        [[device]]\nname = 'sim1'\n[[device.port]]\n",
    )
    .unwrap();
    (railweave_fake_ibverbs::build(), machine)
});

/// Returns a benchmark in one process over those two, fused.
fn over_the_fake() -> Command {
    let (library, machine) = &*FAKE;
    let mut command = command();
    command.args(["--in-process", "--messages", "512"]);
    command.env("NCCL_IBVERBS_LIB", library).env("RAILWEAVE_TEST_MACHINE", machine);
    command.envs([("RAILWEAVE_FABRIC", "verbs"), ("RAILWEAVE_MODE", "fused"), ("RAILWEAVE_OOB_IF", "lo")]);
    command
}

#[test]
fn a_message_costs_one_work_request_on_each_active_rail_and_one_cts_and_nothing_on_an_idle_rail() {
    // The weights of the rails, the size of a message, and for each message all work requests and the writes with an
    // immediate among them, which are the sender's. The rest is the receiver's CTS: rails of equal weight carry it in
    // turns.
    let cases = [
        ("4,1", "8", [2.0, 0.0], [1.0, 0.0]),
        ("4,1", "512KiB", [2.0, 1.0], [1.0, 1.0]),
        ("1,1", "8", [1.5, 0.5], [1.0, 0.0]),
        ("1,1", "512KiB", [1.5, 1.5], [1.0, 1.0]),
    ];
    for (weights, bytes, sends, with_immediate) in cases {
        for in_flight in ["1", "8"] {
            let wanted = ["--weights", weights, "--bytes", bytes, "--in-flight", in_flight];
            let results = results_of(over_the_fake().args(wanted));
            let devices = results["devices"].as_array().unwrap();
            let each = |what: &str| [0, 1].map(|rail| devices[rail][what].as_f64().unwrap());
            assert_eq!((&devices[0]["device"], &devices[1]["device"]), (&"sim0".into(), &"sim1".into()));
            assert_eq!((each("sends"), each("sends_with_immediate")), (sends, with_immediate), "{results}");
            // One for each of the sender's work requests at each end, and few for CTS.
            let cts = [0, 1].map(|rail| each("completions")[rail] - 2.0 * with_immediate[rail]);
            assert!([0, 1].into_iter().all(|rail| (0.0..=sends[rail] / 16.0).contains(&cts[rail])), "{results}");
            // On an idle rail they are posted only once, to have them ready.
            let receives = [0, 1].map(|rail| each("receives")[rail] - with_immediate[rail]);
            assert!(receives.into_iter().all(|more| more.abs() < 0.5), "{results}");
        }
    }
}

#[test]
fn many_connections_of_one_process_are_counted_and_leave_nothing() {
    let (library, machine) = &*FAKE;
    let mut command = command();
    command.args(["--in-process", "--connections", "5"]).env("NCCL_IBVERBS_LIB", library);
    command.env("RAILWEAVE_TEST_MACHINE", machine).env("RAILWEAVE_FABRIC", "verbs").env("RAILWEAVE_OOB_IF", "lo");
    let results = results_of(&mut command);
    assert_eq!((&results["connections"], &results["message_bytes"]), (&5.into(), &4096.into()));
    assert!(["set_up_s", "messages_s", "teardown_s"].iter().all(|time| results[time].as_f64().unwrap() > 0.0));
    let count = |what: &str| results["objects"][what].as_u64().unwrap();
    assert!(count("queue_pairs") >= 10 && count("completion_queues") >= 10, "two ends each: {results}");
    assert!(count("region_bytes") > 0 && count("work_places") >= count("queue_pairs"), "{results}");
    assert_eq!(
        (&results["left_over"]["queue_pairs"], &results["left_over"]["completion_queues"]),
        (&0.into(), &0.into())
    );
    let over_tcp = self::results(&["--in-process", "--connections", "3", "--rails", "127.0.0.3"]);
    assert!(over_tcp["objects"].is_null(), "nothing counts the work over TCP: {over_tcp}");
}

#[test]
fn the_work_of_each_device_is_also_shown_in_a_table() {
    let output = over_the_fake().args(["--weights", "4,1"]).output().unwrap();
    succeeded(&output);
    let text = String::from_utf8(output.stdout).unwrap();
    let row = |device: &str| {
        let found = text.lines().find(|line| line.starts_with(&format!("│ {device} ")));
        let cells = found.unwrap_or_else(|| panic!("{text}")).split(['┆', '│']).map(str::trim);
        cells.filter(|cell| !cell.is_empty()).take(3).collect::<Vec<_>>()
    };
    assert_eq!([row("sim0"), row("sim1")], [["sim0", "2.00", "1.00"], ["sim1", "0.00", "0.00"]]);
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
    // Five connections each way, with a lane on each rail; there is one session to each of the three others.
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
    for other in ["--raw", "--in-process", "--connections=2", "--sizes=8", "--in-flight=2"] {
        let refused = bench(&["--sweep=1KiB", other]);
        let text = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && text.contains("cannot be used with"), "{text}");
    }
}

#[test]
fn the_loop_over_the_messages_keeps_its_name_in_the_program() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_railweave")).unwrap();
    let program = object::File::parse(&program[..]).unwrap();
    let mut symbols = program.symbols().filter(|symbol| symbol.name() == Ok("railweave_message_loop"));
    assert!(symbols.any(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text), "callgrind needs it");
}

#[test]
fn devices_that_do_not_exist_and_cannot_be_fused_are_named() {
    let index = error(&["--in-process", "--device", "7"]);
    assert!(index.contains("there is no device 7; allowed: 0 to 0"), "{index}");
    let name = error(&["--in-process", "--fuse", "mlx5_0,mlx5_1"]);
    assert!(name.contains("--fuse names the device \"mlx5_0\", which does not exist; allowed: "), "{name}");
    let rails = error(&["--in-process", "--fuse", "all"]);
    assert!(rails.contains("cannot fuse devices") && rails.contains("no makeVDevice"), "{rails}");
}
