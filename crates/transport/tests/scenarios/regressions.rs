//! Bugs that the simulation has found, each as the shortest sequence of calls that shows it.

use railweave_fabric_sim::Faults;
use railweave_transport::Cause;

use crate::pair::{OneSidedPair, Pair, Setup, drive};

on_both_fabrics!(
    ports_of_different_longest_writes_carry_long_messages,
    a_request_that_is_complete_does_not_fail_with_a_lane,
    a_receive_that_completes_in_the_poll_of_a_failure_is_done,
);

/// A connection cuts its writes to the length that its weakest port carries, but a send queue was only as deep as the
/// writes of its own port need: a message of more writes than that was never posted.
fn ports_of_different_longest_writes_carry_long_messages<const ONE_SIDED: bool>() {
    const SIZE: usize = 4 << 20;
    let mut pair = Pair::<ONE_SIDED>::new(Setup { from: vec![1 << 30, 4096], bytes: SIZE, ..Setup::two_rails() });
    let bytes: Vec<u8> = (0..SIZE).map(|index| (index / 100) as u8).collect();
    pair.source.region.write(0, &bytes);
    let receive = pair.irecv_of([SIZE as u64]);
    pair.drive();
    let send = pair.isend_of(SIZE as u64, 0);
    assert_eq!((pair.received(receive), pair.sent(send)), (vec![SIZE as u64], SIZE as u64));
    let mut arrived = vec![0; SIZE];
    pair.target.region.read(0, &mut arrived);
    assert!(arrived == bytes);
}

/// When the slot of the receiver's oldest receive was opened again, the receiver still counted that receive as the
/// oldest. So it found room in the ring of CTS entries where there was none, and overwrote entries that the sender had
/// not read.
///
/// One-sided: otherwise this many CTS have no room on their way to a sender that does not poll.
#[test]
fn entries_of_open_receives_are_never_overwritten() {
    let mut pair = OneSidedPair::new(Setup::default());
    // All slots are open once; 256 of the ring's 512 entries are taken.
    let mut open = Vec::new();
    for _ in 0..256 {
        open.push(pair.irecv());
        pair.drive();
    }
    for receive in open.drain(..40) {
        let send = pair.isend();
        assert_eq!((pair.received(receive), pair.sent(send)), (vec![8], 8));
    }
    // Groups of eight until the ring is full: 216 entries of open receives are left, and 37 groups fit next to them.
    let eight: Vec<_> = (0..8).map(|tag| pair.target.buffer(8, tag)).collect();
    let mut groups = Vec::new();
    for _ in 0..40 {
        groups.extend(pair.receiver.irecv(&eight, false).unwrap());
        pair.drive();
    }
    assert_eq!(groups.len(), 37, "(512 - 216) / 8");
    for receive in open {
        let send = pair.isend();
        assert_eq!((pair.received(receive), pair.sent(send)), (vec![8], 8));
    }
    for group in groups {
        let mut isend = |tag| pair.sender.isend(&pair.source.message(8, tag)).unwrap().expect("a group is open");
        let sends: Vec<_> = (0..8).map(&mut isend).collect();
        assert_eq!(pair.received(group), [8; 8]);
        sends.into_iter().for_each(|send| assert_eq!(pair.sent(send), 8));
    }
}

/// A rail broke, but its failed completion was not there yet: refilling its receives failed, which polled for the
/// reason, which refilled, and so on until the stack was full.
///
/// One-sided: otherwise nothing comes from a sender that is gone.
#[test]
fn a_broken_rail_that_has_not_said_why_does_not_loop() {
    let faults = Faults { completion_late_ns: 1_000_000_000, ..Faults::none() };
    let mut pair = OneSidedPair::new(Setup { faults, lanes: 1, ..Setup::default() });
    // All but one of the receives that are posted on the rail at first.
    let receives: Vec<_> = (0..63).map(|_| pair.irecv()).collect();
    pair.drive();
    for _ in 0..40 {
        pair.isend();
    }
    pair.drive();
    drop(pair.sender);
    // The lane breaks because this CTS reaches nobody.
    let buffers = [pair.target.buffer(8, 0)];
    let last = pair.receiver.irecv(&buffers, false).unwrap().expect("there is room");
    pair.world.advance(200_000);
    for receive in &receives[..40] {
        while pair.receiver.test(*receive).unwrap().is_none() {}
    }
    assert_eq!(pair.receiver.irecv(&buffers, false), Ok(None), "no receive is left, and none can be posted");
    drive(&pair.world);
    assert!(matches!(*pair.receiver.test(last).unwrap_err(), Cause::Lane { .. }), "now it says why");
}

/// All work of a request was complete, but the rail that was polled first had failed since, and the other rail had not
/// been polled yet: the request failed, although its message was delivered.
fn a_request_that_is_complete_does_not_fail_with_a_lane<const ONE_SIDED: bool>() {
    const SIZE: u64 = 1 << 20;
    let mut pair = Pair::<ONE_SIDED>::new(Setup { bytes: SIZE as usize, ..Setup::two_rails() });
    let [receive, cut_off] = [0; 2].map(|_| pair.irecv_of([SIZE]));
    pair.drive();
    let send = pair.isend_of(SIZE, 0);
    pair.drive();
    if !ONE_SIDED {
        // It lands and is acknowledged in a poll.
        assert!(pair.receiver.test(cut_off).unwrap().is_none());
        pair.drive();
    }
    let late = pair.isend_of(SIZE, 0);
    let mut state = pair.world.lock();
    for (end, _) in state.connected_ends() {
        state.fail(end);
    }
    drop(state);
    assert_eq!(pair.sender.test(send).unwrap(), Some(SIZE), "both rails have acknowledged it");
    assert_eq!(pair.receiver.test(receive).unwrap().unwrap(), [SIZE], "both rails have reported it");
    assert!(pair.sender.test(late).is_err() && pair.receiver.test(cut_off).is_err(), "this did not land");
}

/// One poll brings the end of a receive and, behind it, the failure of the lane that carried it.
fn a_receive_that_completes_in_the_poll_of_a_failure_is_done<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(Setup::default());
    let [first, second, third] = [0; 3].map(|_| pair.irecv_of([8]));
    pair.drive();
    for _ in 0..2 {
        pair.isend_of(8, 0);
    }
    pair.drive();
    // The completion of the second stays in the queue.
    pair.world.lock().faults.poll_short_permille = 1000;
    assert_eq!(pair.receiver.test(second).unwrap(), None);
    let mut state = pair.world.lock();
    state.faults.poll_short_permille = 0;
    for (end, _) in state.connected_ends() {
        state.fail(end);
    }
    drop(state);
    assert_eq!(pair.receiver.test(second).unwrap().unwrap(), [8]);
    assert_eq!(pair.receiver.test(first).unwrap().unwrap(), [8]);
    assert!(pair.receiver.test(third).is_err(), "nothing has come for it");
}
