//! The rules of docs/wire.md for immediates and completion records, written down a second time, independently of
//! `transport`.

use super::checker::{Checked, Checker};
use super::groups::Group;
use crate::Seen;
use crate::counts::Counts;

const SLOTS: usize = 256;

/// One use of a slot, as seen so far.
#[derive(Clone, Debug, Default)]
struct Use {
    mask: u8,
    size_q: u32,
    /// The lanes of each rail over which an immediate has come, as a mask.
    lanes: [u16; 8],
    /// The rails whose immediates have all come, as a mask.
    reported: u8,
    record: Option<[u64; 8]>,
    /// The number of immediates.
    immediates: u32,
    /// The parts that the receiver has called unseen, and that have not come again, as a mask.
    missing: u8,
    /// The parts that it has ever called unseen in this use.
    lost: u8,
    /// The parts that it has called seen although they had not come, because its application has no use for them.
    taken: u8,
}

/// The fields of an immediate.
#[derive(Clone, Copy, Debug)]
struct Said {
    slot: usize,
    mask: u8,
    size_q: u32,
    /// True if size_q refers to the record.
    in_record: bool,
}

impl Said {
    fn decode(bits: u32, rails: u32) -> Self {
        let size_q = bits >> (8 + rails);
        Self {
            slot: (bits & 0xff) as usize,
            mask: (bits >> 8 & ((1 << rails) - 1)) as u8,
            size_q,
            in_record: size_q == (1 << (24 - rails)) - 1,
        }
    }
}

/// The connection as its handshake made it, and its slots.
#[derive(Debug)]
pub(crate) struct Wire {
    /// The number of rails, including those that did not come up.
    pub(crate) rails: u32,
    /// The rails that came up, as a mask.
    pub(crate) usable: u8,
    /// The number of lanes of each rail.
    pub(crate) lanes: [u8; 8],
    pub(crate) striped: bool,
    /// True if the receiver's ports count bytes.
    pub(crate) byte_counts: bool,
    pub(crate) adaptive_above: Option<u64>,
    /// The number of the first receive.
    first_number: u32,
    uses: Vec<Use>,
    /// The last use of each slot that is over.
    over: Vec<Use>,
    /// The receive that each slot belongs to at present.
    group_of: Vec<usize>,
}

impl Default for Wire {
    fn default() -> Self {
        Self {
            rails: 0,
            usable: 0,
            lanes: [0; 8],
            striped: false,
            byte_counts: true,
            adaptive_above: None,
            first_number: 0,
            uses: vec![Use::default(); SLOTS],
            over: vec![Use::default(); SLOTS],
            group_of: (0..SLOTS).collect(),
        }
    }
}

/// A write of a connection's sender that has landed.
pub(crate) struct Landing {
    pub(crate) connection: usize,
    pub(crate) rail: u8,
    pub(crate) lane: u8,
    /// The address in data memory, or the offset in control memory.
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) control: bool,
    pub(crate) immediate: Option<u32>,
}

impl Wire {
    /// Returns a connection whose first receive has this number.
    pub(super) fn new(first_number: u32) -> Self {
        let mut wire = Self { first_number, ..Self::default() };
        for group in 0..SLOTS {
            let slot = wire.slot_of(group);
            wire.group_of[slot] = group;
        }
        wire
    }

    /// Returns the slot of a receive.
    pub(crate) fn slot_of(&self, group: usize) -> usize {
        (self.first_number as usize + group) % SLOTS
    }

    /// Returns true if all immediates of a receive have landed.
    pub(super) fn is_over(&self, group: usize) -> bool {
        self.group_of[self.slot_of(group)] > group
    }

    pub(super) fn record_landed(&mut self, landing: &Landing, bytes: &[u8]) -> Checked {
        let slot = (landing.address / 64) as usize;
        if landing.length != 64 || !landing.address.is_multiple_of(64) || slot >= SLOTS {
            let text = format!("{} bytes at {:#x} of the records are not a record", landing.length, landing.address);
            return Err((Checker::Wire, text));
        }
        if landing.immediate.is_none() {
            return Err((Checker::Wire, format!("the record of slot {slot} came without an immediate")));
        }
        let mut sizes = [0; 8];
        for (size, word) in sizes.iter_mut().zip(bytes.chunks_exact(8)) {
            *size = u64::from_le_bytes(word.try_into().unwrap_or_default());
        }
        self.uses[slot].record = Some(sizes);
        Ok(())
    }

    /// Checks the immediate `bits`, which came with a write. If a call of the sender failed, its receive need not be
    /// filled.
    pub(super) fn immediate_landed(
        &mut self,
        groups: &[Group],
        sender_failed: bool,
        landing: &Landing,
        bits: u32,
        counts: &mut Counts,
    ) -> Checked {
        let said = Said::decode(bits, self.rails);
        let Said { slot, mask, size_q, in_record } = said;
        let group = self.group_of[slot];
        let wrong = |text: String| {
            let head = format!("immediate {bits:#010x} (slot {slot}, mask {mask:#b}, size_q {size_q:#x}): ");
            Err((Checker::Wire, head + &text))
        };
        let Some(receive) = groups.get(group) else {
            return wrong("the slot has no open receive".into());
        };
        let Some(sizes) =
            receive.buffers.iter().map(|buffer| buffer.message.map(|(_, size)| size)).collect::<Option<Vec<u64>>>()
        else {
            if sender_failed {
                return Ok(());
            }
            return wrong(format!("group {group} is not filled"));
        };
        let added =
            if mask == 0 { self.add_repair(&said, landing, counts) } else { self.add(&said, landing, &sizes, counts) };
        match added {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(text) => return wrong(text),
        }
        let done = self.end_use(slot).clone();
        let (mask, in_record) = match done.lost {
            0 => (mask, in_record),
            // A repair does not say them.
            _ => (done.mask, done.size_q == (1 << (24 - self.rails)) - 1),
        };
        let mut expected = [0; 8];
        expected[..sizes.len()].copy_from_slice(&sizes);
        match done.record.filter(|_| in_record) {
            // The first part has it, and the early receive may have no use for that one.
            None if in_record && done.taken & 1 << mask.trailing_zeros() == 0 => {
                return wrong("no record came with it".into());
            }
            Some(record) if record != expected => {
                return Err((Checker::Size, format!("the record of slot {slot} says {record:?}, not {expected:?}")));
            }
            _ => {}
        }
        if let Some(short) = receive.buffers.iter().find(|buffer| !buffer.is_whole() && done.taken == 0) {
            let (message, landed) = (short.message, short.landed);
            let text = format!(
                "all of group {group} is said to be there, but message {message:?} (number and size) is not: {landed} \
                 bytes have landed"
            );
            return Err((Checker::Delivery, text));
        }
        if done.lost == 0 && done.taken == 0 && receive.carriers != mask && sizes.iter().any(|size| *size > 0) {
            return wrong(format!("the rails that carried bytes are {:#b}", receive.carriers));
        }
        if done.lost == 0 {
            self.count(&sizes, &said, &done, counts);
        }
        if group >= SLOTS {
            counts.saw(Seen::SlotsWrapped);
        }
        if u64::from(self.first_number) + group as u64 == 1 << 32 {
            counts.saw(Seen::NumbersWrapped);
        }
        Ok(())
    }

    /// Adds an immediate to the use of its slot, whose messages have these sizes. Returns true if it is the last one,
    /// otherwise false; the error says which rule it breaks.
    fn add(&mut self, said: &Said, landing: &Landing, sizes: &[u64], counts: &mut Counts) -> Result<bool, String> {
        let Said { slot, mask, size_q, in_record } = *said;
        let rail = usize::from(landing.rail);
        if mask & !self.usable != 0 {
            return Err(format!("the mask has other rails than the usable ones, {:#b}", self.usable));
        }
        if mask & 1 << rail == 0 {
            return Err(format!("the mask lacks rail {rail}, over which it came"));
        }
        let lanes = if self.stripes(said) { u32::from(self.lanes[rail]) } else { 1 };
        let found = &mut self.uses[slot];
        if found.mask == 0 {
            (found.mask, found.size_q) = (mask, size_q);
        } else if (found.mask, found.size_q) != (mask, size_q) {
            return Err(format!("an earlier immediate had mask {:#b} and size_q {:#x}", found.mask, found.size_q));
        }
        found.immediates += 1;
        // A message's rails are posted in the order of their numbers.
        if u32::from(found.reported) >> (landing.rail + 1) != 0 {
            counts.saw(Seen::RailsOvertook);
        }
        if found.lanes[rail] & 1 << landing.lane != 0 || found.lanes[rail].count_ones() >= lanes {
            return Err(format!("rail {rail} has already sent immediates on lanes {:#b}", found.lanes[rail]));
        }
        let number = self.first_number.wrapping_add(self.group_of[slot] as u32);
        if lanes == 1 && number % u32::from(self.lanes[rail]) != u32::from(landing.lane) {
            return Err(format!("it came on another lane than that of receive {number}"));
        }
        found.lanes[rail] |= 1 << landing.lane;
        if in_record {
            let leader = mask.trailing_zeros() as usize;
            if landing.control && rail != leader {
                return Err(format!("the record came over rail {rail}, the leader is {leader}"));
            }
        } else if sizes.len() > 1 {
            return Err("the sizes of a group belong in a record".into());
        } else if !self.byte_counts {
            return Err("the receiver does not count bytes, so the size belongs in a record".into());
        } else if landing.control {
            return Err("it came with a record, but has a size of its own".into());
        } else if u64::from(size_q) != sizes[0].div_ceil(128) {
            return Err(format!("the message has {} bytes", sizes[0]));
        }
        if found.lanes[rail].count_ones() == lanes {
            found.reported |= 1 << rail;
        }
        Ok(found.reported == mask)
    }

    /// Adds a part that was lost, and that comes again, to the use of its slot. Returns as [`Self::add`] does.
    fn add_repair(&mut self, said: &Said, landing: &Landing, counts: &mut Counts) -> Result<bool, String> {
        let part = said.size_q;
        let found = &mut self.uses[said.slot];
        if part >= 8 || found.missing & 1 << part == 0 {
            let (missing, lost) = (found.missing, found.lost);
            return Err(format!(
                "part {part} came again, but the receiver has called {lost:#b} unseen, of which {missing:#b} is missing"
            ));
        }
        let is_leader = found.mask.trailing_zeros() == part;
        if landing.control && !is_leader {
            return Err(format!("the record came with part {part}"));
        }
        counts.saw(Seen::RailRepaired);
        found.missing &= !(1 << part);
        found.reported |= 1 << part;
        found.immediates += 1;
        Ok(found.reported == found.mask)
    }

    /// Notes that the receiver calls parts of a receive seen, of which its sender has said this mask and size. Those of
    /// a buffer that is in use again need not have come.
    pub(super) fn called_seen(
        &mut self,
        number: u32,
        (mask, size): (u8, Option<u32>),
        seen: u8,
        is_early: impl FnOnce(usize) -> bool,
    ) {
        let slot = (number & 0xff) as usize;
        let group = self.group_of[slot];
        if self.first_number.wrapping_add(group as u32) != number {
            return;
        }
        let size_q = self.size_q(size);
        let found = &mut self.uses[slot];
        (found.mask, found.size_q) = (mask, size_q);
        if is_early(group) {
            found.taken |= seen & mask & !found.reported;
        }
        found.reported |= seen & mask;
        if found.reported == mask {
            self.end_use(slot);
        }
    }

    /// Returns the size_q of a message of this size, `None` for a record.
    fn size_q(&self, size: Option<u32>) -> u32 {
        let all_ones = (1 << (24 - self.rails)) - 1;
        size.map_or(all_ones, |size| size.div_ceil(128))
    }

    /// Returns true if a part that was called unseen has yet to come.
    pub(crate) fn has_missing(&self) -> bool {
        self.uses.iter().any(|found| found.missing != 0)
    }

    /// Ends the use of a slot; returns it.
    fn end_use(&mut self, slot: usize) -> &Use {
        self.over[slot] = std::mem::take(&mut self.uses[slot]);
        self.group_of[slot] += SLOTS;
        &self.over[slot]
    }

    /// Notes that the receiver calls parts of a receive unseen, of which its sender has said this mask and size, `None`
    /// for a record. Returns the receive's group; `None` if it has had everything. `is_done` says if its application
    /// has: a device that fails keeps the reports of what has landed.
    pub(super) fn called_unseen(
        &mut self,
        number: u32,
        (mask, size): (u8, Option<u32>),
        unseen: u8,
        is_done: impl FnOnce(usize) -> bool,
        counts: &mut Counts,
    ) -> Option<usize> {
        let slot = (number & 0xff) as usize;
        let group = number.wrapping_sub(self.first_number) as usize;
        if unseen == 0 || is_done(group) {
            return None;
        }
        if self.group_of[slot] == group + SLOTS {
            self.group_of[slot] = group;
            self.uses[slot] = std::mem::take(&mut self.over[slot]);
        }
        if self.group_of[slot] != group {
            return None;
        }
        let size_q = self.size_q(size);
        let found = &mut self.uses[slot];
        (found.mask, found.size_q) = (mask, size_q);
        if found.lost & unseen != 0 {
            counts.saw(Seen::RepairedRepair);
        }
        found.missing |= unseen;
        found.lost |= unseen;
        found.reported &= !unseen;
        Some(group)
    }

    /// Returns true if a message goes over all lanes of its rails.
    fn stripes(&self, said: &Said) -> bool {
        self.striped && (said.in_record || said.size_q >= 512)
    }

    fn count(&self, sizes: &[u64], said: &Said, done: &Use, counts: &mut Counts) {
        let (mask, record, all_lanes) = (said.mask, said.in_record, self.stripes(said));
        counts.saw(if record { Seen::Record } else { Seen::OneWrite });
        let total: u64 = sizes.iter().sum();
        if record && !self.byte_counts {
            counts.saw(Seen::NoByteCounts);
        }
        if record && self.byte_counts && sizes.len() == 1 {
            let in_immediate = total.div_ceil(128) < (1 << (24 - self.rails)) - 1;
            counts.saw(match self.adaptive_above {
                Some(above) if total > above => Seen::AdaptiveRouting,
                _ if in_immediate => Seen::SeveralWrites,
                _ => Seen::HugeSize,
            });
        }
        if self.usable.count_ones() > 1 {
            counts.saw(if mask.count_ones() > 1 { Seen::ManyRails } else { Seen::OneRail });
        }
        if self.striped && self.lanes.iter().any(|lanes| *lanes > 1) {
            let is_striped = all_lanes && done.immediates > mask.count_ones();
            counts.saw(if is_striped { Seen::Striped } else { Seen::OneLaneOfMany });
            if is_striped && (0..8).any(|rail| mask >> rail & 1 != 0 && self.lanes[rail] == 1) {
                counts.saw(Seen::UnlikeLanes);
            }
        }
        if sizes.len() > 1 {
            counts.saw(Seen::Grouped);
            if total == 0 {
                counts.saw(Seen::AllEmpty);
            } else if sizes.contains(&0) {
                counts.saw(Seen::GroupedEmpty);
            }
        } else if total == 0 {
            counts.saw(Seen::ZeroBytes);
        }
        if self.usable.count_ones() < self.rails {
            counts.saw(Seen::GappyRails);
        }
    }
}
