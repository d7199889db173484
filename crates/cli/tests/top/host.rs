//! A run dir, the files of processes in it, and the command.

use railweave_telemetry::{
    Connection, ConnectionState, Device, Direction, Event, EventKind, Policy, Port, Process, Publisher, Rail,
    RailState, RunDir, State,
};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{SystemTime, UNIX_EPOCH};

/// A folder that is removed at the end.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("railweave-top-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn run_dir(&self) -> RunDir {
        RunDir::named(Some(&self.0.join("run")))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// A process with one connection to a peer, which has carried nothing yet.
pub(crate) struct Job {
    pub(crate) publisher: Publisher,
    pub(crate) state: State,
}

impl Job {
    pub(crate) fn new(dir: &RunDir, id: u8, peer: &str) -> Self {
        let process = Process::of_this_process([id; 16], Some(id.into()), None, |_| None);
        let rail = |number: u8| Rail {
            connection: 1,
            number,
            state: RailState::Up,
            policy: Policy::Adaptive,
            port: Some(number.into()),
            local: format!("10.0.{number}.7"),
            remote: format!("10.0.{number}.8"),
            ..Rail::default()
        };
        let connection = Connection {
            number: 1,
            direction: Direction::Send,
            state: ConnectionState::Open,
            device: Some(0),
            peer_host: peer.into(),
            ..Connection::default()
        };
        let port = |name: &str| Port { name: name.into(), fabric: "tcp".into() };
        let state = State {
            process: Process { job: "4711".into(), ..process },
            devices: vec![Device { name: "eth0+eth1".into(), ..Device::default() }],
            connections: vec![connection],
            rails: vec![rail(0), rail(1)],
            ports: vec![port("eth0"), port("eth1")],
        };
        let mut job = Self { publisher: Publisher::new(dir.clone(), [id; 16]), state };
        job.write(0);
        job
    }

    /// Writes the file, once each rail has sent this many more bytes.
    pub(crate) fn write(&mut self, bytes: u64) {
        self.state.rails.iter_mut().for_each(|rail| rail.bytes_sent += bytes);
        assert!(self.publisher.publish(&self.state, now_ns()).is_none());
    }

    pub(crate) fn note(&mut self, kind: EventKind, text: &str) {
        let event = Event { time_ns: now_ns(), kind, connection: Some(1), text: text.into(), ..Event::default() };
        self.publisher.add(&event);
    }
}

pub(crate) fn top(dir: &RunDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_railweave"));
    command.args(["top", "--run-dir"]).arg(dir.path()).args(["--every", "20ms"]);
    command.env("TERM", "xterm-256color").env("LC_ALL", "C.UTF-8").env_remove("NO_COLOR");
    command
}

/// Returns `top` so that its terminal is its controlling one, as that of a shell: only then a resized window is told.
pub(crate) fn controlled_top(dir: &RunDir) -> Command {
    let top = top(dir);
    let mut command = Command::new("setsid");
    command.arg("--ctty").arg(top.get_program()).args(top.get_args());
    command.envs(top.get_envs().filter_map(|(name, value)| Some((name, value?)))).env_remove("NO_COLOR");
    command
}

/// A program that is killed at the end.
pub(crate) struct Started(pub(crate) Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
