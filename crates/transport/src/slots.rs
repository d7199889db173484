//! The slots of a receiving connection: which receives are open, and what has arrived for each.

use railweave_fabric::MAX_RAILS;

use crate::plant::{Plant, checks, planted};
use crate::record::Records;
use crate::send::stripes;
use crate::{Error, Immediate, ImmediateLayout, MAX_BUFFERS, SLOTS, SPLIT_UNIT};

/// What a slot is used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// For nothing.
    #[default]
    Free,
    /// CTS is out; the application waits.
    Open,
    /// CTS is out; the application was told already that it is done.
    Early,
    /// Everything is there; the application does not know yet.
    Complete,
}

/// One slot. Its size is a power of two, so that it is found by a shift; what every message needs stands first.
#[derive(Clone, Copy, Default)]
#[repr(C, align(256))]
pub(crate) struct Slot {
    pub(crate) state: State,
    /// How many buffers it has.
    pub(crate) count: u8,
    /// Rails that carry data: 0 until the first immediate says so.
    pub(crate) expected: u8,
    /// Some buffer is no host memory, so that it may need a flush.
    pub(crate) flushable: bool,
    /// The completion may be reported before it is there.
    pub(crate) optional: bool,
    /// Rails that have said all that they will. This and the next three are valid once `expected` is known, and only where
    /// one immediate did not say everything.
    seen: u8,
    size_q: u32,
    bytes: u64,
    /// The lanes of each rail that have spoken.
    lanes_seen: [u16; MAX_RAILS],
    /// Number of its first CTS entry.
    pub(crate) first_entry: u64,
    pub(crate) capacities: [u64; MAX_BUFFERS],
    /// Valid once it is complete.
    pub(crate) sizes: [u64; MAX_BUFFERS],
    /// Addresses of buffers that may need a flush; 0 for host memory. Valid where it is `flushable`.
    pub(crate) addresses: [u64; MAX_BUFFERS],
}

/// Where an immediate came from.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    /// The rail's bit in masks.
    pub(crate) bit: u8,
    /// Its lane.
    pub(crate) lane: u8,
    /// The lanes on which a striped message comes over this rail; 1 where messages are not striped.
    pub(crate) stripes: u8,
}

impl Source {
    fn rail(self) -> usize {
        self.bit.trailing_zeros() as usize % MAX_RAILS
    }
}

/// All slots of a connection.
pub(crate) struct Slots {
    slots: Box<[Slot; SLOTS]>,
    layout: ImmediateLayout,
    usable: u8,
    /// Receives of which no immediate is owed any more, modulo 2^32.
    completed: u32,
    records: Records,
}

impl Slots {
    /// The slots of a connection of `count` rails, those in `usable` up.
    pub(crate) fn new(count: usize, usable: u8, records: Records) -> Self {
        let slots: Vec<_> = vec![Slot::default(); SLOTS];
        let slots = slots.into_boxed_slice().try_into().unwrap_or_else(|_| unreachable!("so many were made"));
        Self { slots, layout: ImmediateLayout::new(count), usable, completed: 0, records }
    }

    /// A slot.
    #[inline]
    pub(crate) fn get(&self, index: u8) -> &Slot {
        &self.slots[usize::from(index)]
    }

    /// A slot.
    #[inline]
    pub(crate) fn get_mut(&mut self, index: u8) -> &mut Slot {
        &mut self.slots[usize::from(index)]
    }

    /// Slots that rails may still owe an immediate, of the `opened` ones.
    pub(crate) fn open_count(&self, opened: u32) -> u32 {
        opened.wrapping_sub(self.completed)
    }

    /// Whether the application waits for one of the `opened` receives, where none is reported early.
    pub(crate) fn is_waited_for(&self, opened: u32) -> bool {
        self.open_count(opened) > 0
    }

    /// Takes a slot for a new receive; its capacities and addresses are written by whoever knows them.
    #[inline]
    pub(crate) fn open(&mut self, index: u8, count: u8, optional: bool, first_entry: u64) -> &mut Slot {
        let slot = &mut self.slots[usize::from(index)];
        slot.state = State::Open;
        slot.count = count;
        slot.expected = 0;
        slot.optional = optional;
        slot.flushable = false;
        slot.first_entry = first_entry;
        slot
    }

    /// The application is told that a receive is done which is not.
    pub(crate) fn report_early(&mut self, index: u8) {
        let early = if planted(Plant::OptionalFreesSlot) { State::Free } else { State::Early };
        self.slots[usize::from(index)].state = early;
    }

    /// The sizes of a slot's buffers.
    pub(crate) fn capacities(&self, index: u8) -> &[u64] {
        let slot = self.get(index);
        &slot.capacities[..usize::from(slot.count)]
    }

    /// An immediate came over a rail with `bytes` bytes. Whether that was all of a message with one buffer, as mostly: then
    /// its receive is complete. If not, nothing has changed, and it is for [`Self::handle_part`].
    #[inline(always)]
    pub(crate) fn handle_whole(&mut self, rail_bit: u8, bits: u32, bytes: u32) -> bool {
        let slot = &mut self.slots[usize::from(bits as u8)];
        let is_whole = slot.is_fresh_single()
            && u64::from(bytes) <= slot.capacities[0]
            && self.layout.says_whole(bits, rail_bit, bytes);
        if is_whole {
            slot.expected = rail_bit;
            slot.sizes[0] = u64::from(bytes) + u64::from(planted(Plant::SizeOffByOne));
            slot.state = State::Complete;
            self.completed = self.completed.wrapping_add(1);
        }
        is_whole
    }

    /// One rail (or one lane of it) has spoken for a slot, and what it says is put together with what others say. Whether the
    /// slot has all its immediates.
    ///
    /// # Errors
    /// What is wrong, where the peer breaks the protocol.
    #[inline(never)]
    pub(crate) fn handle_part(&mut self, from: Source, bits: u32, bytes: u32) -> Result<bool, Error> {
        let immediate = self.layout.decode(bits);
        let slot = &mut self.slots[usize::from(immediate.slot)];
        let is_striped = from.stripes > 1 && stripes(immediate.size_q, self.layout.all_ones());
        if let Some(what) = slot.wrong_with(&immediate, self.usable, from, is_striped)
            && checks()
        {
            return Err(Error::protocol(what));
        }
        if slot.expected == 0 {
            slot.begin(&immediate);
        }
        if !is_striped || slot.is_last_lane(from) || planted(Plant::DoneBeforeLastLane) {
            slot.seen |= from.bit;
        }
        slot.bytes += u64::from(bytes);
        let all_seen = slot.seen == slot.expected || planted(Plant::DoneBeforeLastRail);
        if all_seen { self.complete(immediate.slot) } else { Ok(false) }
    }

    /// Every active rail of the slot has spoken.
    fn complete(&mut self, index: u8) -> Result<bool, Error> {
        let slot = &mut self.slots[usize::from(index)];
        let count = usize::from(slot.count);
        let in_record = slot.size_q == self.layout.all_ones();
        let record = if in_record { self.records.take(index, count) } else { None };
        let wrong = (in_record && record.is_none())
            || (!in_record && (count > 1 || slot.bytes.div_ceil(SPLIT_UNIT) != u64::from(slot.size_q)));
        if wrong && checks() {
            return Err(match (in_record, count) {
                (true, _) => Error::protocol("no completion record was written for the slot"),
                (false, 2..) => Error::protocol("a grouped receive needs a completion record"),
                _ => contradiction(slot.bytes),
            });
        }
        match record {
            Some(sizes) => slot.sizes = sizes,
            None => slot.sizes[0] = slot.bytes + u64::from(planted(Plant::SizeOffByOne)),
        }
        if (0..count).any(|buffer| slot.sizes[buffer] > slot.capacities[buffer]) && checks() {
            return Err(Error::protocol(format!(
                "sizes {:?} exceed the buffers' {:?}",
                &slot.sizes[..count],
                &slot.capacities[..count]
            )));
        }
        slot.state = if slot.state == State::Early { State::Free } else { State::Complete };
        if planted(Plant::ReservationLeaked) && count > 1 {
            return Ok(false);
        }
        self.completed = self.completed.wrapping_add(1);
        Ok(true)
    }

    /// The connection is broken: no receive that is not complete will be.
    #[cold]
    #[inline(never)]
    pub(crate) fn close(&mut self) {
        let open = self.slots.iter_mut().filter(|slot| matches!(slot.state, State::Open | State::Early));
        open.for_each(|slot| slot.state = State::Free);
    }

    /// The rails of the connection.
    #[inline]
    pub(crate) fn usable(&self) -> u8 {
        self.usable
    }

    /// The layout of the immediates.
    pub(crate) fn layout(&self) -> ImmediateLayout {
        self.layout
    }
}

impl Slot {
    /// Whether it is open with one buffer, and no immediate has come. The four bytes make one word to compare.
    #[inline]
    fn is_fresh_single(&self) -> bool {
        let word = [self.state as u8, self.count, self.expected, u8::from(self.flushable)];
        u32::from_le_bytes(word) & 0x00ff_ffff == u32::from_le_bytes([State::Open as u8, 1, 0, 0])
    }

    /// Its first immediate, of several or of a kind that takes more than one look.
    fn begin(&mut self, immediate: &Immediate) {
        self.expected = immediate.mask;
        self.size_q = immediate.size_q;
        self.seen = 0;
        self.bytes = 0;
        self.lanes_seen = [0; MAX_RAILS];
    }

    /// A lane of a rail has spoken. Whether that was the last one.
    fn is_last_lane(&mut self, from: Source) -> bool {
        let seen = &mut self.lanes_seen[from.rail()];
        *seen |= 1 << from.lane;
        seen.count_ones() >= u32::from(from.stripes)
    }

    /// What is wrong with an immediate of this slot that came from there, on each lane of the rail where the message
    /// `is_striped`.
    fn wrong_with(&self, immediate: &Immediate, usable: u8, from: Source, is_striped: bool) -> Option<&'static str> {
        if !matches!(self.state, State::Open | State::Early) {
            Some("the slot has no open receive")
        } else if immediate.mask & !usable != 0 {
            Some("the mask names a rail that this connection does not have")
        } else if immediate.mask & from.bit == 0 {
            Some("the mask lacks the rail that it came on")
        } else if self.expected == 0 {
            None
        } else if self.expected != immediate.mask {
            Some("an earlier immediate of the slot had another mask")
        } else if self.size_q != immediate.size_q {
            Some("an earlier immediate of the slot had another size_q")
        } else if self.seen & from.bit != 0 || is_striped && self.lanes_seen[from.rail()] & 1 << from.lane != 0 {
            Some("the rail has spoken for this slot before")
        } else {
            None
        }
    }
}

#[cold]
fn contradiction(bytes: u64) -> Error {
    Error::protocol(format!(
        "size_q contradicts the {bytes} bytes that arrived (an adapter that does not report byte counts needs \
         RAILWEAVE_BYTE_COUNTS=0)"
    ))
}
