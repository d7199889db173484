//! Sabotage of what rails post.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use railweave_fabric::{LaneId, LocalSlice, RailId, Region, Write};
use railweave_transport::{Immediate, ImmediateLayout};

use super::kind::Sabotage;
use super::plot::{End, Plot, lock};

/// Bytes of one line of control memory: of a CTS entry, and of a record (docs/wire.md, CTS and completion record).
const LINE_BYTES: u64 = 64;
/// Words of a line.
const WORDS: usize = 8;
/// The words of a CTS entry that hold keys, two each. If keys were elsewhere, the finding of `KeyOfOtherRail` would
/// lack the expected words.
const KEY_WORDS: std::ops::Range<usize> = 3..7;

/// The number of bytes by which a border between two pieces is moved. Pieces are multiples of 128 bytes, so a moved
/// border is wrong.
const MOVED: u32 = 8;

/// One line of control memory, to be put back as it was.
pub(super) struct Line {
    region: Arc<Region>,
    number: usize,
    words: [u64; WORDS],
}

impl Line {
    fn new(region: Arc<Region>, address: u64) -> Self {
        let number = ((address - region.address()) / LINE_BYTES) as usize;
        let words = std::array::from_fn(|word| region.line(number)[word].load(Ordering::Acquire));
        Self { region, number, words }
    }

    /// Writes the line's words.
    pub(super) fn store(&self, words: [u64; WORDS]) {
        let line = self.region.line(self.number);
        line.iter().zip(words).for_each(|(place, word)| place.store(word, Ordering::Release));
    }

    /// Writes the words that the line had.
    pub(super) fn restore(self) {
        self.store(self.words);
    }
}

/// The place where a chain is posted.
pub(super) struct Place<'a> {
    pub(super) plot: &'a Plot,
    pub(super) end: &'a Mutex<End>,
    /// The rail's number in its connection.
    pub(super) rail: usize,
    pub(super) lane: LaneId,
}

impl Place<'_> {
    /// Sabotages a chain with a message's data. The caller restores the returned line once the chain is posted.
    pub(super) fn spoil_data(&self, sabotage: Sabotage, chain: &mut Vec<Write>) -> Option<Line> {
        let layout = ImmediateLayout::new(lock(self.end).rails);
        let last = chain.last_mut()?;
        let said = layout.decode(last.immediate?);
        let in_record = said.size_q == layout.all_ones();
        match sabotage {
            Sabotage::MaskBitLost if said.mask.len() > 1 => {
                let mask = said.mask.iter().skip(1).collect();
                last.immediate = Some(layout.encode(Immediate { mask, ..said }));
            }
            Sabotage::StaleMask => {
                let mask = self.plot.exchange_mask(said.mask);
                last.immediate = Some(layout.encode(Immediate { mask, ..said }));
            }
            Sabotage::SequenceWrapped => {
                lock(self.end).works.insert(said.slot.index(), last.id);
            }
            Sabotage::RecordFirst if in_record => chain.rotate_right(1),
            Sabotage::RecordFilledLate => {
                let line = self.record(last)?;
                line.store([0; WORDS]);
                return Some(line);
            }
            Sabotage::GroupSizesSwapped => {
                let line = self.record(last)?;
                let mut sizes = line.words;
                let count = sizes.iter().rposition(|size| *size != 0).map_or(0, |last| last + 1);
                sizes[..count].reverse();
                line.store(sizes);
            }
            Sabotage::EmptyNotSent if said.size_q == 0 => chain.clear(),
            Sabotage::LastWriteDropped => {
                let mut behind = None;
                chain.retain(|write| {
                    let goes_on = write.immediate.is_none() && behind == Some(write.remote.address);
                    behind = Some(write.remote.address + u64::from(write.local.length));
                    !goes_on
                });
            }
            Sabotage::WrongSource => data(chain).for_each(|write| write.local.address += u64::from(MOVED)),
            Sabotage::WrongPlace => data(chain).for_each(|write| write.remote.address += 128),
            Sabotage::SplitNot128 => {
                let rail = RailId::new(self.rail);
                self.move_border(chain, |_| said.mask.last() > rail);
            }
            // If a message has one rail, the next lane carries what the first lane does not.
            Sabotage::LanesNot128 if said.mask.len() == 1 && !in_record => {
                let whole = u64::from(said.size_q.saturating_sub(1)) * 128;
                self.move_border(chain, |length| self.lane == LaneId::FIRST && u64::from(length) < whole);
            }
            _ => {}
        }
        None
    }

    /// Returns the line of the record that a write carries.
    fn record(&self, write: &Write) -> Option<Line> {
        let region = self.plot.source(write.local.key).filter(|_| write.local.length > 0)?;
        Some(Line::new(region, write.local.address))
    }

    /// Shortens the only write of a chain if its message goes on in another chain, which then begins earlier.
    fn move_border(&self, chain: &mut [Write], goes_on: impl Fn(u32) -> bool) {
        let ([write], mut end) = (chain, lock(self.end)) else { return };
        if write.local.length > 0 && end.border.take_if(|border| *border == write.remote.address).is_some() {
            write.local.address -= u64::from(MOVED);
            write.remote.address -= u64::from(MOVED);
            write.local.length += MOVED;
        }
        if write.local.length > MOVED && goes_on(write.local.length) {
            end.border = Some(write.remote.address + u64::from(write.local.length));
            write.local.length -= MOVED;
        }
    }

    /// Sabotages a chain with CTS entries.
    pub(super) fn spoil_cts(&self, sabotage: Sabotage, chain: &mut Vec<Write>) {
        match sabotage {
            Sabotage::KeyOfOtherRail => chain.iter().for_each(|write| self.spoil_keys(write.local)),
            Sabotage::CtsNotPosted => {
                let mut end = lock(self.end);
                end.cts += 1;
                if end.cts.is_multiple_of(64) {
                    chain.clear();
                }
            }
            Sabotage::CtsPastEnd => {
                if let [first, around] = chain[..] {
                    chain.truncate(1);
                    chain[0].signalled = around.signalled;
                    chain[0].local.length = first.local.length + around.local.length;
                }
            }
            Sabotage::CtsNeverSignalled => chain.iter_mut().for_each(|write| write.signalled = false),
            _ => {}
        }
    }

    /// Gives the entries that are about to be posted the first rail's keys for every rail.
    fn spoil_keys(&self, entries: LocalSlice) {
        let Some(region) = self.plot.source(entries.key) else { return };
        for entry in 0..u64::from(entries.length) / LINE_BYTES {
            let line = Line::new(Arc::clone(&region), entries.address + entry * LINE_BYTES);
            let mut words = line.words;
            let first = words[KEY_WORDS.start] & u64::from(u32::MAX);
            words[KEY_WORDS].fill(first | first << 32);
            line.store(words);
        }
    }
}

/// Returns the writes of a chain that carry a message's bytes, which a record's write does not.
fn data(chain: &mut [Write]) -> impl Iterator<Item = &mut Write> {
    let count = chain.len();
    // If there is more than one write, the last carries a record or nothing.
    let plain = if count > 1 { count - 1 } else { count };
    chain[..plain].iter_mut().filter(|write| write.local.length > 0)
}
