//! Folders that come, go, are many, or take long.

use crate::host::{Agent, Scratch, is_root, set_mode, until};
use crate::policies::until_looks;
use railweave_telemetry::{Connection, Process, Publisher, Rail, RunDir, State};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::chown;
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

/// Starts an agent that finds its run dirs in its configuration or by itself, with these words before its command.
fn start(scratch: &Scratch, before: &[&str], config: &str) -> Agent {
    let config = scratch.file("agent.toml", &format!("every_ms = 200\n{config}"));
    let words = [before, &[env!("CARGO_BIN_EXE_railweave"), "agent", "--listen", "127.0.0.1:0", "--config", &config]];
    let words = words.concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env("RAILWEAVE_RUN_DIR", scratch.run_dir());
    let agent = Agent::spawn(scratch, &mut command);
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

/// Makes the run dir of a user who does not exist, with a file.
fn make_run_dir(scratch: &Scratch, shm: &Path, user: u32, bytes_sent: u64) {
    let path = shm.join(format!("railweave-{user}"));
    let file = publish(&scratch.path().join(format!("{user}")), bytes_sent);
    // It comes with its file.
    let new = shm.join("new");
    let copy = new.join(file.file_name().unwrap());
    fs::create_dir(&new).unwrap();
    set_mode(&new, 0o700);
    fs::copy(&file, &copy).unwrap();
    set_mode(&copy, 0o600);
    chown(&copy, Some(user), None).unwrap();
    chown(&new, Some(user), None).unwrap();
    fs::rename(&new, &path).unwrap();
}

/// Returns true if this process may mount folders of its own. Otherwise says that the test is skipped; with `CI=true`
/// that is a failure.
fn can_mount() -> bool {
    let status = Command::new("unshare").args(["--mount", "mount", "-t", "tmpfs", "none", "/dev/shm"]).status();
    let can = status.is_ok_and(|status| status.success());
    if !can {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "with CI=true, folders of all users must be tested");
        eprintln!("skipped: this needs the right to mount");
    }
    can
}

#[test]
fn the_run_dir_of_a_user_who_comes_counts_only_if_the_agent_watched_all_users() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("users");
    if !can_mount() {
        return;
    }
    // With a folder of its own in the place of that of this host's users.
    let private = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs -o mode=1777 none /dev/shm && exec \"$@\"", "sh"];
    let agent = start(&scratch, &private, "");
    let shm = PathBuf::from(format!("/proc/{}/root/dev/shm", agent.id()));
    let sent = |user: u32| {
        until("the user's bytes", || {
            let metrics = agent.try_get("/metrics").ok()?.1;
            let start = format!("railweave_rail_sent_bytes_total{{user=\"{user}\"");
            let line = metrics.lines().find(|line| line.starts_with(&start))?;
            line.rsplit(' ').next()?.parse::<u64>().ok()
        })
    };
    make_run_dir(&scratch, &shm, 1001, 4);
    assert_eq!(sent(1001), 4);
    agent.put_config(&format!("run_dirs = [{:?}]\n", scratch.run_dir()));
    agent.signal(Signal::HUP);
    agent.until_said("the configuration was read again");
    make_run_dir(&scratch, &shm, 1002, 8);
    agent.put_config("");
    agent.signal(Signal::HUP);
    assert_eq!(sent(1002), 0);
    agent.terminate();
}

#[test]
fn a_folder_that_the_configuration_names_no_more_is_no_finding() {
    let scratch = Scratch::new("no-more");
    let other = scratch.path().join("other");
    fs::create_dir(&other).unwrap();
    set_mode(&other, 0o777);
    let agent = start(&scratch, &[], &format!("run_dirs = [{:?}, {other:?}]\n", scratch.run_dir()));
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

#[test]
fn a_folder_that_a_reload_leaves_out_has_no_policy_any_more() {
    let scratch = Scratch::new("left-out");
    let other = scratch.path().join("other");
    RunDir::named(Some(&other)).make().unwrap();
    let rules = "fixed = [\"any -> policy speed\"]\nttl_s = 86400\n";
    let agent = start(&scratch, &[], &format!("{rules}run_dirs = [{:?}, {other:?}]\n", scratch.run_dir()));
    let policy = other.join("policy");
    until("the policy of the other", || policy.exists().then_some(()));
    let reload = |run_dirs: &str| {
        agent.put_config(&format!("{rules}run_dirs = [{run_dirs}]\n"));
        agent.signal(Signal::HUP);
    };
    let (one, both) = (format!("{:?}", scratch.run_dir()), format!("{:?}, {other:?}", scratch.run_dir()));
    reload(&one);
    until("no policy of the other", || (!policy.exists()).then_some(()));
    assert!(scratch.has_policy());
    reload(&both);
    until("the policy of the other", || policy.exists().then_some(()));
    // That of somebody else stays.
    let foreign = scratch.file("foreign", "railweave-policy 1\nttl forever\nany -> policy static\n");
    fs::rename(foreign, &policy).unwrap();
    agent.until_said("was written by somebody else");
    reload(&one);
    until("the folder to be left out", || {
        let users = agent.get("/api/v1/users");
        (users[0]["run_dirs"].as_array()?.len() == 1).then_some(())
    });
    assert!(fs::read_to_string(&policy).unwrap().contains("static"));
    agent.terminate();
}
