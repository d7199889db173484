//! The cost of an agent on a full host: 64 processes of 8 jobs, each with 100 connections of two rails to 16 peers, all
//! of which change ten times a second. Shows the agent's processor time, its memory, and the time and size of a scrape.
//!
//! `cargo build --release -p railweave-cli`, then `cargo run --release -p railweave-cli --example agent_load --
//! target/release/railweave`; `--quiet` at the end leaves the files as they are.
#![allow(clippy::print_stdout)] // its results

use railweave_telemetry::{
    Connection, ConnectionState, Device, Direction, Latencies, Policy, Port, Process, Publisher, Rail, RailState,
    RunDir, State,
};
use std::error::Error;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const PROCESSES: u8 = 64;
const JOBS: u8 = 8;
const CONNECTIONS: u32 = 100;
const PEERS: u32 = 16;
const TICK: Duration = Duration::from_millis(100);
const MEASURED: Duration = Duration::from_secs(30);
const SCRAPES: u32 = 20;

/// Clock ticks per second in /proc/PID/stat: Linux shows 100 on every architecture that matters here.
const TICKS_PER_S: f64 = 100.0;

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

fn state(id: u8) -> State {
    let connection = |number| Connection {
        number,
        direction: if number % 2 == 0 { Direction::Send } else { Direction::Receive },
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
    let process = Process::of_this_process([id; 16], Some(id.into()), Some(1024), |_| None);
    let job = format!("{}", 4711 + u32::from(id % JOBS));
    let port = |name: &str| Port { name: name.into(), fabric: "verbs".into() };
    State {
        process: Process { job, job_variable: "SLURM_JOB_ID".into(), ..process },
        devices: vec![Device { name: "mlx5_0+mlx5_1".into(), ..Device::default() }],
        connections: (0..CONNECTIONS).map(connection).collect(),
        rails: (0..2 * CONNECTIONS).map(rail).collect(),
        ports: vec![port("mlx5_0"), port("mlx5_1")],
    }
}

/// Writes all files until it is killed.
fn write(dir: &Path, is_quiet: bool) {
    let dir = RunDir::named(Some(dir));
    let mut all: Vec<_> = (1..=PROCESSES).map(|id| (Publisher::new(dir.clone(), [id; 16]), state(id))).collect();
    let begin = Instant::now();
    for tick in 1_u32.. {
        for (publisher, state) in &mut all {
            for rail in &mut state.rails {
                rail.bytes_sent += 1 << 20;
                rail.writes_sent += 4;
                rail.cts_writes += 4;
                rail.bytes_received += 1 << 20;
                let mut latencies = [tick; 16];
                latencies[15] = 0;
                rail.latencies = Latencies(latencies);
            }
            for connection in &mut state.connections {
                connection.messages = Some(connection.messages.unwrap_or(0) + 4);
            }
            if let Some(notice) = publisher.publish(state, now_ns()) {
                eprintln!("{notice}");
            }
        }
        if is_quiet {
            sleep(Duration::from_secs(3600));
        }
        sleep((TICK * tick).saturating_sub(begin.elapsed()));
    }
}

/// A process that is killed at the end, and the folder that is removed then.
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

/// Returns the processor time of a process so far, in seconds: of the user and of the kernel.
fn processor_time(pid: u32) -> Result<[f64; 2], Box<dyn Error>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat.rsplit_once(") ").ok_or("no name")?.1.split(' ').collect();
    // Fields 14 and 15 of proc_pid_stat(5); the first one here is field 3.
    Ok([fields[11].parse::<f64>()? / TICKS_PER_S, fields[12].parse::<f64>()? / TICKS_PER_S])
}

fn get(socket: &Path, path: &str) -> Result<String, Box<dyn Error>> {
    let mut stream = UnixStream::connect(socket)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_quiet = arguments.last().is_some_and(|last| last == "--quiet");
    if let [first, dir, ..] = &arguments[..]
        && first == "write"
    {
        write(Path::new(dir), is_quiet);
        return Ok(());
    }
    let agent = arguments.first().ok_or("the program railweave is missing; try target/release/railweave")?;
    let scratch = PathBuf::from(format!("/dev/shm/railweave-agent-load-{}", std::process::id()));
    RunDir::named(Some(&scratch)).make()?;
    let mut ends = Ends(Vec::new(), scratch.clone());
    let mut writer = Command::new(std::env::current_exe()?);
    writer.arg("write").arg(&scratch).args(is_quiet.then_some("--quiet"));
    ends.0.push(writer.spawn()?);
    while RunDir::named(Some(&scratch)).files()?.len() < PROCESSES.into() {
        sleep(TICK);
    }
    let mut command = Command::new(agent);
    command.args(["agent", "--listen", "127.0.0.1:0", "--run-dir"]).arg(&scratch).stderr(Stdio::null());
    ends.0.push(command.spawn()?);
    let (pid, socket) = (ends.0[1].id(), scratch.join("agent.sock"));
    while get(&socket, "/readyz").map_or(true, |answer| !answer.contains("ready")) {
        sleep(TICK);
    }
    sleep(Duration::from_secs(3));
    let (before, begin) = (processor_time(pid)?, Instant::now());
    sleep(MEASURED);
    let (after, seconds) = (processor_time(pid)?, begin.elapsed().as_secs_f64());
    let [user, system] = [0, 1].map(|part| (after[part] - before[part]) / seconds * 100.0);
    println!("processor: {:.2} % of a core ({user:.2} user, {system:.2} system)", user + system);
    let mut times = Vec::new();
    let mut size = 0;
    for _ in 0..SCRAPES {
        let begin = Instant::now();
        size = get(&socket, "/metrics")?.len();
        times.push(begin.elapsed().as_secs_f64() * 1e3);
        sleep(Duration::from_millis(70));
    }
    times.sort_by(f64::total_cmp);
    let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
    println!("scrape: median {median:.1} ms, longest {most:.1} ms, {size} bytes");
    let facts = fs::read_to_string(format!("/proc/{pid}/status"))?;
    facts.lines().filter(|line| line.starts_with("VmRSS") || line.starts_with("VmHWM")).for_each(|it| println!("{it}"));
    let state = get(&socket, "/api/v1/state")?;
    let look = state.split("\"look_seconds\":").nth(1).and_then(|rest| rest.split(',').next()).unwrap_or("?");
    println!("last look: {look} s");
    Ok(())
}
