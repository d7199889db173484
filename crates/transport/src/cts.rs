//! The CTS stream: entries of 64 bytes by which the receiver tells the sender that a slot's buffers are ready.
//!
//! The sender owns the stream and the receiver writes it, entry after entry, in a ring. The last field of an entry is
//! its own number, which is what makes it valid: the receiver never writes an entry over one whose slot is not
//! complete, and a number never comes twice.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use railweave_fabric::{MAX_RAILS, Region};

use crate::plant::{Plant, checks, planted};
use crate::{Error, MAX_BUFFERS, MAX_MESSAGE_BYTES};

/// Bytes of an entry.
pub(crate) const ENTRY_BYTES: usize = 64;

/// Entries in the ring: NCCL has at most 32 receives of 8 buffers outstanding.
pub(crate) const ENTRIES: u64 = 512;

/// Bytes of the whole ring.
pub(crate) const STREAM_BYTES: usize = ENTRIES as usize * ENTRY_BYTES;

/// A buffer that the receiver has ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CtsEntry {
    /// Address of the buffer.
    pub(crate) address: u64,
    /// Its size in bytes.
    pub(crate) size: u64,
    /// Its tag.
    pub(crate) tag: u32,
    /// The slot.
    pub(crate) slot: u8,
    /// Which buffer of the slot this is.
    pub(crate) buffer: u8,
    /// How many buffers the slot has.
    pub(crate) buffers: u8,
    /// The buffer's remote key on each rail.
    pub(crate) keys: [u32; MAX_RAILS],
}

/// Where entry `number` stands in the ring.
#[inline]
pub(crate) fn offset(number: u64) -> usize {
    (number % ENTRIES) as usize * ENTRY_BYTES
}

impl CtsEntry {
    /// Writes entry `number` into the receiver's copy of the ring.
    #[inline]
    pub(crate) fn store(&self, ring: &Region, number: u64) {
        let line = ring.line(offset(number));
        let relaxed = |index: usize, value: u64| line[index].store(value.to_le(), Ordering::Relaxed);
        relaxed(0, self.address);
        relaxed(1, self.size);
        relaxed(
            2,
            u64::from(self.tag)
                | u64::from(self.slot) << 32
                | u64::from(self.buffer) << 40
                | u64::from(self.buffers) << 48,
        );
        for pair in 0..MAX_RAILS / 2 {
            relaxed(3 + pair, u64::from(self.keys[2 * pair]) | u64::from(self.keys[2 * pair + 1]) << 32);
        }
        line[7].store((number + 1).to_le(), Ordering::Release);
    }

    #[inline]
    fn load(ring: &Region, number: u64) -> (Self, u8) {
        let line = ring.line(offset(number));
        let word = |index: usize| u64::from_le(line[index].load(Ordering::Relaxed));
        let mixed = word(2);
        let mut entry = Self {
            address: word(0),
            size: word(1),
            tag: mixed as u32,
            slot: (mixed >> 32) as u8,
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

/// The sender's end of the stream.
#[derive(Debug)]
pub(crate) struct CtsStream {
    ring: Arc<Region>,
    next: u64,
}

impl CtsStream {
    pub(crate) fn new(ring: Arc<Region>) -> Self {
        assert_eq!(ring.len(), STREAM_BYTES, "the CTS stream has a fixed size");
        Self { ring, next: 0 }
    }

    #[inline]
    fn is_there(&self, number: u64) -> bool {
        let written = u64::from_le(self.ring.line(offset(number))[7].load(Ordering::Acquire));
        written == number + 1 || (planted(Plant::StaleCts) && written != 0)
    }

    /// Takes all entries of the next slot, once they are all there, and answers how many. The entries come from the
    /// peer: everything in them is checked, and kept here, so that a later change in the ring changes nothing.
    #[inline]
    pub(crate) fn take(&mut self, slot: u8, out: &mut [CtsEntry; MAX_BUFFERS]) -> Result<usize, Error> {
        if !self.is_there(self.next) {
            return Ok(0);
        }
        let (first, reserved) = CtsEntry::load(&self.ring, self.next);
        let count = usize::from(first.buffers);
        if !(1..=MAX_BUFFERS).contains(&count) {
            return Err(Error::protocol(format!(
                "the CTS entry for slot {slot} names {count} buffers, allowed are 1 to {MAX_BUFFERS}; the peer breaks \
                 the protocol or memory was overwritten"
            )));
        }
        if (1..count as u64).any(|index| !self.is_there(self.next + index)) && !planted(Plant::TornGroup) {
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

#[inline]
fn check(entry: &CtsEntry, reserved: u8, slot: u8, index: usize, count: usize) -> Result<(), Error> {
    let fits = entry.slot == slot
        && usize::from(entry.buffer) == index
        && usize::from(entry.buffers) == count
        && entry.size <= MAX_MESSAGE_BYTES
        && entry.address.checked_add(entry.size).is_some()
        && reserved == 0;
    if fits || !checks() {
        return Ok(());
    }
    Err(Error::protocol(format!(
        "a CTS entry does not fit: slot {} (expected {slot}), buffer {} of {} (expected {index} of {count}), {} bytes at \
         {:#x} (at most {MAX_MESSAGE_BYTES}); the peer breaks the protocol or memory was overwritten",
        entry.slot, entry.buffer, entry.buffers, entry.size, entry.address
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(slot: u8, buffer: u8, buffers: u8) -> CtsEntry {
        CtsEntry {
            address: 0x1000 * u64::from(buffer + 1),
            size: 4096,
            tag: 0xdead_beef,
            slot,
            buffer,
            buffers,
            keys: [1, 2, 3, 4, 5, 6, 7, 8],
        }
    }

    fn taken(stream: &mut CtsStream, slot: u8) -> Result<Vec<CtsEntry>, Error> {
        let mut out = Default::default();
        stream.take(slot, &mut out).map(|count| out[..count].to_vec())
    }

    #[test]
    fn a_slot_is_taken_when_all_its_entries_are_there() {
        let ring = Arc::new(Region::new(STREAM_BYTES));
        let mut stream = CtsStream::new(Arc::clone(&ring));
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
        let mut stream = CtsStream::new(Arc::clone(&ring));
        for number in 0..3 * ENTRIES {
            let slot = number as u8;
            assert_eq!(taken(&mut stream, slot), Ok(vec![]), "entry {number} is an old one");
            entry(slot, 0, 1).store(&ring, number);
            assert_eq!(taken(&mut stream, slot), Ok(vec![entry(slot, 0, 1)]));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let wrong = [
            (entry(1, 0, 1), "slot 1"),
            (entry(0, 0, 0), "0 buffers"),
            (entry(0, 0, 9), "9 buffers"),
            (entry(0, 1, 1), "buffer 1 of 1"),
            (CtsEntry { size: MAX_MESSAGE_BYTES + 1, ..entry(0, 0, 1) }, "bytes at"),
            (CtsEntry { address: u64::MAX, ..entry(0, 0, 1) }, "bytes at"),
        ];
        for (bad, words) in wrong {
            let ring = Arc::new(Region::new(STREAM_BYTES));
            bad.store(&ring, 0);
            let error = taken(&mut CtsStream::new(ring), 0).unwrap_err();
            assert!(error.message.contains(words), "{}", error.message);
        }
    }
}
