//! The policy file: one of somebody else, a disk that is full, and a clock that jumps.

use crate::host::{Agent, Scratch, is_root, set_mode, until};
use crate::job::{Job, can_slow};
use crate::life::written_s;
use railweave_telemetry::{Connection, Process, Publisher, Rail, RunDir, State};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// A policy that only has to be written again if something happens.
const LONG: &str = "ttl_s = 86400\nfixed = [\"any -> policy speed\"]\n";

/// Waits for the end of three more looks.
pub(crate) fn until_looks(agent: &Agent) {
    let looked_at = || agent.get("/api/v1/state")["agent"]["looked_at"].as_f64().unwrap();
    for _ in 0..3 {
        let last = looked_at();
        until("another look", || (looked_at() > last).then_some(()));
    }
}

#[test]
fn a_policy_of_somebody_else_is_left_alone_until_it_is_gone_or_too_old() {
    let scratch = Scratch::new("foreign");
    let policy = scratch.run_dir().join("policy");
    let foreign = "railweave-policy 1\nttl forever\nany -> policy static\n";
    let put = |text: &str| fs::rename(scratch.file("policy", text), &policy).unwrap();
    put(foreign);
    let agent = Agent::start(&scratch, LONG, &[]);
    assert!(agent.until_finding("not-steering").contains("was written by somebody else"));
    until_looks(&agent);
    assert_eq!(fs::read_to_string(&policy).unwrap(), foreign);
    fs::remove_file(&policy).unwrap();
    scratch.until_policy("any -> policy speed");
    until("steering again", || agent.finding("not-steering").is_none().then_some(()));
    put(foreign);
    agent.until_finding("not-steering");
    until_looks(&agent);
    assert_eq!(fs::read_to_string(&policy).unwrap(), foreign);
    fs::remove_file(&policy).unwrap();
    scratch.until_policy("any -> policy speed");
    put("railweave-policy 1\nwritten 1000\nttl 30\nany -> policy static\n");
    scratch.until_policy("any -> policy speed");
    fs::remove_file(&policy).unwrap();
    scratch.until_policy("any -> policy speed");
    agent.terminate();
}

/// A file system in memory, which is taken away at the end.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(path: &Path) -> Option<Self> {
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs"]).arg(path).status();
        let can = mount.is_ok_and(|status| status.success());
        if !can {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "with CI=true, a full disk must be tested");
            eprintln!("skipped: this needs the right to mount");
        }
        can.then(|| Self(path.to_owned()))
    }

    /// Takes all of its room.
    fn fill(&self) {
        let mut file = OpenOptions::new().create(true).append(true).open(self.0.join("filler")).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_said_once_and_steering_returns_with_the_room() {
    if !can_slow() {
        return;
    }
    let scratch = Scratch::new("full");
    let Some(disk) = SmallDisk::new(&scratch.run_dir()) else { return };
    let mut job = Job::start(&scratch, "50,50");
    let agent = Agent::start(&scratch, "ttl_s = 3\n", &[]);
    agent.drain("rail1");
    agent.until_phase("rail1", "empty");
    until("an agent that cannot write", || {
        // A policy file that was being written may have given some room back.
        disk.fill();
        agent.finding("not-steering")
    });
    assert!(agent.until_finding("not-steering").contains("jobs follow the last one until its time to live of 3 s"));
    // It is too old soon, so the rails decide again.
    job.until_more("rail1", 1 << 20);
    job.until_more("rail0", 1 << 20);
    assert_eq!(agent.count_said("not-steering: "), 1, "{}", agent.log());
    fs::remove_file(disk.0.join("filler")).unwrap();
    agent.until_said("not-steering \"");
    agent.until_phase("rail1", "empty");
    job.check();
    drop(job);
    agent.terminate();
}

/// A library that shifts the clock of the program that loads it by the seconds in a file.
fn clock(scratch: &Scratch) -> PathBuf {
    let library = scratch.path().join("clock.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agent/clock.c");
    let status = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).status();
    assert!(status.expect("a C compiler is there").success());
    library
}

#[test]
fn a_policy_is_written_again_at_once_after_the_clock_has_jumped() {
    let scratch = Scratch::new("clock");
    let library = clock(&scratch);
    let set = |offset: &str| fs::rename(scratch.file("offset.new", offset), scratch.path().join("offset")).unwrap();
    set("0");
    let mut command = Agent::command(&scratch, LONG, &[]);
    command.env("LD_PRELOAD", library).env("CLOCK_OFFSET_FILE", scratch.path().join("offset"));
    let agent = Agent::spawn(&scratch, &mut command);
    scratch.until_policy("any -> policy speed");
    for offset in [-3600_i64, 3600, 0] {
        set(&offset.to_string());
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64 + offset;
        until(&format!("a policy that follows the clock by {offset} s"), || {
            let written = written_s(&scratch.until_policy("any -> policy speed")) as i64;
            ((written - clock).abs() < 600).then_some(())
        });
    }
    agent.terminate();
}

#[test]
fn a_policy_or_a_run_dir_that_is_a_link_is_not_followed() {
    let scratch = Scratch::new("links");
    let precious = scratch.file("precious", "railweave-policy 1\nttl forever\nany -> policy static\n");
    let text = fs::read_to_string(&precious).unwrap();
    std::os::unix::fs::symlink(&precious, scratch.run_dir().join("policy")).unwrap();
    let agent = Agent::start(&scratch, LONG, &[]);
    assert!(agent.until_finding("not-steering").contains("is a symbolic link"));
    until_looks(&agent);
    assert_eq!(fs::read_to_string(&precious).unwrap(), text);
    fs::remove_file(scratch.run_dir().join("policy")).unwrap();
    scratch.until_policy("any -> policy speed");
    // Somebody replaces the folder while the agent runs.
    let moved = scratch.path().join("moved");
    fs::rename(scratch.run_dir(), &moved).unwrap();
    std::os::unix::fs::symlink(&moved, scratch.run_dir()).unwrap();
    agent.until_said("not watched: ");
    assert!(agent.log().contains("is not a folder, or is a symbolic link"), "{}", agent.log());
    fs::remove_file(scratch.run_dir()).unwrap();
    fs::rename(&moved, scratch.run_dir()).unwrap();
    agent.until_said("is watched now");
    agent.terminate();
}

#[test]
fn a_process_that_was_killed_while_it_wrote_is_gone() {
    let scratch = Scratch::new("half-written");
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    // Field 22 (proc_pid_stat(5)); the name, in parentheses, is the second.
    let start = stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap().parse().ok();
    let process = Process::of_this_process([7; 16], None, None, |_| None);
    let process = Process { pid: child.id(), start_ticks: start, ..process };
    let mut publisher = Publisher::new(RunDir::named(Some(&scratch.run_dir())), process.id);
    let mut state = State { process, ..State::default() };
    let clock_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    assert!(publisher.publish(&state, clock_ns).is_none());
    let agent = Agent::start(&scratch, "", &[]);
    let presence = |word: &str| {
        until(&format!("a process that is {word}"), || {
            let metrics = agent.try_get("/metrics").ok()?.1;
            metrics.contains(&format!("presence=\"{word}\"}} 1.0\n")).then_some(())
        });
    };
    presence("running");
    // The last that it writes, just before its end, has no whole checksum.
    state.process.rank = Some(1);
    assert!(publisher.publish(&state, clock_ns + 1).is_none());
    let file = OpenOptions::new().write(true).open(publisher.path()).unwrap();
    file.write_all_at(&[1], 16).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    agent.until_finding("file-refused");
    presence("gone");
    agent.terminate();
}

#[test]
fn only_what_began_under_the_agents_eyes_counts() {
    let scratch = Scratch::new("eyes");
    let folder = |name: &str| RunDir::named(Some(&scratch.path().join(name)));
    let publish = |name: &str, bytes_sent| {
        let process = Process::of_this_process([bytes_sent as u8; 16], None, None, |_| None);
        let rails = vec![Rail { bytes_sent, ..Rail::default() }];
        let state = State { process, connections: vec![Connection::default()], rails, ..State::default() };
        folder(name).make().unwrap();
        let mut publisher = Publisher::new(folder(name), state.process.id);
        assert!(publisher.publish(&state, 1).is_none());
    };
    publish("run", 1);
    publish("refused", 2);
    set_mode(scratch.path().join("refused"), 0o777);
    let folders = ["refused", "later"].map(|name| scratch.path().join(name).to_str().unwrap().to_owned());
    let agent = Agent::start(&scratch, "", &["--run-dir", &folders[0], "--run-dir", &folders[1]]);
    publish("later", 4);
    publish("run", 8);
    set_mode(scratch.path().join("refused"), 0o700);
    agent.until_said("refused\" is watched now");
    agent.until_said("later\" is watched now");
    until("the processes of all folders", || {
        (agent.get("/api/v1/jobs")[0]["processes"].as_array()?.len() == 4).then_some(())
    });
    let metrics = agent.try_get("/metrics").unwrap().1;
    let sent = metrics.lines().find(|line| line.starts_with("railweave_rail_sent_bytes_total")).unwrap();
    assert!(sent.ends_with(" 12"), "{sent}");
    agent.terminate();
}

#[test]
fn files_of_others_and_links_are_refused_one_by_one() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("refused");
    let name = |number: u32| scratch.run_dir().join(format!("{number:032x}.railweave"));
    std::os::unix::fs::symlink("/etc/passwd", name(1)).unwrap();
    fs::write(name(2), "x".repeat(600)).unwrap();
    fs::write(name(3), "x".repeat(600)).unwrap();
    std::os::unix::fs::chown(name(3), Some(65_534), None).unwrap();
    let made = Command::new("mkfifo").arg(name(4)).status().unwrap();
    assert!(made.success());
    let agent = Agent::start(&scratch, "", &[]);
    let findings = until("four refused files", || {
        let findings = agent.get("/api/v1/findings");
        (findings.as_array()?.len() == 4).then_some(findings)
    });
    let words = ["is a symbolic link", "does not begin as", "belongs to user 65534", "is not a regular file"];
    for (finding, words) in findings.as_array().unwrap().iter().zip(words) {
        assert_eq!(finding["kind"], "file-refused");
        assert!(finding["text"].as_str().unwrap().contains(words), "{finding}");
    }
    (1..=4).for_each(|number| fs::remove_file(name(number)).unwrap());
    until("no findings", || agent.get("/api/v1/findings").as_array()?.is_empty().then_some(()));
    agent.terminate();
}

#[test]
fn a_file_that_was_left_out_counts_from_the_time_at_which_there_is_room() {
    let scratch = Scratch::new("room");
    let run_dir = RunDir::named(Some(&scratch.run_dir()));
    let process = Process::of_this_process([7; 16], None, None, |_| None);
    let rails = vec![Rail { bytes_sent: 8, ..Rail::default() }];
    let mut state = State { process, connections: vec![Connection::default()], rails, ..State::default() };
    let mut publisher = Publisher::new(run_dir, state.process.id);
    assert!(publisher.publish(&state, 1).is_none());
    // As many files as are read, all of them newer.
    let other = |number: u32| scratch.run_dir().join(format!("{number:032x}.railweave"));
    (0..1024).for_each(|number| std::os::unix::fs::symlink("/nowhere", other(number)).unwrap());
    fs::File::open(publisher.path()).unwrap().set_modified(UNIX_EPOCH).unwrap();
    let agent = Agent::start(&scratch, "", &[]);
    agent.until_said("has more than 1024 telemetry files");
    assert!(agent.get("/api/v1/jobs").as_array().is_some_and(Vec::is_empty));
    fs::remove_file(other(0)).unwrap();
    until("the process", || (agent.get("/api/v1/jobs").as_array()?.len() == 1).then_some(()));
    let sent = |bytes: u64| {
        until(&format!("{bytes} bytes"), || {
            let metrics = agent.try_get("/metrics").ok()?.1;
            let line = metrics.lines().find(|line| line.starts_with("railweave_rail_sent_bytes_total"))?;
            line.ends_with(&format!(" {bytes}")).then_some(())
        });
    };
    sent(0);
    state.rails[0].bytes_sent = 20;
    assert!(publisher.publish(&state, 2).is_none());
    sent(12);
    agent.terminate();
}

#[test]
fn the_file_says_what_an_operator_has_drained_that_the_configuration_drains_too() {
    let scratch = Scratch::new("both");
    let agent = Agent::start(&scratch, "ttl_s = 86400\ndrain = [\"rail1\"]\n", &[]);
    scratch.until_policy("rail=rail1,");
    agent.drain("rail1");
    scratch.until_policy("# drained rail1\n");
    agent.terminate();
}

#[test]
fn a_policy_that_is_in_force_is_not_written_again_and_a_lock_that_was_removed_is() {
    let scratch = Scratch::new("rest");
    let agent = Agent::start(&scratch, LONG, &[]);
    let lock = scratch.run_dir().join("agent.lock");
    fs::remove_file(&lock).unwrap();
    until("the lock", || lock.exists().then_some(()));
    until_looks(&agent);
    let metrics = agent.try_get("/metrics").unwrap().1;
    let user = fs::metadata(scratch.run_dir()).unwrap().uid();
    assert!(metrics.contains(&format!("railweave_agent_policy_writes_total{{user=\"{user}\"}} 1\n")), "{metrics}");
    agent.terminate();
}

#[test]
fn the_last_policy_holds_for_its_whole_time_after_the_end() {
    let scratch = Scratch::new("leave");
    let agent = Agent::start(&scratch, LONG, &[]);
    let written = written_s(&scratch.until_policy("any -> policy speed"));
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    until("another second", || (clock() > written).then_some(()));
    agent.terminate();
    assert!(written_s(&scratch.until_policy("any -> policy speed")) > written);
}
