//! The receives that an end has had when it closes. BYE says them, so that a send whose last acknowledgement was lost
//! still ends as sent.

use crate::sequence::{Sequence, Slot};
use crate::{DecodeError, SLOTS};

/// The words of 64 slots.
const WORDS: usize = SLOTS / 64;

/// The receives that a closed receiving end has had: those older than the last use of their slot, and of the last uses
/// those that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The number of the receive that would have been the next.
    next: u32,
    /// One bit for each slot whose last use was received.
    slots: [u64; WORDS],
}

impl Received {
    /// Bytes on the wire.
    pub(crate) const BYTES: usize = 4 + SLOTS / 8;

    /// Returns the receives of an end whose next receive would have this number, and that has had the last use of these
    /// slots.
    pub(crate) fn new(next: Sequence, mut is_received: impl FnMut(Slot) -> bool) -> Self {
        let mut slots = [0; WORDS];
        for number in 0..=u8::MAX {
            slots[usize::from(number) / 64] |= u64::from(is_received(Slot::new(number))) << (number % 64);
        }
        Self { next: next.number(), slots }
    }

    /// Returns true if the end has received what was sent for the receive with this number. A receive that was never
    /// posted has not come.
    pub(crate) fn has(&self, sequence: Sequence) -> bool {
        // 1 for the receive that was posted last.
        let age = self.next.wrapping_sub(sequence.number());
        match age {
            0 => false,
            age if age as usize <= SLOTS => {
                let number = sequence.slot().number();
                self.slots[usize::from(number) / 64] >> (number % 64) & 1 == 1
            }
            // The slot was used again since, for which it had to be complete. Numbers from the future look even older.
            age => age <= 1 << 31,
        }
    }

    /// Returns the bytes.
    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.next.to_le_bytes());
        for (place, word) in bytes[4..].chunks_exact_mut(8).zip(self.slots) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads the bytes.
    ///
    /// # Errors
    /// If their number is wrong.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = crate::codec::Reader::new("BYE", bytes);
        let next = reader.u32()?;
        let mut slots = [0; WORDS];
        for word in &mut slots {
            *word = reader.u64()?;
        }
        reader.end()?;
        Ok(Self { next, slots })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out() {
        let received = Received::new(Sequence::new(0x0102_0304), |slot| slot.number() % 3 == 0);
        assert_eq!(Received::decode(&received.encode()), Ok(received));
        assert!(Received::decode(&[0; Received::BYTES - 1]).is_err() && Received::decode(&[0; 40]).is_err());
    }

    #[test]
    fn the_last_use_of_a_slot_is_looked_up_and_older_ones_have_come() {
        for next in [1000, 5, 0, u32::MAX] {
            let at = |age: u32| Sequence::new(next).before(age);
            let received = Received::new(Sequence::new(next), |slot| slot == at(3).slot());
            for (age, expected) in [(1, false), (2, false), (3, true), (4, false), (256, false), (257, true)] {
                assert_eq!(received.has(at(age)), expected, "{age} before {next}");
            }
            assert!(!received.has(Sequence::new(next)), "it was never posted");
            assert!(!received.has(Sequence::new(next).next()), "nor was that");
        }
    }
}
