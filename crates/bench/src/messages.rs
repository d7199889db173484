//! The memory of many messages, one for each connection. The content of a message identifies its sender and its
//! connection.

use crate::error::CommunicatorError;
use crate::numbers;
use railweave_nccl_host::memory::HostMemory;
use std::ops::Range;
use std::ptr::NonNull;

/// The round of [`numbers`] that the messages hold.
const ROUND: u64 = 1;

/// The memory of all messages of one rank in one direction, one place for each.
#[derive(Debug)]
pub struct Messages {
    memory: HostMemory,
    bytes: usize,
    count: usize,
}

impl Messages {
    /// Returns `count` messages of `bytes`, a multiple of 4, with the content of `sender`. Every page has been written.
    #[must_use]
    pub fn from(sender: usize, bytes: usize, count: usize) -> Self {
        let mut messages = Self::new(bytes, count);
        numbers::fill(messages.numbers_mut(), sender, ROUND, 0);
        messages
    }

    /// Returns room for `count` messages of `bytes`, a multiple of 4, filled with a number that no message holds. Every
    /// page has been written.
    #[must_use]
    pub fn room(bytes: usize, count: usize) -> Self {
        let mut messages = Self::new(bytes, count);
        messages.numbers_mut().fill(-1.0);
        messages
    }

    fn new(bytes: usize, count: usize) -> Self {
        let bytes = bytes / 4 * 4;
        Self { memory: HostMemory::new(bytes * count), bytes, count }
    }

    /// Returns the bytes of each message.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the address of one message.
    pub(crate) fn start(&self, index: usize) -> NonNull<u8> {
        assert!(index < self.count, "a message of this memory");
        // SAFETY: the memory holds `count` messages.
        unsafe { self.memory.start().add(index * self.bytes) }
    }

    /// Checks that these messages hold the content of `sender` for connections with these indices; no transfer may be
    /// in progress.
    ///
    /// # Errors
    /// If a number differs.
    pub fn check(&self, which: Range<usize>, sender: usize) -> Result<(), CommunicatorError> {
        let (each, connections) = (self.bytes / 4, which.len());
        // SAFETY: the memory holds this many aligned numbers, and no transfer is in progress.
        let all = unsafe { std::slice::from_raw_parts(self.memory.start().as_ptr().cast::<f32>(), each * self.count) };
        let first = which.start * each;
        numbers::check(&all[first..which.end * each], sender..sender + 1, ROUND, first)
            .map_err(|mismatch| CommunicatorError::WrongData { connections, mismatch })
    }

    fn numbers_mut(&mut self) -> &mut [f32] {
        let count = self.bytes / 4 * self.count;
        // SAFETY: the memory holds this many aligned numbers, belongs to this value alone, and no transfer is in
        // progress.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start().as_ptr().cast(), count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_another_sender_or_another_connection_is_refused() {
        let of = |sender| Messages::from(sender, 64, 3);
        of(5).check(0..3, 5).unwrap();
        of(5).check(1..2, 5).unwrap();
        assert!(matches!(of(5).check(1..2, 4), Err(CommunicatorError::WrongData { connections: 1, .. })));
        assert!(Messages::room(64, 3).check(0..1, 5).is_err());
        let (from, to) = (of(5), of(5));
        // SAFETY: both hold three messages of 64 bytes.
        unsafe { std::ptr::copy_nonoverlapping(from.start(0).as_ptr(), to.start(2).as_ptr(), 64) };
        assert!(to.check(0..2, 5).is_ok() && to.check(2..3, 5).is_err());
    }
}
