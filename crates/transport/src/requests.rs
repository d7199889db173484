//! The sending requests of a connection: a bit for each that is free and for each that is done.

use crate::plant::{Plant, planted};

/// Sends that may be outstanding at once.
pub(crate) const REQUESTS: usize = 256;

/// Which requests are free, under way, or done.
pub(crate) struct Requests {
    free: [u64; REQUESTS / 64],
    done: [u64; REQUESTS / 64],
    /// The size of each request.
    pub(crate) sizes: Box<[u64; REQUESTS]>,
}

impl Requests {
    pub(crate) fn new() -> Self {
        Self { free: [u64::MAX; REQUESTS / 64], done: [0; REQUESTS / 64], sizes: Box::new([0; REQUESTS]) }
    }

    #[inline]
    pub(crate) fn first_free(&self) -> Option<u8> {
        let word = self.free.iter().position(|word| *word != 0)?;
        Some((word * 64) as u8 + self.free[word].trailing_zeros() as u8)
    }

    #[inline]
    pub(crate) fn take(&mut self, request: u8) {
        self.free[usize::from(request) / 64] &= !(1 << (request % 64));
    }

    #[inline]
    pub(crate) fn finish(&mut self, request: u8) {
        self.done[usize::from(request) / 64] |= 1 << (request % 64);
    }

    /// The size of a request that is done, which is then free again.
    #[inline]
    pub(crate) fn release(&mut self, request: u8) -> Option<u64> {
        let (word, bit) = (usize::from(request) / 64, 1 << (request % 64));
        if self.done[word] & bit == 0 {
            return None;
        }
        self.done[word] &= !bit;
        if !(planted(Plant::RequestLeaked) && self.sizes[usize::from(request)] == 0) {
            self.free[word] |= bit;
        }
        Some(self.sizes[usize::from(request)])
    }

    pub(crate) fn is_free(&self, request: u8) -> bool {
        self.free[usize::from(request) / 64] & 1 << (request % 64) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_free_only_when_they_are_done() {
        let mut requests = Requests::new();
        for expected in 0..=255 {
            assert_eq!(requests.first_free(), Some(expected));
            requests.take(expected);
        }
        assert_eq!(requests.first_free(), None);
        assert_eq!(requests.release(70), None);
        requests.sizes[70] = 7;
        requests.finish(70);
        assert_eq!((requests.release(70), requests.release(70)), (Some(7), None));
        assert_eq!(requests.first_free(), Some(70));
    }
}
