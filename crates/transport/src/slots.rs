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
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use railweave_fabric::Region;

    use super::*;
    use crate::record::MEMORY_BYTES;

    const SLOT: u8 = 7;

    /// Slots of a connection of three rails, of which the last never came up, with one receive of these buffers.
    fn waiting(capacities: &[u64]) -> Slots {
        let records = Records::new(Arc::new(Region::new(MEMORY_BYTES)));
        let mut slots = Slots::new(3, RailSet::first_of(2), records, Sequence::default());
        let receive = slots.open(Slot::new(SLOT), capacities.len() as u8, false, 0);
        receive.capacities[..capacities.len()].copy_from_slice(capacities);
        slots
    }

    fn source(rail: usize) -> Source {
        Source { rail: RailId::new(rail).unwrap(), lane: 0, stripes: 1 }
    }

    /// Returns the state of the open slot.
    fn state(slots: &Slots) -> State {
        slots.get(Slot::new(SLOT)).state
    }

    /// Returns an immediate of the rails in `mask` for a message of `bytes` bytes; `None` if its record says them.
    fn bits(slots: &Slots, slot: u8, mask: u8, bytes: Option<u64>) -> u32 {
        let size_q = bytes.map_or(slots.layout.all_ones(), |bytes| slots.layout.size_q(bytes));
        slots.layout.encode(Immediate { slot: Slot::new(slot), mask: RailSet::from_bits(mask), size_q })
    }

    /// Returns the fault of the last of these immediates, each given by its rail, its slot, its mask, the bytes of the
    /// message and the bytes that came with it.
    fn fault_of(capacities: &[u64], immediates: &[(usize, u8, u8, Option<u64>, u32)]) -> ImmediateFault {
        let mut slots = waiting(capacities);
        let (last, before) = immediates.split_last().expect("there is one");
        for (rail, slot, mask, size, bytes) in before {
            let bits = bits(&slots, *slot, *mask, *size);
            assert_eq!(slots.handle_part(source(*rail), bits, *bytes), Ok(false));
        }
        let (rail, slot, mask, size, bytes) = last;
        let bits = bits(&slots, *slot, *mask, *size);
        *slots.handle_part(source(*rail), bits, *bytes).expect_err("it is wrong")
    }

    #[test]
    fn each_violation_has_its_cause() {
        let whole = Some(1024);
        for (immediates, fault) in [
            (&[(0, SLOT + 1, 0b01, whole, 1024)][..], ImmediateFault::NoReceive),
            (&[(0, SLOT, 0b101, whole, 512)], ImmediateFault::UnknownRail),
            (&[(0, SLOT, 0b10, whole, 1024)], ImmediateFault::OwnRailMissing),
            (&[(0, SLOT, 0b11, whole, 512), (1, SLOT, 0b10, whole, 512)], ImmediateFault::OtherMask),
            (&[(0, SLOT, 0b11, whole, 512), (1, SLOT, 0b11, Some(512), 512)], ImmediateFault::OtherSize),
            (&[(0, SLOT, 0b11, whole, 512), (0, SLOT, 0b11, whole, 512)], ImmediateFault::SpokenBefore),
            (&[(0, SLOT, 0b01, None, 1024)], ImmediateFault::NoRecord),
            (&[(0, SLOT, 0b01, whole, 512)], ImmediateFault::OtherBytes { arrived: 512 }),
            (
                &[(0, SLOT, 0b01, Some(4096), 4096)],
                ImmediateFault::TooLong { sizes: vec![4096], capacities: vec![2048] },
            ),
        ] {
            assert_eq!(fault_of(&[2048], immediates), fault);
        }
        assert_eq!(fault_of(&[2048, 2048], &[(0, SLOT, 0b01, whole, 1024)]), ImmediateFault::GroupWithoutRecord);
    }

    #[test]
    fn immediates_that_fit_complete_their_receive() {
        let mut slots = waiting(&[2048]);
        let bits = bits(&slots, SLOT, 0b11, Some(1024));
        assert_eq!(slots.handle_part(source(0), bits, 1000), Ok(false));
        assert_eq!(slots.handle_part(source(1), bits, 24), Ok(true));
        assert_eq!((state(&slots), slots.get(Slot::new(SLOT)).sizes[0]), (State::Complete, 1024));
    }

    #[test]
    fn an_immediate_that_says_that_it_is_alone_completes_its_receive() {
        let alone = RailSet::from_bits(0b10);
        for flushable in [false, true] {
            let mut slots = waiting(&[1024]);
            slots.get_mut(Slot::new(SLOT)).flushable = flushable;
            let bits = bits(&slots, SLOT, 0b10, Some(1024));
            assert!(slots.handle_whole(alone, bits, 1024));
            let receive = slots.get(Slot::new(SLOT));
            assert_eq!((receive.state, receive.sizes[0], receive.expected), (State::Complete, 1024, alone));
            assert!(!slots.handle_whole(alone, bits, 1024), "it is complete");
        }
    }

    #[test]
    fn an_immediate_that_is_not_a_whole_message_is_left_to_the_checks() {
        let alone = RailSet::from_bits(0b01);
        for (slot, capacities, mask, size, bytes) in [
            (SLOT + 1, &[1024][..], 0b01, Some(1024), 1024),
            (SLOT, &[1024, 1024], 0b01, Some(1024), 1024),
            (SLOT, &[1023], 0b01, Some(1024), 1024),
            (SLOT, &[1024], 0b11, Some(1024), 1024),
            (SLOT, &[1024], 0b01, Some(1024), 512),
            (SLOT, &[1024], 0b01, None, 1024),
        ] {
            let mut slots = waiting(capacities);
            let bits = bits(&slots, slot, mask, size);
            assert!(!slots.handle_whole(alone, bits, bytes), "slot {slot}, {capacities:?}, {mask}, {size:?}, {bytes}");
            assert_eq!(state(&slots), State::Open);
        }
        let mut slots = waiting(&[1024]);
        let bits = bits(&slots, SLOT, 0b11, Some(1024));
        assert_eq!(slots.handle_part(source(0), bits, 0), Ok(false));
        assert!(!slots.handle_whole(RailSet::from_bits(0b11), bits, 1024), "another immediate has come before");
    }

    #[test]
    fn a_striped_rail_has_reported_once_each_of_its_lanes_has() {
        const BYTES: u64 = 64 << 10;
        let from = |rail, lane| Source { lane, stripes: 3, ..source(rail) };
        let mut slots = waiting(&[BYTES]);
        let bits = bits(&slots, SLOT, 0b11, Some(BYTES));
        for (rail, lane) in [(0, 1), (1, 2), (0, 0), (1, 1), (1, 0)] {
            assert_eq!(slots.handle_part(from(rail, lane), bits, 10_000), Ok(false));
            let again = slots.handle_part(from(rail, lane), bits, 10_000);
            assert_eq!(again, Err(Box::new(ImmediateFault::SpokenBefore)), "lane {lane} of rail {rail}");
        }
        assert_eq!(slots.handle_part(from(0, 2), bits, (BYTES - 50_000) as u32), Ok(true));
        assert_eq!(state(&slots), State::Complete);
    }

    #[test]
    fn a_short_message_of_a_striped_connection_comes_on_one_lane() {
        let mut slots = waiting(&[1024]);
        let bits = bits(&slots, SLOT, 0b11, Some(1024));
        let from = |rail| Source { lane: 2, stripes: 3, ..source(rail) };
        assert_eq!([0, 1].map(|rail| slots.handle_part(from(rail), bits, 512)), [Ok(false), Ok(true)]);
    }

    #[test]
    fn a_receive_that_was_reported_early_is_free_once_its_data_is_there() {
        let mut slots = waiting(&[1024]);
        slots.report_early(Slot::new(SLOT));
        let bits = bits(&slots, SLOT, 0b01, Some(1024));
        assert!(!slots.handle_whole(RailSet::from_bits(0b01), bits, 1024));
        assert_eq!(slots.handle_part(source(0), bits, 1024), Ok(true));
        assert_eq!(state(&slots), State::Free);
    }

    #[test]
    fn no_receive_completes_once_the_connection_is_broken() {
        let mut slots = waiting(&[1024]);
        slots.close();
        let bits = bits(&slots, SLOT, 0b01, Some(1024));
        assert!(!slots.handle_whole(RailSet::from_bits(0b01), bits, 1024));
        assert_eq!(slots.handle_part(source(0), bits, 1024), Err(Box::new(ImmediateFault::NoReceive)));
        // A receive that was complete before stays so.
        let mut slots = waiting(&[1024]);
        assert!(slots.handle_whole(RailSet::from_bits(0b01), bits, 1024));
        slots.close();
        assert_eq!(state(&slots), State::Complete);
    }

    #[test]
    fn receives_are_waited_for_until_all_their_immediates_are_there() {
        let (mut slots, opened) = (waiting(&[1024]), Sequence::new(1));
        assert!(slots.is_waited_for(opened) && slots.open_count(Sequence::new(3)) == 3);
        let bits = bits(&slots, SLOT, 0b11, Some(1024));
        assert_eq!(slots.handle_part(source(0), bits, 512), Ok(false));
        assert!(slots.is_waited_for(opened));
        assert_eq!(slots.handle_part(source(1), bits, 512), Ok(true));
        assert!(!slots.is_waited_for(opened) && slots.open_count(Sequence::new(3)) == 2);
    }

    /// Handles immediates as a poll does, or with `all_parts` by [`Slots::handle_part`] alone. Returns the results.
    fn handled(slots: &mut Slots, all_parts: bool, immediates: &[(usize, u32, u32)]) -> Vec<Result<bool, String>> {
        let handle = |(rail, bits, bytes): &(usize, u32, u32)| {
            let alone = RailSet::only(RailId::new(*rail).unwrap());
            if !all_parts {
                if slots.handle_whole(alone, *bits, *bytes) {
                    return Ok(true);
                }
                if let Some(is_last) = slots.handle_share(alone, *bits, *bytes) {
                    return Ok(is_last);
                }
            }
            slots.handle_part(source(*rail), *bits, *bytes).map_err(|fault| format!("{fault:?}"))
        };
        immediates.iter().map(handle).collect()
    }

    proptest! {
        #[test]
        fn the_short_ways_give_the_results_of_the_long_one(
            capacity in 0u64..600,
            count in 1usize..3,
            // Nothing comes over a rail that is not up.
            immediates in proptest::collection::vec((0usize..2, 0u32..16, 0u32..6, 0u32..600), 1..5),
        ) {
            let layout = ImmediateLayout::new(3);
            let encode = |(rail, mask, size_q, bytes): &(usize, u32, u32, u32)| {
                let size_q = if *size_q == 5 { layout.all_ones() } else { *size_q };
                let mask = RailSet::from_bits((*mask & 7) as u8);
                (*rail, layout.encode(Immediate { slot: Slot::new(SLOT), mask, size_q }), *bytes)
            };
            let immediates: Vec<_> = immediates.iter().map(encode).collect();
            let (mut short, mut long) = (waiting(&vec![capacity; count]), waiting(&vec![capacity; count]));
            prop_assert_eq!(handled(&mut short, false, &immediates), handled(&mut long, true, &immediates));
            let (short, long) = (short.get(Slot::new(SLOT)), long.get(Slot::new(SLOT)));
            prop_assert_eq!((short.state, short.expected, short.count), (long.state, long.expected, long.count));
            prop_assert!(short.state != State::Complete || short.sizes[0] == long.sizes[0]);
        }
    }

    #[test]
    fn a_message_over_two_rails_takes_the_short_way() {
        let mut slots = waiting(&[1000]);
        let bits =
            ImmediateLayout::new(3).encode(Immediate { slot: Slot::new(SLOT), mask: RailSet::first_of(2), size_q: 3 });
        let alone = |rail| RailSet::only(RailId::new(rail).unwrap());
        assert_eq!(slots.handle_share(alone(2), bits, 128), None, "it is not among the active rails");
        assert_eq!(slots.handle_share(alone(1), bits, 128), Some(false));
        assert_eq!(slots.handle_share(alone(1), bits, 128), None, "it has spoken before");
        assert_eq!(slots.handle_share(alone(0), bits, 1), None, "the sizes do not add up");
        assert_eq!((slots.handle_share(alone(0), bits, 256), state(&slots)), (Some(true), State::Complete));
        assert_eq!(slots.get(Slot::new(SLOT)).sizes[0], 384);
        assert_eq!(slots.handle_share(alone(0), bits, 256), None, "it is complete");
        let mut short = waiting(&[300]);
        assert_eq!(short.handle_share(alone(1), bits, 128), Some(false));
        assert_eq!(short.handle_share(alone(0), bits, 256), None, "it is longer than its receive");
    }

    /// Slots of three rails with a receive into GPU memory of 1,024 bytes over the first two, whose part `came` is here.
    fn half(came: usize) -> Slots {
        let records = Records::new(Arc::new(Region::new(MEMORY_BYTES)));
        let mut slots = Slots::new(3, RailSet::first_of(3), records, Sequence::default());
        let receive = slots.open(Slot::new(SLOT), 1, false, 0);
        (receive.capacities[0], receive.flushable) = (1024, true);
        let bits = bits(&slots, SLOT, 0b11, Some(1024));
        assert_eq!(slots.handle_part(source(came), bits, 512), Ok(false));
        slots
    }

    /// The entry of RAIL_DOWN for that receive.
    fn listed(unsure: u8, placed: u8, size: Option<u32>) -> crate::message::Listed {
        let [mask, unsure, placed] = [0b11, unsure, placed].map(RailSet::from_bits);
        crate::message::Listed { sequence: SLOT.into(), mask, unsure, placed, size, is_refused: false }
    }

    fn judge(slots: &mut Slots, rail: usize, listed: &crate::message::Listed) -> Judged {
        slots.judge(Slot::new(SLOT), RailId::new(rail).unwrap(), listed, false).expect("it fits")
    }

    /// Brings a part again over a rail.
    fn repair(slots: &mut Slots, part: u32, over: usize) -> Result<bool, Box<ImmediateFault>> {
        let bits = slots.layout.encode(Immediate { slot: Slot::new(SLOT), mask: RailSet::EMPTY, size_q: part });
        slots.handle_part(source(over), bits, 512)
    }

    fn seen(parts: u8, is_last: bool) -> Judged {
        Judged::Seen { parts: RailSet::from_bits(parts), is_last }
    }

    #[test]
    fn hidden_parts_of_a_receive_count_as_come_whatever_else_it_has_lost() {
        let rail = |number| RailId::new(number).unwrap();
        // Part 1 has come again over another rail, and the sender is done with the message.
        let mut slots = half(0);
        assert_eq!(judge(&mut slots, 1, &listed(0b10, 0, Some(1024))), seen(0b01, false));
        slots.hide(rail(0));
        assert_eq!(repair(&mut slots, 1, 2), Ok(false));
        assert_eq!(judge(&mut slots, 0, &listed(0, 0b01, None)), seen(0b11, true));
        let receive = slots.get(Slot::new(SLOT));
        assert_eq!((receive.state, receive.sizes[0]), (State::Complete, 1024));
        assert_eq!(slots.take_hidden(Slot::new(SLOT)), RailSet::only(rail(0)));
        // Both rails fail before the sender says anything.
        let mut slots = half(0);
        slots.hide(rail(0));
        let bits = bits(&slots, SLOT, 0b11, Some(1024));
        assert_eq!(slots.handle_part(source(1), bits, 512), Ok(false));
        slots.hide(rail(1));
        assert_eq!(judge(&mut slots, 0, &listed(0, 0b01, Some(1024))), seen(0b01, false));
        assert_eq!(repair(&mut slots, 0, 2), Err(Box::new(ImmediateFault::NotMissing)));
        assert_eq!(judge(&mut slots, 1, &listed(0, 0b10, None)), seen(0b11, true));
        assert_eq!(slots.take_hidden(Slot::new(SLOT)), RailSet::first_of(2));
        // A hidden part that is to come again is hidden no more.
        let mut slots = half(0);
        slots.hide(rail(0));
        assert_eq!(judge(&mut slots, 0, &listed(0b01, 0, Some(1024))), seen(0, false));
        assert_eq!(judge(&mut slots, 2, &listed(0, 0b01, Some(1024))), Judged::Lost);
    }
}
