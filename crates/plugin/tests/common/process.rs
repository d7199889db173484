//! Scenarios in their own processes: settings are environment variables, and the plugin's state exists once per
//! process. A test starts its own program again for this one test; the new process runs the scenario.

use std::any::type_name;
use std::env;
use std::fs;
use std::io::{self, PipeReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// The variable with the part of the test that a process runs: the number of a case, or [`PEER`]. Unset in the test
/// itself.
const ROLE: &str = "RAILWEAVE_TEST_ROLE";
const PEER: &str = "peer";

/// The variable with the run dir of a scenario and its peer, which is removed after it.
const RUN_DIR: &str = "RAILWEAVE_TEST_RUN_DIR";

/// A scenario's last line, so that a program that ran no test is not mistaken for one that succeeded.
const OVER: &str = "the scenario came to its end";

/// A value in the settings of a peer that removes the variable.
pub(crate) const UNSET: &str = "(unset)";

/// The exit status of a test program with a failed test.
pub(super) const TESTS_FAILED: i32 = 101;

/// The time after which a scenario is killed: longer than any wait in it.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs a scenario in its own process, with these settings and no others of Railweave or NCCL.
pub(crate) fn alone<F: Fn()>(settings: &[(&str, &str)], body: F) {
    run(type_name::<F>(), &[()], |()| settings.to_vec(), |()| body());
}

/// Runs a scenario once for each case, each in its own process.
pub(crate) fn each<'a, T, F: Fn(&T)>(cases: &'a [T], settings: impl Fn(&'a T) -> Vec<(&'a str, &'a str)>, body: F) {
    run(type_name::<F>(), cases, settings, body);
}

fn run<'a, T>(body_name: &str, cases: &'a [T], settings: impl Fn(&'a T) -> Vec<(&'a str, &'a str)>, body: impl Fn(&T)) {
    match env::var(ROLE) {
        Err(_) => {
            for (number, case) in cases.iter().enumerate() {
                let scratch = Scratch::new(number);
                let mut command = again(body_name, &number.to_string(), &scratch.0.join("run"));
                watch(body_name, number, command.env(RUN_DIR, scratch.0.join("run")).envs(settings(case)));
            }
        }
        Ok(role) => {
            end_with_parent();
            body(&cases[role.parse::<usize>().expect("a role is the number of a case")]);
            eprintln!("{OVER}");
        }
    }
}

/// A folder that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(case: usize) -> Self {
        let thread = format!("{:?}", thread::current().id()).replace(|letter: char| !letter.is_ascii_digit(), "");
        let path = env::temp_dir().join(format!("railweave-plugin-{}-{thread}-{case}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).expect("a folder for the scenario can be made");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the run dir of this scenario; it need not be there yet.
pub(crate) fn run_dir() -> PathBuf {
    PathBuf::from(env::var_os(RUN_DIR).expect("a scenario has a run dir"))
}

/// Returns the command that starts this program again for this one test.
fn again(body_name: &str, role: &str, run_dir: &Path) -> Command {
    // A closure's name is crate::test::{{closure}}.
    let test = body_name.split("::{{closure}}").next().unwrap_or(body_name);
    let test = test.split_once("::").map_or(test, |(_, test)| test);
    let mut command = Command::new(env::current_exe().expect("a test knows its own program"));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    let ours = |name: &str| ["RAILWEAVE_", "MPIB_", "NCCL_"].iter().any(|prefix| name.starts_with(prefix));
    for (name, _) in env::vars().filter(|(name, _)| ours(name) && !name.starts_with("RAILWEAVE_TEST_")) {
        command.env_remove(name);
    }
    command.env(ROLE, role).env("RAILWEAVE_RUN_DIR", run_dir);
    command
}

/// Runs a scenario's process, and panics with all its output unless it succeeds in time.
fn watch(name: &str, case: usize, command: &mut Command) {
    let (reader, writer) = io::pipe().expect("a pipe can be made");
    let errors = writer.try_clone().expect("a pipe's end can be cloned");
    // In its own group, so that the processes that it starts end with it.
    command.stdin(Stdio::piped()).stdout(writer).stderr(errors).process_group(0);
    let mut child = command.spawn().expect("this program can be started again");
    // The parent's own ends would keep the pipe open.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (give, output) = mpsc::channel();
    thread::spawn(move || give.send(read_all(reader)));
    let limit = LIMIT * railweave_patience::factor();
    let status = end(&mut child, limit);
    kill_group(&child);
    let _ = child.wait();
    let output = output.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| "(its output never ended)".to_owned());
    let Some(status) = status else {
        panic!("{}; it said:\n{output}", railweave_patience::sentence(format_args!("{name}, case {case}"), limit));
    };
    if status.code() == Some(TESTS_FAILED) {
        railweave_patience::fail(format_args!("{name}, case {case}: {status}"), &output);
    }
    assert!(status.success() && output.contains(OVER), "{name}, case {case}: {status}; it said:\n{output}");
}

fn read_all(mut reader: PipeReader) -> String {
    let mut bytes = Vec::new();
    // Output before an error is worth showing.
    let _ = reader.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn end(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let begin = Instant::now();
    while begin.elapsed() < limit {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return Some(status);
        }
        thread::sleep(Duration::from_millis(2));
    }
    None
}

fn kill_group(leader: &Child) {
    let group = libc::pid_t::try_from(leader.id()).expect("a process id is positive");
    // SAFETY: no memory is involved. The group is this child's: its number is not reused while it has members, and if
    // it has none this does nothing.
    unsafe { libc::kill(-group, libc::SIGKILL) };
}

/// Ends this scenario when its test is killed.
fn end_with_parent() {
    thread::spawn(|| {
        // No process writes here: this returns once the parent is gone, and not on signals that a test sends to itself.
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
}

/// Another process of the same test.
pub(crate) struct Peer {
    child: Child,
    pub(crate) link: UnixStream,
}

/// Runs a scenario of two processes: `body` in one and `peer` in the other, which is killed when `body` ends.
/// `settings` are for both, `peers_settings` for the peer only.
pub(crate) fn with_peer<F: Fn(Peer)>(
    settings: &[(&str, &str)],
    peers_settings: &[(&str, &str)],
    body: F,
    peer: impl Fn(UnixStream),
) {
    let name = type_name::<F>();
    if env::var(ROLE).is_ok_and(|role| role == PEER) {
        let socket = io::stdin().as_fd().try_clone_to_owned().expect("a descriptor can be cloned");
        return peer(UnixStream::from(socket));
    }
    run(
        name,
        &[()],
        |()| settings.to_vec(),
        |()| {
            let (link, theirs) = UnixStream::pair().expect("sockets can be made");
            let mut command = again(name, PEER, &run_dir());
            for (name, value) in settings.iter().chain(peers_settings) {
                if *value == UNSET {
                    command.env_remove(name)
                } else {
                    command.env(name, value)
                };
            }
            let child = command.stdin(OwnedFd::from(theirs)).spawn();
            // It has the peer's end of the link: the end of the peer must end the link.
            drop(command);
            body(Peer { child: child.expect("this program can be started again"), link });
        },
    );
}

impl Peer {
    /// Kills the peer and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("the peer can be killed");
        self.child.wait().expect("the peer can be waited for");
    }

    /// Stops the peer and waits until none of its threads runs.
    pub(crate) fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let tasks = format!("/proc/{}/task", self.child.id());
        railweave_patience::until("the stop of every thread", || {
            let stats = fs::read_dir(&tasks).ok()?.map(|task| fs::read_to_string(task?.path().join("stat")));
            // The state follows the name, which is in parentheses (proc_pid_stat(5)).
            stats.into_iter().all(|stat| stat.is_ok_and(|stat| stat.contains(") T "))).then_some(())
        });
    }

    /// Resumes a stopped peer.
    pub(crate) fn go_on(&self) {
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, number: libc::c_int) {
        let pid = libc::pid_t::try_from(self.child.id()).expect("a process id is positive");
        // SAFETY: no memory is involved, and the child was not reaped.
        assert_eq!(unsafe { libc::kill(pid, number) }, 0, "the peer is there");
    }

    /// Waits until the peer has ended successfully.
    pub(crate) fn wait(&mut self) {
        let limit = LIMIT * railweave_patience::factor();
        let status = end(&mut self.child, limit);
        let status = status.unwrap_or_else(|| panic!("{}", railweave_patience::sentence("the end of the peer", limit)));
        // The peer printed the reason to the same output.
        let followed = if status.code() == Some(TESTS_FAILED) { railweave_patience::FOLLOWED } else { "" };
        assert!(status.success(), "{followed}the peer ended with {status}");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Both fail only for a process that was already reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
