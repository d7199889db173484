//! The reader: files of later versions are read, damaged ones are refused, and the page's reader agrees.

mod common;

use common::{ID, NOW, Scratch, python, state};
use proptest::prelude::*;
use railweave_telemetry::{Damage, Event, EventKind, Publisher, ReadError, Snapshot, decode, read, read_each};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// The bytes of a file with three connections and two events.
static FILE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let scratch = Scratch::new("file");
    fs::read(written(&scratch).path()).unwrap()
});

fn written(scratch: &Scratch) -> Publisher {
    let mut publisher = Publisher::new(scratch.run_dir(), ID);
    publisher.add(&Event { time_ns: 1, kind: EventKind::OPENED, text: "a text".into(), ..Event::default() });
    publisher.add(&Event { time_ns: 2, connection: Some(1), rail: Some(0), ..Event::default() });
    assert!(publisher.publish(&state(3), NOW).is_none());
    publisher
}

fn number(bytes: &[u8], at: usize, size: usize) -> u64 {
    bytes[at..at + size].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn set(bytes: &mut [u8], at: usize, size: usize, number: u64) {
    bytes[at..at + size].copy_from_slice(&number.to_le_bytes()[..size]);
}

/// Sets the checksum right, as docs/telemetry.md says.
fn sign(bytes: &mut [u8]) {
    let part = |place: u64, record: &[u8]| {
        let mut crc = crc32fast::Hasher::new();
        crc.update(&place.to_le_bytes());
        crc.update(record);
        u64::from(crc.finalize())
    };
    let (header_size, directory) = (number(bytes, 12, 4) as usize, number(bytes, 48, 4) as usize);
    set(bytes, 16, 8, 0);
    let Some(header) = bytes.get(..header_size) else { return };
    let mut sum = part(0, header);
    for index in 0..number(bytes, 54, 2) as usize {
        let at = directory + index * number(bytes, 52, 2) as usize;
        if at + 24 > bytes.len() {
            return;
        }
        let (size, offset, count) = (number(bytes, at + 4, 4), number(bytes, at + 8, 8), number(bytes, at + 16, 4));
        for record in 0..count {
            let place = offset.saturating_add(record * size);
            let bytes = usize::try_from(place).ok().and_then(|from| bytes.get(from..)?.get(..size as usize));
            let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty()) else { return };
            sum = sum.wrapping_add(part(place, bytes));
        }
    }
    set(bytes, 16, 8, sum);
}

/// Returns the file as a later version might write it: larger in every way, and with a kind that is not known here.
fn later_version() -> Vec<u8> {
    let old = &*FILE;
    let (header, entry, record) = (1024, 40, 320);
    let mut new = vec![0; header];
    new[..376].copy_from_slice(&old[..376]);
    set(&mut new, 10, 2, 7);
    set(&mut new, 12, 4, header as u64);
    set(&mut new, 48, 4, 600);
    set(&mut new, 52, 2, entry as u64);
    set(&mut new, 54, 2, 6);
    // The kind 9 comes first.
    set(&mut new, 600, 4, 9);
    set(&mut new, 604, 4, 16);
    set(&mut new, 608, 8, header as u64);
    set(&mut new, 616, 4, 3);
    new.extend([0xee; 48]);
    for index in (0..3).map(|index| header + index * 16) {
        set(&mut new, index, 8, 1);
    }
    for section in 0..5 {
        let from = 376 + section * 24;
        let (offset, count) = (number(old, from + 8, 8) as usize, number(old, from + 16, 4) as usize);
        let at = 600 + (section + 1) * entry;
        new[at..at + 24].copy_from_slice(&old[from..from + 24]);
        set(&mut new, at + 4, 4, record as u64);
        let place = new.len() as u64;
        set(&mut new, at + 8, 8, place);
        for old_record in old[offset..].chunks(256).take(count) {
            new.extend(old_record);
            new.extend([0x55; 64]);
        }
    }
    sign(&mut new);
    new
}

#[test]
fn a_file_of_a_later_minor_version_is_read() {
    assert_eq!(decode(&later_version()), decode(&FILE));
    assert_eq!(decode(&FILE).unwrap().state, state(3));
}

#[test]
fn a_file_of_another_major_version_is_refused_by_name() {
    let mut bytes = FILE.clone();
    set(&mut bytes, 8, 2, 2);
    sign(&mut bytes);
    assert_eq!(decode(&bytes), Err(Damage::Version(2)));
    assert!(Damage::Version(2).to_string().contains("has version 2 of the layout, and only version 1 is known"));
}

#[test]
fn a_kind_of_event_that_is_not_known_keeps_its_number() {
    let mut bytes = FILE.clone();
    let events = number(&bytes, 376 + 3 * 24 + 8, 8) as usize;
    set(&mut bytes, events + 22, 2, 4242);
    sign(&mut bytes);
    let snapshot = decode(&bytes).unwrap();
    assert_eq!(snapshot.events[0].kind.to_string(), "kind 4242");
    assert_eq!(EventKind::OPENED.to_string(), "opened");
}

#[test]
fn each_defect_is_named() {
    let with = |at, size, value| {
        let mut bytes = FILE.clone();
        set(&mut bytes, at, size, value);
        sign(&mut bytes);
        decode(&bytes)
    };
    assert_eq!(decode(&[]), Err(Damage::Short(0)));
    assert_eq!(decode(&FILE[..511]), Err(Damage::Short(511)));
    assert_eq!(with(0, 8, 0), Err(Damage::Magic));
    assert_eq!(with(12, 4, 511), Err(Damage::Header("the header's size", 511)));
    assert_eq!(with(12, 4, u32::MAX.into()), Err(Damage::Header("the header's size", u32::MAX.into())));
    assert_eq!(with(52, 2, 8), Err(Damage::Header("the size of a directory's entry", 8)));
    assert_eq!(with(48, 4, 420), Err(Damage::Header("the directory's place", 420)));
    assert_eq!(with(54, 2, 65_535), Err(Damage::Header("the number of sections", 65_535)));
    assert_eq!(with(380, 4, 128), Err(Damage::Header("the size of a record", 128)));
    assert_eq!(with(384, 8, u64::MAX), Err(Damage::Header("the place of a section", u64::MAX)));
    // Every section is the whole file.
    let mut twice = FILE.clone();
    let all = number(&twice, 384, 8);
    for section in 0..5 {
        set(&mut twice, 384 + section * 24, 8, all);
        set(&mut twice, 392 + section * 24, 4, (FILE.len() as u64 - all) / 256);
    }
    sign(&mut twice);
    assert!(matches!(decode(&twice), Err(Damage::Header("the size of all sections", _))));
    let mut newer = FILE.clone();
    set(&mut newer, 24, 8, 0);
    sign(&mut newer);
    assert_eq!(decode(&newer), Err(Damage::Checksum), "the records are newer than the header");
}

#[test]
fn a_file_that_is_none_is_refused_by_name() {
    let scratch = Scratch::new("refused");
    let error = |path: &Path| {
        let error = read(path).expect_err("it is refused").to_string();
        assert!(error.starts_with(&format!("\"{}\" ", path.display())) && error.lines().count() == 1, "{error}");
        error
    };
    assert!(error(&scratch.0).contains("is not a regular file"));
    assert!(error(&scratch.path("missing")).contains("cannot be read"));
    std::os::unix::fs::symlink(written(&scratch).path(), scratch.path("link")).unwrap();
    assert!(error(&scratch.path("link")).contains("cannot be read"));
    let large = fs::File::create(scratch.path("large")).unwrap();
    large.set_len(1 << 40).unwrap();
    assert!(error(&scratch.path("large")).contains("allowed: up to 67108864"));
    let mut damaged = FILE.clone();
    damaged[300] ^= 1;
    fs::write(scratch.path("damaged"), damaged).unwrap();
    assert!(error(&scratch.path("damaged")).contains("its checksum is wrong"));
}

#[test]
fn the_reader_of_the_page_agrees() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/telemetry.md");
    let page = fs::read_to_string(path).unwrap();
    let (_, program) = page.split_once("```python\n").unwrap();
    let (program, _) = program.split_once("```").unwrap();
    assert!(program.lines().count() <= 60, "{} lines", program.lines().count());
    let scratch = Scratch::new("python");
    let publisher = written(&scratch);
    let Some(output) = python(program, publisher.path()) else { return };
    assert_eq!(output, as_python(&read(publisher.path()).unwrap()));
    // The same reader takes a later version.
    fs::write(scratch.path("later"), later_version()).unwrap();
    assert_eq!(python(program, &scratch.path("later")), Some(output));
}

/// Returns the lines that the reader of the page prints.
fn as_python(snapshot: &Snapshot) -> String {
    fn known<T: ToString>(number: Option<T>) -> String {
        number.map_or_else(|| "None".to_owned(), |number| number.to_string())
    }
    let state = &snapshot.state;
    let process = &state.process;
    let mut lines = format!(
        "process {} rank {} of {} host {}\njob {} from {} version {} written {}\n",
        process.pid,
        known(process.rank),
        known(process.world),
        process.host,
        process.job,
        process.job_variable,
        process.version,
        snapshot.written_ns
    );
    for device in &state.devices {
        let (speed, count) = (known(device.speed_mbps), device.port_count);
        writeln!(lines, "device {} {speed} {count} {} {}", device.name, device.fabric, device.ports).unwrap();
    }
    for port in &state.ports {
        writeln!(lines, "port {} {}", port.name, port.fabric).unwrap();
    }
    for connection in &state.connections {
        let (direction, state, policy) = (connection.direction as u8, connection.state as u8, connection.policy as u8);
        let (device, rank) = (known(connection.device), known(connection.peer_rank));
        let number = connection.number;
        writeln!(lines, "connection {number} {direction} {state} {policy} {device} {rank}").unwrap();
        writeln!(lines, "peer {}", connection.peer_host).unwrap();
    }
    for rail in &state.rails {
        let (speed, share, in_flight) = (known(rail.speed_mbps), known(rail.share), known(rail.in_flight));
        let (connection, number, state) = (rail.connection, rail.number, rail.state as u8);
        writeln!(lines, "rail {connection} {number} {state} {speed} {share} {in_flight}").unwrap();
        let (sent, writes, cts, received) = (rail.bytes_sent, rail.writes_sent, rail.cts_writes, rail.bytes_received);
        let (waited, again, failovers) = (known(rail.waited_for_cts), rail.retransmitted, rail.failovers);
        writeln!(lines, "counts {sent} {writes} {cts} {received} {waited} {again} {failovers}").unwrap();
        writeln!(lines, "ends {} {} port {}", rail.local, rail.remote, known(rail.port)).unwrap();
        writeln!(lines, "latencies {}", rail.latencies.0.map(|count| count.to_string()).join(" ")).unwrap();
    }
    for event in &snapshot.events {
        let (connection, rail, kind) = (known(event.connection), known(event.rail), event.kind.0);
        writeln!(lines, "event {} {connection} {rail} {kind} {}", event.time_ns, event.text).unwrap();
    }
    lines
}

proptest! {
    #[test]
    fn a_damaged_byte_is_found_or_does_not_matter(at in 0..FILE.len(), by in 1..=255_u8) {
        let mut bytes = FILE.clone();
        bytes[at] ^= by;
        let result = decode(&bytes);
        prop_assert!(result.is_err() || result == decode(&FILE));
    }

    #[test]
    fn a_truncated_file_is_found_or_complete(size in 0..FILE.len()) {
        let result = decode(&FILE[..size]);
        prop_assert!(result.is_err() || result == decode(&FILE));
    }

    /// The header is anything, and the checksum is right: nothing panics.
    #[test]
    fn a_hostile_header_is_no_danger(
        changes in prop::collection::vec((8..500_usize, prop_oneof![Just(0_u8), Just(0xff), any::<u8>()]), 1..40),
        size in 0..2 * FILE.len(),
    ) {
        let mut bytes = FILE.clone();
        bytes.resize(size.max(512), 1);
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        (bytes[8], bytes[9]) = (1, 0);
        sign(&mut bytes);
        if let Ok(snapshot) = decode(&bytes) {
            prop_assert!(snapshot.state.rails.len() * 256 <= bytes.len());
        }
    }

    #[test]
    fn bytes_are_no_danger(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        prop_assert!(decode(&bytes).is_err());
    }
}

#[test]
fn an_error_of_reading_is_one_kind_of_error() {
    let error = read(Path::new("/nowhere/file")).unwrap_err();
    assert!(matches!(error, ReadError::File { .. }), "{error}");
}

#[test]
fn many_damaged_files_take_no_longer_than_one() {
    let scratch = Scratch::new("many");
    let good = written(&scratch).path().to_owned();
    let mut bytes = FILE.clone();
    bytes[16] ^= 1;
    let mut paths: Vec<PathBuf> = (0..50).map(|number| scratch.path(&format!("damaged{number}"))).collect();
    paths.iter().for_each(|path| fs::write(path, &bytes).unwrap());
    paths.insert(20, good);
    paths.push(scratch.path("none"));
    let (mut results, begin) = ([const { None }; 52], Instant::now());
    read_each(&paths, |place, result| assert!(results[place].replace(result).is_none()));
    // One after the other, they would wait for ten seconds.
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    for (place, (path, result)) in paths.iter().zip(results).enumerate() {
        match (place, result.unwrap()) {
            (20, Ok(snapshot)) => assert_eq!(snapshot, decode(&FILE).unwrap()),
            (51, Err(ReadError::File { path: named, .. })) => assert_eq!(&named, path),
            (_, Err(ReadError::Content { path: named, damage: Damage::Checksum })) => assert_eq!(&named, path),
            (_, result) => panic!("{}: {result:?}", path.display()),
        }
    }
}
