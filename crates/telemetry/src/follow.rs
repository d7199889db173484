//! The repeated reading of a telemetry file, at the cost of its changes.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::folder::{Folder, FolderError};
use crate::header::{CONNECTIONS, DEVICES, EVENTS, Entry, PORTS, Preamble, RAILS};
use crate::layout::{
    HEADER, LARGEST_FILE, MOST_CONNECTIONS, MOST_DEVICES, MOST_EVENTS, MOST_PORTS, MOST_RAILS, Places, RECORD,
    header_part, part,
};
use crate::read::{Damage, Section, entries, generation, place, preamble, snapshot};
use crate::snapshot::{Event, Snapshot};

/// The number of looks at the same bytes after which a wrong checksum is damage: their writer has stopped in the
/// middle of a write, or somebody else wrote them.
const SAME_LOOKS: u32 = 3;

/// The time after which a file that changes again certainly has another time of change: file systems take it from a
/// clock that ticks every 10 ms or more often.
const TICK: Duration = Duration::from_millis(50);

/// The result of a look.
#[derive(Debug)]
pub enum Look {
    /// The file was not written since the last look that found something.
    Unchanged,
    /// The state now. The events are those since the last such look; at the first look, all that the file has.
    Changed(Box<Snapshot>),
    /// The file is being written: look again, at once or later.
    BeingWritten,
    /// The file cannot be used: the end of a sentence that begins with the file.
    Refused(String),
}

/// Follows the telemetry file of one process.
///
/// A look at a file that was not written reads its header; one at a file that was written reads all but the events that
/// it has read before, whose parts of the checksum it keeps.
#[derive(Debug, Default)]
pub struct Follower {
    /// The file that was read last: its device and inode.
    file: (u64, u64),
    /// The generation and the checksum of the last look that found something, or of a wrong image.
    seen: Option<(u64, u64)>,
    /// The number of looks that found the same wrong image.
    wrong_looks: u32,
    /// The file that was refused for its content, and why: it is not read again until it changes.
    refused: Option<(Stamp, String)>,
    events: Events,
    /// A snapshot that nobody needs any more.
    room: Snapshot,
}

/// The facts by which a file that has changed is known: its size, the time of its last change, and the generation and
/// the checksum in its header. Nobody can set that time back, unlike the one of the last write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    size: u64,
    changed: (i64, i64),
    image: Option<(u64, u64)>,
}

impl Stamp {
    fn new(facts: &Metadata, image: Option<(u64, u64)>) -> Self {
        Self { size: facts.len(), changed: (facts.ctime(), facts.ctime_nsec()), image }
    }

    /// Returns true if the next change of the file will give it another stamp.
    fn is_settled(&self) -> bool {
        let (seconds, nanoseconds) = self.changed;
        let changed = Duration::new(seconds.max(0).unsigned_abs(), nanoseconds.clamp(0, 999_999_999) as u32);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.checked_sub(changed).is_some_and(|age| age > TICK)
    }
}

/// The events that were read.
#[derive(Clone, Debug, Default)]
struct Events {
    /// The events that the process had had.
    ever: u64,
    /// Where they are in the file.
    entry: Entry,
    /// The part of each record in the checksum.
    parts: Vec<u32>,
}

/// A read that gave nothing.
enum Failure {
    Io(io::Error),
    Damage(Damage),
    /// The file is shorter than it was a moment ago.
    Short,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Damage> for Failure {
    fn from(damage: Damage) -> Self {
        Self::Damage(damage)
    }
}

impl Follower {
    /// Takes back a snapshot of this file that nobody needs any more: the next one uses its room, and its texts.
    pub fn reuse(&mut self, old: Snapshot) {
        self.room = old;
    }

    /// Looks at the file of this name. `buffer` is room that looks share.
    pub fn look(&mut self, folder: &Folder, name: &str, buffer: &mut Vec<u8>) -> Look {
        let (file, facts) = match folder.read_file(name, LARGEST_FILE) {
            Ok(found) => found,
            Err(error) => {
                // Once it can be opened again, all of it is read again.
                self.seen = None;
                return Look::Refused(error.to_string());
            }
        };
        let identity = (facts.dev(), facts.ino());
        if identity != self.file {
            // The process has made its file again; its events go on.
            let events = Events { ever: self.events.ever, ..Events::default() };
            *self = Self { file: identity, events, ..Self::default() };
        }
        let size = facts.len() as usize;
        let (mut image, mut known) = (None, None);
        let mut room = std::mem::take(&mut self.room);
        let found = header(&file, size, buffer).and_then(|preamble| {
            image = Some((preamble.generation, preamble.checksum));
            let stamp = Stamp::new(&facts, image);
            known = self.refused.as_ref().filter(|(refused, _)| *refused == stamp).map(|(_, reason)| reason.clone());
            if known.is_some() || (self.seen == image && self.wrong_looks == 0) {
                return Ok(None);
            }
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            self.read(&file, &preamble, &mut buffer[..size], &mut room).map(Some)
        });
        self.room = room;
        if let Some(reason) = known {
            return Look::Refused(reason);
        }
        match found {
            Ok(None) => Look::Unchanged,
            Ok(Some((events, state))) => {
                (self.events, self.seen, self.wrong_looks, self.refused) = (events, image, 0, None);
                Look::Changed(Box::new(state))
            }
            Err(Failure::Short) => Look::BeingWritten,
            Err(Failure::Damage(damage)) => {
                let look = self.wrong(image, damage);
                let stamp = Stamp::new(&facts, image);
                self.refused = match &look {
                    Look::Refused(reason) if stamp.is_settled() => Some((stamp, reason.clone())),
                    _ => None,
                };
                look
            }
            Err(Failure::Io(error)) => {
                self.seen = None;
                Look::Refused(FolderError::Io(error).to_string())
            }
        }
    }

    /// Reads the rest of a file whose header has this first part, and has changed.
    fn read(
        &self,
        file: &File,
        preamble: &Preamble,
        bytes: &mut [u8],
        room: &mut Snapshot,
    ) -> Result<(Events, Snapshot), Failure> {
        let size = bytes.len();
        let header_size = preamble.header_size as usize;
        fill(file, bytes, HEADER..header_size)?;
        let mut entries = entries(preamble, &bytes[..header_size], size)?;
        bounded(&entries)?;
        let (mut events, mut new) = (Events { ever: preamble.events_ever, ..Events::default() }, Vec::new());
        // A second section of a kind counts for the checksum only.
        if let Some(first) = entries.iter().position(|entry| entry.kind == EVENTS) {
            let entry = entries.remove(first);
            (events, new) = self.events.follow(file, preamble, entry, bytes)?;
        }
        for entry in &entries {
            fill(file, bytes, place(entry, size)?)?;
        }
        let header = &bytes[..header_size];
        let mut sum = events.parts.iter().fold(header_part(header), |sum, part| sum.wrapping_add(u64::from(*part)));
        let mut is_newer = new.iter().any(|(generation, _)| *generation > preamble.generation);
        let sections = entries.into_iter().map(|entry| Section::find(entry, bytes)).collect::<Result<Vec<_>, _>>()?;
        for section in &sections {
            sum = sum.wrapping_add(section.sum());
            is_newer |= section.records().any(|record| generation(record) > preamble.generation);
        }
        if sum != preamble.checksum || is_newer {
            return Err(Damage::Checksum.into());
        }
        let new = new.into_iter().map(|(_, event)| event).collect();
        Ok((events, snapshot(preamble, header, &sections, new, std::mem::take(room))))
    }

    /// Notes an image that is wrong: it is being written, unless it stays the same.
    fn wrong(&mut self, stamp: Option<(u64, u64)>, damage: Damage) -> Look {
        self.wrong_looks = if self.wrong_looks > 0 && self.seen == stamp { self.wrong_looks + 1 } else { 1 };
        self.seen = stamp;
        // All events are read again once it is right.
        self.events.parts.clear();
        let is_foreign = matches!(damage, Damage::Magic | Damage::Version(_));
        if is_foreign || self.wrong_looks > SAME_LOOKS { Look::Refused(damage.to_string()) } else { Look::BeingWritten }
    }
}

impl Events {
    /// Reads the events that are new. Returns what is to be kept, and the new events with their generations.
    fn follow(
        &self,
        file: &File,
        preamble: &Preamble,
        entry: Entry,
        bytes: &mut [u8],
    ) -> Result<(Self, Vec<(u64, Event)>), Failure> {
        let (count, size, ever) = (u64::from(entry.count), entry.record_size as usize, preamble.events_ever);
        let range = place(&entry, bytes.len())?;
        let is_same = !self.parts.is_empty()
            && (self.entry.offset, self.entry.record_size) == (entry.offset, entry.record_size)
            && self.parts.len() as u64 <= count
            && (self.ever..=self.ever.saturating_add(count)).contains(&ever);
        let mut kept = Self { ever, entry, parts: if is_same { self.parts.clone() } else { Vec::new() } };
        kept.parts.resize(count as usize, 0);
        // The number of the first event to read. A ring that is not full has each event at its own number.
        let first = if is_same { self.ever } else { ever.saturating_sub(count) };
        if !is_same {
            fill(file, bytes, range.clone())?;
        }
        let mut new = Vec::new();
        for number in first..if is_same { ever } else { first + count } {
            let index = (number % count) as usize;
            let at = range.start + index * size;
            if is_same {
                fill(file, bytes, at..at + size)?;
            }
            let record = &bytes[at..at + size];
            // A part has 32 bits.
            kept.parts[index] = part(at as u64, record) as u32;
            if number >= self.ever || self.ever > ever {
                new.push((generation(record), Event::get_all(record)));
            }
        }
        Ok((kept, new))
    }
}

/// Reads the first part of the header of a file of this size.
fn header(file: &File, size: usize, buffer: &mut Vec<u8>) -> Result<Preamble, Failure> {
    if size < HEADER {
        return Err(Damage::Short(size).into());
    }
    if buffer.len() < HEADER {
        buffer.resize(HEADER, 0);
    }
    fill(file, buffer, 0..HEADER)?;
    Ok(preamble(&buffer[..HEADER], size)?)
}

/// Refuses a directory that would cost more than any writer's: with records that are smaller, or with more of them.
fn bounded(entries: &[Entry]) -> Result<(), Damage> {
    for entry in entries {
        if (entry.record_size as usize) < RECORD {
            return Err(Damage::Header("the size of a record", entry.record_size.into()));
        }
        let most = match entry.kind {
            DEVICES => MOST_DEVICES,
            CONNECTIONS => MOST_CONNECTIONS,
            RAILS => MOST_RAILS,
            EVENTS => MOST_EVENTS,
            PORTS => MOST_PORTS,
            // As many as the file has room for.
            _ => continue,
        };
        if entry.count as usize > most {
            return Err(Damage::Header("the number of records", entry.count.into()));
        }
    }
    Ok(())
}

/// Reads this part of the file to its place.
fn fill(file: &File, bytes: &mut [u8], part: Range<usize>) -> Result<(), Failure> {
    let mut at = part.start;
    while at < part.end {
        match file.read_at(&mut bytes[at..part.end], at as u64) {
            Ok(0) => return Err(Failure::Short),
            Ok(count) => at += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
