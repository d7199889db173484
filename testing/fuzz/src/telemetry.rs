//! A telemetry file: any bytes, any bytes under a right checksum, and files in which all but the records is right.
//!
//! A reader returns no more records than the file has room for. Whatever it returns can be written and read again, and
//! from then on stays the same; numbers that are computed from it are in their range, and words for people exist.

use std::collections::BTreeMap;

use railweave_telemetry::{Damage, Follower, Look, Publisher, ReadError, RunDir, Snapshot, State, decode, read};

use crate::file::Folder;
use crate::input::Input;

// The sizes and places of docs/telemetry.md.
const HEADER: usize = 512;
const RECORD: usize = 256;
const ENTRY: usize = 24;
const PROCESS: std::ops::Range<usize> = 56..376;
const DIRECTORY: usize = 400;

/// The kinds of sections of events and of ports; the others begin at 1, and there is none above.
const EVENTS: u32 = 4;
const PORTS: u32 = 5;

const MOST_SECTIONS: usize = 8;
const MOST_RECORDS: u8 = 20;

/// The sections of a file whose checksum is set right may be this many times as large as the file. A reader refuses any
/// that are larger than their file, because they overlap.
const MOST_TIMES: usize = 16;

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let file = match input.u8() % 3 {
        0 => input.rest().to_vec(),
        1 => signed(input.rest().to_vec()),
        _ => return described(&mut input),
    };
    let _ = look(&file);
}

/// Reads the bytes of a file, and uses everything that was read. Returns it.
fn look(file: &[u8]) -> Result<Snapshot, Damage> {
    let snapshot = decode(file);
    let folder = Folder::new();
    folder.put("file", file);
    assert_followed(&folder, snapshot.as_ref().ok());
    match &snapshot {
        Err(damage) => {
            one_line(&damage.to_string());
            // The reader of a file reads again if another damage may be a write in progress.
            if matches!(damage, Damage::Magic | Damage::Version(_)) {
                let error = read(&folder.file("file")).expect_err("a file is as wrong as its bytes");
                one_line(&error.to_string());
                assert!(matches!(error, ReadError::Content { damage: found, .. } if found == *damage), "{error}");
            }
        }
        Ok(snapshot) => {
            let State { devices, connections, rails, ports, .. } = &snapshot.state;
            let all = [devices.len(), connections.len(), rails.len(), ports.len(), snapshot.events.len()];
            let records: usize = all.iter().sum();
            assert!(HEADER + RECORD * records <= file.len(), "{records} records in {} bytes", file.len());
            assert_eq!(read(&folder.file("file")).expect("a file is as right as its bytes"), *snapshot);
            show(snapshot);
            let again = written(&folder, snapshot);
            let is_whole = !format!("{snapshot:?}").contains('\u{fffd}');
            assert!(!is_whole || again == *snapshot, "{snapshot:?} is read as {again:?}");
            assert_cut(snapshot, &again);
            assert_eq!(written(&folder, &again), again, "a second round changes nothing");
        }
    }
    snapshot
}

/// Checks that no text is other than it was, but that its end may be missing: replaced bytes take more room.
fn assert_cut(before: &Snapshot, after: &Snapshot) {
    let texts = |snapshot: &Snapshot| -> Vec<String> {
        let State { process, connections, rails, .. } = &snapshot.state;
        let of_process = [&process.host, &process.version, &process.job_variable, &process.job].map(String::clone);
        let of_connections = connections.iter().map(|connection| connection.peer_host.clone());
        let of_rails = rails.iter().flat_map(|rail| [rail.local.clone(), rail.remote.clone()]);
        let of_events = snapshot.events.iter().map(|event| event.text.clone());
        of_process.into_iter().chain(of_connections).chain(of_rails).chain(of_events).collect()
    };
    let (before, after) = (texts(before), texts(after));
    assert_eq!(before.len(), after.len());
    for (before, after) in before.iter().zip(&after) {
        assert!(before.starts_with(after), "{before:?} is read as {after:?}");
    }
}

/// Computes the words and numbers that `railweave status` shows.
fn show(snapshot: &Snapshot) {
    let State { process, devices: _, connections, rails, ports: _ } = &snapshot.state;
    let _ = process.presence();
    for connection in connections {
        let words = [connection.direction.word(), connection.state.word(), connection.policy.word()];
        assert!(words.iter().all(|word| !word.is_empty()));
    }
    for rail in rails {
        assert!(!rail.state.word().is_empty() && !rail.policy.word().is_empty());
        let mut latencies = rail.latencies;
        let parts = [0.0, 0.5, 0.99, 1.0].map(|part| latencies.quantile(part));
        assert_eq!(parts.map(|quantile| quantile.is_some()), [latencies.count() > 0; 4]);
        let parts: Vec<f64> = parts.into_iter().flatten().collect();
        assert!(parts.iter().all(|quantile| (0.0..=65_536.0).contains(quantile)), "{parts:?}");
        assert!(parts.is_sorted(), "{parts:?}");
        latencies.merge(&rail.latencies);
        assert!(latencies.count() >= rail.latencies.count(), "a merged histogram loses nothing");
    }
    for event in &snapshot.events {
        let kind = event.kind.to_string();
        assert!(!kind.is_empty() && !kind.contains(char::is_control));
    }
}

/// Checks that a follower finds what a reader of the bytes finds, or nothing if that is wrong, or would cost more than
/// a writer's file.
fn assert_followed(folder: &Folder, snapshot: Option<&Snapshot>) {
    let opened = railweave_telemetry::Folder::open(folder.path()).expect("the folder is ours");
    let mut follower = Follower::default();
    let mut look = || follower.look(&opened, "file", &mut Vec::new());
    match look() {
        Look::Changed(found) => assert_eq!(Some(&*found), snapshot),
        Look::BeingWritten if snapshot.is_none() => {}
        Look::BeingWritten => match [look(), look(), look()] {
            [.., Look::Refused(reason)] => {
                assert!(
                    reason.contains("the size of a record") || reason.contains("the number of records"),
                    "{reason}"
                );
            }
            [.., other] => panic!("{other:?}"),
        },
        Look::Refused(reason) => {
            assert!(snapshot.is_none(), "{reason}");
            one_line(&reason);
        }
        Look::Unchanged => panic!("nothing was read before"),
    }
}

/// Returns the snapshot as it is read after this version has written it.
fn written(folder: &Folder, snapshot: &Snapshot) -> Snapshot {
    let mut publisher = Publisher::new(RunDir::named(Some(folder.path())), snapshot.state.process.id);
    snapshot.events.iter().for_each(|event| publisher.add(event));
    let notice = publisher.publish(&snapshot.state, snapshot.written_ns);
    assert!(notice.is_none(), "{notice:?}");
    let again = read(publisher.path()).expect("a file that was written can be read");
    publisher.remove();
    assert_eq!((again.events_ever, again.left_out), (snapshot.events.len() as u64, [0; 3]));
    // These are the writer's own.
    Snapshot {
        events_ever: snapshot.events_ever,
        left_out: snapshot.left_out,
        generation: snapshot.generation,
        ..again
    }
}

/// A file of sections that follow each other, as the input describes them.
fn described(input: &mut Input<'_>) {
    let [generation, events_ever, sections] = input.array().map(usize::from);
    let sections = sections % MOST_SECTIONS;
    let (header_size, entry_size) = (HEADER + 8 * usize::from(input.u8()), ENTRY + usize::from(input.u8() % 40));
    let mut file = vec![0; header_size.max(DIRECTORY + sections * entry_size)];
    let header_size = file.len();
    let mut all: BTreeMap<u32, Vec<Vec<u8>>> = BTreeMap::new();
    let shapes: Vec<[u8; 4]> = (0..sections).map(|_| input.array()).collect();
    set(&mut file, 0, b"railweav");
    set(&mut file, 8, &1_u16.to_le_bytes());
    set(&mut file, 12, &(header_size as u32).to_le_bytes());
    set(&mut file, 24, &(generation as u64).to_le_bytes());
    set(&mut file, 40, &(events_ever as u64).to_le_bytes());
    set(&mut file, 48, &(DIRECTORY as u32).to_le_bytes());
    set(&mut file, 52, &(entry_size as u16).to_le_bytes());
    set(&mut file, 54, &(sections as u16).to_le_bytes());
    let process = input.take(PROCESS.len());
    set(&mut file, PROCESS.start, process);
    let mut newest = 0;
    for (index, [kind, more, count, left_out]) in shapes.into_iter().enumerate() {
        let (kind, size, count) =
            (u32::from(kind) % (PORTS + 2), RECORD + usize::from(more), usize::from(count % MOST_RECORDS));
        let place = file.len() as u64;
        let at = DIRECTORY + index * entry_size;
        set(&mut file, at, &kind.to_le_bytes());
        set(&mut file, at + 4, &(size as u32).to_le_bytes());
        set(&mut file, at + 8, &place.to_le_bytes());
        set(&mut file, at + 16, &(count as u32).to_le_bytes());
        set(&mut file, at + 20, &(u32::from(left_out) << 24).to_le_bytes());
        let records = (0..count).map(|_| {
            let mut record = vec![0; size];
            record[0] = input.u8();
            newest = newest.max(record[0]);
            set(&mut record, 8, input.take(RECORD - 8));
            record
        });
        let records: Vec<_> = records.collect();
        file.extend(records.concat());
        // A second section of a kind is ignored.
        all.entry(kind).or_insert(records);
    }
    let file = signed(file);
    match look(&file) {
        Ok(snapshot) => {
            assert!(usize::from(newest) <= generation, "a record is newer than the header");
            assert_places(&snapshot, &all);
        }
        Err(damage) => {
            assert_eq!(damage, Damage::Checksum, "only a record that is newer is wrong");
            assert!(usize::from(newest) > generation);
        }
    }
}

/// Checks that the snapshot has the records of the sections, in their order, and events from the oldest on.
fn assert_places(snapshot: &Snapshot, all: &BTreeMap<u32, Vec<Vec<u8>>>) {
    let number = |record: &Vec<u8>, at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| record[at + byte]));
    let numbers = |kind, at| -> Vec<u32> { all.get(&kind).into_iter().flatten().map(|r| number(r, at)).collect() };
    let State { devices, connections, rails, ports, .. } = &snapshot.state;
    assert_eq!(devices.iter().map(|device| device.port_count).collect::<Vec<_>>(), numbers(1, 76));
    assert_eq!(connections.iter().map(|connection| connection.number).collect::<Vec<_>>(), numbers(2, 8));
    assert_eq!(rails.iter().map(|rail| rail.connection).collect::<Vec<_>>(), numbers(3, 8));
    // As bytes: a name ends at the first zero byte, or is cut in the middle of a letter.
    assert_eq!(ports.len(), numbers(PORTS, 8).len());
    let ring = numbers(EVENTS, 8);
    let (ever, room) = (snapshot.events_ever, ring.len() as u64);
    let oldest = if ever > room && room > 0 { ever % room } else { 0 };
    let events: Vec<u32> = (0..room).map(|index| ring[((oldest + index) % room) as usize]).collect();
    assert_eq!(snapshot.events.iter().map(|event| event.time_ns as u32).collect::<Vec<_>>(), events);
}

fn set(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Sets the checksum right as docs/telemetry.md says, if all parts are in the file.
fn signed(mut file: Vec<u8>) -> Vec<u8> {
    if let Some(sum) = checksum(&file) {
        set(&mut file, 16, &sum.to_le_bytes());
    }
    file
}

fn checksum(file: &[u8]) -> Option<u64> {
    let number = |at: usize, size: usize| {
        let bytes = file.get(at..)?.get(..size)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)) as usize)
    };
    let part = |place: usize, pieces: &[&[u8]]| {
        let mut crc = crc32fast::Hasher::new();
        crc.update(&(place as u64).to_le_bytes());
        pieces.iter().for_each(|piece| crc.update(piece));
        u64::from(crc.finalize())
    };
    let header = file.get(..number(12, 4)?)?;
    let mut sum = part(0, &[header.get(..16)?, &[0; 8], header.get(24..)?]);
    let mut left = MOST_TIMES * file.len();
    for index in 0..number(54, 2)? {
        let at = number(48, 4)? + index * number(52, 2)?;
        let (size, place, count) = (number(at + 4, 4)?, number(at + 8, 8)?, number(at + 16, 4)?);
        left = left.checked_sub(size.checked_mul(count)?)?;
        if size == 0 || count == 0 {
            continue;
        }
        let section = file.get(place..)?.get(..size * count)?;
        for (record, bytes) in section.chunks_exact(size).enumerate() {
            sum = sum.wrapping_add(part(place + record * size, &[bytes]));
        }
    }
    Some(sum)
}

fn one_line(text: &str) {
    assert!(text.contains(' ') && !text.contains(char::is_control), "a sentence in one line: {text:?}");
}
