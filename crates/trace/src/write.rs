//! Writes the trace files of one process: at most two at a time, the present one and the one before it.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::bound::MOST_WHOLE;
use crate::file::{ENDING, HEAD_BYTES, MAGIC, MOST_FRAME, put};
use crate::frame::Process;
use crate::{Frame, RECORD_BYTES, Records};

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

/// Files of earlier traces of a process, oldest first, and their bytes.
#[derive(Debug, Default)]
pub struct EarlierFiles(VecDeque<(PathBuf, u64)>);

impl EarlierFiles {
    /// Adds later ones.
    pub fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
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
    /// The number of flushes since its connection or its thread ended that have begun a file.
    parts_since_end: Option<u32>,
}

/// The fewest bytes that a process's files may have.
const LEAST: u64 = 4 * MOST_WHOLE as u64;

/// The time until the next attempt after a write has failed. It doubles with each one.
const FIRST_PAUSE: u64 = 1_000_000_000;

/// The longest time between two attempts.
const LONGEST_PAUSE: u64 = 60_000_000_000;

/// Writes the trace files of one process. Nothing is written before [`Self::flush`].
///
/// The files of a process are parts of one trace. Each begins with all definitions that are needed to read it, so that
/// older ones can be removed: when a file has half of the bytes that are allowed, the one before it goes, and the next
/// one begins, also in the middle of a flush. So there are two files at most, and at any time they have together at
/// most the bytes that are allowed, or four times their definitions if that is more. The files of earlier traces of the
/// process count too, and go first.
///
/// If a write fails, what was to be written is lost, and so is what is added until the next attempt: a second later,
/// then after twice that time, and so on up to a minute. Definitions are kept. The records that are lost are counted
/// once it works again, with the next ones of their thread or without any ([`Records::lost`](crate::Records::lost)).
pub struct Writer {
    dir: PathBuf,
    stem: String,
    process: Process,
    most: u64,
    definitions: BTreeMap<Defined, Definition>,
    /// The frames since the last flush, and the bounds of each in these bytes.
    pending: Vec<u8>,
    frames: Vec<Pending>,
    /// The file that is being written. It is the last one of `files`.
    file: Option<Part>,
    /// The files of this trace that are there, oldest first, and their bytes once they are left.
    files: VecDeque<(PathBuf, u64)>,
    earlier: EarlierFiles,
    /// The number of files that have begun.
    parts: u32,
    /// The records of each thread that were lost and that no frame has counted yet.
    owed: BTreeMap<u32, u64>,
    failing: Option<Failing>,
}

/// A frame that waits for the next flush.
struct Pending {
    /// Its bytes in the file.
    bytes: usize,
    /// A thread, and the number of records that are lost without this frame.
    records: Option<(u32, u64)>,
}

/// A file that is being written.
struct Part {
    file: File,
    path: PathBuf,
    bytes: u64,
    /// Bytes of its definitions.
    defined: u64,
}

/// The writes have failed since the last one that went well.
struct Failing {
    pause: u64,
    /// The time of the next attempt.
    next: u64,
}

impl Writer {
    /// Returns the writer of a process's files in `dir`, which is made with the first file. They have `most` bytes at
    /// most, or four times their definitions if that is more; fewer than 16 KiB count as these. `earlier` are the files
    /// that the process has from before.
    #[must_use]
    pub fn new(dir: &Path, process: Process, most: u64, earlier: EarlierFiles) -> Self {
        let host: String =
            process.host.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect();
        let id: String = process.id.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        Self {
            dir: dir.to_owned(),
            stem: format!("{host}-{}-{id}", process.pid),
            process,
            most: most.max(LEAST),
            definitions: BTreeMap::new(),
            pending: Vec::new(),
            frames: Vec::new(),
            file: None,
            files: VecDeque::new(),
            earlier,
            parts: 0,
            owed: BTreeMap::new(),
            failing: None,
        }
    }

    /// Adds a frame. One that defines a number ([`Frame::Thread`], [`Frame::Name`], [`Frame::Communicator`],
    /// [`Frame::Connection`], [`Frame::Rail`]) takes the place of an older definition of it.
    ///
    /// Frames of records and samples of any length are split as files need it. Texts are cut to 1,000 bytes, at the
    /// border of a character.
    pub fn add(&mut self, frame: &Frame) {
        // A quarter of the bytes: so half of them have room for a file's definitions and one frame at least.
        let most = usize::try_from(self.most / 4).unwrap_or(MOST_FRAME).min(MOST_FRAME) - HEAD_BYTES;
        for mut frame in frame.clone().bounded(most.max(MOST_WHOLE - HEAD_BYTES)) {
            let of = match &mut frame {
                Frame::Thread(it) => Defined::Thread(it.number),
                Frame::Name(it) => Defined::Name(it.number),
                Frame::Communicator(it) => Defined::Communicator(it.number),
                Frame::Connection(it) => Defined::Connection(it.number),
                Frame::Rail(it) => Defined::Rail(it.connection, it.number),
                Frame::Records(it) => {
                    it.lost = it.lost.saturating_add(self.owed.remove(&it.thread).unwrap_or(0));
                    let lost = it.lost.saturating_add((it.bytes.len() / RECORD_BYTES) as u64);
                    let records = Some((it.thread, lost));
                    self.pend(&frame.to_bytes(), records);
                    continue;
                }
                _ => {
                    self.pend(&frame.to_bytes(), None);
                    if let Frame::Ended(it) = frame {
                        self.end_connection(it.connection);
                    }
                    continue;
                }
            };
            let frame = frame.to_bytes();
            // The first file begins with it.
            if self.file.is_some() {
                self.pend(&frame, None);
            }
            self.definitions.insert(of, Definition { frame, parts_since_end: None });
        }
    }

    /// Adds a frame to those that wait.
    fn pend(&mut self, frame: &[u8], records: Option<(u32, u64)>) {
        let before = self.pending.len();
        // Frames with bounds are never too long.
        if put(&mut self.pending, frame) {
            self.frames.push(Pending { bytes: self.pending.len() - before, records });
        }
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

    /// Notes that a thread has ended. Its definition is needed for the present file and the next one only.
    pub fn end_thread(&mut self, number: u32) {
        if let Some(definition) = self.definitions.get_mut(&Defined::Thread(number)) {
            definition.parts_since_end = Some(0);
        }
    }

    /// Returns the files that are there, with those of earlier traces.
    #[must_use]
    pub fn into_files(mut self) -> EarlierFiles {
        self.note_bytes();
        self.earlier.0.extend(self.files);
        self.earlier
    }

    /// Notes the bytes of the present file.
    fn note_bytes(&mut self) {
        if let (Some(part), Some((_, bytes))) = (&self.file, self.files.back_mut()) {
            *bytes = part.bytes;
        }
    }

    /// Returns the bytes that wait for the next flush.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.pending.len()
    }

    /// Returns the number of files that have begun. If it has changed, a reader of the last file alone knows nothing
    /// of earlier states.
    #[must_use]
    pub fn parts(&self) -> u32 {
        self.parts
    }

    /// Writes what was added. `at_ns` is the present time, `wall_ns` the same time since 1970. If the disk is full or
    /// the folder cannot be used, what was added is lost; see [`Writer`] for the next attempt.
    pub fn flush(&mut self, at_ns: u64, wall_ns: u64) -> Option<Written> {
        let is_first = self.file.is_none() && !self.definitions.is_empty();
        let waits = self.failing.as_ref().is_some_and(|it| at_ns < it.next);
        if !waits {
            self.count_lost();
        }
        if (self.frames.is_empty() && !is_first) || waits {
            self.drop_pending(0);
            return None;
        }
        let mut written = 0;
        let result = self.write(&mut written, at_ns, wall_ns);
        self.drop_pending(written);
        match result {
            Ok(()) => self.failing.take().map(|_| Written::Recovered { path: self.path() }),
            Err(error) => {
                let path = self.path();
                self.leave_file();
                let before = self.failing.as_ref().map(|it| it.pause);
                let pause = before.map_or(FIRST_PAUSE, |pause| (2 * pause).min(LONGEST_PAUSE));
                self.failing = Some(Failing { pause, next: at_ns.saturating_add(pause) });
                before.is_none().then_some(Written::Failed { path, error })
            }
        }
    }

    /// Adds a frame without records for each thread that lost some and has noted none since: it may never do so again.
    fn count_lost(&mut self) {
        let threads: Vec<u32> = self.owed.keys().copied().collect();
        for thread in threads {
            self.add(&Frame::Records(Records { thread, lost: 0, bytes: Vec::new() }));
        }
    }

    fn path(&self) -> PathBuf {
        self.file.as_ref().map_or_else(|| self.dir.clone(), |part| part.path.clone())
    }

    /// Forgets what waits, of which the first frames are written; the records in the others are lost.
    fn drop_pending(&mut self, written: usize) {
        for (thread, lost) in self.frames.drain(..).skip(written).filter_map(|frame| frame.records) {
            let owed = self.owed.entry(thread).or_default();
            *owed = owed.saturating_add(lost);
        }
        self.pending.clear();
    }

    /// Leaves the file whose last write has failed: the next attempt makes one with all definitions, some of which may
    /// have been among what was lost. A file without anything else goes.
    fn leave_file(&mut self) {
        self.note_bytes();
        let Some(part) = self.file.take().filter(|part| part.bytes == part.defined) else { return };
        if fs::remove_file(&part.path).is_ok() {
            self.files.pop_back();
            self.process.part -= 1;
        }
    }

    /// Writes the frames that wait, and counts them in `written`.
    fn write(&mut self, written: &mut usize, at_ns: u64, wall_ns: u64) -> io::Result<()> {
        let mut from = 0;
        let mut has_begun = false;
        loop {
            let fits = self.fitting(*written);
            let is_fresh = self.file.as_ref().is_some_and(|part| part.bytes == part.defined);
            if self.file.is_none() || (fits == 0 && *written < self.frames.len() && !is_fresh) {
                // One flush has records of all its time: an end counts once for all files that it begins.
                self.begin_file(!std::mem::replace(&mut has_begun, true), (at_ns, wall_ns))?;
                continue;
            }
            let Some(part) = &mut self.file else { return Ok(()) };
            if *written == self.frames.len() {
                return Ok(());
            }
            let frames = fits.max(1);
            let bytes: usize = self.frames[*written..][..frames].iter().map(|frame| frame.bytes).sum();
            if let Err(error) = part.file.write_all_at(&self.pending[from..from + bytes], part.bytes) {
                // A reader would warn of half a frame.
                let _ = part.file.set_len(part.bytes);
                return Err(error);
            }
            part.bytes += bytes as u64;
            (*written, from) = (*written + frames, from + bytes);
        }
    }

    /// Returns the number of frames, from this one on, for which the present file has room.
    fn fitting(&self, from: usize) -> usize {
        let Some(part) = &self.file else { return 0 };
        let mut room = (self.most / 2).max(2 * part.defined).saturating_sub(part.bytes);
        let fits = |frame: &&Pending| {
            let left = room.checked_sub(frame.bytes as u64);
            room = left.unwrap_or(0);
            left.is_some()
        };
        self.frames[from..].iter().take_while(fits).count()
    }

    /// Removes the oldest file if there are two, and begins the next one, with all definitions. `is_first` is true for
    /// the first one of a flush.
    fn begin_file(&mut self, is_first: bool, (at_ns, wall_ns): (u64, u64)) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o755).create(&self.dir)?;
        self.note_bytes();
        while self.files.len() > 1 {
            remove(&self.files[0].0)?;
            self.files.pop_front();
        }
        let bytes = |files: &VecDeque<(PathBuf, u64)>| files.iter().map(|(_, bytes)| bytes).sum::<u64>();
        while bytes(&self.earlier.0) > (self.most / 2).saturating_sub(bytes(&self.files))
            && let Some((path, _)) = self.earlier.0.front()
        {
            remove(path)?;
            self.earlier.0.pop_front();
        }
        if is_first {
            for definition in self.definitions.values_mut() {
                definition.parts_since_end = definition.parts_since_end.map(|parts| parts + 1);
            }
            self.definitions.retain(|_, definition| definition.parts_since_end.is_none_or(|parts| parts < 2));
        }
        let mut bytes = MAGIC.to_vec();
        let process = Frame::Process(Process { at_ns, wall_ns, ..self.process.clone() });
        let process = process.bounded(MOST_WHOLE).into_iter().map(|frame| frame.to_bytes());
        for frame in process.chain(self.definitions.values().map(|definition| definition.frame.clone())) {
            // Frames with bounds are never too long.
            let _ = put(&mut bytes, &frame);
        }
        let path = self.dir.join(format!("{}.{:04}{ENDING}", self.stem, self.process.part));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&path)?;
        if let Err(error) = file.write_all(&bytes) {
            if fs::remove_file(&path).is_err() {
                self.process.part += 1;
                self.files.push_back((path, 0));
            }
            return Err(error);
        }
        self.process.part += 1;
        self.parts = self.parts.wrapping_add(1);
        self.files.push_back((path.clone(), 0));
        let defined = bytes.len() as u64;
        self.file = Some(Part { file, path, bytes: defined, defined });
        Ok(())
    }
}

/// Removes a file, which a user may have taken away.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
