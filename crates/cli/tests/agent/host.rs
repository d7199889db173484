//! The parts of every story: a folder, agents, and requests to them.

use railweave_patience::in_time;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

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

/// Sets the permissions of a file or folder.
pub(crate) fn set_mode(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// A folder that is removed at the end.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("railweave-agent-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        let scratch = Self(path);
        DirBuilder::new().mode(0o700).create(scratch.run_dir()).unwrap();
        scratch
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn run_dir(&self) -> PathBuf {
        self.0.join("run")
    }

    /// Writes a file, and returns its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Returns the text of the policy file, once there is one with these words.
    pub(crate) fn until_policy(&self, words: &str) -> String {
        let path = self.run_dir().join("policy");
        until(&format!("a policy with \"{words}\""), || {
            fs::read_to_string(&path).ok().filter(|text| text.contains(words))
        })
    }

    pub(crate) fn has_policy(&self) -> bool {
        self.run_dir().join("policy").exists()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns true if this process runs as root. Otherwise says that the test is skipped; with `CI=true` that is a
/// failure.
pub(crate) fn is_root() -> bool {
    // The folder belongs to this process's effective user (proc_pid(5)).
    let is_root = fs::metadata("/proc/self").is_ok_and(|folder| folder.uid() == 0);
    if !is_root {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "with CI=true, agents must be tested as root");
        eprintln!("skipped: this needs root");
    }
    is_root
}

/// An agent, which is killed at the end.
pub(crate) struct Agent {
    child: Child,
    log: PathBuf,
    socket: PathBuf,
    config: PathBuf,
}

/// The beginning of every configuration.
const CONFIG: &str = "every_ms = 200\n";

impl Agent {
    /// Returns the command that starts an agent, with looks five times a second unless `config` says more.
    pub(crate) fn command(scratch: &Scratch, config: &str, arguments: &[&str]) -> Command {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let has_address = config.contains("listen = ");
        let config = scratch.file(&format!("agent-{number}.toml"), &format!("{CONFIG}{config}"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_railweave"));
        command.args(["agent", "--config", &config, "--run-dir"]).arg(scratch.run_dir());
        if !arguments.contains(&"--listen") && !has_address {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command.args(arguments).stdin(Stdio::null());
        command
    }

    /// Starts an agent, and waits until it has looked for the first time.
    pub(crate) fn start(scratch: &Scratch, config: &str, arguments: &[&str]) -> Self {
        let agent = Self::spawn(scratch, &mut Self::command(scratch, config, arguments));
        until("an agent that is ready", || agent.try_get("/readyz").ok().filter(|(status, _)| *status == 200));
        agent
    }

    /// Starts an agent with a command.
    pub(crate) fn spawn(scratch: &Scratch, command: &mut Command) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let log = scratch.path().join(format!("agent-{}.log", COUNT.fetch_add(1, Ordering::Relaxed)));
        let mut words = command.get_args().skip_while(|word| *word != "--config");
        let config = words.nth(1).unwrap().into();
        let child = command.stdout(Stdio::null()).stderr(File::create(&log).unwrap()).spawn().unwrap();
        Self { child, log, socket: scratch.run_dir().join("agent.sock"), config }
    }

    /// Writes another configuration, which it has not read yet.
    pub(crate) fn put_config(&self, text: &str) {
        fs::write(&self.config, format!("{CONFIG}{text}")).unwrap();
    }

    /// Puts a pipe that nobody writes in the place of its configuration.
    pub(crate) fn replace_config_by_pipe(&self) {
        fs::remove_file(&self.config).unwrap();
        let status = Command::new("mkfifo").arg(&self.config).status();
        assert!(status.expect("mkfifo is there").success());
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns everything that it has said.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Returns the number of lines with these words that it has said.
    pub(crate) fn count_said(&self, words: &str) -> usize {
        self.log().lines().filter(|line| line.contains(words)).count()
    }

    pub(crate) fn until_said(&self, words: &str) {
        until(&format!("the agent to say \"{words}\""), || (self.count_said(words) > 0).then_some(()));
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Kills it, as the kernel does if there is no memory.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end, and returns its exit status and its words.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let status = until("the end of the agent", || self.child.try_wait().unwrap());
        (status.code(), self.log())
    }

    /// Asks it to end, and waits.
    pub(crate) fn terminate(self) {
        self.signal(Signal::TERM);
        let (status, log) = self.end();
        assert_eq!(status, Some(0), "{log}");
        assert!(log.contains("ends; the last policies hold for their time to live"), "{log}");
    }

    /// Returns the answer to a request over the agent's socket.
    pub(crate) fn ask(&self, method: &str, path: &str) -> io::Result<(u16, String)> {
        let stream = UnixStream::connect(&self.socket)?;
        exchange(stream, &format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
    }

    pub(crate) fn try_get(&self, path: &str) -> io::Result<(u16, String)> {
        self.ask("GET", path)
    }

    /// Returns the JSON at a path of the API.
    pub(crate) fn get(&self, path: &str) -> Value {
        let (status, body) = in_time(self.try_get(path), "an answer of the agent");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    pub(crate) fn drain(&self, port: &str) {
        let (status, body) = in_time(self.ask("PUT", &format!("/api/v1/drains/{port}")), "an answer of the agent");
        assert_eq!(status, 202, "{body}");
    }

    pub(crate) fn give_back(&self, port: &str) {
        let (status, body) = in_time(self.ask("DELETE", &format!("/api/v1/drains/{port}")), "an answer of the agent");
        assert_eq!(status, 202, "{body}");
    }

    /// Waits until a port that is drained has this phase.
    pub(crate) fn until_phase(&self, port: &str, phase: &str) {
        until(&format!("port {port} to be {phase}"), || {
            let drains = self.get("/api/v1/drains");
            drains.as_array()?.iter().find(|it| it["port"] == port && it["drain"]["phase"] == phase).map(|_| ())
        });
    }

    /// Returns the text of the present finding of a kind.
    pub(crate) fn finding(&self, kind: &str) -> Option<String> {
        let findings = self.get("/api/v1/findings");
        let found = findings.as_array()?.iter().find(|finding| finding["kind"] == kind)?;
        found["text"].as_str().map(str::to_owned)
    }

    /// Waits for a finding of a kind, and returns its text.
    pub(crate) fn until_finding(&self, kind: &str) -> String {
        until(&format!("a finding {kind}"), || self.finding(kind))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("the agent said:\n{}", fs::read_to_string(&self.log).unwrap_or_default());
        }
    }
}

/// Sends a request whose connection ends with the answer, and returns status and body.
pub(crate) fn exchange(mut stream: impl Read + Write, request: &str) -> io::Result<(u16, String)> {
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    Ok((status, body.to_owned()))
}

/// Returns the answer to a request over TCP with these headers.
pub(crate) fn over_tcp(port: u16, method: &str, path: &str, headers: &[&str]) -> io::Result<(u16, String)> {
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    exchange(stream, &format!("{method} {path} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n"))
}

/// Returns a port that nobody listens on.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}
