//! The header of a telemetry file: its first bytes, and the directory of its sections.

use crate::layout::places;

/// The first part of the header. The facts about the process follow ([`crate::Process`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Preamble {
    pub(crate) magic: [u8; 8],
    pub(crate) major: u16,
    pub(crate) minor: u16,
    /// The size of the header in bytes.
    pub(crate) header_size: u32,
    /// The sum of the parts of the header and of all records (`layout.rs`).
    pub(crate) checksum: u64,
    /// The number of the last write, from 1.
    pub(crate) generation: u64,
    /// The time of the last write, in nanoseconds since 1970.
    pub(crate) written_ns: u64,
    /// The number of events that the process has had.
    pub(crate) events_ever: u64,
    /// The place of the directory in the header.
    pub(crate) directory: u32,
    /// The size of an entry of the directory in bytes.
    pub(crate) entry_size: u16,
    /// The number of entries of the directory.
    pub(crate) entries: u16,
}

places! {
    Preamble {
        0..8 => magic, 8..10 => major, 10..12 => minor, 12..16 => header_size, 16..24 => checksum, 24..32 => generation,
        32..40 => written_ns, 40..48 => events_ever, 48..52 => directory, 52..54 => entry_size, 54..56 => entries,
    }
}

/// An entry of the directory: a section, which is a row of records of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The kind of the records.
    pub(crate) kind: u32,
    /// The size of a record in bytes.
    pub(crate) record_size: u32,
    /// The place of the first record in the file.
    pub(crate) offset: u64,
    /// The number of records.
    pub(crate) count: u32,
    /// The number of records that had no room.
    pub(crate) left_out: u32,
}

places! {
    Entry { 0..4 => kind, 4..8 => record_size, 8..16 => offset, 16..20 => count, 20..24 => left_out }
}

/// The kinds of sections.
pub(crate) const DEVICES: u32 = 1;
pub(crate) const CONNECTIONS: u32 = 2;
pub(crate) const RAILS: u32 = 3;
pub(crate) const EVENTS: u32 = 4;
pub(crate) const PORTS: u32 = 5;
