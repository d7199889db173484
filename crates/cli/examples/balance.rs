//! The time until two jobs have ended that share a slow cable, without an agent and with its policy `balance`.
//!
//! Two network namespaces are joined by cables of 80 and 20 Mbit/s. The first job has both, the second only the slow
//! one; both move the same bytes. It needs root and iproute2.
//!
//! `cargo build --release -p railweave-cli -p railweave-plugin`, then `cargo run --release -p railweave-cli --example
//! balance -- target/release/railweave`; behind it, the number of rounds, of which the median is shown, and the size of
//! the data of each collective may follow: `3 24MiB`.
#![allow(clippy::print_stdout)] // its results

use railweave_telemetry::RunDir;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The speeds of the cables in Mbit/s.
const SPEEDS: [u32; 2] = [80, 20];

/// The size of the data of each of a job's collectives, unless another is given.
const BYTES: &str = "24MiB";

type Fallible<T> = Result<T, Box<dyn Error>>;

fn run(program: &str, words: &str) -> Fallible<()> {
    let status = Command::new(program).args(words.split(' ')).stdin(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(format!("{program} {words}: {status}").into()) }
}

/// The namespaces, which are removed at the end.
struct Namespaces;

impl Namespaces {
    fn name(side: usize) -> String {
        format!("railweave-balance-{}-{side}", std::process::id())
    }

    fn make() -> Fallible<Self> {
        let namespaces = Self;
        let [first, second] = [0, 1].map(Self::name);
        for name in [&first, &second] {
            run("ip", &format!("netns add {name}"))?;
            run("ip", &format!("-n {name} link set lo up"))?;
        }
        for (rail, speed) in SPEEDS.into_iter().enumerate() {
            let end = format!("link add rail{rail} mtu 9000 netns {first} type veth");
            run("ip", &format!("{end} peer name rail{rail} mtu 9000 netns {second}"))?;
            for (side, name) in [&first, &second].into_iter().enumerate() {
                run("ip", &format!("-n {name} address add 10.232.{rail}.{}/30 dev rail{rail}", side + 1))?;
                run("ip", &format!("-n {name} link set rail{rail} up"))?;
                // As `railweave demo --shape` has it: a queue of a tenth of a second.
                let limit = 32_768 + speed * 12_500;
                let shaper = format!("tbf rate {speed}mbit burst 32768 limit {limit}");
                run("tc", &format!("-n {name} qdisc add dev rail{rail} root {shaper}"))?;
            }
        }
        Ok(namespaces)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for side in [0, 1] {
            let _ = run("ip", &format!("netns delete {}", Self::name(side)));
        }
    }
}

/// A process that is killed at the end.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder that is removed at the end.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn job(program: &str, scratch: &Path, bytes: &str, [name, rails]: [&str; 2]) -> Fallible<Process> {
    let mut command = Command::new(program);
    command.args(["demo", "--bytes", bytes, "--bucket", "4MiB", "--rails", rails, "--rank-command"]);
    command.arg(format!("ip netns exec railweave-balance-{}-{{rank}}", std::process::id()));
    command.env("RAILWEAVE_RUN_DIR", scratch.join("run")).env("SLURM_JOB_ID", name).env("RAILWEAVE_FABRIC", "tcp");
    for variable in ["RAILWEAVE_POLICY", "RAILWEAVE_WEIGHTS", "RAILWEAVE_OOB_IF", "NCCL_SOCKET_IFNAME"] {
        command.env_remove(variable);
    }
    Ok(Process(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?))
}

/// Runs both jobs. Returns the seconds that each has taken.
fn round(program: &str, scratch: &Path, bytes: &str, with_agent: bool) -> Fallible<[f64; 2]> {
    RunDir::named(Some(&scratch.join("run"))).make()?;
    let config = scratch.join("agent.toml");
    fs::write(&config, "[balance]\n")?;
    let mut agent = Command::new(program);
    agent.args(["agent", "--listen", "127.0.0.1:0", "--config"]).arg(&config).arg("--run-dir").arg(scratch.join("run"));
    let agent = if with_agent { Some(Process(agent.spawn()?)) } else { None };
    std::thread::sleep(Duration::from_secs(6));
    let begin = Instant::now();
    let mut jobs = [
        job(program, scratch, bytes, ["both", "10.232.0.0/30,10.232.1.0/30"])?,
        job(program, scratch, bytes, ["slow", "10.232.1.0/30"])?,
    ];
    let mut seconds = [0.0; 2];
    while seconds.contains(&0.0) {
        for (job, seconds) in jobs.iter_mut().zip(&mut seconds).filter(|(_, seconds)| **seconds == 0.0) {
            if let Some(status) = job.0.try_wait()? {
                if !status.success() {
                    return Err(format!("a job failed: {status}").into());
                }
                *seconds = begin.elapsed().as_secs_f64();
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(agent);
    let _ = fs::remove_dir_all(scratch.join("run"));
    Ok(seconds)
}

fn main() -> Fallible<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let program = arguments.first().ok_or("the program railweave is missing; try target/release/railweave")?;
    let rounds: usize = arguments.get(1).map_or(Ok(3), |text| text.parse())?;
    let bytes = arguments.get(2).map_or(BYTES, String::as_str);
    let scratch = Scratch(std::env::temp_dir().join(format!("railweave-balance-{}", std::process::id())));
    fs::create_dir_all(&scratch.0)?;
    let _namespaces = Namespaces::make()?;
    let mut makespans = [Vec::new(), Vec::new()];
    for number in 1..=rounds {
        for (with_agent, makespans) in [false, true].into_iter().zip(&mut makespans) {
            let [both, slow] = round(program, &scratch.0, bytes, with_agent)?;
            let name = if with_agent { "with balance" } else { "each alone" };
            println!("round {number}, {name}: both cables {both:.1} s, slow cable {slow:.1} s");
            makespans.push(both.max(slow));
        }
    }
    let [alone, balanced] = makespans.map(|mut all| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    });
    println!("makespan: {alone:.1} s each alone, {balanced:.1} s with balance ({:.3} of it)", balanced / alone);
    Ok(())
}
