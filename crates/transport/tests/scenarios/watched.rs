//! The rails of requests in progress, as a profiler sees them between two calls.

use railweave_fabric::{RailId, RailSet};
use railweave_transport::{Carriers, SendRequest};

use crate::pair::{Pair, Setup};

on_both_fabrics!(
    the_rails_of_a_split_message_are_known_from_its_post_to_its_end,
    a_message_that_travels_whole_has_one_rail,
    messages_of_a_group_have_no_rails_before_the_last_of_them,
    a_slot_that_is_used_again_has_no_rails,
    a_sender_without_a_receive_waits_for_its_cts,
);

const BIG: u64 = 1 << 20;

fn two_rails<const ONE_SIDED: bool>() -> Pair<ONE_SIDED> {
    Pair::new(Setup { bytes: BIG as usize, ..Setup::two_rails() })
}

fn both() -> RailSet {
    RailSet::from_bits(3)
}

fn bytes_on<const ONE_SIDED: bool>(pair: &Pair<ONE_SIDED>, send: SendRequest) -> Vec<u64> {
    let slot = pair.sender.posted_slot(send).expect("it was posted");
    RailId::all().take(2).map(|rail| pair.sender.bytes_on(slot, send, rail)).collect()
}

fn the_rails_of_a_split_message_are_known_from_its_post_to_its_end<const ONE_SIDED: bool>() {
    let mut pair = two_rails::<ONE_SIDED>();
    let receive = pair.irecv_of([BIG]);
    assert_eq!(pair.receiver.carriers(receive), Carriers::default(), "nothing has come");
    pair.drive();
    let send = pair.isend_of(BIG, 0);
    let slot = pair.sender.posted_slot(send).expect("it was posted");
    assert_eq!(pair.sender.carriers(slot), Carriers { active: both(), missing: both() });
    let bytes = bytes_on(&pair, send);
    assert_eq!(bytes.iter().sum::<u64>(), BIG);
    assert!(bytes.iter().all(|bytes| (BIG / 3..2 * BIG / 3).contains(bytes)), "rails of one speed: {bytes:?}");
    assert_eq!(pair.received(receive), [BIG]);
    assert_eq!(pair.receiver.carriers(receive), Carriers { active: both(), missing: RailSet::EMPTY });
    assert_eq!(pair.sent(send), BIG);
    assert_eq!(pair.sender.carriers(slot), Carriers { active: both(), missing: RailSet::EMPTY });
}

fn a_message_that_travels_whole_has_one_rail<const ONE_SIDED: bool>() {
    let mut pair = two_rails::<ONE_SIDED>();
    let receive = pair.irecv_of([64]);
    pair.drive();
    let send = pair.isend_of(64, 0);
    let slot = pair.sender.posted_slot(send).expect("it was posted");
    let Carriers { active, missing } = pair.sender.carriers(slot);
    assert!(active.is_single() && missing == active);
    let rail = active.first().expect("there is one");
    let expected: Vec<u64> = RailId::all().take(2).map(|other| if other == rail { 64 } else { 0 }).collect();
    assert_eq!(bytes_on(&pair, send), expected);
    assert_eq!(pair.received(receive), [64]);
    assert_eq!(pair.receiver.carriers(receive), Carriers { active, missing: RailSet::EMPTY });
}

fn messages_of_a_group_have_no_rails_before_the_last_of_them<const ONE_SIDED: bool>() {
    let mut pair = two_rails::<ONE_SIDED>();
    let half = BIG / 2;
    let group = pair.irecv_of([half, half]);
    pair.drive();
    let first = pair.isend_of(half, 0);
    assert_eq!(pair.sender.posted_slot(first), None, "it waits for the other");
    let second = pair.isend_of(half, 1);
    let slot = pair.sender.posted_slot(second).expect("the group was posted");
    assert_eq!(pair.sender.posted_slot(first), Some(slot));
    assert_eq!(pair.sender.carriers(slot), Carriers { active: both(), missing: both() });
    for send in [first, second] {
        assert_eq!(bytes_on(&pair, send).iter().sum::<u64>(), half);
    }
    let none = SendRequest::from_index(200);
    assert_eq!(pair.sender.posted_slot(none), None, "it is no request of the group");
    assert_eq!(pair.received(group), [half, half]);
    assert_eq!([first, second].map(|send| pair.sent(send)), [half; 2]);
}

fn a_slot_that_is_used_again_has_no_rails<const ONE_SIDED: bool>() {
    let mut pair = two_rails::<ONE_SIDED>();
    let mut slots = Vec::new();
    for _ in 0..=256 {
        let receive = pair.irecv_of([64]);
        pair.drive();
        let send = pair.isend_of(64, 0);
        slots.push(pair.sender.posted_slot(send).expect("it was posted"));
        assert_eq!((pair.received(receive), pair.sent(send)), (vec![64], 64));
    }
    let active = |slot| pair.sender.carriers(slot).active;
    assert_eq!(active(slots[0]), RailSet::EMPTY);
    assert!(slots[1..].iter().all(|slot| active(*slot).is_single()));
}

fn a_sender_without_a_receive_waits_for_its_cts<const ONE_SIDED: bool>() {
    let mut pair = two_rails::<ONE_SIDED>();
    assert!(pair.sender.waits_for_cts());
    let group = pair.irecv_of([8, 8]);
    pair.drive();
    let message = pair.source.message(8, 3);
    assert_eq!(pair.sender.isend(&message).unwrap(), None, "no receive has this tag");
    assert!(!pair.sender.waits_for_cts(), "the CTS is there");
    let first = pair.isend_of(8, 0);
    assert!(!pair.sender.waits_for_cts(), "the group is open");
    let second = pair.isend_of(8, 1);
    assert!(pair.sender.waits_for_cts(), "and now it is full");
    assert_eq!(pair.received(group), [8, 8]);
    assert_eq!([first, second].map(|send| pair.sent(send)), [8; 2]);
}
