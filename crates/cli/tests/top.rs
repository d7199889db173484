//! `railweave top`, with files as processes write them: its lines, and its screen on a terminal of our own.

use railweave_telemetry::{
    Connection, ConnectionState, Device, Direction, Event, EventKind, Policy, Port, Process, Publisher, Rail,
    RailState, RunDir, State,
};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::time::{SystemTime, UNIX_EPOCH};

/// A folder that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("railweave-top-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn run_dir(&self) -> RunDir {
        RunDir::named(Some(&self.0.join("run")))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// A process with one connection to a peer, which has carried nothing yet.
struct Job {
    publisher: Publisher,
    state: State,
}

impl Job {
    fn new(dir: &RunDir, id: u8, peer: &str) -> Self {
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
    fn write(&mut self, bytes: u64) {
        self.state.rails.iter_mut().for_each(|rail| rail.bytes_sent += bytes);
        assert!(self.publisher.publish(&self.state, now_ns()).is_none());
    }

    fn note(&mut self, kind: EventKind, text: &str) {
        let event = Event { time_ns: now_ns(), kind, connection: Some(1), text: text.into(), ..Event::default() };
        self.publisher.add(&event);
    }
}

fn top(dir: &RunDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_railweave"));
    command.args(["top", "--run-dir"]).arg(dir.path()).args(["--every", "20ms"]);
    command.env("TERM", "xterm-256color").env("LC_ALL", "C.UTF-8").env_remove("NO_COLOR");
    command
}

/// A program that is killed at the end.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Lets `step` act while the lines of `top` come, until one has these words. Returns all lines.
fn lines_until(dir: &RunDir, words: &[&str], mut step: impl FnMut(usize)) -> Vec<String> {
    let mut child = Started(top(dir).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = Vec::new();
    for (number, line) in BufReader::new(child.0.stdout.take().unwrap()).lines().take(2000).enumerate() {
        let line = line.unwrap();
        let is_last = words.iter().all(|words| line.contains(words));
        lines.push(line);
        if is_last {
            return lines;
        }
        step(number);
    }
    panic!("no line has {words:?}: {lines:?}");
}

#[test]
fn without_a_terminal_it_writes_lines() {
    let scratch = Scratch::new("lines");
    let dir = scratch.run_dir();
    let mut job = Job::new(&dir, 1, "node8");
    let words = ["job 4711 peer node8 device eth0+eth1 rail 1 port eth1: down, sent 0.0 Mbit/s"];
    let lines = lines_until(&dir, &words, |number| {
        if number == 6 {
            job.note(EventKind::RAIL_DOWN, "rail 1 is gone");
            job.state.rails[1].state = RailState::Down;
        }
        job.write(1 << 20);
        if job.state.rails[1].state == RailState::Down {
            job.state.rails[1].bytes_sent = 1 << 22;
        }
    });
    let has = |words: &str| lines.iter().any(|line| line.contains(words));
    assert!(has("event rail-down of rank 1 of job 4711: connection 1: rail 1 is gone"), "{lines:?}");
    assert!(lines.iter().all(|line| !line.contains('\u{1b}')));
    let limited = top(&dir).args(["--count", "2"]).output().unwrap();
    assert!(limited.status.success() && String::from_utf8(limited.stdout).unwrap().lines().count() >= 4);
}

#[test]
fn a_run_dir_may_come_vanish_and_come_back() {
    let scratch = Scratch::new("vanishes");
    let dir = scratch.run_dir();
    let (moved, path) = (scratch.0.join("moved"), dir.path().to_owned());
    let mut jobs = Vec::new();
    let mut child = Started(top(&dir).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut until = |words: &str| {
        let found = lines.by_ref().take(2000).any(|line| line.contains(words));
        assert!(found, "{words}");
    };
    until("no connections in ");
    jobs.push(Job::new(&dir, 1, "node8"));
    until("peer node8 ");
    fs::rename(&path, moved).unwrap();
    until("no connections in ");
    jobs.push(Job::new(&dir, 2, "node9"));
    until("peer node9 ");
    fs::remove_dir_all(&path).unwrap();
    fs::write(&path, "no folder").unwrap();
    until("is not a folder");
}

/// Gives the file of a process another minor version, and mends its checksum (docs/telemetry.md).
fn set_minor(path: &Path, minor: u16) {
    let mut bytes = fs::read(path).unwrap();
    let part = |bytes: &[u8]| {
        let mut header = bytes[..512].to_vec();
        header[16..24].fill(0);
        let mut crc = crc32fast::Hasher::new();
        crc.update(&[0; 8]);
        crc.update(&header);
        u64::from(crc.finalize())
    };
    let before = part(&bytes);
    bytes[10..12].copy_from_slice(&minor.to_le_bytes());
    let checksum = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
    let checksum = checksum.wrapping_sub(before).wrapping_add(part(&bytes));
    bytes[16..24].copy_from_slice(&checksum.to_le_bytes());
    fs::write(path, bytes).unwrap();
}

#[test]
fn files_of_other_layouts_and_rubbish_are_shown_or_named() {
    let scratch = Scratch::new("layouts");
    let dir = scratch.run_dir();
    let _jobs = [(1, "older"), (2, "newer"), (3, "present")].map(|(id, peer)| Job::new(&dir, id, peer));
    set_minor(&dir.file_of([1; 16]), 0);
    set_minor(&dir.file_of([2; 16]), 9);
    let mut other = fs::read(dir.file_of([3; 16])).unwrap();
    other[8] = 2;
    fs::write(dir.file_of([4; 16]), other).unwrap();
    fs::write(dir.file_of([5; 16]), "x".repeat(600)).unwrap();
    fs::write(dir.file_of([6; 16]), "").unwrap();
    std::os::unix::fs::symlink("/dev/zero", dir.file_of([7; 16])).unwrap();
    fs::write(dir.path().join("note.txt"), "not looked at").unwrap();
    let output = top(&dir).args(["--count", "30"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    for words in ["peer older ", "peer newer ", "peer present "] {
        assert!(text.contains(words), "{words}: {text}");
    }
    for (id, words) in [(4, "version 2"), (5, "does not begin as a telemetry file"), (7, "is a symbolic link")] {
        let path = dir.file_of([id; 16]).display().to_string();
        let events = text.lines().filter(|line| line.contains("event file-refused"));
        assert_eq!(events.filter(|line| line.contains(&path) && line.contains(words)).count(), 1, "{words}: {text}");
    }
}

/// Opens the other side of a terminal.
fn side_of(terminal: &File) -> File {
    grantpt(terminal).unwrap();
    unlockpt(terminal).unwrap();
    let name = ptsname(terminal, Vec::new()).unwrap();
    let name = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes())).to_owned();
    // It controls nobody.
    let flags = rustix::fs::OFlags::NOCTTY.bits().cast_signed();
    let side = OpenOptions::new().read(true).write(true).custom_flags(flags).open(name).unwrap();
    tcsetwinsize(&side, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    side
}

/// A terminal of our own, with `top` on it.
struct Screen {
    terminal: File,
    /// The terminal's other side, as it was before.
    side: File,
    child: Started,
    /// The terminal as its user sees it.
    seen: Arc<Mutex<vt100::Parser>>,
}

impl Screen {
    fn new(command: &mut Command, columns: u16, rows: u16) -> Self {
        let terminal = File::from(openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap());
        let side = side_of(&terminal);
        let seen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let (mut reader, theirs) = (terminal.try_clone().unwrap(), Arc::clone(&seen));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                theirs.lock().unwrap().process(&bytes[..count]);
            }
        });
        let screen = |stream: &File| Stdio::from(stream.try_clone().unwrap());
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&side, size).unwrap();
        command.stdin(screen(&side)).stdout(screen(&side)).stderr(screen(&side));
        let child = Started(command.spawn().unwrap());
        Self { terminal, side, child, seen }
    }

    fn press(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).unwrap();
    }

    fn resize(&mut self, columns: u16, rows: u16) {
        self.seen.lock().unwrap().screen_mut().set_size(rows, columns);
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.side, size).unwrap();
    }

    fn text(&self) -> String {
        self.seen.lock().unwrap().screen().contents()
    }

    /// Returns the processor time that `top` has used: fields 14 and 15 of proc_pid_stat(5), in hundredths of a second
    /// on every architecture that matters here.
    fn processor_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.0.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        let ticks: u64 = [fields[11], fields[12]].iter().map(|field| field.parse::<u64>().unwrap()).sum();
        Duration::from_millis(10 * ticks)
    }

    fn until(&self, words: &str) {
        let has = || self.seen.lock().unwrap().screen().contents().contains(words);
        railweave_patience::until(&format!("{words} on the screen"), || has().then_some(()));
    }

    fn has_colours(&self) -> bool {
        let seen = self.seen.lock().unwrap();
        let (rows, columns) = seen.screen().size();
        let cells = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let mut cells = cells.filter_map(|(row, column)| seen.screen().cell(row, column));
        cells.any(|cell| [cell.fgcolor(), cell.bgcolor()] != [vt100::Color::Default; 2])
    }

    /// Returns true if the terminal shows its other screen.
    fn is_taken(&self) -> bool {
        self.seen.lock().unwrap().screen().alternate_screen()
    }

    fn hides_cursor(&self) -> bool {
        self.seen.lock().unwrap().screen().hide_cursor()
    }

    fn ends(&mut self) -> Option<i32> {
        let child = &mut self.child.0;
        railweave_patience::until("the end of top", || child.try_wait().unwrap()).code()
    }

    fn is_given_back(&self) {
        railweave_patience::until("the terminal's first screen", || (!self.is_taken()).then_some(()));
        railweave_patience::until("the cursor", || (!self.hides_cursor()).then_some(()));
        assert!(!self.is_raw());
    }

    fn is_raw(&self) -> bool {
        use rustix::termios::LocalModes;
        !tcgetattr(&self.side).unwrap().local_modes.contains(LocalModes::ICANON)
    }
}

#[test]
fn the_screen_is_drawn_obeys_keys_and_leaves_the_terminal_as_it_was() {
    let scratch = Scratch::new("screen");
    let dir = scratch.run_dir();
    let _job = Job::new(&dir, 1, "node8");
    let mut screen = Screen::new(&mut top(&dir), 80, 24);
    screen.until("node8 by eth0+eth1");
    assert!(screen.is_raw() && screen.is_taken() && screen.hides_cursor());
    screen.press("?");
    screen.until("keys and columns");
    screen.press("x");
    screen.press("d");
    screen.until("no rail is selected");
    screen.resize(200, 50);
    screen.until("FLIGHT");
    assert!(screen.has_colours());
    screen.press("q");
    assert_eq!(screen.ends(), Some(0));
    screen.is_given_back();
}

#[test]
fn a_terminal_of_no_size_or_a_huge_one_is_drawn() {
    let scratch = Scratch::new("sizes");
    let dir = scratch.run_dir();
    let _job = Job::new(&dir, 1, "node8");
    let mut screen = Screen::new(&mut top(&dir), 90, 24);
    screen.until("node8 by eth0+eth1");
    for (columns, rows, words) in [(u16::MAX, u16::MAX, " "), (0, 0, "node8 by eth0+eth1")] {
        // Its user's window stays as it is, and is empty.
        screen.seen.lock().unwrap().process(b"\x1b[2J\x1b[H");
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&screen.side, size).unwrap();
        screen.until(words);
    }
    screen.press("q");
    assert_eq!(screen.ends(), Some(0));
    screen.is_given_back();
}

#[test]
fn it_stops_and_goes_on_as_a_shell_wants() {
    let scratch = Scratch::new("suspends");
    let dir = scratch.run_dir();
    let _job = Job::new(&dir, 1, "node8");
    // Of its own group: one whose members have no parent in another one of the session is never stopped (setpgid(2)).
    let mut screen = Screen::new(top(&dir).process_group(0), 80, 24);
    screen.until("node8 by eth0+eth1");
    screen.press("\u{1a}");
    screen.is_given_back();
    let pid = rustix::process::Pid::from_child(&screen.child.0);
    let stat = format!("/proc/{}/stat", screen.child.0.id());
    let is_stopped = || fs::read_to_string(&stat).unwrap().contains(") T ");
    railweave_patience::until("the stop of top", || is_stopped().then_some(()));
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    railweave_patience::until("the terminal's other screen", || screen.is_taken().then_some(()));
    screen.until("node8 by eth0+eth1");
    assert!(screen.is_raw());
    screen.press("q");
    assert_eq!(screen.ends(), Some(0));
    screen.is_given_back();
}

#[test]
fn whatever_happens_in_a_pause_is_found_after_it() {
    let scratch = Scratch::new("pauses");
    let dir = scratch.run_dir();
    let mut job = Job::new(&dir, 1, "node8");
    let mut screen = Screen::new(&mut top(&dir), 80, 24);
    screen.until("node8 by eth0+eth1");
    screen.press("p");
    screen.until("PAUSED");
    job.note(EventKind::RAIL_DOWN, "rail 1 is gone");
    job.write(1);
    // Many looks would have found it, and a pause costs next to nothing.
    let before = screen.processor_time();
    std::thread::sleep(Duration::from_secs(1));
    let cost = screen.processor_time() - before;
    assert!(!screen.text().contains("rail 1 is gone"), "{}", screen.text());
    screen.press("p");
    screen.until("rail 1 is gone");
    assert!(cost < Duration::from_millis(400), "{cost:?}");
    screen.press("q");
    assert_eq!(screen.ends(), Some(0));
}

#[test]
fn an_order_is_carried_out_before_the_end() {
    let scratch = Scratch::new("hurries");
    let dir = scratch.run_dir();
    let _job = Job::new(&dir, 1, "node8");
    let mut screen = Screen::new(top(&dir).args(["--every", "60s"]), 120, 24);
    screen.until("node8 by eth0+eth1");
    // The last row, the order, and the end at once.
    screen.press("\u{1b}[Fdq");
    assert_eq!(screen.ends(), Some(0));
    screen.until("drain eth1: ordered in");
    assert!(fs::read_to_string(dir.policy_file()).unwrap().contains("# drained eth1"));
}

#[test]
fn it_ends_with_its_terminal() {
    let scratch = Scratch::new("gone");
    let dir = scratch.run_dir();
    let mut terminal = File::from(openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap());
    let side = side_of(&terminal);
    let stream = || Stdio::from(side.try_clone().unwrap());
    let mut child = Started(top(&dir).stdin(stream()).stdout(stream()).stderr(stream()).spawn().unwrap());
    drop(side);
    // It waits for keys once it has drawn.
    let mut seen = vt100::Parser::new(24, 80, 0);
    while !seen.screen().contents().contains("q quit") {
        let mut bytes = [0; 4096];
        let count = terminal.read(&mut bytes).unwrap();
        seen.process(&bytes[..count]);
    }
    // Nobody else has it open. A terminal that controls nobody sends no signal.
    drop(terminal);
    let status = railweave_patience::until("the end of top", || child.0.try_wait().unwrap());
    assert_eq!(status.code(), Some(1), "{status:?}");
}

#[test]
fn a_signal_leaves_the_terminal_as_it_was_too() {
    let scratch = Scratch::new("signal");
    let dir = scratch.run_dir();
    let mut screen = Screen::new(top(&dir).env("NO_COLOR", "1"), 80, 24);
    screen.until("no process of Railweave has a file in");
    assert!(screen.is_taken() && !screen.has_colours());
    let pid = rustix::process::Pid::from_child(&screen.child.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(screen.ends(), Some(0));
    screen.is_given_back();
}

#[test]
fn a_port_is_drained_by_key_without_an_agent() {
    let scratch = Scratch::new("drains");
    let dir = scratch.run_dir();
    let _job = Job::new(&dir, 1, "node8");
    let mut screen = Screen::new(&mut top(&dir), 120, 24);
    screen.until("no agent: no orders");
    // The last row.
    screen.press("\u{1b}[F");
    screen.until("rail 1 eth1");
    screen.press("d");
    let policy = || fs::read_to_string(dir.policy_file()).ok();
    let rule = |text: &String| text.lines().any(|line| line.contains("eth1") && line.ends_with("-> drain"));
    railweave_patience::until("the order in the policy file", || policy().filter(rule));
    screen.until("eth1 drained");
    screen.press("d");
    railweave_patience::until("the end of the order", || policy().is_none().then_some(()));
    screen.press("q");
    assert_eq!(screen.ends(), Some(0));
}

#[test]
fn a_terminal_that_answers_nothing_is_drawn_again() {
    let scratch = Scratch::new("redrawn");
    let dir = scratch.run_dir();
    let _job = Job::new(&dir, 1, "node8");
    let mut screen = Screen::new(&mut top(&dir), 80, 24);
    screen.until("node8 by eth0+eth1");
    // Somebody else has written over it.
    screen.seen.lock().unwrap().process(b"\x1b[2J");
    screen.press("\u{c}");
    screen.until("node8 by eth0+eth1");
    screen.press("q");
    assert_eq!(screen.ends(), Some(0));
}

#[test]
fn lines_end_with_their_reader_even_if_nothing_runs() {
    let scratch = Scratch::new("unread");
    let dir = scratch.run_dir();
    let mut child = Started(top(&dir).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("no connections in"), "{line}");
    // The pipe is closed now.
    let status = railweave_patience::until("the end", || child.0.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
}
