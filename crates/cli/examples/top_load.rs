//! The cost of `railweave top` at ten looks a second: two processes of one job, each with 100 connections of two rails,
//! all of which change ten times a second, on a screen of 80 x 24 and on one of 200 x 50. Shows its processor time.
//!
//! `cargo build --release -p railweave-cli`, then `cargo run --release -p railweave-cli --example top_load --
//! target/release/railweave`. `script` of util-linux gives it a terminal. As `top_load write DIR PROCESSES
//! CONNECTIONS` it only writes, into a run dir that is there, until it is killed: for a look at such a screen.
#![allow(clippy::print_stdout)] // its results

use railweave_telemetry::{
    Connection, ConnectionState, Device, Direction, Latencies, Policy, Port, Process, Publisher, Rail, RailState,
    RunDir, State,
};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const PROCESSES: u8 = 2;
const CONNECTIONS: u32 = 100;
const PEERS: u32 = 4;
const TICK: Duration = Duration::from_millis(100);
const MEASURED: Duration = Duration::from_secs(30);

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

fn state(id: u8, connections: u32) -> State {
    let connection = |number: u32| Connection {
        number,
        direction: if number.is_multiple_of(2) { Direction::Send } else { Direction::Receive },
        state: ConnectionState::Open,
        policy: Policy::Adaptive,
        device: Some(0),
        peer_rank: Some(100 + number % PEERS),
        peer_host: format!("node{}", number % PEERS),
        ..Connection::default()
    };
    let rail = |index: u32| Rail {
        connection: index / 2,
        number: (index % 2) as u8,
        state: RailState::Up,
        policy: Policy::Adaptive,
        speed_mbps: Some(400_000),
        share: Some(32_768),
        in_flight: Some(1 << 20),
        port: Some((index % 2) as u16),
        local: format!("fe80::1234:5678:9abc:{:x}", index % 2),
        remote: format!("fe80::1234:5678:9abc:{index:x}"),
        ..Rail::default()
    };
    let port = |name: &str| Port { name: name.into(), fabric: "verbs".into() };
    let process = Process::of_this_process([id; 16], Some(id.into()), Some(1024), |_| None);
    State {
        process: Process { job: "4711".into(), job_variable: "SLURM_JOB_ID".into(), ..process },
        devices: vec![Device { name: "mlx5_0+mlx5_1".into(), ..Device::default() }],
        connections: (0..connections).map(connection).collect(),
        rails: (0..2 * connections).map(rail).collect(),
        ports: vec![port("mlx5_0"), port("mlx5_1")],
    }
}

/// Writes all files until it is killed.
fn write(dir: &Path, processes: u8, connections: u32) {
    let dir = RunDir::named(Some(dir));
    let all = (1..=processes).map(|id| (Publisher::new(dir.clone(), [id; 16]), state(id, connections)));
    let mut all: Vec<_> = all.collect();
    let begin = Instant::now();
    for tick in 1_u32.. {
        for (publisher, state) in &mut all {
            for rail in &mut state.rails {
                // No two looks find the same rate.
                rail.bytes_sent += (1 << 20) + u64::from(tick * 7919 % 4096 * (rail.connection + 1));
                rail.bytes_received += 1 << 20;
                rail.writes_sent += 4;
                let mut latencies = [tick; 16];
                latencies[15] = 0;
                rail.latencies = Latencies(latencies);
            }
            if let Some(notice) = publisher.publish(state, now_ns()) {
                eprintln!("{notice}");
            }
        }
        sleep((TICK * tick).saturating_sub(begin.elapsed()));
    }
}

/// Processes that are killed at the end, and the folder that is removed then.
struct Ends(Vec<Child>, PathBuf);

impl Drop for Ends {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.1);
    }
}

/// Returns the processor time of the threads of a process so far, in seconds, from the scheduler's own counters: the
/// ticks of /proc/PID/stat miss or overstate a process that runs for a millisecond ten times a second.
fn processor_time(pid: u32) -> Result<f64, Box<dyn Error>> {
    let mut sum_ns = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let counters = fs::read_to_string(task?.path().join("schedstat"))?;
        sum_ns += counters.split(' ').next().ok_or("no counters")?.parse::<u64>()?;
    }
    Ok(sum_ns as f64 / 1e9)
}

/// Returns the process that a process has started.
fn child_of(pid: u32) -> Result<u32, Box<dyn Error>> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    Ok(children.split_whitespace().next().ok_or("it has not begun")?.parse()?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, dir, processes, connections] = &arguments[..]
        && first == "write"
    {
        write(Path::new(dir), processes.parse()?, connections.parse()?);
        return Ok(());
    }
    let top = arguments.first().ok_or("the program railweave is missing; try target/release/railweave")?;
    let scratch = PathBuf::from(format!("/dev/shm/railweave-top-load-{}", std::process::id()));
    RunDir::named(Some(&scratch)).make()?;
    let mut ends = Ends(Vec::new(), scratch.clone());
    ends.0.push(
        Command::new(std::env::current_exe()?)
            .arg("write")
            .arg(&scratch)
            .args([PROCESSES.to_string(), CONNECTIONS.to_string()])
            .spawn()?,
    );
    while RunDir::named(Some(&scratch)).files()?.len() < PROCESSES.into() {
        sleep(TICK);
    }
    for (columns, rows) in [(80, 24), (200, 50)] {
        let line = format!(
            "stty columns {columns} rows {rows}; exec '{top}' top --every 100ms --run-dir '{}'",
            scratch.display()
        );
        let mut script = Command::new("script");
        script.args(["--quiet", "--flush", "--command", &line, "/dev/null"]);
        script.env("TERM", "xterm-256color").env("LANG", "C.UTF-8").env_remove("NO_COLOR");
        // Its terminal ends with its input.
        let child = script.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        ends.0.push(child.map_err(|error| format!("script cannot be started: {error}; try the package bsdutils"))?);
        sleep(Duration::from_secs(3));
        let pid = child_of(ends.0[1].id())?;
        let before = processor_time(pid)?;
        let begin = Instant::now();
        sleep(MEASURED);
        let percent = (processor_time(pid)? - before) * 100.0 / begin.elapsed().as_secs_f64();
        println!("{columns} x {rows}: {percent:.2} % of a core");
        let mut child = ends.0.remove(1);
        let killed = child.kill();
        child.wait()?;
        killed?;
    }
    Ok(())
}
