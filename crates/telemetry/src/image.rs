//! The bytes of a telemetry file in memory, and those of them that the file does not have yet.

use std::ops::Range;

use crate::header::{CONNECTIONS, DEVICES, EVENTS, Entry, PORTS, Preamble, RAILS};
use crate::layout::{
    CHECKSUM, DIRECTORY, ENTRY, HEADER, MAGIC, MAJOR, MINOR, MOST_CONNECTIONS, MOST_DEVICES, MOST_EVENTS, MOST_PORTS,
    MOST_RAILS, Places, RECORD, header_part, part,
};
use crate::snapshot::{Event, State};

/// Records between two changed ones that are written along with them: a write of a few more bytes is cheaper than
/// another system call.
const NEAR: usize = 16;

/// The records of one kind.
pub(crate) struct Section {
    kind: u32,
    /// The most records that it ever has.
    most: usize,
    /// The records that have room before all sections must move.
    capacity: usize,
    /// The place of the first record in the file.
    offset: u64,
    bytes: Vec<u8>,
    /// The part of each record in the checksum.
    parts: Vec<u64>,
    /// True for each record that differs from the file's.
    changed: Vec<bool>,
    /// The number of records in the file.
    in_file: usize,
    left_out: usize,
}

/// A section keeps room for this many records when it shrinks after a burst of connections.
const FEW: usize = 32;

impl Section {
    fn new(kind: u32, most: usize, capacity: usize) -> Self {
        Self {
            kind,
            most,
            capacity,
            offset: 0,
            // A process takes no more memory because it runs longer. What is not used is never touched.
            bytes: Vec::with_capacity(capacity * RECORD),
            parts: Vec::with_capacity(capacity),
            changed: Vec::with_capacity(capacity),
            in_file: 0,
            left_out: 0,
        }
    }

    fn count(&self) -> usize {
        self.parts.len()
    }

    fn place(&self, index: usize) -> u64 {
        self.offset + (index * RECORD) as u64
    }

    /// Sets a record, or adds one behind the last. Returns the change of the checksum; `None` if it is the
    /// same.
    fn set(&mut self, index: usize, record: &impl Places, generation: u64) -> Option<u64> {
        let mut bytes = [0; RECORD];
        record.put_all(&mut bytes);
        let place = self.place(index);
        if index == self.count() {
            self.bytes.extend_from_slice(&[0; RECORD]);
            self.parts.push(0);
            self.changed.push(true);
        } else if self.bytes[index * RECORD..][8..RECORD] == bytes[8..] {
            return None;
        }
        bytes[..8].copy_from_slice(&generation.to_le_bytes());
        self.bytes[index * RECORD..][..RECORD].copy_from_slice(&bytes);
        let before = std::mem::replace(&mut self.parts[index], part(place, &bytes));
        self.changed[index] = true;
        Some(self.parts[index].wrapping_sub(before))
    }

    /// Makes the records those of `items`, as far as they have room. Returns true if anything changed; adds the change
    /// of the checksum to `sum`.
    fn set_all(&mut self, items: &[impl Places], generation: u64, sum: &mut u64) -> bool {
        let count = items.len().min(self.most);
        let left_out = items.len() - count;
        let mut is_changed = std::mem::replace(&mut self.left_out, left_out) != left_out || count < self.count();
        for part in self.parts.drain(count.min(self.parts.len())..) {
            *sum = sum.wrapping_sub(part);
        }
        self.bytes.truncate(count * RECORD);
        self.changed.truncate(count);
        let room = count.max(FEW);
        if self.bytes.capacity() > 2 * room * RECORD {
            self.bytes.shrink_to(room * RECORD);
            self.parts.shrink_to(room);
            self.changed.shrink_to(room);
        }
        for (index, item) in items.iter().enumerate().take(count) {
            if let Some(change) = self.set(index, item, generation) {
                *sum = sum.wrapping_add(change);
                is_changed = true;
            }
        }
        is_changed
    }

    /// Returns the ranges of bytes of the records in `records` that differ from the file's.
    fn changed(&self, records: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let mut next = records.start;
        std::iter::from_fn(move || {
            let first = next + self.changed[next..records.end].iter().position(|changed| *changed)?;
            let mut end = first + 1;
            while let Some(more) = self.changed[end..records.end.min(end + NEAR)].iter().rposition(|changed| *changed) {
                end += more + 1;
            }
            next = end;
            Some(first * RECORD..end * RECORD)
        })
    }

    fn entry(&self) -> Entry {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Entry {
            kind: self.kind,
            record_size: RECORD as u32,
            offset: self.offset,
            count: number(self.count()),
            left_out: number(self.left_out),
        }
    }
}

/// Some bytes of the file.
pub(crate) struct Piece<'a> {
    pub(crate) place: u64,
    pub(crate) bytes: &'a [u8],
}

/// The bytes of a telemetry file.
pub(crate) struct Image {
    /// Devices, connections, rails, events and ports, in their order in the file.
    sections: [Section; 5],
    /// The checksum without the header's part.
    sum: u64,
    events_ever: u64,
    /// The number of the write that is being prepared.
    generation: u64,
}

impl Image {
    pub(crate) fn new() -> Self {
        let sections = [
            Section::new(DEVICES, MOST_DEVICES, 16),
            Section::new(CONNECTIONS, MOST_CONNECTIONS, 64),
            Section::new(RAILS, MOST_RAILS, 128),
            Section::new(EVENTS, MOST_EVENTS, MOST_EVENTS),
            Section::new(PORTS, MOST_PORTS, 16),
        ];
        let mut image = Self { sections, sum: 0, events_ever: 0, generation: 1 };
        image.lay_out();
        image
    }

    /// Adds an event. It takes the place of the oldest if there is no room.
    pub(crate) fn add(&mut self, event: &Event) {
        let index = (self.events_ever % MOST_EVENTS as u64) as usize;
        self.events_ever += 1;
        let change = self.sections[3].set(index, event, self.generation);
        self.sum = self.sum.wrapping_add(change.unwrap_or(0));
    }

    /// Makes devices, connections, rails and ports those of `state`. Returns true if anything changed.
    pub(crate) fn set(&mut self, state: &State) -> bool {
        let Self { sections: [devices, connections, rails, _, ports], sum, generation, .. } = self;
        let mut is_changed = devices.set_all(&state.devices, *generation, sum);
        is_changed |= connections.set_all(&state.connections, *generation, sum);
        is_changed |= rails.set_all(&state.rails, *generation, sum);
        is_changed |= ports.set_all(&state.ports, *generation, sum);
        is_changed
    }

    /// Returns true if the sections have moved, because one of them has outgrown its place. The file must then be
    /// written whole.
    pub(crate) fn grow(&mut self) -> bool {
        if self.sections.iter().all(|section| section.count() <= section.capacity) {
            return false;
        }
        for section in &mut self.sections {
            if section.count() > section.capacity {
                section.capacity = section.count().next_power_of_two().min(section.most);
            }
        }
        self.lay_out();
        true
    }

    fn lay_out(&mut self) {
        let mut place = HEADER as u64;
        self.sum = 0;
        for section in &mut self.sections {
            section.offset = place;
            place += (section.capacity * RECORD) as u64;
            for (index, bytes) in section.bytes.chunks_exact(RECORD).enumerate() {
                section.parts[index] = part(section.offset + (index * RECORD) as u64, bytes);
                self.sum = self.sum.wrapping_add(section.parts[index]);
            }
        }
    }

    /// Returns the changed records that the file's header does not count yet. Writing them spoils nothing.
    pub(crate) fn added(&self) -> impl Iterator<Item = Piece<'_>> {
        self.pieces(|section| section.in_file.min(section.count())..section.count())
    }

    /// Returns the changed records that the file's header counts.
    pub(crate) fn changed(&self) -> impl Iterator<Item = Piece<'_>> {
        self.pieces(|section| 0..section.in_file.min(section.count()))
    }

    fn pieces(&self, records: impl Fn(&Section) -> Range<usize>) -> impl Iterator<Item = Piece<'_>> {
        self.sections.iter().flat_map(move |section| {
            section
                .changed(records(section))
                .map(|range| Piece { place: section.offset + range.start as u64, bytes: &section.bytes[range] })
        })
    }

    /// Returns all records.
    pub(crate) fn all(&self) -> impl Iterator<Item = Piece<'_>> {
        let some = self.sections.iter().filter(|section| section.count() > 0);
        some.map(|section| Piece { place: section.offset, bytes: &section.bytes })
    }

    /// Returns the size of the file.
    pub(crate) fn size(&self) -> u64 {
        self.all().map(|piece| piece.place + piece.bytes.len() as u64).max().unwrap_or(0).max(HEADER as u64)
    }

    /// Returns the header.
    pub(crate) fn header(&self, state: &State, written_ns: u64) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        let preamble = Preamble {
            magic: MAGIC,
            major: MAJOR,
            minor: MINOR,
            header_size: HEADER as u32,
            checksum: 0,
            generation: self.generation,
            written_ns,
            events_ever: self.events_ever,
            directory: DIRECTORY as u32,
            entry_size: ENTRY as u16,
            entries: self.sections.len() as u16,
        };
        preamble.put_all(&mut header);
        state.process.put_all(&mut header);
        for (section, entry) in self.sections.iter().zip(header[DIRECTORY..].chunks_exact_mut(ENTRY)) {
            section.entry().put_all(entry);
        }
        let checksum = self.sum.wrapping_add(header_part(&header));
        header[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
        header
    }

    /// Notes that the file has everything.
    pub(crate) fn written(&mut self) {
        self.generation += 1;
        for section in &mut self.sections {
            section.changed.fill(false);
            section.in_file = section.count();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Rail;

    fn state(rails: usize) -> State {
        State {
            rails: (0..rails as u32).map(|connection| Rail { connection, ..Rail::default() }).collect(),
            ..State::default()
        }
    }

    fn ranges<'a>(pieces: impl Iterator<Item = Piece<'a>>, image: &Image) -> Vec<(u64, u64)> {
        let offset = image.sections[2].offset;
        let record = RECORD as u64;
        pieces.map(|piece| ((piece.place - offset) / record, piece.bytes.len() as u64 / record)).collect()
    }

    #[test]
    fn only_changed_records_are_written_and_near_ones_together() {
        let mut image = Image::new();
        let mut state = state(100);
        assert!(image.set(&state));
        assert_eq!(ranges(image.added(), &image), [(0, 100)]);
        assert_eq!(image.changed().count(), 0);
        image.written();
        assert!(!image.set(&state));
        assert_eq!(image.added().chain(image.changed()).count(), 0);
        for changed in [3, 5, 60] {
            state.rails[changed].bytes_sent += 1;
        }
        assert!(image.set(&state));
        assert_eq!(ranges(image.changed(), &image), [(3, 3), (60, 1)]);
        assert_eq!(image.added().count(), 0);
        image.written();
        state.rails.pop();
        assert!(image.set(&state), "there is one less");
    }

    #[test]
    fn the_checksum_follows_every_change() {
        let mut image = Image::new();
        let sum = |image: &Image| {
            let sections = image.sections.iter();
            sections
                .flat_map(|section| {
                    (0..section.count())
                        .map(|index| part(section.place(index), &section.bytes[index * RECORD..][..RECORD]))
                })
                .fold(0_u64, u64::wrapping_add)
        };
        for rails in [0, 5, 3, 4, 129, 2] {
            image.set(&state(rails));
            image.add(&Event { time_ns: rails as u64, ..Event::default() });
            image.grow();
            assert_eq!(image.sum, sum(&image), "{rails} rails");
            image.written();
        }
    }

    #[test]
    fn records_beyond_the_bound_are_counted() {
        let mut image = Image::new();
        image.sections[2].most = 10;
        image.set(&state(12));
        assert_eq!((image.sections[2].count(), image.sections[2].entry().left_out), (10, 2));
        image.set(&state(9));
        assert_eq!((image.sections[2].count(), image.sections[2].entry().left_out), (9, 0));
    }
}
