//! The reading of a telemetry file.

use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::slice::ChunksExact;
use std::thread;
use std::time::Duration;

use rustix::fs::OFlags;

use crate::header::{CONNECTIONS, DEVICES, EVENTS, Entry, PORTS, Preamble, RAILS};
use crate::layout::{ENTRY, Field, HEADER, LARGEST_FILE, MAGIC, MAJOR, Places, RECORD, header_part, part};
use crate::snapshot::{Event, Snapshot, State};

/// Attempts to read a file that is being written.
const ATTEMPTS: usize = 20;

/// The longest time between two attempts; the first is a millisecond. A writer writes every 100 ms, for less than a
/// millisecond, but it may lose its processor while it does.
const LONGEST_PAUSE: Duration = Duration::from_millis(12);

/// The most sections that a file may have, of kinds that are known here or not.
const MOST_SECTIONS: u16 = 64;

/// A telemetry file that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It cannot be opened or read.
    #[error("\"{}\" cannot be read: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// It is no regular file, or too large.
    #[error("\"{}\" {reason}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// The end of a sentence that begins with the file.
        reason: String,
    },
    /// Its content is wrong.
    #[error("\"{}\" {damage}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The defect.
        damage: Damage,
    },
    /// It changed each time that it was read.
    #[error("\"{}\" was being written each of {ATTEMPTS} times that it was read; try again", path.display())]
    BeingWritten {
        /// The file.
        path: PathBuf,
    },
}

/// Bytes that are no telemetry file. The text is the end of a sentence that begins with the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// There is no header.
    #[error("has {0} bytes, too few for the header of a telemetry file ({HEADER})")]
    Short(usize),
    /// The first bytes are others.
    #[error("does not begin as a telemetry file")]
    Magic,
    /// The major version of the layout is another.
    #[error("has version {0} of the layout, and only version {MAJOR} is known here; try `railweave` of that release")]
    Version(u16),
    /// The header contradicts itself or the size of the file.
    #[error("is damaged: {0} {1} in its header is not allowed")]
    Header(&'static str, u64),
    /// The checksum is wrong, or a record is newer than the header: the file is being written, or is damaged.
    #[error("is damaged: its checksum is wrong")]
    Checksum,
}

/// Reads a telemetry file. Reads again if it is being written, for up to 220 ms.
///
/// # Errors
/// If it cannot be read, is damaged, has another version of the layout, or is being written all the time.
pub fn read(path: &Path) -> Result<Snapshot, ReadError> {
    // Each path has a result, which replaces this one.
    let mut found = Err(ReadError::BeingWritten { path: path.to_owned() });
    read_each(&[path], |_, result| found = result);
    found
}

/// Reads telemetry files as [`read`] does, and calls `take` with the place of each in `paths` and its result. All that
/// are being written, or are damaged, are read again in common rounds, so that many take no longer than one.
pub fn read_each<P: AsRef<Path>>(paths: &[P], mut take: impl FnMut(usize, Result<Snapshot, ReadError>)) {
    let mut bytes = Vec::new();
    let mut unread: Vec<Unread> = (0..paths.len()).map(Unread::new).collect();
    for attempt in 0..ATTEMPTS {
        if attempt > 0 && !unread.is_empty() {
            thread::sleep(LONGEST_PAUSE.min(Duration::from_millis(attempt as u64)));
        }
        unread.retain_mut(|file| match file.attempt(paths[file.place].as_ref(), &mut bytes) {
            Some(result) => {
                take(file.place, result);
                false
            }
            None => true,
        });
    }
    for Unread { place, is_the_same, last, .. } in unread {
        let path = paths[place].as_ref().to_owned();
        // The same bytes each time: nobody is writing, or the writer has stopped in the middle.
        take(
            place,
            Err(if is_the_same { ReadError::Content { path, damage: last } } else { ReadError::BeingWritten { path } }),
        );
    }
}

/// A file that could not be read yet.
struct Unread {
    place: usize,
    /// The hash of the bytes that were read first, and true if all others were the same.
    first: Option<u64>,
    is_the_same: bool,
    last: Damage,
}

impl Unread {
    fn new(place: usize) -> Self {
        Self { place, first: None, is_the_same: true, last: Damage::Checksum }
    }

    /// Reads the file into `bytes`, whose room is used again. Returns `None` if it may be being written.
    fn attempt(&mut self, path: &Path, bytes: &mut Vec<u8>) -> Option<Result<Snapshot, ReadError>> {
        if let Err(error) = read_file(path, bytes) {
            return Some(Err(error));
        }
        match decode(bytes) {
            Ok(snapshot) => Some(Ok(snapshot)),
            Err(damage @ (Damage::Magic | Damage::Version(_))) => {
                Some(Err(ReadError::Content { path: path.to_owned(), damage }))
            }
            // A file that grows may also be shorter than the header that was read a moment later says.
            Err(damage) => {
                self.last = damage;
                let mut hasher = DefaultHasher::new();
                hasher.write(bytes);
                let hash = hasher.finish();
                self.is_the_same &= *self.first.get_or_insert(hash) == hash;
                None
            }
        }
    }
}

/// Reads all bytes of a file.
fn read_file(path: &Path, bytes: &mut Vec<u8>) -> Result<(), ReadError> {
    let refused = |reason: String| ReadError::Refused { path: path.to_owned(), reason };
    let failed = |error| ReadError::File { path: path.to_owned(), error };
    // Without O_NONBLOCK, opening a pipe that has no writer would wait forever. Opened each time, because the writer
    // may replace the file.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags as i32).open(path).map_err(failed)?;
    let facts = file.metadata().map_err(failed)?;
    if !facts.is_file() {
        return Err(refused("is not a regular file".to_owned()));
    }
    if facts.len() > LARGEST_FILE {
        return Err(refused(format!("has {} bytes; allowed: up to {LARGEST_FILE}", facts.len())));
    }
    read_all(&file, facts.len() as usize, bytes).map_err(failed)
}

/// Reads the header first and the rest after it. As the header is written last, no record is older than the header.
fn read_all(file: &File, size: usize, bytes: &mut Vec<u8>) -> io::Result<()> {
    bytes.resize(size, 0);
    let mut filled = 0;
    while filled < size {
        let end = if filled < HEADER { HEADER.min(size) } else { size };
        match file.read_at(&mut bytes[filled..end], filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(())
}

/// Reads the bytes of a telemetry file. Accepts larger headers and records than this version writes, and ignores
/// sections of kinds that it does not know.
///
/// # Errors
/// If they are damaged, or have another major version.
pub fn decode(bytes: &[u8]) -> Result<Snapshot, Damage> {
    if bytes.len() < HEADER {
        return Err(Damage::Short(bytes.len()));
    }
    let preamble = preamble(bytes, bytes.len())?;
    let header = &bytes[..preamble.header_size as usize];
    let sections = entries(&preamble, header, bytes.len())?
        .into_iter()
        .map(|entry| Section::find(entry, bytes))
        .collect::<Result<Vec<_>, _>>()?;
    let sum = sections.iter().fold(header_part(header), |sum, section| sum.wrapping_add(section.sum()));
    let is_newer = |section: &Section| section.records().any(|record| generation(record) > preamble.generation);
    if sum != preamble.checksum || sections.iter().any(is_newer) {
        return Err(Damage::Checksum);
    }
    let mut events = Vec::new();
    read_over(&mut events, &sections, EVENTS);
    if preamble.events_ever > events.len() as u64 && !events.is_empty() {
        // The ring is full: the oldest event is the next to be overwritten.
        let oldest = (preamble.events_ever % events.len() as u64) as usize;
        events.rotate_left(oldest);
    }
    Ok(snapshot(&preamble, header, &sections, events, Snapshot::default()))
}

/// Returns the generation of a record.
pub(crate) fn generation(record: &[u8]) -> u64 {
    u64::get(&record[..8])
}

/// Returns the first part of the header of a file of this size that begins with these bytes.
pub(crate) fn preamble(bytes: &[u8], size: usize) -> Result<Preamble, Damage> {
    let preamble = Preamble::get_all(bytes);
    if preamble.magic != MAGIC {
        return Err(Damage::Magic);
    }
    if preamble.major != MAJOR {
        return Err(Damage::Version(preamble.major));
    }
    if !(HEADER..=size).contains(&(preamble.header_size as usize)) {
        return Err(Damage::Header("the header's size", preamble.header_size.into()));
    }
    Ok(preamble)
}

/// Returns the directory of a file of this size.
pub(crate) fn entries(preamble: &Preamble, header: &[u8], size: usize) -> Result<Vec<Entry>, Damage> {
    let entry_size = usize::from(preamble.entry_size);
    if preamble.entries > MOST_SECTIONS {
        return Err(Damage::Header("the number of sections", preamble.entries.into()));
    }
    if entry_size < ENTRY {
        return Err(Damage::Header("the size of a directory's entry", preamble.entry_size.into()));
    }
    let directory = preamble.directory as usize;
    let directory = header.get(directory..).and_then(|rest| rest.get(..entry_size * usize::from(preamble.entries)));
    let Some(directory) = directory else {
        return Err(Damage::Header("the directory's place", preamble.directory.into()));
    };
    let entries: Vec<Entry> = directory.chunks_exact(entry_size).map(Entry::get_all).collect();
    let mut total = header.len() as u64;
    for entry in &entries {
        total = total.saturating_add(place(entry, size)?.len() as u64);
    }
    // They do not overlap; if they did, reading them could take longer than their file is large.
    if total > size as u64 {
        return Err(Damage::Header("the size of all sections", total));
    }
    Ok(entries)
}

/// Returns the bytes of a section in a file of this size.
pub(crate) fn place(entry: &Entry, size: usize) -> Result<Range<usize>, Damage> {
    let record = entry.record_size as usize;
    let smallest = if (DEVICES..=PORTS).contains(&entry.kind) { RECORD } else { 8 };
    if record < smallest {
        return Err(Damage::Header("the size of a record", record as u64));
    }
    if entry.count == 0 {
        return Ok(0..0);
    }
    let start = usize::try_from(entry.offset).ok();
    let end = start.zip(record.checked_mul(entry.count as usize)).and_then(|(start, bytes)| start.checked_add(bytes));
    match start.zip(end) {
        Some((start, end)) if end <= size => Ok(start..end),
        _ => Err(Damage::Header("the place of a section", entry.offset)),
    }
}

/// Returns the content of a file that has these sections, in the room of another one.
pub(crate) fn snapshot(
    preamble: &Preamble,
    header: &[u8],
    sections: &[Section],
    events: Vec<Event>,
    mut room: Snapshot,
) -> Snapshot {
    let left_out =
        |kind| sections.iter().find(|section| section.entry.kind == kind).map_or(0, |section| section.entry.left_out);
    let State { process, devices, connections, rails, ports } = &mut room.state;
    process.update_all(header);
    read_over(devices, sections, DEVICES);
    read_over(connections, sections, CONNECTIONS);
    read_over(rails, sections, RAILS);
    read_over(ports, sections, PORTS);
    Snapshot {
        state: room.state,
        events,
        events_ever: preamble.events_ever,
        left_out: [DEVICES, CONNECTIONS, RAILS].map(left_out),
        written_ns: preamble.written_ns,
        generation: preamble.generation,
    }
}

/// A row of records of one kind.
pub(crate) struct Section<'a> {
    pub(crate) entry: Entry,
    bytes: &'a [u8],
}

impl<'a> Section<'a> {
    /// Returns the section in the bytes of a file.
    pub(crate) fn find(entry: Entry, bytes: &'a [u8]) -> Result<Self, Damage> {
        Ok(Self { bytes: &bytes[place(&entry, bytes.len())?], entry })
    }

    pub(crate) fn records(&self) -> ChunksExact<'a, u8> {
        self.bytes.chunks_exact(self.entry.record_size as usize)
    }

    /// Returns the sum of the parts of its records in the checksum.
    pub(crate) fn sum(&self) -> u64 {
        let mut place = self.entry.offset;
        self.records().fold(0, |sum: u64, record| {
            let sum = sum.wrapping_add(part(place, record));
            place = place.wrapping_add(u64::from(self.entry.record_size));
            sum
        })
    }
}

/// Reads the records of a kind over others.
fn read_over<T: Places>(values: &mut Vec<T>, sections: &[Section], kind: u32) {
    let section = sections.iter().find(|section| section.entry.kind == kind);
    let mut records = section.map_or_else(|| [].chunks_exact(RECORD), Section::records);
    values.truncate(records.len());
    // A file that had many once does not keep their room.
    if values.capacity() / 2 > records.len() {
        values.shrink_to_fit();
    }
    values.iter_mut().zip(&mut records).for_each(|(value, record)| value.update_all(record));
    values.extend(records.map(T::get_all));
}
