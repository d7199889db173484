//! A work request, and the copying of its bytes: a thread that has seen the last word of a line also sees the rest of
//! the line, as if a card had placed them.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};

use railweave_fabric_verbs::sys;

use crate::reports::Counts;

/// The maximum number of pieces of memory in a work request.
pub(crate) const MAX_SGES: usize = 32;

/// The places of a work request's pieces in this process. The first ones are set, as many as there are pieces.
pub(crate) type Places = [MaybeUninit<*mut u8>; MAX_SGES];

/// The unit in which a card writes, in bytes: a line, whose last word tells a waiting thread that the whole line is
/// there.
const LINE: usize = 64;
const WORD: usize = 8;

/// The length up to which a transfer is placed line by line, in rising order, in bytes; in a longer one only the last
/// line is certain to come last.
const LINE_BY_LINE: usize = 512;

/// One work request.
#[derive(Clone, Copy)]
pub(crate) struct Work<'request> {
    pub(crate) request: &'request sys::SendWr,
    pub(crate) pieces: &'request [sys::Sge],
}

impl<'request> Work<'request> {
    /// Returns the request with the pieces that it names.
    ///
    /// # Safety
    /// `sg_list` must have `num_sge` entries, and `num_sge` must not be negative.
    #[inline]
    pub(crate) unsafe fn of(request: &'request sys::SendWr) -> Self {
        let pieces = if request.num_sge == 0 {
            &[][..]
        } else {
            // SAFETY: the caller vouches for it.
            unsafe { std::slice::from_raw_parts(request.sg_list, request.num_sge as usize) }
        };
        Self { request, pieces }
    }

    /// Returns the request with other pieces.
    pub(crate) fn new(request: &'request sys::SendWr, pieces: &'request [sys::Sge]) -> Self {
        Self { request, pieces }
    }

    #[inline]
    pub(crate) fn inline(&self) -> bool {
        self.request.send_flags & sys::SEND_INLINE != 0
    }

    /// Returns the length of all pieces, in bytes.
    #[inline]
    pub(crate) fn length(&self) -> u64 {
        self.pieces.iter().map(|piece| u64::from(piece.length)).sum()
    }

    /// Counts the request as posted.
    #[inline]
    pub(crate) fn count(&self, counts: &mut Counts) {
        match self.request.opcode {
            sys::WR_RDMA_WRITE => counts.writes += 1,
            sys::WR_RDMA_WRITE_WITH_IMM => counts.writes_with_immediate += 1,
            _ => counts.reads += 1,
        }
        counts.inline += u64::from(self.inline());
        counts.signalled += u64::from(self.request.send_flags & sys::SEND_SIGNALED != 0);
    }

    /// Returns true if the request is a read, not a write.
    #[inline]
    pub(crate) fn reads(&self) -> bool {
        self.request.opcode == sys::WR_RDMA_READ
    }

    /// Copies its bytes between the places of its pieces and the range that begins at `remote`.
    ///
    /// # Safety
    /// There must be a place for each piece, valid for its bytes, and `remote` must be valid for the bytes of all
    /// pieces; see [`place`].
    #[inline]
    pub(crate) unsafe fn transfer(&self, local: &Places, remote: *mut u8) {
        let mut remote = remote;
        for (piece, here) in self.pieces.iter().zip(local) {
            let bytes = piece.length as usize;
            if bytes == 0 {
                continue;
            }
            // SAFETY: the caller vouches for the places and for `remote`.
            unsafe {
                let here = here.assume_init();
                if self.reads() {
                    place(remote, here, bytes);
                } else {
                    place(here, remote, bytes);
                }
                remote = remote.add(bytes);
            }
        }
    }
}

/// Copies `length` bytes; the ranges may overlap (a queue pair may write to itself).
///
/// # Safety
/// Both ranges must be valid, `from` for reads and `to` for writes. Other threads may read `to` meanwhile, but only
/// with atomic or volatile loads, like memory that a card writes.
#[inline]
unsafe fn place(from: *const u8, to: *mut u8, length: usize) {
    let (mut from, mut to, mut length) = (from, to, length);
    // SAFETY: all ranges lie inside the two that the caller vouches for; the steps add up to `length`.
    unsafe {
        if length > LINE_BY_LINE {
            let bulk = length - LINE;
            // The rest begins at a line, so that the last words come last in whatever order `copy` writes.
            let end = to.wrapping_add(bulk).addr() % LINE;
            let bulk = bulk - end.min(bulk);
            ptr::copy(from, to, bulk);
            fence(Ordering::Release);
            (from, to, length) = (from.add(bulk), to.add(bulk), length - bulk);
        }
        while length > 0 {
            let step = (LINE - to.addr() % LINE).min(length);
            place_line(from, to, step);
            (from, to, length) = (from.add(step), to.add(step), length - step);
        }
    }
}

/// Copies bytes within one line. If they end with an aligned word, that word comes last.
///
/// # Safety
/// The same as for [`place`].
#[inline]
unsafe fn place_line(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller vouches for both ranges; the word lies at the end of them and is aligned.
    unsafe {
        if length >= WORD && to.add(length - WORD).addr().is_multiple_of(WORD) {
            let last = ptr::read_unaligned(from.add(length - WORD).cast::<u64>());
            ptr::copy(from, to, length - WORD);
            AtomicU64::from_ptr(to.add(length - WORD).cast()).store(last, Ordering::Release);
        } else {
            ptr::copy(from, to, length);
            compiler_fence(Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_is_copied_exactly() {
        let source: Vec<u8> = (0..2000_u32).map(|index| (index * 7 + 1) as u8).collect();
        for length in (0..200).chain([511, 512, 513, 575, 576, 577, 1000, 1500]) {
            for (from, to) in [(0, 0), (3, 0), (0, 5), (8, 56), (1, 63)] {
                let mut target = vec![0xee_u8; 2000];
                // SAFETY: both ranges lie inside the vectors.
                unsafe { place(source.as_ptr().add(from), target.as_mut_ptr().add(to), length) };
                assert_eq!(target[to..to + length], source[from..from + length], "{length} bytes, {from} to {to}");
                assert!(target[..to].iter().chain(&target[to + length..]).all(|&byte| byte == 0xee), "nothing beside");
            }
        }
    }

    #[test]
    fn the_last_word_of_a_line_is_the_sign_that_the_line_is_there() {
        let memory: Vec<AtomicU64> = (0..16).map(|_| AtomicU64::new(0)).collect();
        let line = memory.as_ptr().cast::<u8>().align_offset(LINE) / WORD;
        let words = &memory[line..line + 8];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=20_000_u64 {
                    let bytes = [round; 8];
                    // SAFETY: the line lies inside `memory`, whose words are atomics.
                    unsafe { place(bytes.as_ptr().cast(), words.as_ptr().cast_mut().cast(), LINE) };
                }
            });
            let mut seen = 0;
            while seen < 20_000 {
                seen = words[7].load(Ordering::Acquire);
                assert!(words[..7].iter().all(|word| word.load(Ordering::Relaxed) >= seen));
                std::hint::spin_loop();
            }
        });
    }
}
