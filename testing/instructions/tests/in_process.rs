//! The process that is measured, with the built plugin over the fake libibverbs: its results, for small numbers.

use object::{Object, ObjectSymbol, SymbolKind};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// The program.
const PROGRAM: &str = env!("CARGO_BIN_EXE_railweave-instructions");

/// Returns the built plugin: the one that the whole test run names, or the one that cargo builds next to this program's
/// tests.
fn library() -> PathBuf {
    std::env::var_os("RAILWEAVE_TEST_LIB")
        .map_or_else(|| std::env::current_exe().unwrap().with_file_name("libnccl_net_railweave.so"), PathBuf::from)
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

/// Returns the results of a task that must succeed, over those two devices, fused, with these weights.
fn results(weights: &str, task: &[&str]) -> Value {
    let (library_of_verbs, machine) = &*FAKE;
    let mut command = Command::new(PROGRAM);
    command.arg("in-process").arg("--plugin").arg(library()).args(task);
    command.env("NCCL_IBVERBS_LIB", library_of_verbs).env("RAILWEAVE_TEST_MACHINE", machine);
    command.envs([("RAILWEAVE_FABRIC", "verbs"), ("RAILWEAVE_MODE", "fused"), ("RAILWEAVE_OOB_IF", "lo")]);
    let output = command.env("RAILWEAVE_WEIGHTS", weights).env_remove("RAILWEAVE_RAILS").output().unwrap();
    if !output.status.success() {
        railweave_patience::fail(output.status, &String::from_utf8_lossy(&output.stderr));
    }
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_message_costs_one_work_request_on_each_active_rail_and_one_cts_and_nothing_on_an_idle_rail() {
    // For each case the weights of the rails, the size of a message, and by rail the work requests of one message and
    // the writes with an immediate among them. The sender posts the latter; all others are the receiver's CTS, which
    // rails of equal weight carry in turns.
    let cases = [
        ("4,1", "8", [2.0, 0.0], [1.0, 0.0]),
        ("4,1", "524288", [2.0, 1.0], [1.0, 1.0]),
        ("1,1", "8", [1.5, 0.5], [1.0, 0.0]),
        ("1,1", "524288", [1.5, 1.5], [1.0, 1.0]),
    ];
    for (weights, bytes, sends, with_immediate) in cases {
        for in_flight in ["1", "8"] {
            let task = ["messages", "--messages", "2048", "--bytes", bytes, "--in-flight", in_flight];
            let results = results(weights, &task);
            let of = |device: &str, what: &str| results["devices"][device][what].as_u64().unwrap() as f64 / 2048.0;
            let each = |what: &str| ["sim0", "sim1"].map(|device| of(device, what));
            let [immediates, others] = [each("writes_with_immediate"), each("writes")];
            assert_eq!(
                ([0, 1].map(|rail| immediates[rail] + others[rail]), immediates),
                (sends, with_immediate),
                "{results}"
            );
            // At each end there is one completion for each of the sender's work requests, and few for CTS.
            let cts = [0, 1].map(|rail| each("completions")[rail] - 2.0 * with_immediate[rail]);
            assert!([0, 1].into_iter().all(|rail| (0.0..=sends[rail] / 16.0).contains(&cts[rail])), "{results}");
            // On an idle rail receives are posted only once, so that they are ready: 512.
            let receives = [0, 1].map(|rail| each("receives")[rail] - with_immediate[rail]);
            assert!(receives.into_iter().all(|more| more.abs() < 0.5), "{results}");
        }
    }
}

#[test]
fn many_connections_are_counted_and_closed() {
    let results = results("1,1", &["connections", "--connections", "5"]);
    assert!(["set_up_s", "messages_s", "teardown_s"].iter().all(|time| results[time].as_f64().unwrap() > 0.0));
    let count = |what: &str| results["objects"][what].as_u64().unwrap();
    assert!(count("queue_pairs") >= 10 && count("completion_queues") >= 10, "two ends each: {results}");
    assert!(count("region_bytes") > 0 && count("work_places") >= count("queue_pairs"), "{results}");
}

#[test]
fn a_transport_without_the_fake_libibverbs_is_refused() {
    let plugin = library();
    let mut command = Command::new(PROGRAM);
    command.arg("in-process").arg("--plugin").arg(&plugin).arg("messages");
    for (verbs, words) in [(None, "name the fake libibverbs"), (Some(&plugin), "this is not the fake libibverbs")] {
        command.env_remove("NCCL_IBVERBS_LIB").envs(verbs.map(|verbs| ("NCCL_IBVERBS_LIB", verbs)));
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains(words), "{text}");
    }
}

#[test]
fn the_loop_over_the_messages_keeps_its_name_in_the_program() {
    let program = std::fs::read(PROGRAM).unwrap();
    let program = object::File::parse(&program[..]).unwrap();
    let mut symbols = program.symbols().filter(|symbol| symbol.name() == Ok("railweave_message_loop"));
    assert!(symbols.any(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text), "callgrind needs it");
}
