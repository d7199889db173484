//! Sabotage of what rails post.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use railweave_fabric::{LaneId, LocalSlice, RailId, Region, RemoteSlice, Write};
use railweave_transport::{Immediate, ImmediateLayout, Slot};

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
        if said.mask.is_empty() {
            spoil_repair(sabotage, layout, said, chain);
            return None;
        }
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
            Sabotage::LaterBuffer => data(chain).for_each(|write| {
                write.remote = self.plot.promised_after(write.remote).unwrap_or(write.remote);
            }),
            Sabotage::SplitNot128 => {
                let rail = RailId::new(self.rail);
                self.move_border(chain, MOVED, |_| said.mask.last() > rail);
            }
            Sabotage::RailWithoutBytes => {
                let rail = RailId::new(self.rail);
                self.move_border(chain, u32::MAX, |_| said.mask.last() > rail);
            }
            // If a message has one rail, the next lane carries what the first lane does not.
            Sabotage::LanesNot128 if said.mask.len() == 1 && !in_record => {
                let whole = u64::from(said.size_q.saturating_sub(1)) * 128;
                self.move_border(chain, MOVED, |length| self.lane == LaneId::FIRST && u64::from(length) < whole);
            }
            Sabotage::DataTwice => {
                let first = data(chain).next().map(|write| Write { immediate: None, signalled: false, ..*write });
                chain.splice(..0, first);
            }
            Sabotage::ImmediateTwice => {
                let again = Write { immediate: last.immediate, ..Write::default() };
                chain.push(again);
            }
            _ if in_record => self.spoil_record(sabotage, layout, chain),
            _ => self.spoil_immediate(sabotage, layout, last),
        }
        None
    }

    /// Sabotages the immediate of a message.
    fn spoil_immediate(&self, sabotage: Sabotage, layout: ImmediateLayout, last: &mut Write) {
        let Some(said) = last.immediate.map(|bits| layout.decode(bits)) else { return };
        let says = match sabotage {
            Sabotage::OtherSlot => Immediate { slot: Slot::new(said.slot.number().wrapping_add(1)), ..said },
            Sabotage::OtherSize if said.size_q + 1 < layout.all_ones() => Immediate { size_q: said.size_q + 1, ..said },
            _ => said,
        };
        last.immediate = Some(layout.encode(says));
    }

    /// Sabotages a message whose sizes are in a record, if this chain carries it.
    fn spoil_record(&self, sabotage: Sabotage, layout: ImmediateLayout, chain: &mut Vec<Write>) {
        let Some(last) = chain.last_mut() else { return };
        let Some(line) = self.record(last) else { return };
        match sabotage {
            Sabotage::RecordMisplaced => last.remote.address += 8,
            Sabotage::RecordAlone => {
                let end = Write { local: LocalSlice::default(), remote: RemoteSlice::default(), ..*last };
                (last.immediate, last.signalled) = (None, false);
                chain.push(end);
            }
            Sabotage::RecordMissing => (last.local, last.remote) = (LocalSlice::default(), RemoteSlice::default()),
            Sabotage::SizeDespiteRecord => {
                if let Some(bits) = last.immediate {
                    let size_q = layout.size_q(line.words.iter().sum());
                    last.immediate = Some(layout.encode(Immediate { size_q, ..layout.decode(bits) }));
                }
            }
            _ => self.spoil_immediate(sabotage, layout, last),
        }
    }

    /// Returns the line of the record that a write carries.
    fn record(&self, write: &Write) -> Option<Line> {
        let region = self.plot.source(write.local.key).filter(|_| write.local.length > 0)?;
        Some(Line::new(region, write.local.address))
    }

    /// Shortens the only write of a chain by at most this many bytes if its message goes on in another chain, which
    /// then begins earlier.
    fn move_border(&self, chain: &mut [Write], most: u32, goes_on: impl Fn(u32) -> bool) {
        let ([write], mut end) = (chain, lock(self.end)) else { return };
        let is_next = |border: &mut (u64, u32)| border.0 == write.remote.address;
        if write.local.length > 0
            && let Some((_, moved)) = end.border.take_if(is_next)
        {
            write.local.address -= u64::from(moved);
            write.remote.address -= u64::from(moved);
            write.local.length += moved;
        }
        if (write.local.length > most || most == u32::MAX) && goes_on(write.local.length) {
            let moved = most.min(write.local.length);
            end.border = Some((write.remote.address + u64::from(write.local.length), moved));
            write.local.length -= moved;
        }
    }

    /// Sabotages a chain with CTS entries.
    pub(super) fn spoil_cts(&self, sabotage: Sabotage, chain: &mut Vec<Write>) {
        match sabotage {
            Sabotage::KeyOfOtherRail => self.spoil_entries(chain, |words| {
                let first = words[KEY_WORDS.start] & u64::from(u32::MAX);
                words[KEY_WORDS].fill(first | first << 32);
            }),
            Sabotage::LaterBuffer => self.spoil_entries(chain, |words| {
                let keys = words[KEY_WORDS].iter().flat_map(|both| [*both as u32, (*both >> 32) as u32]);
                self.plot.add_promised(words[0], keys.filter(|key| *key != 0).collect());
            }),
            Sabotage::CtsOtherSize => self.spoil_entries(chain, |words| words[1] += 128),
            Sabotage::CtsAhead => self.spoil_entries(chain, |words| words[7] += 512),
            Sabotage::CtsMisplaced => chain.iter_mut().for_each(|write| write.remote.address += LINE_BYTES),
            Sabotage::CtsAcross => chain.iter_mut().for_each(|write| write.remote.address += LINE_BYTES / 2),
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

    /// Changes the words of the entries that are about to be posted.
    fn spoil_entries(&self, chain: &[Write], spoil: impl Fn(&mut [u64; WORDS])) {
        for entries in chain.iter().map(|write| write.local) {
            let Some(region) = self.plot.source(entries.key) else { return };
            for entry in 0..u64::from(entries.length) / LINE_BYTES {
                let line = Line::new(Arc::clone(&region), entries.address + entry * LINE_BYTES);
                let mut words = line.words;
                spoil(&mut words);
                line.store(words);
            }
        }
    }
}

/// Sabotages a part that comes again.
fn spoil_repair(sabotage: Sabotage, layout: ImmediateLayout, said: Immediate, chain: &mut Vec<Write>) {
    let Some(last) = chain.last_mut() else { return };
    match sabotage {
        Sabotage::RepairTwice => {
            let again = Write { immediate: last.immediate, ..Write::default() };
            chain.push(again);
        }
        Sabotage::RepairMisnamed => last.immediate = Some(layout.encode(Immediate { size_q: said.size_q + 1, ..said })),
        // Only a record is in control memory.
        Sabotage::RepairWithoutRecord if last.host => {
            (last.local, last.remote) = (LocalSlice::default(), RemoteSlice::default());
        }
        _ => {}
    }
}

/// Returns the writes of a chain that carry a message's bytes, which a record's write does not.
fn data(chain: &mut [Write]) -> impl Iterator<Item = &mut Write> {
    let count = chain.len();
    // If there is more than one write, the last carries a record or nothing.
    let plain = if count > 1 { count - 1 } else { count };
    chain[..plain].iter_mut().filter(|write| write.local.length > 0)
}
