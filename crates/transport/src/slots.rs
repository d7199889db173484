//! The slots of a receiving connection: the open receives, and what has arrived for each.

mod called;
mod hidden;
mod lost;

use railweave_fabric::{MAX_RAILS, RailId, RailSet};

pub(crate) use self::lost::Judged;
use self::{hidden::Hidden, lost::Called};
use crate::record::Records;
use crate::send::stripes;
use crate::sequence::Sequence;
use crate::violation::ImmediateFault;
use crate::{GRANULE, Immediate, ImmediateLayout, MAX_BUFFERS, SLOTS, Slot};

/// The state of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// The slot is not in use.
    #[default]
    Free,
    /// The CTS is out; the application waits.
    Open,
    /// The CTS is out; the application has already been told that the receive is done.
    Early,
    /// All data is there; the application does not know yet.
    Complete,
}

/// One slot's receive. Its size is a power of two, so that a shift finds it; the fields that every message needs come
/// first.
#[derive(Clone, Copy, Default)]
#[repr(C, align(256))]
pub(crate) struct Receive {
    pub(crate) state: State,
    /// The number of its buffers.
    pub(crate) count: u8,
    /// The rails that carry data: empty until the first immediate names them.
    pub(crate) expected: RailSet,
    /// True if some buffer is not host memory, so that it may need a flush.
    pub(crate) flushable: bool,
    /// True if the receive may be reported as done before its data is there.
    pub(crate) optional: bool,
    /// The rails that have sent all their immediates. This and the next four fields are valid once `expected` is
    /// known, unless a single immediate completed the receive ([`Slots::handle_whole`]).
    seen: RailSet,
    size_q: u32,
    bytes: u64,
    /// The first immediate.
    bits: u32,
    /// The lanes of each rail that have sent their immediates.
    lanes_seen: [u16; MAX_RAILS],
    /// The number of its first CTS entry.
    pub(crate) first_entry: u64,
    pub(crate) capacities: [u64; MAX_BUFFERS],
    /// Bytes in each buffer. Valid once the receive is complete.
    pub(crate) sizes: [u64; MAX_BUFFERS],
    /// Addresses of buffers that may need a flush; 0 for host memory. Valid if `flushable`.
    pub(crate) addresses: [u64; MAX_BUFFERS],
}

/// The origin of an immediate.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    /// The rail.
    pub(crate) rail: RailId,
    /// Its lane.
    pub(crate) lane: u8,
    /// The number of lanes on which a striped message comes over this rail; 1 if messages are not striped.
    pub(crate) stripes: u8,
}

// tidy: Slots's methods call each other across files: called.rs has the parts that were lost, which complete receives
// like all others.
/// All slots of a connection.
pub(crate) struct Slots {
    slots: Box<[Receive; SLOTS]>,
    layout: ImmediateLayout,
    /// The rails that came up: an immediate may name no others. This is a copy, because otherwise each poll would have
    /// to pass a reference to the rails.
    came_up: RailSet,
    /// The first receive's number, and one more for each receive that is owed no more immediates, modulo 2^32.
    completed: u32,
    records: Records,
    is_closed: bool,
    /// The receives with parts that a rail has lost, or has brought before it ended; none while no rail fails.
    called: Vec<Called>,
    hidden: Hidden,
}

impl Slots {
    /// Returns the slots of a connection with `count` rails, of which those in `came_up` came up, and whose first
    /// receive is `first`.
    pub(crate) fn new(count: usize, came_up: RailSet, records: Records, first: Sequence) -> Self {
        let slots: Vec<_> = vec![Receive::default(); SLOTS];
        let slots = slots.into_boxed_slice().try_into().unwrap_or_else(|_| unreachable!("SLOTS were made"));
        Self {
            slots,
            layout: ImmediateLayout::new(count),
            came_up,
            completed: first.number(),
            records,
            is_closed: false,
            called: Vec::new(),
            hidden: Hidden::default(),
        }
    }

    /// Returns a slot.
    #[inline]
    pub(crate) fn get(&self, slot: Slot) -> &Receive {
        &self.slots[slot]
    }

    /// Returns a slot, to change it.
    #[inline]
    pub(crate) fn get_mut(&mut self, slot: Slot) -> &mut Receive {
        &mut self.slots[slot]
    }

    /// Returns the number of slots before `opened` for which rails may still owe an immediate.
    pub(crate) fn open_count(&self, opened: Sequence) -> u32 {
        opened.number().wrapping_sub(self.completed)
    }

    /// Returns true if the application waits for a receive before `opened`; valid only if no receive is reported early.
    pub(crate) fn is_waited_for(&self, opened: Sequence) -> bool {
        self.open_count(opened) > 0
    }

    /// Returns the rails that are known to carry the data of a slot's receive, and those of them that have not sent all
    /// of it.
    pub(crate) fn parts(&self, slot: Slot) -> (RailSet, RailSet) {
        let receive = self.get(slot);
        match receive.state {
            _ if receive.expected.is_empty() => (RailSet::EMPTY, RailSet::EMPTY),
            State::Open | State::Early => (receive.expected, receive.expected.except(receive.seen)),
            State::Complete | State::Free => (receive.expected, RailSet::EMPTY),
        }
    }

    /// Takes a slot for a new receive. The caller writes its capacities and addresses.
    #[inline]
    pub(crate) fn open(&mut self, slot: Slot, count: u8, optional: bool, first_entry: u64) -> &mut Receive {
        let receive = &mut self.slots[slot];
        receive.state = State::Open;
        receive.count = count;
        receive.expected = RailSet::EMPTY;
        receive.optional = optional;
        receive.flushable = false;
        receive.first_entry = first_entry;
        receive
    }

    /// Notes that the application is told that a receive is done although it is not.
    pub(crate) fn report_early(&mut self, slot: Slot) {
        self.slots[slot].state = State::Early;
    }

    /// Returns the sizes of a slot's buffers.
    pub(crate) fn capacities(&self, slot: Slot) -> &[u64] {
        let receive = self.get(slot);
        &receive.capacities[..usize::from(receive.count)]
    }

    /// Handles an immediate that came over the rail in `alone` with `bytes` bytes. If they are the whole message of a
    /// receive with one buffer, as they usually are, completes the receive and returns true. Otherwise changes nothing
    /// and returns false; [`Self::handle_part`] must then handle the immediate.
    #[inline(always)]
    pub(crate) fn handle_whole(&mut self, alone: RailSet, bits: u32, bytes: u32) -> bool {
        let receive = &mut self.slots[ImmediateLayout::slot(bits)];
        let is_whole = receive.is_fresh_single()
            && u64::from(bytes) <= receive.capacities[0]
            && self.layout.says_whole(bits, alone, bytes);
        if is_whole {
            receive.expected = alone;
            receive.sizes[0] = u64::from(bytes);
            receive.state = State::Complete;
            self.completed = self.completed.wrapping_add(1);
        }
        is_whole
    }

    /// Handles the immediate of the rail in `alone`, if it is one of several for a receive with one buffer, and carries
    /// the size, as for most messages that are split. Returns true if the slot then has all its immediates. Returns
    /// `None` for any other immediate: then nothing has changed, and [`Self::handle_part`] must handle it. The rail
    /// must send one immediate only; others may send one on each lane.
    ///
    /// [`Self::handle_part`] could handle these too, for 60 instructions more each.
    #[inline(always)]
    pub(crate) fn handle_share(&mut self, alone: RailSet, bits: u32, bytes: u32) -> Option<bool> {
        let receive = &mut self.slots[ImmediateLayout::slot(bits)];
        if receive.is_fresh_single() {
            let Immediate { mask, size_q, .. } = self.layout.decode(bits);
            let is_known = mask.is_within(self.came_up) && alone.is_within(mask) && alone != mask;
            if !is_known || size_q == self.layout.all_ones() {
                return None;
            }
            (receive.expected, receive.size_q, receive.bits) = (mask, size_q, bits);
            (receive.seen, receive.bytes) = (alone, u64::from(bytes));
            // Another rail of the connection may have several lanes, whose immediates take the long way.
            receive.lanes_seen = [0; MAX_RAILS];
            return Some(false);
        }
        // The rail's own bit is in the mask, because `bits` are those of the first immediate, and it is not yet seen.
        let is_next = receive.is_open_single() && receive.bits == bits && alone.is_within(receive.expected);
        let (seen, sum) = (receive.seen | alone, receive.bytes + u64::from(bytes));
        if !is_next || seen == receive.seen || receive.size_q == self.layout.all_ones() {
            return None;
        }
        let is_last = seen == receive.expected;
        if is_last {
            if sum.div_ceil(GRANULE) != u64::from(receive.size_q) || sum > receive.capacities[0] {
                return None;
            }
            receive.sizes[0] = sum;
            receive.state = State::Complete;
            self.completed = self.completed.wrapping_add(1);
        }
        (receive.seen, receive.bytes) = (seen, sum);
        Some(is_last)
    }

    /// Handles any immediate: that of a rail, or of one of its lanes. Returns true if the slot then has all its
    /// immediates.
    ///
    /// # Errors
    /// If the peer breaks the protocol: the fault.
    #[inline(never)]
    pub(crate) fn handle_part(&mut self, from: Source, bits: u32, bytes: u32) -> Result<bool, Box<ImmediateFault>> {
        let immediate = self.layout.decode(bits);
        if immediate.mask.is_empty() {
            return self.handle_repair(from, immediate);
        }
        if self.called(immediate.slot).is_some_and(|called| called.lost.contains(from.rail)) {
            return Err(Box::new(ImmediateFault::SpokenBefore));
        }
        let receive = &mut self.slots[immediate.slot];
        let is_striped = from.stripes != 1 && stripes(immediate.size_q, self.layout.all_ones());
        if let Some(fault) = receive.wrong_with(&immediate, self.came_up, from, is_striped) {
            return Err(Box::new(fault));
        }
        if receive.expected.is_empty() {
            receive.begin(&immediate, bits);
        }
        if !is_striped || receive.is_last_lane(from) {
            receive.seen.insert(from.rail);
        }
        receive.bytes += u64::from(bytes);
        if receive.seen == receive.expected { self.complete(immediate.slot) } else { Ok(false) }
    }

    /// Completes a slot for which every active rail has sent its immediates.
    fn complete(&mut self, slot: Slot) -> Result<bool, Box<ImmediateFault>> {
        let called = self.forget(slot);
        if called.as_ref().is_some_and(|called| called.is_taken) {
            self.free_taken(slot);
            return Ok(true);
        }
        let receive = &mut self.slots[slot];
        if let Some(called) = called {
            // The rails that have brought its parts, for a flush.
            let unshown = receive.expected.except(called.shown);
            receive.expected = unshown.iter().filter_map(|part| called.carrier(part)).collect();
            if let Some(size) = called.size {
                receive.bytes = size.into();
            }
        }
        let count = usize::from(receive.count);
        let in_record = receive.size_q == self.layout.all_ones();
        let record = if in_record { self.records.take(slot, count) } else { None };
        let wrong = (in_record && record.is_none())
            || (!in_record && (count > 1 || receive.bytes.div_ceil(GRANULE) != u64::from(receive.size_q)));
        if wrong {
            return Err(Box::new(match (in_record, count) {
                (true, _) => ImmediateFault::NoRecord,
                (false, 2..) => ImmediateFault::GroupWithoutRecord,
                _ => ImmediateFault::OtherBytes { arrived: receive.bytes },
            }));
        }
        match record {
            Some(sizes) => receive.sizes = sizes,
            None => receive.sizes[0] = receive.bytes,
        }
        if (0..count).any(|buffer| receive.sizes[buffer] > receive.capacities[buffer]) {
            return Err(Box::new(ImmediateFault::TooLong {
                sizes: receive.sizes[..count].to_vec(),
                capacities: receive.capacities[..count].to_vec(),
            }));
        }
        receive.state = if receive.state == State::Early { State::Free } else { State::Complete };
        self.completed = self.completed.wrapping_add(1);
        Ok(true)
    }

    /// Frees all slots that are not complete: the connection is broken, so they never will be.
    #[cold]
    #[inline(never)]
    pub(crate) fn close(&mut self) {
        let open = self.slots.iter_mut().filter(|receive| matches!(receive.state, State::Open | State::Early));
        open.for_each(|receive| receive.state = State::Free);
        self.called.clear();
        self.is_closed = true;
    }

    /// Returns true once the slots were [closed](Self::close): then their states no longer say what has come.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Returns the layout of the immediates.
    pub(crate) fn layout(&self) -> ImmediateLayout {
        self.layout
    }
}

impl Receive {
    /// Returns true if it is open with one buffer, and no immediate has come. Loads the first four bytes as one word
    /// and compares three of them.
    #[inline]
    fn is_fresh_single(&self) -> bool {
        let word = [self.state as u8, self.count, self.expected.bits(), u8::from(self.flushable)];
        u32::from_le_bytes(word) & 0x00ff_ffff == u32::from_le_bytes([State::Open as u8, 1, 0, 0])
    }

    /// Returns true if it is open with one buffer.
    #[inline]
    fn is_open_single(&self) -> bool {
        u16::from_le_bytes([self.state as u8, self.count]) == u16::from_le_bytes([State::Open as u8, 1])
    }

    /// Notes the fields of its first immediate, if there may be more.
    fn begin(&mut self, immediate: &Immediate, bits: u32) {
        self.bits = bits;
        self.expected = immediate.mask;
        self.size_q = immediate.size_q;
        self.seen = RailSet::EMPTY;
        self.bytes = 0;
        self.lanes_seen = [0; MAX_RAILS];
    }

    /// Notes the immediate of one lane of a rail. Returns true if it was the rail's last.
    fn is_last_lane(&mut self, from: Source) -> bool {
        let seen = &mut self.lanes_seen[from.rail];
        *seen |= 1 << from.lane;
        seen.count_ones() >= u32::from(from.stripes)
    }

    /// Returns the fault of an immediate of this slot, `None` if it has none. If `is_striped`, one comes on each lane
    /// of the rail.
    fn wrong_with(
        &self,
        immediate: &Immediate,
        came_up: RailSet,
        from: Source,
        is_striped: bool,
    ) -> Option<ImmediateFault> {
        if !matches!(self.state, State::Open | State::Early) {
            Some(ImmediateFault::NoReceive)
        } else if !immediate.mask.is_within(came_up) {
            Some(ImmediateFault::UnknownRail)
        } else if !immediate.mask.contains(from.rail) {
            Some(ImmediateFault::OwnRailMissing)
        } else if self.expected.is_empty() {
            None
        } else if self.expected != immediate.mask {
            Some(ImmediateFault::OtherMask)
        } else if self.size_q != immediate.size_q {
            Some(ImmediateFault::OtherSize)
        } else if self.seen.contains(from.rail) || is_striped && self.lanes_seen[from.rail] & 1 << from.lane != 0 {
            Some(ImmediateFault::SpokenBefore)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests;
