//! Writes the trace files of one process: at most two at a time, the present one and the one before it.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::Frame;
use crate::file::{ENDING, MAGIC, put};
use crate::frame::Process;

/// Returns true if a file of this name is a trace file.
#[must_use]
pub fn is_trace(name: &str) -> bool {
    name.ends_with(ENDING)
}

/// The result of a write that is worth a line in a log: said once when writing begins to fail, and once when it works
/// again.
#[derive(Debug)]
pub enum Written {
    /// Nothing can be written. The trace will lack what happens until that changes.
    Failed {
        /// The file or the folder.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// It works again.
    Recovered {
        /// The file.
        path: PathBuf,
    },
}

impl std::fmt::Display for Written {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Failed { path, error } => write!(
                out,
                "the trace cannot be written to \"{}\": {error}; the job goes on, and the trace will lack this time; \
                 try making room there, or set RAILWEAVE_TRACE to a folder that this user may write",
                path.display()
            ),
            Self::Recovered { path } => write!(out, "the trace is written again, to \"{}\"", path.display()),
        }
    }
}

/// The number of something, which means the same in all files from the frame that defines it on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Defined {
    Thread(u32),
    Name(u32),
    Communicator(u32),
    Connection(u32),
    Rail(u32, u32),
}

/// A definition, as each file begins with it.
struct Definition {
    frame: Vec<u8>,
    /// The number of files that have begun since its connection ended.
    parts_since_end: Option<u32>,
}

/// Writes the trace files of one process. Nothing is written before [`Self::flush`].
///
/// The files of a process are parts of one trace. Each begins with all definitions that are needed to read it, so that
/// older ones can be removed: when a file has half of the bytes that are allowed, the next one begins, and the one
/// before it goes.
pub struct Writer {
    dir: PathBuf,
    stem: String,
    process: Process,
    most: u64,
    definitions: BTreeMap<Defined, Definition>,
    /// The frames since the last flush.
    pending: Vec<u8>,
    file: Option<Part>,
    /// The file before the present one.
    older: Option<PathBuf>,
    is_failing: bool,
}

/// A file that is being written.
struct Part {
    file: File,
    path: PathBuf,
    bytes: u64,
    /// Bytes of its definitions.
    defined: u64,
}

impl Writer {
    /// Returns the writer of a process's files in `dir`, which is made with the first file. They have `most` bytes at
    /// most, or four times their definitions if that is more.
    #[must_use]
    pub fn new(dir: &Path, process: Process, most: u64) -> Self {
        let host: String =
            process.host.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect();
        let id: String = process.id.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        Self {
            dir: dir.to_owned(),
            stem: format!("{host}-{}-{id}", process.pid),
            process,
            most,
            definitions: BTreeMap::new(),
            pending: Vec::new(),
            file: None,
            older: None,
            is_failing: false,
        }
    }

    /// Adds a frame. One that defines a number ([`Frame::Thread`], [`Frame::Name`], [`Frame::Communicator`],
    /// [`Frame::Connection`], [`Frame::Rail`]) takes the place of an older definition of it.
    pub fn add(&mut self, frame: &Frame) {
        let bytes = frame.to_bytes();
        let of = match frame {
            Frame::Thread(it) => Defined::Thread(it.number),
            Frame::Name(it) => Defined::Name(it.number),
            Frame::Communicator(it) => Defined::Communicator(it.number),
            Frame::Connection(it) => Defined::Connection(it.number),
            Frame::Rail(it) => Defined::Rail(it.connection, it.number),
            _ => {
                put(&mut self.pending, &bytes);
                if let Frame::Ended(it) = frame {
                    self.end_connection(it.connection);
                }
                return;
            }
        };
        // The first file begins with it.
        if self.file.is_some() {
            put(&mut self.pending, &bytes);
        }
        self.definitions.insert(of, Definition { frame: bytes, parts_since_end: None });
    }

    /// Notes that the definitions of a connection are needed for the present file and the next one only: its last
    /// records may come late.
    fn end_connection(&mut self, number: u32) {
        for (of, definition) in &mut self.definitions {
            if matches!(of, Defined::Connection(it) | Defined::Rail(it, _) if *it == number) {
                definition.parts_since_end = Some(0);
            }
        }
    }

    /// Returns the bytes that wait for the next flush.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.pending.len()
    }

    /// Writes what was added. `at_ns` is the present time, `wall_ns` the same time since 1970. If the disk is full or
    /// the folder cannot be used, what was added is lost; the next flush retries.
    pub fn flush(&mut self, at_ns: u64, wall_ns: u64) -> Option<Written> {
        let is_first = self.file.is_none() && !self.definitions.is_empty();
        if self.pending.is_empty() && !is_first {
            return None;
        }
        let written = self.write(at_ns, wall_ns);
        self.pending.clear();
        match written {
            Ok(()) if !self.is_failing => None,
            Ok(()) => {
                self.is_failing = false;
                Some(Written::Recovered { path: self.path() })
            }
            Err(error) => {
                let path = self.path();
                // The next attempt makes a file with all definitions, some of which may have been among what was lost.
                if let Some(part) = self.file.take() {
                    self.older = Some(part.path);
                }
                let failed = Written::Failed { path, error };
                (!std::mem::replace(&mut self.is_failing, true)).then_some(failed)
            }
        }
    }

    fn path(&self) -> PathBuf {
        self.file.as_ref().map_or_else(|| self.dir.clone(), |part| part.path.clone())
    }

    fn write(&mut self, at_ns: u64, wall_ns: u64) -> io::Result<()> {
        let pending = self.pending.len() as u64;
        let is_full = |part: &Part| part.bytes + pending > (self.most / 2).max(2 * part.defined);
        if self.file.as_ref().is_none_or(|part| is_full(part) && part.bytes > part.defined) {
            self.begin_file(at_ns, wall_ns)?;
        }
        let Some(part) = &mut self.file else { return Ok(()) };
        match part.file.write_all_at(&self.pending, part.bytes) {
            Ok(()) => {
                part.bytes += pending;
                Ok(())
            }
            Err(error) => {
                // Half a frame would hide what comes later.
                let _ = part.file.set_len(part.bytes);
                Err(error)
            }
        }
    }

    /// Begins the next file, with all definitions, and removes the one before the last.
    fn begin_file(&mut self, at_ns: u64, wall_ns: u64) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o755).create(&self.dir)?;
        for definition in self.definitions.values_mut() {
            definition.parts_since_end = definition.parts_since_end.map(|parts| parts + 1);
        }
        self.definitions.retain(|_, definition| definition.parts_since_end.is_none_or(|parts| parts < 2));
        let mut bytes = MAGIC.to_vec();
        put(&mut bytes, &Frame::Process(Process { at_ns, wall_ns, ..self.process.clone() }).to_bytes());
        self.definitions.values().for_each(|definition| put(&mut bytes, &definition.frame));
        let path = self.dir.join(format!("{}.{:04}{ENDING}", self.stem, self.process.part));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&path)?;
        self.process.part += 1;
        if let Err(error) = file.write_all(&bytes) {
            // The next attempt makes another.
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        let defined = bytes.len() as u64;
        let last = self.file.replace(Part { file, path, bytes: defined, defined }).map(|part| part.path);
        if let Some(oldest) = last.and_then(|last| self.older.replace(last)) {
            // A user may have taken it away.
            let _ = fs::remove_file(oldest);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Connection, Ended, Name, Records};
    use crate::{RECORD_BYTES, TraceFile};

    /// A folder that goes with the test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("railweave-trace-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Self(path)
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
        Writer::new(dir, process, most)
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
            let bytes: u64 = fs::read_dir(&scratch.0).unwrap().map(|it| it.unwrap().metadata().unwrap().len()).sum();
            assert!(bytes <= most, "{bytes} bytes");
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
    fn a_connection_that_has_ended_is_forgotten_after_the_next_file() {
        let scratch = Scratch::new("ended");
        let mut writer = writer(&scratch.0, 8 << 10);
        writer.add(&connection(1));
        writer.add(&connection(2));
        assert!(writer.flush(0, 0).is_none());
        writer.add(&Frame::Ended(Ended { at_ns: 1, connection: 1 }));
        let mut knew = Vec::new();
        for flush in 0..12 {
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
        let mut writer = writer(&scratch.0, 4 << 10);
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
        assert!(writer.flush(2, 2).is_none(), "said already");
        fs::remove_file(&dir).unwrap();
        writer.add(&records(2));
        let said = writer.flush(3, 3).unwrap().to_string();
        assert!(said.contains("written again"), "{said}");
        let files = Scratch(dir).files();
        assert_eq!(files[0].frames, [connection(1), records(2)], "the definition that was lost is there again");
    }
}
