//! Completion records: the exact sizes of a slot's buffers, written by the sender's leader if the immediates cannot
//! hold them. 64 bytes per slot: eight sizes of 8 bytes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use railweave_fabric::Region;

use crate::{MAX_BUFFERS, SLOTS, Slot};

/// Bytes of one slot's record.
pub(crate) const RECORD_BYTES: usize = 8 * MAX_BUFFERS;

/// Bytes of all records of a connection.
const RECORDS_BYTES: usize = RECORD_BYTES * SLOTS;

/// The longest packet of RDMA: an MTU of 4096 bytes (IBTA 1.7, 9.8).
pub(crate) const LONGEST_PACKET: u32 = 4096;

/// Bytes of the memory of the records. Behind them is room for a packet that nobody reads: the first one of new lanes.
pub(crate) const MEMORY_BYTES: usize = RECORDS_BYTES + LONGEST_PACKET as usize;

/// The offset of that room.
pub(crate) const PACKET_OFFSET: u64 = RECORDS_BYTES as u64;

/// Marks a place without a record: no size is this large.
const NOTHING: u64 = u64::MAX;

/// Returns the offset of the record of `slot`.
#[inline]
pub(crate) fn offset(slot: Slot) -> usize {
    slot.index() * RECORD_BYTES
}

/// The sender's copy, from which records are written to the receiver.
#[derive(Debug)]
pub(crate) struct RecordSource {
    pub(crate) region: Arc<Region>,
}

impl RecordSource {
    pub(crate) fn new(region: Arc<Region>) -> Self {
        assert_eq!(region.len(), MEMORY_BYTES, "the records have a fixed size");
        Self { region }
    }

    /// Prepares the record of `slot`; sizes beyond `sizes` are 0.
    pub(crate) fn fill(&self, slot: Slot, sizes: &[u64]) {
        for index in 0..MAX_BUFFERS {
            let size = sizes.get(index).copied().unwrap_or(0);
            self.region.store(offset(slot) + 8 * index, size.to_le(), Ordering::Release);
        }
    }
}

/// The receiver's records, into which the sender writes.
#[derive(Debug)]
pub(crate) struct Records {
    region: Arc<Region>,
}

impl Records {
    pub(crate) fn new(region: Arc<Region>) -> Self {
        assert_eq!(region.len(), MEMORY_BYTES, "the records have a fixed size");
        for word in 0..RECORDS_BYTES / 8 {
            region.store(8 * word, NOTHING, Ordering::Relaxed);
        }
        Self { region }
    }

    /// Takes the record of `slot`: the sizes of its `count` buffers. Returns `None` if the peer has written none, or
    /// one with a size that no buffer can have.
    pub(crate) fn take(&self, slot: Slot, count: usize) -> Option<[u64; MAX_BUFFERS]> {
        let mut sizes = [0; MAX_BUFFERS];
        for (index, size) in sizes.iter_mut().enumerate() {
            let at = offset(slot) + 8 * index;
            *size = u64::from_le(self.region.load(at, Ordering::Acquire));
            // Otherwise the slot's next use could mistake this record for its own.
            self.region.store(at, NOTHING, Ordering::Relaxed);
        }
        let valid = |size: &u64| *size <= crate::MAX_MESSAGE_BYTES;
        sizes[..count].iter().all(valid).then_some(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_taken_once() {
        let slot = Slot::new(7);
        let ours = RecordSource::new(Arc::new(Region::new(MEMORY_BYTES)));
        let region = Arc::new(Region::new(MEMORY_BYTES));
        let theirs = Records::new(Arc::clone(&region));
        assert_eq!(theirs.take(slot, 2), None, "nothing was written yet");
        ours.fill(slot, &[5, 6]);
        let mut wire = [0; RECORD_BYTES];
        ours.region.read(offset(slot), &mut wire);
        region.write(offset(slot), &wire);
        assert_eq!(theirs.take(slot, 2), Some([5, 6, 0, 0, 0, 0, 0, 0]));
        assert_eq!(theirs.take(slot, 2), None, "the next use of the slot needs a record of its own");
    }

    #[test]
    fn records_lie_one_after_the_other_and_fill_their_memory() {
        let offsets: Vec<usize> = (0..=u8::MAX).map(|slot| offset(Slot::new(slot))).collect();
        let expected: Vec<usize> = (0..RECORDS_BYTES).step_by(64).collect();
        assert_eq!(offsets, expected);
    }

    #[test]
    fn a_size_that_no_buffer_can_have_is_no_record() {
        let taken = |sizes: &[u64]| {
            let region = Arc::new(Region::new(MEMORY_BYTES));
            let theirs = Records::new(Arc::clone(&region));
            RecordSource::new(region).fill(Slot::new(1), sizes);
            theirs.take(Slot::new(1), sizes.len()).is_some()
        };
        assert!(taken(&[0, crate::MAX_MESSAGE_BYTES]));
        assert!(!taken(&[crate::MAX_MESSAGE_BYTES + 1, 0]) && !taken(&[0, crate::MAX_MESSAGE_BYTES + 1]));
    }
}
