//! The lines of `top`, without a terminal.

use super::host::{Job, Scratch, Started, top};
use railweave_telemetry::{EventKind, RailState, RunDir};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

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
