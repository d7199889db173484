//! Bugs that the simulation has found, each as the shortest sequence of calls that shows it.

use railweave_fabric_sim::Faults;
use railweave_transport::{Cause, ConnectionEnd, Error};

use crate::pair::{OneSidedPair, Pair, Setup, drive};

on_both_fabrics!(
    ports_of_different_longest_writes_carry_long_messages,
    a_request_that_is_complete_does_not_fail_with_a_lane,
    a_receive_that_completes_in_the_poll_of_a_failure_is_done,
    a_request_that_is_complete_does_not_fail_with_a_refused_post,
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
    let mut pair = OneSidedPair::new(Setup { faults, lanes: vec![1], ..Setup::default() });
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

/// A send was complete, but its rail had not been polled yet when a call found that the peer was gone: the send failed.
///
/// One-sided: elsewhere such a call polls the rails first.
#[test]
fn a_send_that_is_complete_does_not_fail_with_a_lost_peer() {
    const SIZE: u64 = 1 << 20;
    let mut pair = OneSidedPair::new(Setup { bytes: SIZE as usize, ..Setup::two_rails() });
    pair.irecv_of([SIZE]);
    pair.drive();
    let send = pair.isend_of(SIZE, 0);
    pair.drive();
    let lost = Error::peer("the peer is gone");
    pair.sender.fate().set_lost(lost.clone());
    let message = pair.source.message(8, 0);
    assert_eq!(pair.sender.isend(&message), Ok(None), "its last look at the rails brings something");
    assert_eq!(pair.sender.isend(&message), Err(lost), "there will be no receive for it");
    assert_eq!(pair.sender.test(send).unwrap(), Some(SIZE), "both rails have acknowledged it");
}

/// The last completion arrived between a call's poll and its look at the fate: the call failed, although nothing was
/// stuck.
///
/// One-sided: elsewhere the poll itself brings what has arrived.
#[test]
fn what_arrives_during_a_call_is_not_stuck() {
    let mut pair = OneSidedPair::new(Setup::default());
    let receive = pair.irecv();
    pair.drive();
    let send = pair.isend();
    // The message lands after a microsecond.
    pair.world.advance(1_200);
    pair.world.lock().faults.poll_blind_permille = 1000;
    pair.receiver.fate().set_lost(Error::peer("the peer is gone"));
    assert_eq!(pair.receiver.test(receive).unwrap(), None, "the poll came just before it");
    assert_eq!(pair.receiver.test(receive).unwrap().unwrap(), [8]);
    pair.world.advance(1_200);
    pair.sender.fate().set_lost(Error::peer("the peer is gone"));
    assert_eq!(pair.sender.test(send).unwrap(), None, "the poll came just before it");
    assert_eq!(pair.sender.test(send).unwrap(), Some(8));
}

/// A lane had failed, and a call that polled no rail said only that the peer was gone.
#[test]
fn the_failure_of_a_lane_says_more_than_a_lost_peer_and_less_than_a_failed_adapter() {
    for has_adapter_failed in [false, true] {
        let mut pair = OneSidedPair::new(Setup::two_rails());
        let mut state = pair.world.lock();
        for (end, _) in state.connected_ends() {
            state.fail(end);
        }
        drop(state);
        let failed = Error::local("the adapter has failed");
        pair.sender.fate().set_lost(Error::peer("the peer is gone"));
        if has_adapter_failed {
            pair.sender.fate().set_failed(failed.clone());
        }
        let error = pair.sender.isend(&pair.source.message(8, 0)).expect_err("nothing works");
        match has_adapter_failed {
            true => assert_eq!(error, failed),
            false => assert!(matches!(*error, Cause::Lane { .. }), "{error}"),
        }
    }
}

/// Requests were complete on one rail when another refused a post: more of them than one poll reports failed.
fn a_request_that_is_complete_does_not_fail_with_a_refused_post<const ONE_SIDED: bool>() {
    let faults = Faults { poll_short_permille: 1000, ..Faults::none() };
    let mut pair = Pair::<ONE_SIDED>::new(Setup { lanes: vec![1], faults, ..Setup::default() });
    let receives = [0; 4].map(|_| pair.irecv());
    pair.drive();
    let sends = [0; 3].map(|_| pair.isend());
    pair.drive();
    if !ONE_SIDED {
        // The messages land and are acknowledged in a poll.
        assert!(pair.receiver.test(receives[0]).unwrap().is_some());
        pair.drive();
    }
    // The reports of the failure come so late that only a refusal tells of it.
    pair.world.lock().faults.completion_late_ns = 1_000_000_000;
    let mut state = pair.world.lock();
    for (end, _) in state.connected_ends() {
        state.fail(end);
    }
    drop(state);
    let _ = pair.sender.isend(&pair.source.message(8, 0));
    let _ = pair.receiver.irecv(&[pair.target.buffer(8, 0)], false);
    for send in sends {
        assert_eq!(pair.sender.test(send).unwrap(), Some(8));
    }
    for receive in &receives[usize::from(!ONE_SIDED)..3] {
        assert_eq!(pair.receiver.test(*receive).unwrap().unwrap(), [8]);
    }
    let error = pair.receiver.test(receives[3]).expect_err("nothing has come for it");
    assert!(matches!(*error, Cause::Post { .. }), "{error}");
}
