//! Debts: on a two-sided fabric a receiver may put off an acknowledgement that its sender waits for, and says so.

use railweave_fabric_sim::Faults;

use crate::pair::{OneSidedPair, Setup, TwoSidedPair};

/// The longest time for which an acknowledgement finds no room, in nanoseconds.
const FULL_NS: u64 = 1_000_000;

#[test]
fn a_sender_waits_for_the_acknowledgement_that_its_receiver_owes() {
    let mut pair = TwoSidedPair::new(Setup::default().acks_put_off());
    let (first, second) = (pair.irecv(), pair.irecv());
    pair.drive();
    let send = pair.isend();
    assert!(!pair.receiver.owes(), "nothing has been placed");
    // The caller still waits for the second receive, so the first one may end in debt.
    assert_eq!(pair.received(first), [8]);
    assert!(pair.receiver.owes());
    pair.drive();
    assert_eq!(pair.sender.test(send), Ok(None), "nobody has told it");
    assert!(pair.receiver.acknowledge());
    assert!(!pair.receiver.owes());
    assert_eq!(pair.sent(send), 8);
    assert_eq!(pair.receiver.test(second), Ok(None));
}

#[test]
fn the_last_receive_ends_only_once_nothing_is_owed() {
    let faults = Faults { ack_refused_permille: 1000, ack_refused_ns: FULL_NS, ..Faults::none() };
    let mut pair = TwoSidedPair::new(Setup { faults, ..Setup::default() }.acks_put_off());
    let receive = pair.irecv();
    pair.drive();
    let send = pair.isend();
    pair.drive();
    assert_eq!(pair.receiver.test(receive), Ok(None), "its data is there, but the acknowledgement finds no room");
    assert!(pair.receiver.owes());
    assert_eq!(pair.sender.test(send), Ok(None), "nobody has told it");
    pair.world.advance(FULL_NS);
    assert!(pair.receiver.acknowledge());
    assert_eq!((pair.received(receive), pair.sent(send)), (vec![8], 8));
}

#[test]
fn nothing_is_owed_where_writes_land_by_themselves() {
    let mut pair = OneSidedPair::new(Setup::default().acks_put_off());
    let (first, _second) = (pair.irecv(), pair.irecv());
    pair.drive();
    let send = pair.isend();
    assert_eq!(pair.sent(send), 8, "the receiver has made no call");
    assert_eq!(pair.received(first), [8]);
    assert!(!pair.receiver.owes());
}
