//! The follower: it finds what a reader finds, reads old events once, and says which files it cannot use.

mod common;

use common::{ID, NOW, Scratch, state};
use railweave_telemetry::{
    Event, EventKind, Folder, Follower, Look, MOST_CONNECTIONS, MOST_DEVICES, MOST_EVENTS, MOST_PORTS, MOST_RAILS,
    Publisher, Snapshot, read,
};
use std::fs;

struct Followed {
    folder: Folder,
    name: String,
    follower: Follower,
    buffer: Vec<u8>,
}

impl Followed {
    fn new(publisher: &Publisher) -> Self {
        let folder = Folder::open(publisher.path().parent().unwrap()).unwrap();
        let name = publisher.path().file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!(folder.files().unwrap().names, [&*name]);
        Self { folder, name, follower: Follower::default(), buffer: Vec::new() }
    }

    fn look(&mut self) -> Look {
        self.follower.look(&self.folder, &self.name, &mut self.buffer)
    }

    fn changed(&mut self) -> Snapshot {
        match self.look() {
            Look::Changed(snapshot) => *snapshot,
            other => panic!("{other:?}"),
        }
    }
}

fn event(number: u64) -> Event {
    Event { time_ns: number, kind: EventKind::PORT, text: format!("event {number}"), ..Event::default() }
}

fn times(snapshot: &Snapshot) -> Vec<u64> {
    snapshot.events.iter().map(|event| event.time_ns).collect()
}

#[test]
fn a_follower_finds_what_a_reader_finds() {
    let scratch = Scratch::new("follow");
    let mut publisher = Publisher::new(scratch.run_dir(), ID);
    let mut state = state(3);
    publisher.add(&event(0));
    assert!(publisher.publish(&state, NOW).is_none());
    let mut followed = Followed::new(&publisher);
    assert_eq!(followed.changed(), read(publisher.path()).unwrap());
    assert!(matches!(followed.look(), Look::Unchanged));
    for (round, connections, name) in
        [(1, 3, "eth0"), (2, 200, "eth0:7"), (3, 1, ""), (4, 3, "eth"), (5, 2, "\u{fffd}")]
    {
        state = common::state(connections);
        state.rails[0].bytes_sent += round;
        state.rails[0].remote = name.to_owned();
        state.process.job = name.to_owned();
        publisher.add(&event(round));
        assert!(publisher.publish(&state, NOW + round).is_none());
        let found = followed.changed();
        assert_eq!(times(&found), [round], "only the new event");
        let events = read(publisher.path()).unwrap().events;
        let mut found = Snapshot { events, ..found };
        assert_eq!(found, read(publisher.path()).unwrap());
        assert!(found.state.rails.capacity() <= 2 * found.state.rails.len() + 1, "it keeps no room of another one");
        // The next one, of more or fewer rails and with other texts, uses its room.
        found.state.rails.reserve(10_000);
        followed.follower.reuse(found);
        assert!(matches!(followed.look(), Look::Unchanged));
    }
}

#[test]
fn events_of_a_full_ring_come_once_each() {
    let scratch = Scratch::new("ring");
    let mut publisher = Publisher::new(scratch.run_dir(), ID);
    let most = MOST_EVENTS as u64;
    (0..most - 2).for_each(|number| publisher.add(&event(number)));
    assert!(publisher.publish(&state(1), NOW).is_none());
    let mut followed = Followed::new(&publisher);
    assert_eq!(times(&followed.changed()).len(), MOST_EVENTS - 2);
    let mut next = most - 2;
    for count in [1, 5, 100, most, 2, 3 * most, 1] {
        (next..next + count).for_each(|number| publisher.add(&event(number)));
        next += count;
        assert!(publisher.publish(&state(1), NOW + next).is_none());
        let expected: Vec<u64> = (next - count.min(most)..next).collect();
        assert_eq!(times(&followed.changed()), expected, "{count} more");
    }
}

#[test]
fn a_file_that_is_made_again_repeats_no_event() {
    let scratch = Scratch::new("again");
    let mut publisher = Publisher::new(scratch.run_dir(), ID);
    publisher.add(&event(0));
    assert!(publisher.publish(&state(1), NOW).is_none());
    let mut followed = Followed::new(&publisher);
    followed.changed();
    fs::remove_file(publisher.path()).unwrap();
    assert!(matches!(followed.look(), Look::Refused(reason) if reason == "is missing"));
    publisher.add(&event(1));
    assert!(publisher.publish(&state(1), NOW + 1).is_none());
    assert_eq!(times(&followed.changed()), [1]);
}

#[test]
fn a_damaged_file_is_being_written_until_it_stays_so() {
    let scratch = Scratch::new("damaged");
    let mut publisher = Publisher::new(scratch.run_dir(), ID);
    publisher.add(&event(0));
    assert!(publisher.publish(&state(2), NOW).is_none());
    let mut followed = Followed::new(&publisher);
    let whole = fs::read(publisher.path()).unwrap();
    let mut damaged = whole.clone();
    damaged[300] ^= 1;
    fs::write(publisher.path(), &damaged).unwrap();
    for _ in 0..3 {
        assert!(matches!(followed.look(), Look::BeingWritten));
    }
    assert!(matches!(followed.look(), Look::Refused(reason) if reason.contains("its checksum is wrong")));
    fs::write(publisher.path(), &whole).unwrap();
    assert_eq!(times(&followed.changed()), [0]);
    // An old event that changes is found once the events are read again.
    fs::write(publisher.path(), &whole[..400]).unwrap();
    assert!(matches!(followed.look(), Look::BeingWritten));
    fs::write(publisher.path(), b"something else that is longer than a header".repeat(20)).unwrap();
    assert!(matches!(followed.look(), Look::Refused(reason) if reason.contains("does not begin as a telemetry file")));
    let mut other = whole.clone();
    other[8] = 2;
    fs::write(publisher.path(), &other).unwrap();
    assert!(matches!(followed.look(), Look::Refused(reason) if reason.contains("has version 2 of the layout")));
}

#[test]
fn files_that_are_none_are_refused_and_links_are_not_followed() {
    let scratch = Scratch::new("refused");
    let mut publisher = Publisher::new(scratch.run_dir(), ID);
    assert!(publisher.publish(&state(1), NOW).is_none());
    let mut followed = Followed::new(&publisher);
    let elsewhere = scratch.path("elsewhere");
    fs::rename(publisher.path(), &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, publisher.path()).unwrap();
    assert!(matches!(followed.look(), Look::Refused(reason) if reason.contains("is a symbolic link")));
    fs::remove_file(publisher.path()).unwrap();
    fs::create_dir(publisher.path()).unwrap();
    assert!(matches!(followed.look(), Look::Refused(reason) if reason.contains("is not a regular file")));
}

/// Returns a file with a header, and with a section of records of zeros that begins behind it.
fn with_section(kind: u32, record_size: u32, count: u32) -> Vec<u8> {
    let mut file = vec![0; 512 + record_size as usize * count as usize];
    let directory = 376;
    let mut set = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    set(0, b"railweav");
    set(8, &1_u16.to_le_bytes());
    set(12, &512_u32.to_le_bytes());
    set(24, &1_u64.to_le_bytes());
    set(48, &u32::to_le_bytes(directory));
    set(52, &24_u16.to_le_bytes());
    set(54, &1_u16.to_le_bytes());
    set(directory as usize, &kind.to_le_bytes());
    set(directory as usize + 4, &record_size.to_le_bytes());
    set(directory as usize + 8, &512_u64.to_le_bytes());
    set(directory as usize + 16, &count.to_le_bytes());
    file
}

/// Returns the followed file of a process, with other bytes that have been there for a while.
fn replaced(scratch: &Scratch, bytes: &[u8]) -> Followed {
    let mut publisher = Publisher::new(scratch.run_dir(), ID);
    assert!(publisher.publish(&state(1), NOW).is_none());
    fs::write(publisher.path(), bytes).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(100));
    Followed::new(&publisher)
}

#[test]
fn a_file_that_was_refused_is_not_read_again_until_it_changes() {
    let scratch = Scratch::new("refused-once");
    let file = with_section(99, 256, 10_000);
    let mut followed = replaced(&scratch, &file);
    for _ in 0..3 {
        assert!(matches!(followed.look(), Look::BeingWritten));
    }
    for look in 0..3 {
        assert!(matches!(followed.look(), Look::Refused(reason) if reason.contains("its checksum is wrong")));
        assert_eq!(followed.buffer.len(), if look == 0 { file.len() } else { 512 }, "only its header");
        followed.buffer = Vec::new();
    }
    // Another file of the same size, with the same header.
    let path = scratch.run_dir().path().join(&followed.name);
    fs::write(&path, &file).unwrap();
    assert!(matches!(followed.look(), Look::Refused(_)));
    assert_eq!(followed.buffer.len(), file.len(), "all of it");
}

#[test]
fn a_file_that_would_cost_more_than_any_writers_is_refused() {
    for (kind, record_size, most, words) in [
        (99, 8, 0, "the size of a record 8"),
        (99, 255, 0, "the size of a record 255"),
        (1, 256, MOST_DEVICES, "the number of records 257"),
        (2, 256, MOST_CONNECTIONS, "the number of records 65537"),
        (3, 256, MOST_RAILS, "the number of records 65537"),
        (4, 256, MOST_EVENTS, "the number of records 4097"),
        (5, 256, MOST_PORTS, "the number of records 257"),
    ] {
        let scratch = Scratch::new("costly");
        let mut followed = replaced(&scratch, &with_section(kind, record_size, most as u32 + 1));
        for _ in 0..3 {
            assert!(matches!(followed.look(), Look::BeingWritten));
        }
        match followed.look() {
            Look::Refused(reason) => assert!(reason.contains(words), "{reason}"),
            other => panic!("kind {kind}: {other:?}"),
        }
    }
}

#[test]
fn a_file_that_can_be_used_again_is_found_even_if_nobody_writes_it() {
    let scratch = Scratch::new("usable-again");
    let mut publisher = Publisher::new(scratch.run_dir(), ID);
    publisher.add(&event(0));
    assert!(publisher.publish(&state(1), NOW).is_none());
    let mut followed = Followed::new(&publisher);
    assert_eq!(times(&followed.changed()), [0]);
    let elsewhere = scratch.path("elsewhere");
    fs::rename(publisher.path(), &elsewhere).unwrap();
    assert!(matches!(followed.look(), Look::Refused(_)));
    fs::rename(&elsewhere, publisher.path()).unwrap();
    assert_eq!(times(&followed.changed()), [], "no event comes twice");
    assert!(matches!(followed.look(), Look::Unchanged));
}

#[test]
fn a_number_of_events_that_jumps_costs_no_more_than_the_ring() {
    let scratch = Scratch::new("jump");
    let mut publisher = Publisher::new(scratch.run_dir(), ID);
    publisher.add(&event(0));
    assert!(publisher.publish(&state(1), NOW).is_none());
    let mut followed = Followed::new(&publisher);
    assert_eq!(times(&followed.changed()), [0]);
    let mut bytes = fs::read(publisher.path()).unwrap();
    bytes[24] += 1;
    bytes[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
    fs::write(publisher.path(), &bytes).unwrap();
    assert!(matches!(followed.look(), Look::BeingWritten));
}

#[test]
fn an_old_event_that_was_changed_is_read_again() {
    let scratch = Scratch::new("changed");
    let mut publishers = ["run", "other"].map(|name| {
        let dir = railweave_telemetry::RunDir::named(Some(&scratch.path(name)));
        dir.make().unwrap();
        Publisher::new(dir, ID)
    });
    for (place, publisher) in publishers.iter_mut().enumerate() {
        publisher.add(&event(place as u64));
        (0..=place as u64).for_each(|round| assert!(publisher.publish(&state(1), NOW + round).is_none()));
    }
    let mut followed = Followed::new(&publishers[0]);
    followed.changed();
    fs::write(publishers[0].path(), fs::read(publishers[1].path()).unwrap()).unwrap();
    assert!(matches!(followed.look(), Look::BeingWritten));
    followed.changed();
}
