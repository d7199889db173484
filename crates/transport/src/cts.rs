//! The CTS stream: entries of 64 bytes by which the receiver tells the sender that a slot's buffers are ready.
//!
//! The stream is a ring in the sender's memory, which the receiver writes, entry after entry. The last field of an
//! entry is its number plus 1, which makes the entry valid: the receiver never overwrites an entry whose slot is not
//! complete, and a number is never used twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use railweave_fabric::{LaneId, LocalSlice, MAX_RAILS, PostError, Rail, RailId, Region, RemoteSlice, WorkId, Write};

use crate::depths::CTS_SIGNAL_EVERY;
use crate::memory::Incoming;
use crate::rail_info::RailInfo;
use crate::violation::CtsViolation;
use crate::work::WorkKind;
use crate::{Error, MAX_BUFFERS, MAX_MESSAGE_BYTES, Slot};

/// Bytes of an entry.
pub(crate) const ENTRY_BYTES: usize = 64;

/// Entries in the ring: NCCL has at most 32 receives of 8 buffers outstanding.
pub(crate) const ENTRIES: u64 = 512;

/// Bytes of the whole ring.
pub(crate) const STREAM_BYTES: usize = ENTRIES as usize * ENTRY_BYTES;

/// A buffer that is ready at the receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CtsEntry {
    /// Address of the buffer.
    pub(crate) address: u64,
    /// Its size in bytes.
    pub(crate) size: u64,
    /// Its tag.
    pub(crate) tag: u32,
    /// The slot.
    pub(crate) slot: Slot,
    /// The index of this buffer in the slot.
    pub(crate) buffer: u8,
    /// The number of buffers of the slot.
    pub(crate) buffers: u8,
    /// The buffer's remote key on each rail.
    pub(crate) keys: [u32; MAX_RAILS],
}

/// Returns the place of entry `number` in the ring, counted in entries.
#[inline]
fn place(number: u64) -> usize {
    (number % ENTRIES) as usize
}

/// Returns the word of an entry that holds the tag, the slot, the buffer's index, the number of buffers, and 8 zero
/// bits.
#[inline]
fn mixed(tag: u32, slot: Slot, buffer: u8, buffers: u8) -> u64 {
    u64::from(tag) | u64::from(slot.number()) << 32 | u64::from(buffer) << 40 | u64::from(buffers) << 48
}

impl CtsEntry {
    /// Returns the entry of a buffer: the one with this number of `count`.
    #[inline]
    pub(crate) fn of(buffer: &Incoming<'_>, slot: Slot, number: u8, count: u8) -> Self {
        Self {
            address: buffer.address,
            size: buffer.size,
            tag: buffer.tag,
            slot,
            buffer: number,
            buffers: count,
            keys: buffer.keys.remote,
        }
    }

    /// Writes entry `number` into the receiver's copy of the ring.
    #[inline]
    pub(crate) fn store(&self, ring: &Region, number: u64) {
        let line = ring.line(place(number));
        let relaxed = |index: usize, value: u64| line[index].store(value.to_le(), Ordering::Relaxed);
        relaxed(0, self.address);
        relaxed(1, self.size);
        relaxed(2, mixed(self.tag, self.slot, self.buffer, self.buffers));
        for pair in 0..MAX_RAILS / 2 {
            relaxed(3 + pair, u64::from(self.keys[2 * pair]) | u64::from(self.keys[2 * pair + 1]) << 32);
        }
        line[7].store((number + 1).to_le(), Ordering::Release);
    }

    #[inline]
    fn load(ring: &Region, number: u64) -> (Self, u8) {
        let line = ring.line(place(number));
        let word = |index: usize| u64::from_le(line[index].load(Ordering::Relaxed));
        let mixed = word(2);
        let mut entry = Self {
            address: word(0),
            size: word(1),
            tag: mixed as u32,
            slot: Slot::new((mixed >> 32) as u8),
            buffer: (mixed >> 40) as u8,
            buffers: (mixed >> 48) as u8,
            keys: [0; MAX_RAILS],
        };
        for pair in 0..MAX_RAILS / 2 {
            let both = word(3 + pair);
            entry.keys[2 * pair] = both as u32;
            entry.keys[2 * pair + 1] = (both >> 32) as u32;
        }
        (entry, (mixed >> 56) as u8)
    }
}

/// The state of CTS writes over one rail.
#[derive(Clone, Copy, Default)]
pub(crate) struct CtsRail {
    /// Key of the receiver's copy of the ring.
    shadow_key: u32,
    /// Key of the ring.
    peer_key: u32,
    /// The number of CTS posted so far, and the connection's first number, modulo 2^32.
    posted: u32,
}

impl CtsRail {
    /// Returns the state before the first CTS, with the keys of both rings, of a connection that counts from `first`.
    pub(crate) fn new(shadow_key: u32, peer_key: u32, first: u32) -> Self {
        Self { shadow_key, peer_key, posted: first }
    }

    /// Returns true if the next CTS must be signalled.
    #[inline]
    fn signals(&self) -> bool {
        self.posted % CTS_SIGNAL_EVERY == CTS_SIGNAL_EVERY - 1
    }

    /// Counts a CTS that is posted.
    #[inline]
    fn count(&mut self) {
        self.posted = self.posted.wrapping_add(1);
    }
}

/// The receiver's end of the stream: its copy of the ring, from which it writes.
pub(crate) struct CtsSource {
    shadow: Arc<Region>,
    /// Its address.
    address: u64,
    peer: u64,
    /// The number of the next entry. It never goes round: 2^64 entries take centuries.
    next: u64,
}

impl CtsSource {
    /// Returns the stream from `shadow` to the peer's ring at the address `peer`, whose first entry is `first`.
    pub(crate) fn new(shadow: Arc<Region>, peer: u64, first: u64) -> Self {
        assert_eq!(shadow.len(), STREAM_BYTES, "the CTS stream has a fixed size");
        Self { address: shadow.address(), shadow, peer, next: first }
    }

    /// Returns the number of the next entry.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Writes an entry after those already written; [`Self::post`] sends it.
    #[inline]
    pub(crate) fn write(&self, entry: &CtsEntry) {
        entry.store(&self.shadow, self.next + u64::from(entry.buffer));
    }

    /// Writes the only entry of a slot. Returns the write that sends it over a rail, which must be posted next.
    #[inline(always)]
    pub(crate) fn take_one(&mut self, entry: &CtsEntry, cts: &mut CtsRail, info: &RailInfo) -> Write {
        self.write(entry);
        let write = self.slice(cts, self.next, 1, cts.signals());
        self.next += 1;
        cts.count();
        info.counters.count_cts();
        write
    }

    /// Sends the `count` entries of a slot over a rail. Entries that wrap around the end of the ring take two writes.
    /// The entries count as sent even if the rail refuses them.
    pub(crate) fn post(
        &mut self,
        rail: &mut impl Rail,
        cts: &mut CtsRail,
        info: &RailInfo,
        count: u64,
    ) -> Result<(), PostError> {
        let until_end = ENTRIES - self.next % ENTRIES;
        let signalled = cts.signals();
        let posted = if count <= until_end {
            rail.post(LaneId::FIRST, &[self.slice(cts, self.next, count, signalled)])
        } else {
            let around = self.slice(cts, self.next + until_end, count - until_end, signalled);
            rail.post(LaneId::FIRST, &[self.slice(cts, self.next, until_end, false), around])
        };
        self.next += count;
        cts.count();
        info.counters.count_cts();
        posted
    }

    /// Returns the writes that send all entries from `first` on once more over a rail whose longest write is `most`
    /// bytes. The last one is signalled and has this id.
    pub(crate) fn repeat(&self, first: u64, most: u32, cts: &CtsRail, id: WorkId) -> Vec<Write> {
        let longest = (u64::from(most) / ENTRY_BYTES as u64).max(1);
        let mut writes = Vec::new();
        let mut at = first;
        while at < self.next {
            let count = (self.next - at).min(ENTRIES - at % ENTRIES).min(longest);
            writes.push(self.slice(cts, at, count, false));
            at += count;
        }
        if let Some(last) = writes.last_mut() {
            (last.signalled, last.id) = (true, id);
        }
        writes
    }

    /// Returns the entries of a receive whose first entry is `first`.
    pub(crate) fn entries(&self, first: u64, count: u8) -> impl Iterator<Item = CtsEntry> {
        (0..u64::from(count)).map(move |index| CtsEntry::load(&self.shadow, first + index).0)
    }

    /// Returns the write of `count` entries that do not wrap around the end of the ring.
    #[inline]
    fn slice(&self, keys: &CtsRail, first: u64, count: u64, signalled: bool) -> Write {
        let at = (place(first) * ENTRY_BYTES) as u64;
        Write {
            local: LocalSlice {
                address: self.address + at,
                length: count as u32 * ENTRY_BYTES as u32,
                key: keys.shadow_key,
            },
            remote: RemoteSlice { address: self.peer.wrapping_add(at), key: keys.peer_key },
            immediate: None,
            signalled,
            host: true,
            id: WorkKind::Cts.id(),
        }
    }
}

/// The buffer of a slot that has only one, as the next entry of the sender's ring describes it.
pub(crate) struct Single<'a> {
    /// Its address.
    pub(crate) address: u64,
    /// Its size in bytes.
    pub(crate) size: u64,
    line: &'a [AtomicU64; ENTRY_BYTES / 8],
}

impl Single<'_> {
    /// Returns its remote key on a rail.
    #[inline]
    pub(crate) fn key(&self, rail: RailId) -> u32 {
        let rail = rail.index();
        let both = self.line[3 + rail / 2].load(Ordering::Relaxed);
        (u64::from_le(both) >> (rail % 2 * 32)) as u32
    }
}

/// The sender's end of the stream.
#[derive(Debug)]
pub(crate) struct CtsStream {
    ring: Arc<Region>,
    next: u64,
}

impl CtsStream {
    /// Returns the stream that comes into `ring`, whose first entry is `first`.
    pub(crate) fn new(ring: Arc<Region>, first: u64) -> Self {
        assert_eq!(ring.len(), STREAM_BYTES, "the CTS stream has a fixed size");
        Self { ring, next: first }
    }

    #[inline]
    fn is_there(&self, number: u64) -> bool {
        is_written(self.ring.line(place(number)), number)
    }

    /// Returns true if the first entry of the next slot is there.
    pub(crate) fn has_next(&self) -> bool {
        self.is_there(self.next)
    }

    /// Returns the buffer of the next slot if its entry is there, names the only buffer of the slot, as most entries
    /// do, and has this tag. The entry comes from the peer and is checked. [`Self::take`] handles all other entries.
    /// This call takes nothing yet.
    #[inline]
    pub(crate) fn single(&self, slot: Slot, tag: u32) -> Option<Single<'_>> {
        let line = self.ring.line(place(self.next));
        if !is_written(line, self.next) {
            return None;
        }
        let word = |index: usize| u64::from_le(line[index].load(Ordering::Relaxed));
        let (address, size) = (word(0), word(1));
        if word(2) != mixed(tag, slot, 0, 1) || size > MAX_MESSAGE_BYTES || address.checked_add(size).is_none() {
            return None;
        }
        Some(Single { address, size, line })
    }

    /// Returns the buffer that [`Self::single`] returned before, which is at `address`, cut to `size` bytes.
    #[inline]
    pub(crate) fn shown(&self, address: u64, size: u64) -> Single<'_> {
        Single { address, size, line: self.ring.line(place(self.next)) }
    }

    /// Takes the entry that [`Self::single`] returned.
    #[inline]
    pub(crate) fn take_single(&mut self) {
        self.next += 1;
    }

    /// Returns the entries of the `count` buffers of a slot, of the last use that was taken; `None` if they are not in
    /// the ring any more. They come from the peer, and what it has changed since they were taken concerns only memory
    /// of its own.
    pub(crate) fn entries_of(&self, slot: Slot, count: usize) -> Option<Vec<CtsEntry>> {
        let taken = self.next.saturating_sub(ENTRIES)..self.next;
        let first = taken.rev().find(|number| {
            let (entry, _) = CtsEntry::load(&self.ring, *number);
            self.is_there(*number) && entry.slot == slot && entry.buffer == 0
        })?;
        let entry = |index: usize| {
            let (entry, reserved) = CtsEntry::load(&self.ring, first + index as u64);
            check(&entry, reserved, slot, index, count).ok().map(|()| entry)
        };
        (0..count).map(entry).collect()
    }

    /// Takes all entries of the next slot, once they are all there. Returns their number, 0 before. The entries come
    /// from the peer: everything in them is checked, and copied to `out`, so that a later change in the ring has no
    /// effect.
    #[inline]
    pub(crate) fn take(&mut self, slot: Slot, out: &mut [CtsEntry; MAX_BUFFERS]) -> Result<usize, Error> {
        if !self.is_there(self.next) {
            return Ok(0);
        }
        let (first, reserved) = CtsEntry::load(&self.ring, self.next);
        let count = usize::from(first.buffers);
        if !(1..=MAX_BUFFERS).contains(&count) {
            return Err(CtsViolation::Buffers { slot, buffers: count }.into());
        }
        if (1..count as u64).any(|index| !self.is_there(self.next + index)) {
            return Ok(0);
        }
        check(&first, reserved, slot, 0, count)?;
        out[0] = first;
        for (index, place) in out.iter_mut().enumerate().take(count).skip(1) {
            let (entry, reserved) = CtsEntry::load(&self.ring, self.next + index as u64);
            check(&entry, reserved, slot, index, count)?;
            *place = entry;
        }
        self.next += count as u64;
        Ok(count)
    }
}

/// Returns true if a place of the ring holds this entry.
#[inline]
fn is_written(line: &[AtomicU64; ENTRY_BYTES / 8], number: u64) -> bool {
    u64::from_le(line[7].load(Ordering::Acquire)) == number + 1
}

#[inline]
fn check(entry: &CtsEntry, reserved: u8, slot: Slot, index: usize, count: usize) -> Result<(), Error> {
    let fits = entry.slot == slot
        && usize::from(entry.buffer) == index
        && usize::from(entry.buffers) == count
        && entry.size <= MAX_MESSAGE_BYTES
        && entry.address.checked_add(entry.size).is_some()
        && reserved == 0;
    if fits {
        return Ok(());
    }
    Err(CtsViolation::Misfit {
        slot: entry.slot,
        expected_slot: slot,
        buffer: entry.buffer,
        buffers: entry.buffers,
        expected_buffer: index,
        expected_buffers: count,
        size: entry.size,
        address: entry.address,
    }
    .into())
}

#[cfg(test)]
mod tests {
    use railweave_fabric::RailSet;

    use super::*;

    fn entry(slot: u8, buffer: u8, buffers: u8) -> CtsEntry {
        CtsEntry {
            address: 0x1000 * u64::from(buffer + 1),
            size: 4096,
            tag: 0xdead_beef,
            slot: Slot::new(slot),
            buffer,
            buffers,
            keys: [1, 2, 3, 4, 5, 6, 7, 8],
        }
    }

    fn taken(stream: &mut CtsStream, slot: u8) -> Result<Vec<CtsEntry>, Error> {
        let mut out = Default::default();
        stream.take(Slot::new(slot), &mut out).map(|count| out[..count].to_vec())
    }

    #[test]
    fn a_slot_is_taken_when_all_its_entries_are_there() {
        let ring = Arc::new(Region::new(STREAM_BYTES));
        let mut stream = CtsStream::new(Arc::clone(&ring), 0);
        assert_eq!(taken(&mut stream, 0), Ok(vec![]));
        entry(0, 0, 3).store(&ring, 0);
        entry(0, 2, 3).store(&ring, 2);
        assert_eq!(taken(&mut stream, 0), Ok(vec![]), "the middle one is missing");
        entry(0, 1, 3).store(&ring, 1);
        assert_eq!(taken(&mut stream, 0), Ok(vec![entry(0, 0, 3), entry(0, 1, 3), entry(0, 2, 3)]));
    }

    #[test]
    fn the_ring_goes_round_and_an_old_entry_is_not_taken_for_a_new_one() {
        let ring = Arc::new(Region::new(STREAM_BYTES));
        let mut stream = CtsStream::new(Arc::clone(&ring), 0);
        for number in 0..3 * ENTRIES {
            let slot = number as u8;
            assert_eq!(taken(&mut stream, slot), Ok(vec![]), "entry {number} is an old one");
            entry(slot, 0, 1).store(&ring, number);
            assert_eq!(taken(&mut stream, slot), Ok(vec![entry(slot, 0, 1)]));
        }
    }

    #[test]
    fn the_only_buffer_of_a_slot_is_seen_before_it_is_taken() {
        let ring = Arc::new(Region::new(STREAM_BYTES));
        let mut stream = CtsStream::new(Arc::clone(&ring), 0);
        let slot = |number: u64| Slot::new(number as u8);
        for number in 0..2 * ENTRIES {
            let entry = CtsEntry { size: MAX_MESSAGE_BYTES, ..entry(number as u8, 0, 1) };
            assert!(stream.single(slot(number), entry.tag).is_none());
            entry.store(&ring, number);
            assert!(stream.single(slot(number), entry.tag + 1).is_none(), "another tag");
            assert!(stream.single(slot(number + 1), entry.tag).is_none(), "another slot");
            let single = stream.single(slot(number), entry.tag).expect("it is there");
            let shown = stream.shown(7, 8);
            assert_eq!((single.address, single.size), (entry.address, entry.size));
            assert_eq!((shown.address, shown.size), (7, 8));
            for rail in RailSet::ALL {
                assert_eq!([single.key(rail), shown.key(rail)], [entry.keys[rail]; 2]);
            }
            stream.take_single();
        }
        entry(0, 0, 2).store(&ring, 2 * ENTRIES);
        assert!(stream.single(Slot::new(0), 0xdead_beef).is_none(), "the first of two");
    }

    #[test]
    fn every_32nd_cts_of_a_rail_is_signalled() {
        let mut rail = CtsRail::new(1, 2, 0);
        let signalled: Vec<u32> = (1..=100)
            .filter(|_| {
                let signals = rail.signals();
                rail.count();
                signals
            })
            .collect();
        assert_eq!(signalled, [32, 64, 96]);
    }

    #[test]
    fn each_entry_of_a_group_must_fit() {
        let ring = || Arc::new(Region::new(STREAM_BYTES));
        let misfits = [entry(1, 1, 2), entry(0, 0, 2), entry(0, 2, 2), entry(0, 1, 3), entry(0, 1, 1)];
        for bad in misfits {
            let ring = ring();
            entry(0, 0, 2).store(&ring, 0);
            bad.store(&ring, 1);
            assert!(taken(&mut CtsStream::new(ring, 0), 0).is_err(), "{bad:?}");
        }
        // The reserved bits of either entry.
        for place in 0..2 {
            let ring = ring();
            (0..2).for_each(|buffer| entry(0, buffer, 2).store(&ring, u64::from(buffer)));
            ring.line(place)[2].fetch_or((1_u64 << 56).to_le(), Ordering::Relaxed);
            assert!(taken(&mut CtsStream::new(ring, 0), 0).is_err(), "entry {place}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let slot = Slot::new(0);
        let count = |buffers| CtsViolation::Buffers { slot, buffers };
        let misfit = |bad: &CtsEntry| CtsViolation::Misfit {
            slot: bad.slot,
            expected_slot: slot,
            buffer: bad.buffer,
            buffers: 1,
            expected_buffer: 0,
            expected_buffers: 1,
            size: bad.size,
            address: bad.address,
        };
        let misfits = [
            entry(1, 0, 1),
            entry(0, 1, 1),
            CtsEntry { size: MAX_MESSAGE_BYTES + 1, ..entry(0, 0, 1) },
            CtsEntry { address: u64::MAX, ..entry(0, 0, 1) },
        ];
        let counts = [(entry(0, 0, 0), count(0)), (entry(0, 0, 9), count(9))];
        for (bad, violation) in misfits.map(|bad| (bad, misfit(&bad))).into_iter().chain(counts) {
            let ring = Arc::new(Region::new(STREAM_BYTES));
            bad.store(&ring, 0);
            let mut stream = CtsStream::new(ring, 0);
            assert!(stream.single(Slot::new(0), bad.tag).is_none(), "{bad:?}");
            assert_eq!(taken(&mut stream, 0), Err(violation.into()));
        }
    }
}
