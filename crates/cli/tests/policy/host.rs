//! A run dir, the files of processes in it, and the command.

use railweave_telemetry::{
    Connection, ConnectionState, Device, Direction, Event, EventKind, Policy, Port, Process, Publisher, Rail,
    RailState, RunDir, State,
};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Calls `poll` until it returns a value, with pauses: the others are processes, which need the time.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    railweave_patience::until(what, || {
        let value = poll();
        if value.is_none() {
            thread::sleep(Duration::from_millis(10));
        }
        value
    })
}

/// A folder that is removed at the end. The run dir in it is made by its first user.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("railweave-policy-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn run_dir(&self) -> RunDir {
        RunDir::named(Some(&self.0.join("run")))
    }

    /// Returns the run dir, which is there.
    pub(crate) fn made(&self) -> RunDir {
        let dir = self.run_dir();
        dir.make().unwrap();
        dir
    }

    /// Returns the command `railweave policy` for the run dir, after these words.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_railweave"));
        command.arg("policy").args(words).arg("--run-dir").arg(self.run_dir().path());
        // So root may make it.
        command.env("RAILWEAVE_RUN_DIR", self.run_dir().path());
        command
    }

    pub(crate) fn policy(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// Returns the output of a command that ends well.
    #[track_caller]
    pub(crate) fn said(&self, words: &[&str]) -> String {
        said(&self.policy(words), 0)
    }

    /// Returns the error of a command that cannot be carried out: one line.
    #[track_caller]
    pub(crate) fn error(&self, words: &[&str]) -> String {
        error(&self.policy(words))
    }

    /// Returns the JSON of a command that ends well.
    #[track_caller]
    pub(crate) fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.said(&[words, &["--json"]].concat())).unwrap()
    }

    /// Returns the text of the policy file; `None` if there is none.
    pub(crate) fn file(&self) -> Option<String> {
        fs::read_to_string(self.run_dir().policy_file()).ok()
    }

    /// Writes the policy file.
    pub(crate) fn write(&self, text: &str) {
        fs::write(self.made().policy_file(), text).unwrap();
    }

    /// Writes the file of a process with connections over eth0 and eth1 to node8, and over eth1 alone to node9.
    pub(crate) fn publish(&self, id: u8, policy: Policy, state: RailState) -> Publisher {
        let process = Process::of_this_process([id; 16], None, None, |_| None);
        let mut publisher = Publisher::new(self.made(), [id; 16]);
        let text = "a policy file orders the \u{1b}[31mweights 80,20".to_owned();
        let event = Event { time_ns: 1_000_000_000, kind: EventKind::POLICY, text, ..Event::default() };
        publisher.add(&event);
        publisher.add(&Event { kind: EventKind::OPENED, ..event });
        assert!(publisher.publish(&process_state(process, policy, state), now_ns()).is_none());
        publisher
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[track_caller]
pub(crate) fn said(output: &Output, code: i32) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{error}{text}");
    text
}

#[track_caller]
pub(crate) fn error(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}{}", String::from_utf8_lossy(&output.stdout));
    assert!(text.starts_with("railweave: ") && text.lines().count() == 1 && !text.contains('\u{1b}'), "{text:?}");
    text
}

pub(crate) fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

pub(crate) fn now_s() -> u64 {
    now_ns() / 1_000_000_000
}

/// The state of a process of job 4711, whose rails over eth1 have this state.
fn process_state(process: Process, policy: Policy, state: RailState) -> State {
    let rail = |connection: u32, number: u8, port: u16| Rail {
        connection,
        number,
        state: if port == 1 { state } else { RailState::Up },
        policy,
        share: Some(if number == 0 { 52_429 } else { 13_107 }),
        in_flight: Some(0),
        port: Some(port),
        ..Rail::default()
    };
    let connection = |number: u32, peer: &str| Connection {
        number,
        direction: Direction::Send,
        state: ConnectionState::Open,
        policy,
        device: Some(0),
        peer_rank: Some(9),
        peer_host: peer.into(),
        ..Connection::default()
    };
    let port = |name: &str| Port { name: name.into(), fabric: "tcp".into() };
    State {
        process: Process { host: "node7".into(), rank: Some(3), job: "4711".into(), ..process },
        devices: vec![Device { name: "eth0+eth1".into(), ..Device::default() }],
        connections: vec![connection(1, "node8"), connection(2, "node9")],
        rails: vec![rail(1, 0, 0), rail(1, 1, 1), rail(2, 0, 1)],
        ports: vec![port("eth0"), port("eth1@10.0.1.7")],
    }
}

/// Returns true if this process runs as root. Otherwise says that the test is skipped; with `CI=true` that is a
/// failure.
pub(crate) fn is_root() -> bool {
    // The folder belongs to this process's effective user (proc_pid(5)).
    let is_root = fs::metadata("/proc/self").is_ok_and(|folder| folder.uid() == 0);
    if !is_root {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "with CI=true, orders must be tested as root");
        eprintln!("skipped: this needs root");
    }
    is_root
}

/// Returns true if this process may mount folders of its own. Otherwise says that the test is skipped; with `CI=true`
/// that is a failure.
pub(crate) fn can_mount() -> bool {
    if !is_root() {
        return false;
    }
    let status = Command::new("unshare").args(["--mount", "mount", "-t", "tmpfs", "none", "/dev/shm"]).status();
    let can = status.is_ok_and(|status| status.success());
    if !can {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "with CI=true, folders of all users must be tested");
        eprintln!("skipped: this needs the right to mount");
    }
    can
}
