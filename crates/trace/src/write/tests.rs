//! The files of a process, below their limit and on full disks.

use super::*;
use crate::TraceFile;
use crate::frame::{Connection, Ended, Happened, Name, RailSample, Records, Sample};

const SECOND: u64 = 1_000_000_000;

/// A folder that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("railweave-trace-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }

    /// Returns the bytes of all files.
    fn bytes(&self) -> u64 {
        fs::read_dir(&self.0).unwrap().map(|it| it.unwrap().metadata().unwrap().len()).sum()
    }

    /// Returns the files, oldest first.
    fn files(&self) -> Vec<TraceFile> {
        let mut names: Vec<_> =
            fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert!(names.iter().all(|name| is_trace(name)), "{names:?}");
        names.iter().map(|name| TraceFile::read(&fs::read(self.0.join(name)).unwrap()).unwrap()).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn writer(dir: &Path, most: u64) -> Writer {
    let process = Process { id: vec![0xab; 16], pid: 12, host: "a/b".into(), ..Process::default() };
    Writer::new(dir, process, most, EarlierFiles::default())
}

fn records(count: usize) -> Frame {
    Frame::Records(Records { thread: 1, lost: 0, bytes: vec![1; count * RECORD_BYTES] })
}

fn connection(number: u32) -> Frame {
    Frame::Connection(Connection { number, host: "node1".into(), ..Connection::default() })
}

#[test]
fn what_is_added_is_in_the_file_after_the_flush() {
    let scratch = Scratch::new("added");
    let mut writer = writer(&scratch.0.join("deeper"), 1 << 20);
    writer.add(&connection(1));
    writer.add(&records(2));
    assert!(!scratch.0.exists(), "nothing before the flush");
    assert!(writer.flush(5, 6).is_none());
    writer.add(&records(1));
    assert!(writer.flush(7, 8).is_none());
    assert!(writer.flush(9, 9).is_none(), "nothing to do");
    let dir = Scratch(scratch.0.join("deeper"));
    let [file] = &dir.files()[..] else { panic!("one file") };
    assert_eq!((file.process.at_ns, file.process.wall_ns, file.process.part), (5, 6, 0));
    assert_eq!(file.frames, [connection(1), records(2), records(1)]);
}

#[test]
fn the_files_stay_below_the_limit_and_each_has_the_definitions() {
    let scratch = Scratch::new("limit");
    let most = 64 << 10;
    let mut writer = writer(&scratch.0, most);
    writer.add(&Frame::Name(Name { number: 1, text: "AllReduce".into() }));
    writer.add(&connection(1));
    for flush in 0..200 {
        writer.add(&records(100));
        assert!(writer.flush(flush, flush).is_none());
        assert!(scratch.bytes() <= most, "{} bytes", scratch.bytes());
    }
    let files = scratch.files();
    assert_eq!(files.len(), 2);
    assert!(files[1].process.part > 5 && files[0].process.part + 1 == files[1].process.part);
    for file in files {
        assert!(file.frames.contains(&connection(1)));
        assert_eq!(file.frames.iter().filter(|frame| matches!(frame, Frame::Name(_))).count(), 1);
    }
}

#[test]
fn the_files_of_earlier_traces_count_too() {
    let scratch = Scratch::new("lives");
    let (most, mut earlier) = (64 << 10, EarlierFiles::default());
    for life in 0..20 {
        let process = Process { id: vec![life; 16], ..Process::default() };
        let mut writer = Writer::new(&scratch.0, process, most, earlier);
        for flush in 0..u64::from(life) {
            writer.add(&records(200));
            assert!(writer.flush(flush, flush).is_none());
            assert!(scratch.bytes() <= most, "{} bytes in life {life}", scratch.bytes());
        }
        earlier = writer.into_files();
        if life == 3 {
            assert_eq!(scratch.files().len(), 3, "there is room for short lives");
        }
    }
    let ids: Vec<_> = scratch.files().iter().map(|file| file.process.id[0]).collect();
    assert_eq!(ids, [19, 19], "the last life has used all the room");
}

#[test]
fn a_file_that_the_user_has_removed_is_no_error() {
    let scratch = Scratch::new("taken");
    let mut writer = writer(&scratch.0, 64 << 10);
    for flush in 0..40 {
        writer.add(&records(500));
        assert!(writer.flush(flush, flush).is_none());
        if flush == 5 {
            fs::read_dir(&scratch.0).unwrap().for_each(|entry| fs::remove_file(entry.unwrap().path()).unwrap());
        }
    }
    assert_eq!(scratch.files().len(), 2);
}

#[test]
fn a_thread_that_has_ended_is_forgotten_after_the_next_file() {
    let scratch = Scratch::new("threads");
    let mut writer = writer(&scratch.0, 64 << 10);
    writer.add(&Frame::Thread(crate::Thread { number: 7, tid: 1, name: "short".into() }));
    let has_it = |scratch: &Scratch| {
        let last = scratch.files().pop().unwrap();
        (last.process.part, last.frames.iter().any(|frame| matches!(frame, Frame::Thread(it) if it.number == 7)))
    };
    let mut seen = BTreeMap::new();
    for flush in 0..200 {
        writer.add(&records(100));
        assert!(writer.flush(flush, flush).is_none());
        if flush == 0 {
            writer.end_thread(7);
        }
        let (part, is_there) = has_it(&scratch);
        seen.insert(part, is_there);
    }
    assert_eq!(seen.into_values().take(4).collect::<Vec<_>>(), [true, true, false, false]);
}

#[test]
fn a_connection_that_has_ended_is_forgotten_after_the_next_file() {
    let scratch = Scratch::new("ended");
    let mut writer = writer(&scratch.0, 16 << 10);
    writer.add(&connection(1));
    writer.add(&connection(2));
    assert!(writer.flush(0, 0).is_none());
    writer.add(&Frame::Ended(Ended { at_ns: 1, connection: 1 }));
    let mut knew = Vec::new();
    for flush in 0..24 {
        writer.add(&records(100));
        assert!(writer.flush(flush, flush).is_none());
        let last = scratch.files().pop().unwrap();
        knew.push((last.process.part, last.frames.contains(&connection(1)), last.frames.contains(&connection(2))));
    }
    assert!(knew.iter().all(|(part, ended, open)| *open && *ended == (*part < 2)), "{knew:?}");
}

#[test]
fn many_definitions_leave_room_for_records() {
    let scratch = Scratch::new("many");
    let mut writer = writer(&scratch.0, 0);
    (0..1000).for_each(|number| writer.add(&connection(number)));
    for flush in 0..20 {
        writer.add(&records(1));
        assert!(writer.flush(flush, flush).is_none());
    }
    assert_eq!(scratch.files().last().unwrap().process.part, 0, "one file has room for twenty records");
}

#[test]
fn a_folder_that_cannot_be_made_is_said_once_and_nothing_is_lost_for_good() {
    let scratch = Scratch::new("failing");
    fs::create_dir_all(&scratch.0).unwrap();
    let dir = scratch.0.join("file");
    fs::write(&dir, "in the way").unwrap();
    let mut writer = writer(&dir, 1 << 20);
    writer.add(&connection(1));
    let said = writer.flush(1, 1).unwrap().to_string();
    assert!(said.contains("file\": ") && said.contains("RAILWEAVE_TRACE"), "{said}");
    writer.add(&records(1));
    assert!(writer.flush(SECOND, 2).is_none(), "the next attempt is later");
    writer.add(&records(1));
    assert!(writer.flush(SECOND + 1, 2).is_none(), "said already");
    fs::remove_file(&dir).unwrap();
    writer.add(&records(2));
    assert!(writer.flush(3 * SECOND, 3).is_none(), "the time until the next attempt has doubled");
    writer.add(&records(3));
    let said = writer.flush(3 * SECOND + 1, 3).unwrap().to_string();
    assert!(said.contains("written again"), "{said}");
    let files = Scratch(dir).files();
    let Frame::Records(expected) = records(3) else { panic!("records") };
    // The definition that was lost is there again, and the records that were lost are counted.
    assert_eq!(files[0].frames, [connection(1), Frame::Records(Records { lost: 4, ..expected })]);
}

#[test]
fn the_losses_of_a_thread_that_then_is_silent_are_counted() {
    let scratch = Scratch::new("silent");
    fs::create_dir_all(&scratch.0).unwrap();
    let dir = scratch.0.join("file");
    fs::write(&dir, "in the way").unwrap();
    let mut writer = writer(&dir, 1 << 20);
    writer.add(&records(3));
    assert!(writer.flush(1, 1).is_some());
    fs::remove_file(&dir).unwrap();
    assert!(writer.flush(SECOND, 2).is_none() && writer.flush(SECOND + 1, 3).is_some(), "a second later");
    assert!(writer.flush(2 * SECOND, 4).is_none());
    let Frame::Records(expected) = records(0) else { panic!("records") };
    assert_eq!(Scratch(dir).files()[0].frames, [Frame::Records(Records { lost: 3, ..expected })]);
}

#[test]
fn the_time_between_attempts_is_a_minute_at_most() {
    let scratch = Scratch::new("pauses");
    fs::create_dir_all(&scratch.0).unwrap();
    let dir = scratch.0.join("file");
    fs::write(&dir, "in the way").unwrap();
    let mut writer = writer(&dir, 1 << 20);
    writer.add(&connection(1));
    let (mut pauses, mut at) = (Vec::new(), 0);
    for _ in 0..8 {
        writer.flush(at, 0);
        let next = writer.failing.as_ref().unwrap().next;
        pauses.push((next - at) / SECOND);
        at = next;
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
}

/// Lets the next write of a writer fail as on a full disk.
fn fill(writer: &mut Writer) {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    writer.file.as_mut().unwrap().file = full;
}

#[test]
fn a_full_disk_leaves_two_files_at_most_and_none_without_records() {
    let scratch = Scratch::new("full");
    let most = 64 << 10;
    let mut writer = writer(&scratch.0, most);
    writer.add(&connection(1));
    assert!(writer.flush(0, 0).is_none());
    fill(&mut writer);
    writer.add(&records(1));
    assert!(matches!(writer.flush(0, 0), Some(Written::Failed { .. })));
    assert!(scratch.files().is_empty(), "a file whose first records fail goes");
    let mut at = 100 * SECOND;
    for round in 0..11 {
        // Half of the files fail after the number of what the one before has lost, half later.
        assert!(matches!(writer.flush(at, 0), Some(Written::Recovered { .. })));
        if round % 2 == 0 {
            writer.add(&records(900));
            assert!(writer.flush(at, 0).is_none());
        }
        fill(&mut writer);
        writer.add(&records(1));
        assert!(matches!(writer.flush(at, 0), Some(Written::Failed { .. })));
        at += 100 * SECOND;
        let files = scratch.files();
        assert!(files.len() <= 2 && scratch.bytes() <= most, "{} files", files.len());
        assert!(files.iter().all(|file| file.frames.len() > 1), "{files:?}");
    }
    // No number of a file is left out, so a reader misses none.
    let parts: Vec<_> = scratch.files().iter().map(|file| file.process.part).collect();
    assert_eq!(parts, [9, 10]);
}

#[test]
fn one_flush_of_any_length_keeps_the_limit() {
    let scratch = Scratch::new("long");
    let most = 64 << 10;
    let mut writer = writer(&scratch.0, most);
    (0..5).for_each(|number| writer.add(&connection(number)));
    writer.add(&Frame::Ended(Ended { at_ns: 1, connection: 4 }));
    for thread in 0..100 {
        let bytes = vec![1; 3000 * RECORD_BYTES];
        writer.add(&Frame::Records(Records { thread, lost: 0, bytes }));
    }
    assert!(writer.flush(1, 1).is_none());
    assert!(scratch.bytes() <= most, "{} bytes", scratch.bytes());
    let files = scratch.files();
    assert_eq!((files.len(), files[0].process.part + 1), (2, files[1].process.part));
    let last = |file: &TraceFile| match file.frames.last() {
        Some(Frame::Records(records)) => records.thread,
        other => panic!("{other:?}"),
    };
    assert_eq!((last(&files[1]), files[1].rest_bytes), (99, 0), "the newest records are there");
    // A connection that has ended in this flush has records in all of it.
    assert!(files.iter().all(|file| (0..5).all(|number| file.frames.contains(&connection(number)))));
    assert_eq!(writer.parts(), files[1].process.part + 1);
}

#[test]
fn a_frame_of_any_length_hides_none_of_those_behind_it() {
    let scratch = Scratch::new("huge");
    let mut writer = writer(&scratch.0, 64 << 20);
    let text = "x".repeat(3 << 20);
    writer.add(&Frame::Connection(Connection { host: text.clone(), ..Connection::default() }));
    writer.add(&Frame::Happened(Happened { text, ..Happened::default() }));
    let rail = RailSample { sent: u64::MAX, received: u64::MAX, ..RailSample::default() };
    writer.add(&Frame::Sample(Sample { at_ns: 1, rails: vec![rail; 100_000] }));
    writer.add(&records(100_000));
    writer.add(&connection(2));
    assert!(writer.flush(1, 1).is_none());
    let [file] = &scratch.files()[..] else { panic!("one file") };
    assert_eq!(file.rest_bytes, 0);
    assert!(file.frames.contains(&connection(2)));
    let counts = file.frames.iter().fold((0, 0, 0), |(texts, rails, records), frame| match frame {
        Frame::Happened(it) => (texts + it.text.len(), rails, records),
        Frame::Sample(it) => (texts, rails + it.rails.len(), records),
        Frame::Records(it) => (texts, rails, records + it.bytes.len() / RECORD_BYTES),
        _ => (texts, rails, records),
    });
    assert_eq!(counts, (1000, 100_000, 100_000));
}
