//! `railweave status` and `railweave policy init`, with files as processes write them.

use railweave_telemetry::{
    Connection, ConnectionState, Device, Direction, Event, EventKind, Policy, Process, Publisher, Rail, RailState,
    RunDir, State,
};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

/// A folder that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("railweave-status-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn run_dir(&self) -> RunDir {
        RunDir::named(Some(&self.0.join("run")))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn railweave(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_railweave")).args(arguments).output().unwrap()
}

fn status(dir: &RunDir, arguments: &[&str]) -> Output {
    railweave(&[&["status", "--run-dir", dir.path().to_str().unwrap()], arguments].concat())
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// The state of a process with one connection to node8, which has carried some bytes.
fn state(process: Process, bytes: u64) -> State {
    let rail = |number: u8| Rail {
        connection: 1,
        number,
        state: RailState::Up,
        policy: Policy::Adaptive,
        share: Some(if number == 0 { 49_152 } else { 16_384 }),
        in_flight: Some(3 << 20),
        bytes_sent: bytes,
        waited_for_cts: Some(12),
        local: format!("10.0.{number}.7"),
        remote: format!("10.0.{number}.8"),
        ..Rail::default()
    };
    let connection = Connection {
        number: 1,
        direction: Direction::Send,
        state: ConnectionState::Open,
        device: Some(0),
        peer_rank: Some(9),
        peer_host: "node8".into(),
        ..Connection::default()
    };
    State {
        process: Process { host: "node7".into(), rank: Some(3), world: Some(16), job: "4711".into(), ..process },
        devices: vec![Device { name: "eth0+eth1".into(), ..Device::default() }],
        connections: vec![connection],
        rails: vec![rail(0), rail(1)],
        ports: Vec::new(),
    }
}

/// Writes the file of a process at a time. Returns the publisher.
fn write(dir: &RunDir, id: u8, change: impl FnOnce(&mut Process), time_ns: u64) -> (Publisher, State) {
    let mut process = Process::of_this_process([id; 16], None, None, |_| None);
    change(&mut process);
    let mut state = state(process, 1 << 30);
    state.process.job_variable = "SLURM_JOB_ID".into();
    let mut publisher = Publisher::new(dir.clone(), [id; 16]);
    let text = "rail 1 is \u{1b}[31mleft\u{202e} out".to_owned();
    publisher.add(&Event { time_ns, kind: EventKind::RAIL_LEFT_OUT, connection: Some(1), text, ..Event::default() });
    assert!(publisher.publish(&state, time_ns).is_none());
    (publisher, state)
}

#[test]
fn a_folder_without_files_is_one_sentence_and_no_error() {
    let scratch = Scratch::new("empty");
    let dir = scratch.run_dir();
    for is_made in [false, true] {
        if is_made {
            dir.make().unwrap();
        }
        let text = stdout(&status(&dir, &[]));
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("no process of Railweave has a file in ") && text.contains("--run-dir"), "{text}");
        let json: Value = serde_json::from_str(&stdout(&status(&dir, &["--json"]))).unwrap();
        assert_eq!(json["processes"].as_array().map(Vec::len), Some(0));
    }
}

#[test]
fn a_folder_that_cannot_be_read_is_an_error() {
    let scratch = Scratch::new("unreadable");
    fs::write(scratch.0.join("run"), "").unwrap();
    let output = status(&scratch.run_dir(), &[]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(output.stdout.is_empty() && text.lines().count() == 1, "{text}");
    assert!(text.contains("cannot be read") && text.contains("allowed: "), "{text}");
}

#[test]
fn rails_of_a_process_that_runs_are_shown_with_their_rates() {
    let scratch = Scratch::new("running");
    let dir = scratch.run_dir();
    // It goes on while the status is read: each write has a mebibyte more on each rail.
    let (mut publisher, mut state) = write(&dir, 1, |_| {}, now_ns());
    let mut child = Command::new(env!("CARGO_BIN_EXE_railweave"));
    let child = child.args(["status", "--json", "--run-dir"]).arg(dir.path()).stdout(Stdio::piped());
    let mut child = child.spawn().unwrap();
    while child.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(20));
        state.rails.iter_mut().for_each(|rail| rail.bytes_sent += 1 << 20);
        assert!(publisher.publish(&state, now_ns()).is_none());
    }
    let json: Value = serde_json::from_str(&stdout(&child.wait_with_output().unwrap())).unwrap();
    let process = &json["processes"][0];
    assert_eq!((&process["presence"], &process["silent"]), (&"running".into(), &false.into()), "{process}");
    assert_eq!((&process["rank"], &process["world"], &process["job"]), (&3.into(), &16.into(), &"4711".into()));
    let group = &process["groups"][0];
    assert_eq!((&group["peer_host"], &group["device"]), (&"node8".into(), &"eth0+eth1".into()));
    let rail = &group["rails"][0];
    assert_eq!((&rail["share"], &rail["states"]["up"]), (&0.75.into(), &1.into()));
    assert!(rail["rate_mbps"].as_f64().unwrap() > 1.0, "{rail}");
    assert_eq!(rail["latency_p50_us"], Value::Null);
    assert!(publisher.publish(&state, now_ns()).is_none());
    let text = stdout(&status(&dir, &[]));
    for words in [
        "node7 pid ",
        "rank 3 of 16, job 4711 (SLURM_JOB_ID)",
        "node8 rank 9",
        "1 send by eth0+eth1",
        "0: 10.0.0.7 → 10.0.0.8",
        "1: 10.0.1.7 → 10.0.1.8",
        "75 %",
        "adaptive",
        "3 MiB",
        "rail-left-out: connection 1: rail 1 is \u{fffd}[31mleft\u{fffd} out",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn tables_that_are_shown_again_and_again_are_a_line_apart() {
    let scratch = Scratch::new("again");
    let dir = scratch.run_dir();
    write(&dir, 1, |_| {}, now_ns());
    let mut child = Command::new(env!("CARGO_BIN_EXE_railweave"));
    let child = child.args(["status", "--every", "10ms", "--run-dir"]).arg(dir.path()).stdout(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap).take(500);
    let mut tables = vec![Vec::new()];
    for line in lines {
        if line.is_empty() {
            tables.push(Vec::new());
        } else {
            tables.last_mut().unwrap().push(line);
        }
        if tables.len() == 4 {
            break;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let heads: Vec<_> =
        tables[..3].iter().map(|table| table.iter().filter(|line| line.starts_with("node7 ")).count()).collect();
    assert_eq!(heads, [1; 3], "{tables:?}");
}

#[test]
fn processes_that_are_gone_or_silent_are_marked() {
    let scratch = Scratch::new("gone");
    let dir = scratch.run_dir();
    let old = now_ns() - 120_000_000_000;
    write(&dir, 1, |process| process.start_ticks = Some(1), old);
    let text = stdout(&status(&dir, &[]));
    assert!(text.contains("GONE, its last write was 2 min ago") && !text.contains("10.0.0.7"), "{text}");
    assert!(stdout(&status(&dir, &["--gone"])).contains("10.0.0.7"));
    write(&dir, 2, |_| {}, old);
    assert!(stdout(&status(&dir, &[])).contains("SILENT, it runs, but its last write was 2 min ago"));
    write(&dir, 3, |process| process.pid_namespace = Some(1), old);
    assert!(stdout(&status(&dir, &[])).contains("whether it runs cannot be seen from here"));
    let json: Value = serde_json::from_str(&stdout(&status(&dir, &["--json"]))).unwrap();
    let processes = json["processes"].as_array().unwrap();
    let mut presences: Vec<_> = processes.iter().map(|process| process["presence"].as_str().unwrap()).collect();
    presences.sort_unstable();
    assert_eq!(presences, ["gone", "running", "unknown"]);
    assert!(processes.iter().all(|process| process["groups"][0]["rails"][0]["rate_mbps"].is_null()));
}

#[test]
fn what_runs_comes_first_and_of_what_is_gone_the_latest() {
    let scratch = Scratch::new("order");
    let dir = scratch.run_dir();
    let before = |seconds: u64| now_ns() - seconds * 1_000_000_000;
    for id in 1..=6 {
        write(&dir, id, |process| process.start_ticks = Some(1), before(600 * u64::from(id)));
    }
    write(&dir, 7, |_| {}, now_ns());
    let heads = |arguments: &[&str]| -> Vec<String> {
        let text = stdout(&status(&dir, arguments));
        text.lines()
            .filter(|line| line.starts_with("node7 ") || line.contains(" more are gone"))
            .map(str::to_owned)
            .collect()
    };
    let few = heads(&[]);
    assert!(!few[0].contains("GONE") && few[1].contains("10 min ago") && few[4].contains("40 min ago"), "{few:?}");
    assert_eq!(few[5..], ["2 more are gone; --gone shows all, with the last state of their connections"]);
    let all = heads(&["--gone"]);
    assert!(all.len() == 7 && all[6].contains("GONE, its last write was 1.0 h ago"), "{all:?}");
}

#[test]
fn a_damaged_file_is_named_and_the_others_are_shown() {
    let scratch = Scratch::new("damaged");
    let dir = scratch.run_dir();
    write(&dir, 1, |_| {}, now_ns());
    let bad = dir.file_of([2; 16]);
    fs::write(&bad, "x".repeat(600)).unwrap();
    fs::write(dir.path().join("policy"), "not a telemetry file, and not looked at").unwrap();
    let text = stdout(&status(&dir, &[]));
    let name = format!("skipped: \"{}\" does not begin as a telemetry file", bad.display());
    assert!(text.contains(&name) && text.contains("10.0.0.7"), "{text}");
    let json: Value = serde_json::from_str(&stdout(&status(&dir, &["--json"]))).unwrap();
    assert_eq!(json["damaged"][0]["file"], bad.to_str().unwrap());
}

#[test]
fn the_setting_names_the_folder() {
    let scratch = Scratch::new("setting");
    let dir = scratch.run_dir();
    write(&dir, 1, |_| {}, now_ns());
    let mut command = Command::new(env!("CARGO_BIN_EXE_railweave"));
    let output = command.args(["status"]).env("RAILWEAVE_RUN_DIR", dir.path()).output().unwrap();
    assert!(stdout(&output).contains("node8 rank 9"));
}

#[test]
fn a_table_of_weights_is_made_once() {
    let scratch = Scratch::new("init");
    let path: &Path = &scratch.0.join("table");
    let init = |ranks: &str| railweave(&["policy", "init", "--ranks", ranks, "--path", path.to_str().unwrap()]);
    assert!(stdout(&init("16")).contains("for 16 ranks"));
    assert_eq!(fs::read(path).unwrap(), [&b"BIPM\x10\0\0\0"[..], &[0; 128]].concat());
    for (ranks, status, words) in [("16", 1, "is there already"), ("0", 2, "1..=65536"), ("65537", 2, "1..=65536")] {
        let output = init(ranks);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{text}");
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn a_benchmark_that_runs_is_shown_and_leaves_no_file() {
    let scratch = Scratch::new("bench");
    let dir = scratch.run_dir();
    let library = std::env::var_os("RAILWEAVE_TEST_LIB")
        .map_or_else(|| std::env::current_exe().unwrap().with_file_name("libnccl_net_railweave.so"), PathBuf::from);
    let mut command = Command::new(env!("CARGO_BIN_EXE_railweave"));
    command.args(["bench", "--connections", "3", "--idle", "8", "--rails", "127.0.0.1,127.0.0.2", "--json", "--lib"]);
    command.arg(library).env("RAILWEAVE_RUN_DIR", dir.path()).env_remove("RAILWEAVE_RAILS");
    let mut bench = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let group = railweave_patience::until("both ranks, with connections that have carried something", || {
        let json: Value = serde_json::from_slice(&status(&dir, &["--json"]).stdout).ok()?;
        let groups: Vec<_> =
            json["processes"].as_array()?.iter().flat_map(|process| process["groups"].as_array().cloned()).collect();
        let has_carried = |groups: &Vec<Value>| {
            let rails = groups.iter().flat_map(|group| group["rails"].as_array().cloned().unwrap_or_default());
            let bytes = |rail: Value| Some(rail["bytes_sent"].as_u64()? + rail["bytes_received"].as_u64()?);
            groups.iter().any(|group| group["states"]["open"].as_u64() == Some(3))
                && rails.filter_map(bytes).sum::<u64>() > 0
        };
        (groups.len() == 2 && groups.iter().all(has_carried)).then(|| groups[0][0].clone())
    });
    let rail = &group["rails"][0];
    assert_eq!((&rail["states"]["up"], &rail["policies"]["adaptive"]), (&3.into(), &3.into()), "{group}");
    assert!(group["device"].as_str().is_some_and(|device| device.contains("127.0.0.1")), "{group}");
    let table = stdout(&status(&dir, &[]));
    assert!(table.contains("adaptive"), "{table}");
    assert!(bench.wait().unwrap().success(), "the benchmark ends well");
    let json: Value = serde_json::from_str(&stdout(&status(&dir, &["--json"]))).unwrap();
    assert_eq!(json["processes"].as_array().map(Vec::len), Some(0), "{json}");
}
