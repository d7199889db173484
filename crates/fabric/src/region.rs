//! Memory that this process owns and shares with the network: the CTS stream, the completion records, test buffers.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::pages::{Line, Pages, WORDS_PER_LINE};

/// Bytes of a line.
const LINE: usize = 8 * WORDS_PER_LINE;

/// Memory on pages of its own, zeroed at first. Others (a peer, a network card, another thread) may write to it at any
/// time.
///
/// It shares no page with anything else, because memory registered with an adapter may be missing in forked children:
/// on kernels that do not copy pinned pages at a fork (before 5.12), libibverbs marks every page of a registered range
/// MADV_DONTFORK (ibv_fork_init(3)), and anything else on such a page would be missing too.
///
/// All access goes through atomic words: a torn or unexpected value is possible, undefined behaviour is not. The fabric
/// writes to it by its address; this side reads a flag with acquire if the flag announces the bytes before it.
pub struct Region {
    lines: Pages,
    length: usize,
}

impl std::fmt::Debug for Region {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Region({} bytes at {:#x})", self.length, self.address())
    }
}

impl Region {
    /// Allocates `length` bytes, all zero.
    pub fn new(length: usize) -> Self {
        Self { lines: Pages::new(length), length }
    }

    /// Returns the address of the first byte, for the fabric.
    pub fn address(&self) -> u64 {
        self.lines.as_ptr().expose_provenance() as u64
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns true if the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Reads the word at `offset` bytes with `order`.
    ///
    /// # Panics
    /// When `offset` is not a multiple of 8, or lies beyond the region's last page.
    #[inline]
    pub fn load(&self, offset: usize, order: Ordering) -> u64 {
        self.word(offset).load(order)
    }

    /// Writes the word at `offset` bytes with `order`.
    ///
    /// # Panics
    /// When `offset` is not a multiple of 8, or lies beyond the region's last page.
    #[inline]
    pub fn store(&self, offset: usize, value: u64, order: Ordering) {
        self.word(offset).store(value, order);
    }

    /// Returns the words of the cache line with this number; it starts at byte 64 × `number`.
    ///
    /// # Panics
    /// When the line lies beyond the region's last page.
    #[inline]
    pub fn line(&self, number: usize) -> &[AtomicU64; WORDS_PER_LINE] {
        &self.lines[number].0
    }

    /// Copies bytes into `out`, starting at `offset`.
    ///
    /// # Panics
    /// When the range lies outside the region.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        self.check(offset, out.len());
        let mut at = offset;
        let mut rest = out;
        while !rest.is_empty() {
            let lines = self.whole_lines(at, rest.len());
            if !lines.is_empty() {
                let (now, later) = rest.split_at_mut(lines.len() * LINE);
                for (line, bytes) in lines.iter().zip(now.chunks_exact_mut(LINE)) {
                    for (word, eight) in line.0.iter().zip(bytes.chunks_exact_mut(8)) {
                        eight.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
                    }
                }
                rest = later;
                at += lines.len() * LINE;
                continue;
            }
            let inside = at % 8;
            let count = rest.len().min(8 - inside);
            let word = self.word(at - inside).load(Ordering::Relaxed).to_ne_bytes();
            let (now, later) = rest.split_at_mut(count);
            now.copy_from_slice(&word[inside..inside + count]);
            rest = later;
            at += count;
        }
    }

    /// Copies `bytes` into the region, starting at `offset`. Each word is written with release.
    ///
    /// # Panics
    /// When the range lies outside the region.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let lines = self.whole_lines(at, rest.len());
            if !lines.is_empty() {
                let (now, later) = rest.split_at(lines.len() * LINE);
                for (line, bytes) in lines.iter().zip(now.chunks_exact(LINE)) {
                    for (word, eight) in line.0.iter().zip(bytes.chunks_exact(8)) {
                        let mut whole = [0; 8];
                        whole.copy_from_slice(eight);
                        word.store(u64::from_ne_bytes(whole), Ordering::Release);
                    }
                }
                rest = later;
                at += lines.len() * LINE;
                continue;
            }
            let inside = at % 8;
            let count = rest.len().min(8 - inside);
            let (now, later) = rest.split_at(count);
            let word = self.word(at - inside);
            if count == 8 {
                let mut whole = [0; 8];
                whole.copy_from_slice(now);
                word.store(u64::from_ne_bytes(whole), Ordering::Release);
            } else {
                let merge = |old: u64| {
                    let mut whole = old.to_ne_bytes();
                    whole[inside..inside + count].copy_from_slice(now);
                    Some(u64::from_ne_bytes(whole))
                };
                // The closure always returns Some, so the update always happens.
                let _ = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, merge);
            }
            rest = later;
            at += count;
        }
    }

    /// Returns the offset of the `length` bytes at `address`, or `None` if any of them lies outside the region.
    pub fn offset_of(&self, address: u64, length: u64) -> Option<usize> {
        let offset = address.checked_sub(self.address())?;
        let end = offset.checked_add(length)?;
        (end <= self.length as u64).then_some(offset as usize)
    }

    fn check(&self, offset: usize, length: usize) {
        let end = offset.checked_add(length);
        assert!(
            end.is_some_and(|end| end <= self.length),
            "{length} bytes at offset {offset} lie outside a region of {} bytes",
            self.length
        );
    }

    /// Returns the whole lines from `offset` on, out of `length` bytes; none if no line begins there. A copy by
    /// lines takes a fraction of the time of one by words.
    #[inline]
    fn whole_lines(&self, offset: usize, length: usize) -> &[Line] {
        if offset.is_multiple_of(LINE) { &self.lines[offset / LINE..][..length / LINE] } else { &[] }
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < self.lines.len() * 64, "offset {offset} is no word of the region");
        &self.lines[offset / 64].0[offset / 8 % WORDS_PER_LINE]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_in_and_come_out_at_any_offset() {
        let region = Region::new(400);
        for offset in 0..100 {
            for length in 0..280 {
                let bytes: Vec<u8> = (0..length).map(|i| (offset * 7 + i) as u8).collect();
                region.write(offset, &bytes);
                let mut back = vec![0; length];
                region.read(offset, &mut back);
                assert_eq!(back, bytes);
            }
        }
    }

    #[test]
    fn a_write_leaves_its_neighbours_alone() {
        for (from, to) in [(9, 12), (64, 192), (61, 200)] {
            let region = Region::new(256);
            region.write(0, &[0xff; 256]);
            region.write(from, &[1; 256][from..to]);
            let mut all = [0; 256];
            region.read(0, &mut all);
            let expected: Vec<u8> = (0..256).map(|at| if (from..to).contains(&at) { 1 } else { 0xff }).collect();
            assert_eq!(all[..], expected);
        }
    }

    #[test]
    #[should_panic(expected = "outside a region")]
    fn a_write_past_the_end_is_refused() {
        Region::new(16).write(10, &[0; 7]);
    }

    #[test]
    fn regions_share_no_page() {
        let page = crate::page_size() as u64;
        let regions: Vec<Region> = [1, 64, 65, 4096, 1, 32 << 10, 1].map(Region::new).into();
        let mut pages = std::collections::HashSet::new();
        for region in &regions {
            assert_eq!(region.address() % page, 0);
            let numbers = region.address() / page..(region.address() + region.len() as u64).div_ceil(page);
            assert!(numbers.into_iter().all(|number| pages.insert(number)), "{regions:?}");
        }
    }
}
