//! Folders that come, go, are many, or take long.

use crate::host::{Agent, Scratch, is_root, until};
use crate::policies::until_looks;
use railweave_telemetry::{Connection, Process, Publisher, Rail, RunDir, State};
use rustix::process::Signal;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Writes the file of a process that has sent these bytes, and returns its path.
fn publish(folder: &Path, bytes_sent: u64) -> PathBuf {
    let folder = RunDir::named(Some(folder));
    let process = Process::of_this_process([bytes_sent as u8; 16], None, None, |_| None);
    let rails = vec![Rail { bytes_sent, ..Rail::default() }];
    let state = State { process, connections: vec![Connection::default()], rails, ..State::default() };
    folder.make().unwrap();
    let mut publisher = Publisher::new(folder, state.process.id);
    assert!(publisher.publish(&state, 1).is_none());
    publisher.path().to_owned()
}

fn until_processes(agent: &Agent, count: usize) {
    until(&format!("{count} processes"), || {
        let jobs = agent.get("/api/v1/jobs");
        let found: usize = jobs.as_array()?.iter().map(|job| job["processes"].as_array().map_or(0, Vec::len)).sum();
        (found == count).then_some(())
    });
}

/// Returns the bytes that all rails have sent under the agent's eyes.
fn sent(agent: &Agent) -> f64 {
    let metrics = agent.try_get("/metrics").unwrap().1;
    let lines = metrics.lines().filter(|line| line.starts_with("railweave_rail_sent_bytes_total"));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

fn set_mode(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Starts an agent that finds its run dirs in its configuration or by itself.
fn start(scratch: &Scratch, config: &str) -> Agent {
    let config = scratch.file("agent.toml", &format!("every_ms = 200\n{config}"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_railweave"));
    command.args(["agent", "--listen", "127.0.0.1:0", "--config", &config]);
    let agent = Agent::spawn(scratch, command.env("RAILWEAVE_RUN_DIR", scratch.run_dir()));
    until("an agent that is ready", || agent.try_get("/readyz").ok().filter(|(status, _)| *status == 200));
    agent
}

#[test]
fn a_folder_that_was_away_is_forgotten_and_has_nothing_new_when_it_is_back() {
    let scratch = Scratch::new("away");
    let [other, shut] = ["other", "shut"].map(|name| scratch.path().join(name));
    publish(&other, 2);
    publish(&shut, 4);
    set_mode(&shut, 0o777);
    let folders = ["--run-dir", other.to_str().unwrap(), "--run-dir", shut.to_str().unwrap()];
    let agent = Agent::start(&scratch, "", &folders);
    until_processes(&agent, 1);
    for folder in [&other, &shut] {
        fs::rename(folder, folder.with_extension("away")).unwrap();
    }
    until("both to be missing", || (agent.count_said("No such file or directory") == 2).then_some(()));
    until_processes(&agent, 0);
    assert_eq!(agent.get("/api/v1/users")[0]["run_dirs"].as_array().map(Vec::len), Some(1));
    set_mode(shut.with_extension("away"), 0o700);
    for folder in [&other, &shut] {
        fs::rename(folder.with_extension("away"), folder).unwrap();
    }
    until_processes(&agent, 2);
    assert_eq!(sent(&agent), 0.0);
    agent.terminate();
}

/// The run dir of a user who does not exist, which is removed at the end.
struct Other(PathBuf);

impl Other {
    fn new(scratch: &Scratch, user: u32, bytes_sent: u64) -> Self {
        let path = Path::new("/dev/shm").join(format!("railweave-{user}"));
        let file = publish(&scratch.path().join(format!("{user}")), bytes_sent);
        // It comes with its file.
        let new = path.with_extension("new");
        let copy = new.join(file.file_name().unwrap());
        fs::create_dir(&new).unwrap();
        set_mode(&new, 0o700);
        fs::copy(&file, &copy).unwrap();
        set_mode(&copy, 0o600);
        chown(&copy, Some(user), None).unwrap();
        chown(&new, Some(user), None).unwrap();
        fs::rename(&new, &path).unwrap();
        Self(path)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_run_dir_of_a_user_who_comes_counts_only_if_the_agent_watched_all_users() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("users");
    let user = 3_100_000_000 + std::process::id();
    let agent = start(&scratch, "");
    let sent = |user: u32| {
        until("the user's bytes", || {
            let metrics = agent.try_get("/metrics").ok()?.1;
            let start = format!("railweave_rail_sent_bytes_total{{user=\"{user}\"");
            let line = metrics.lines().find(|line| line.starts_with(&start))?;
            line.rsplit(' ').next()?.parse::<u64>().ok()
        })
    };
    let _first = Other::new(&scratch, user, 4);
    assert_eq!(sent(user), 4);
    agent.put_config(&format!("run_dirs = [{:?}]\n", scratch.run_dir()));
    agent.signal(Signal::HUP);
    agent.until_said("the configuration was read again");
    let _second = Other::new(&scratch, user + 1_000_000, 8);
    agent.put_config("");
    agent.signal(Signal::HUP);
    assert_eq!(sent(user + 1_000_000), 0);
    agent.terminate();
}

#[test]
fn a_folder_that_the_configuration_names_no_more_is_no_finding() {
    let scratch = Scratch::new("no-more");
    let other = scratch.path().join("other");
    fs::create_dir(&other).unwrap();
    set_mode(&other, 0o777);
    let agent = start(&scratch, &format!("run_dirs = [{:?}, {other:?}]\n", scratch.run_dir()));
    agent.until_finding("file-refused");
    until_looks(&agent);
    assert_eq!(agent.count_said("not watched: "), 1, "{}", agent.log());
    agent.put_config(&format!("run_dirs = [{:?}]\n", scratch.run_dir()));
    agent.signal(Signal::HUP);
    until("no finding", || agent.finding("file-refused").is_none().then_some(()));
    agent.terminate();
}

#[test]
fn a_file_that_there_was_no_room_for_is_still_older_than_the_agent() {
    let scratch = Scratch::new("no-room");
    let publish = |publisher: &mut Publisher, id: u8, bytes_sent, now| {
        let process = Process::of_this_process([id; 16], None, None, |_| None);
        let rail = |at: u32| Rail { connection: at / 250, number: (at % 250) as u8, bytes_sent, ..Rail::default() };
        let connections = (0..240).map(|number| Connection { number, ..Connection::default() }).collect();
        let rails = (0..60_000).map(rail).collect();
        let state = State { process, connections, rails, ..State::default() };
        assert!(publisher.publish(&state, now).is_none());
    };
    let publisher = |id: u8| Publisher::new(RunDir::named(Some(&scratch.run_dir())), [id; 16]);
    let (mut first, mut second) = (publisher(1), publisher(2));
    publish(&mut first, 1, 0, 1);
    publish(&mut second, 2, 4, 1);
    let agent = Agent::start(&scratch, "", &[]);
    agent.until_said("is one too many: its user has 120000 rails");
    fs::remove_file(first.path()).unwrap();
    until_processes(&agent, 0);
    publish(&mut second, 2, 8, 2);
    until_processes(&agent, 1);
    assert_eq!(sent(&agent), 0.0);
    agent.terminate();
}
