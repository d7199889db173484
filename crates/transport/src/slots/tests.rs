//! Tests of slots: the parts of receives, as they come, are lost and come again.

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
        (&[(0, SLOT, 0b01, Some(4096), 4096)], ImmediateFault::TooLong { sizes: vec![4096], capacities: vec![2048] }),
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
