//! The rules of docs/wire.md for CTS, written down a second time, independently of `transport`.

use super::checker::{Checked, Checker};
use super::groups::Group;

/// Bytes of a CTS entry.
const ENTRY_BYTES: usize = 64;

/// Entries of a ring.
const ENTRIES: u64 = 512;

/// The ring of a connection's sender.
#[derive(Debug)]
pub(super) struct Ring {
    /// The number of the first receive, and of the first entry.
    first_number: u32,
    /// The number of the entry at each place, counted from 1; 0 if there was none.
    held: Vec<u64>,
    /// The receive of each entry, and the buffer's number in it.
    buffers: Vec<(usize, usize)>,
    /// The entries that have landed again.
    repeated: u64,
}

impl Default for Ring {
    fn default() -> Self {
        Self { first_number: 0, held: vec![0; ENTRIES as usize], buffers: Vec::new(), repeated: 0 }
    }
}

impl Ring {
    /// Returns the ring of a connection whose first receive and first entry have this number.
    pub(super) fn new(first_number: u32) -> Self {
        Self { first_number, ..Self::default() }
    }

    /// Adds the entries of a receive that was posted.
    pub(super) fn posted(&mut self, group: usize, buffers: usize) {
        self.buffers.extend((0..buffers).map(|buffer| (group, buffer)));
    }

    /// Checks entries that have landed at this offset in the ring.
    pub(super) fn landed(&mut self, groups: &[Group], offset: u64, bytes: &[u8]) -> Checked {
        if !offset.is_multiple_of(ENTRY_BYTES as u64) || !bytes.len().is_multiple_of(ENTRY_BYTES) {
            return wrong(format!("{} bytes at {offset:#x} of the ring are no CTS entries", bytes.len()));
        }
        let first = offset / ENTRY_BYTES as u64;
        (first..).zip(bytes.chunks_exact(ENTRY_BYTES)).try_for_each(|(place, entry)| self.take(groups, place, entry))
    }

    /// Returns the number of entries that have landed again since the last call.
    pub(super) fn take_repeated(&mut self) -> u64 {
        std::mem::take(&mut self.repeated)
    }

    fn take(&mut self, groups: &[Group], place: u64, entry: &[u8]) -> Checked {
        let number = word(entry, 56);
        if number == 0 || (number - 1) % ENTRIES != place {
            return wrong(format!("CTS entry {} landed at place {place} of the ring", number.wrapping_sub(1)));
        }
        let held = std::mem::replace(&mut self.held[place as usize], number);
        self.repeated += u64::from(held == number);
        if held > number {
            return wrong(format!("CTS entry {} overwrote the newer entry {}", number - 1, held - 1));
        }
        let nth = (number - 1).checked_sub(u64::from(self.first_number));
        let found = nth.and_then(|nth| Some((nth, *self.buffers.get(nth as usize)?)));
        let Some((nth, (group, index))) = found else {
            return wrong(format!("CTS entry {} is of no receive", number - 1));
        };
        let overwritten = nth.checked_sub(ENTRIES).map(|old| self.buffers[old as usize].0);
        if let Some(old) = overwritten.filter(|old| !groups[*old].is_whole()) {
            return wrong(format!("CTS entry {} overwrote one of group {old}, which is not whole", number - 1));
        }
        let (receive, buffer) = (&groups[group], &groups[group].buffers[index]);
        let place_of =
            [(u64::from(self.first_number) + group as u64) % 256, index as u64, receive.buffers.len() as u64];
        let expected = [buffer.address, buffer.capacity, u64::from(buffer.tag)];
        let says = [word(entry, 0), word(entry, 8), word(entry, 16) & 0xffff_ffff];
        let slot = word(entry, 16) >> 32;
        let says_place = [slot & 0xff, slot >> 8 & 0xff, slot >> 16];
        if (says, says_place) != (expected, place_of) {
            return wrong(format!(
                "CTS entry {} says {says:?} (address, size, tag) and {says_place:?} (slot, buffer, buffers), not \
                 {expected:?} and {place_of:?}",
                number - 1
            ));
        }
        Ok(())
    }
}

/// Returns the word at this offset of an entry.
fn word(entry: &[u8], offset: usize) -> u64 {
    entry[offset..offset + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn wrong(text: String) -> Checked {
    Err((Checker::Wire, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::Buffer;

    /// Returns the bytes of the only entry of this receive.
    fn entry(number: u64, receive: u64) -> [u8; ENTRY_BYTES] {
        let mut words = [0u64; 8];
        words[..2].copy_from_slice(&[0x1000 + receive, 64]);
        words[2] = 5 | (receive % 256) << 32 | 1 << 48;
        words[7] = number + 1;
        let mut bytes = [0; ENTRY_BYTES];
        bytes.chunks_exact_mut(8).zip(words).for_each(|(part, word)| part.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    /// Returns a ring, and receives of one buffer each. A message fills the first `whole` of them.
    fn receives(count: u64, whole: u64) -> (Ring, Vec<Group>) {
        let (mut ring, mut groups) = (Ring::default(), Vec::new());
        for number in 0..count {
            ring.posted(number as usize, 1);
            let mut buffer = Buffer::new(0x1000 + number, 64, 5);
            buffer.message = (number < whole).then_some((number, 0));
            groups.push(Group::new(vec![buffer], false));
        }
        (ring, groups)
    }

    #[test]
    fn an_entry_says_its_receive() {
        let (mut ring, groups) = receives(2, 0);
        assert_eq!(ring.landed(&groups, 0, &[entry(0, 0), entry(1, 1)].concat()), Ok(()));
        for (number, word, change) in
            [(0, 0, 1), (0, 1, 1), (0, 2, 1), (0, 2, 1 << 32), (0, 2, 1 << 40), (0, 2, 1 << 56)]
        {
            let mut bytes = entry(number, 0);
            let changed = super::word(&bytes, word * 8) ^ change;
            bytes[word * 8..word * 8 + 8].copy_from_slice(&changed.to_le_bytes());
            assert!(ring.landed(&groups, 0, &bytes).is_err(), "word {word} with {change:#x}");
        }
    }

    #[test]
    fn an_entry_is_at_its_place_and_of_a_receive() {
        let (mut ring, groups) = receives(1, 0);
        let says = |landed: Checked| landed.expect_err("it is wrong").1;
        assert!(says(ring.landed(&groups, 64, &entry(0, 0))).contains("at place 1"));
        assert!(says(ring.landed(&groups, 64, &entry(1, 1))).contains("is of no receive"));
        assert!(says(ring.landed(&groups, 0, &[0; 64])).contains("at place 0"));
        assert!(says(ring.landed(&groups, 32, &entry(0, 0))).contains("are no CTS entries"));
    }

    #[test]
    fn an_entry_overwrites_only_an_older_one_whose_receive_is_whole() {
        for (whole, newer) in [(1, ""), (0, "overwrote one of group 0, which is not whole")] {
            let (mut ring, groups) = receives(513, whole);
            assert_eq!(ring.landed(&groups, 0, &entry(0, 0)), Ok(()));
            let text = ring.landed(&groups, 0, &entry(512, 512)).err().map_or_else(String::new, |found| found.1);
            assert!(text.ends_with(newer) && text.is_empty() == newer.is_empty(), "{text}");
            let older = ring.landed(&groups, 0, &entry(0, 0)).expect_err("it is older").1;
            assert!(older.contains("overwrote the newer entry 512"), "{older}");
        }
    }
}
