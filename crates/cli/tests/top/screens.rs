//! The screen of `top`, on a terminal of our own.

use super::host::{Job, Scratch, Started, controlled_top, top};
use super::terminal::{Screen, side_of};
use railweave_telemetry::EventKind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, openpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn the_screen_is_drawn_obeys_keys_and_leaves_the_terminal_as_it_was() {
    let scratch = Scratch::new("screen");
    let dir = scratch.run_dir();
    let _job = Job::new(&dir, 1, "node8");
    let mut screen = Screen::new(&mut top(&dir), 80, 24);
    screen.until("node8 by eth0+eth1");
    assert!(screen.is_raw() && screen.is_taken() && screen.hides_cursor() && screen.marks_pasted_texts());
    screen.press("?");
    screen.until("keys and columns");
    screen.press("x");
    screen.press("d");
    screen.until("no rail is selected");
    // A larger window is emptied first, whatever it shows.
    screen.seen.lock().unwrap().process(b"\x1b[20;60Hrubbish");
    screen.resize(200, 50);
    screen.until("FLIGHT");
    assert!(screen.has_colours() && !screen.text().contains("rubbish"));
    screen.resize(200, 30);
    railweave_patience::until("the last line", || {
        screen.text().lines().nth(29).is_some_and(|line| line.starts_with("drain: no rail")).then_some(())
    });
    screen.press("/\u{1b}[200~d\nq\u{1b}[201~");
    screen.until("filter: dq_");
    // More keys than are read at once.
    screen.press("\u{1b}");
    screen.until("q quit");
    screen.press(&("j".repeat(3000) + "?"));
    screen.until("keys and columns");
    screen.press("x");
    screen.press("q");
    assert_eq!(screen.ends(), Some(0));
    screen.is_given_back();
}

#[test]
fn the_first_key_after_a_resize_is_heard() {
    let scratch = Scratch::new("heard");
    let dir = scratch.run_dir();
    let _job = Job::new(&dir, 1, "node8");
    let mut screen = Screen::new(&mut controlled_top(&dir), 80, 24);
    screen.until("job 4711");
    for columns in [90, 100, 110] {
        screen.seen.lock().unwrap().process(b"\x1b[2J");
        screen.resize(columns, 24);
        screen.until("job 4711");
        screen.press("?");
        screen.until("keys and columns");
        screen.press("x");
        screen.until("job 4711");
    }
    screen.resize(80, 24);
    screen.press("q");
    assert_eq!(screen.ends(), Some(0));
    screen.is_given_back();
}

#[test]
fn a_window_that_was_small_for_a_moment_is_drawn_again() {
    let scratch = Scratch::new("moment");
    let dir = scratch.run_dir();
    let _job = Job::new(&dir, 1, "node8");
    let mut screen = Screen::new(&mut controlled_top(&dir), 80, 24);
    for _ in 0..5 {
        screen.until("node8 by eth0+eth1");
        // It has lost everything but some rubbish.
        screen.seen.lock().unwrap().process(b"\x1b[2J\x1b[20;60Hrubbish");
        screen.resize(40, 10);
        screen.resize(80, 24);
    }
    let is_whole = |text: &str| text.contains("node8 by") && text.contains("q quit") && !text.contains("rubbish");
    railweave_patience::until("the whole screen", || is_whole(&screen.text()).then_some(()));
    screen.press("q");
    assert_eq!(screen.ends(), Some(0));
}

#[test]
fn a_terminal_that_others_have_used_meanwhile_is_taken_again() {
    let scratch = Scratch::new("continued");
    let dir = scratch.run_dir();
    let _job = Job::new(&dir, 1, "node8");
    let mut screen = Screen::new(&mut controlled_top(&dir), 80, 24);
    screen.until("node8 by eth0+eth1");
    let pid = rustix::process::Pid::from_child(&screen.child.0);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let stat = format!("/proc/{}/stat", screen.child.0.id());
    let is_stopped = || fs::read_to_string(&stat).unwrap().contains(") T ");
    railweave_patience::until("the stop of top", || is_stopped().then_some(()));
    // As a shell does.
    let mut modes = tcgetattr(&screen.side).unwrap();
    modes.local_modes |= rustix::termios::LocalModes::ICANON;
    rustix::termios::tcsetattr(&screen.side, rustix::termios::OptionalActions::Now, &modes).unwrap();
    screen.seen.lock().unwrap().process(b"\x1b[?1049l\x1b[?25h$ ");
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    railweave_patience::until("the terminal's other screen", || screen.is_taken().then_some(()));
    screen.until("node8 by eth0+eth1");
    assert!(screen.is_raw() && screen.hides_cursor());
    screen.press("q");
    assert_eq!(screen.ends(), Some(0));
    screen.is_given_back();
}

#[test]
fn a_signal_ends_it_on_a_terminal_that_takes_nothing() {
    let scratch = Scratch::new("full");
    let dir = scratch.run_dir();
    let _job = Job::new(&dir, 1, "node8");
    let mut screen = Screen::new(&mut top(&dir), 80, 24);
    screen.until("node8 by eth0+eth1");
    // Whoever reads the terminal waits for this, so it takes nothing.
    let seen = Arc::clone(&screen.seen);
    let is_shut = seen.lock().unwrap();
    railweave_patience::until("a full terminal", || {
        screen.press("\u{c}");
        std::thread::sleep(Duration::from_millis(10));
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        (poll(&mut [PollFd::new(&screen.side, PollFlags::OUT)], Some(&now)).unwrap() == 0).then_some(())
    });
    rustix::process::kill_process(rustix::process::Pid::from_child(&screen.child.0), rustix::process::Signal::TERM)
        .unwrap();
    assert_eq!(screen.ends(), Some(0));
    assert!(!screen.is_raw());
    drop(is_shut);
}

#[test]
fn a_terminal_of_no_size_or_a_huge_one_is_drawn() {
    let scratch = Scratch::new("sizes");
    let dir = scratch.run_dir();
    let _job = Job::new(&dir, 1, "node8");
    let mut screen = Screen::new(&mut top(&dir), 90, 24);
    screen.until("node8 by eth0+eth1");
    for (columns, rows) in [(u16::MAX, u16::MAX), (0, 0), (0, 50), (90, 0)] {
        // Its user's window stays as it is, and is empty. A line that is too long for it moves the others away.
        screen.seen.lock().unwrap().process(b"\x1b[2J\x1b[H");
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&screen.side, size).unwrap();
        match columns {
            u16::MAX => railweave_patience::until("a frame", || (!screen.text().trim().is_empty()).then_some(())),
            _ => screen.until("node8 by eth0+eth1"),
        }
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
    // A look that was asked for before may come still.
    std::thread::sleep(Duration::from_millis(300));
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
    use rustix::process::Signal;
    let scratch = Scratch::new("signal");
    let dir = scratch.run_dir();
    for signals in [&[Signal::TERM][..], &[Signal::INT], &[Signal::HUP], &[Signal::TERM, Signal::INT, Signal::HUP]] {
        let mut screen = Screen::new(top(&dir).env("NO_COLOR", "1"), 80, 24);
        screen.until("no process of Railweave has a file in");
        assert!(screen.is_taken() && !screen.has_colours());
        let pid = rustix::process::Pid::from_child(&screen.child.0);
        for signal in signals {
            let _ = rustix::process::kill_process(pid, *signal);
        }
        let code = screen.ends();
        assert!(code == Some(0) || (signals.len() > 1 && code == Some(1)), "{signals:?}: {code:?}");
        screen.is_given_back();
    }
}

#[test]
fn a_number_of_looks_ends_it() {
    let scratch = Scratch::new("count");
    let dir = scratch.run_dir();
    let mut screen = Screen::new(top(&dir).args(["--count", "2"]), 80, 24);
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
