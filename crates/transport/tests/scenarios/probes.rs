//! Probes: a connection that is stuck finds out if its peer's end is there, whatever calls its application makes; and a
//! peer that has closed says what it had received.

use railweave_transport::{ConnectionEnd, Error, Probe};

use crate::pair::{OneSidedPair, Setup, TwoSidedPair};

const OUT: Probe = Probe::Outstanding { by_adapter: true };

#[test]
fn a_sender_that_only_waits_for_a_cts_sees_that_its_rails_work() {
    let mut pair = OneSidedPair::new(Setup::two_rails());
    let isend = |pair: &mut OneSidedPair| pair.sender.isend(&pair.source.message(8, 0)).expect("the peer lives");
    assert_eq!(isend(&mut pair), None);
    assert_eq!(pair.sender.fate().judge(true, false), Probe::Unposted, "no call was stuck since");
    pair.posted(true);
    assert_eq!(isend(&mut pair), None);
    assert_eq!(pair.posted(true).len(), 1, "an empty write on one rail: another may be away");
    assert_eq!(pair.sender.fate().judge(false, false), OUT);
    pair.drive();
    assert_eq!(pair.sender.fate().judge(false, false), Probe::Unseen);
    assert_eq!(isend(&mut pair), None);
    assert_eq!(pair.sender.fate().judge(false, false), Probe::Carried);
    assert_eq!(pair.posted(true), [], "once is enough");
}

#[test]
fn an_answer_that_nobody_has_looked_for_is_found_with_the_next_stuck_call() {
    let mut pair = OneSidedPair::new(Setup::default());
    let receive = pair.irecv();
    assert_eq!(pair.receiver.fate().judge(true, false), Probe::Unposted);
    assert_eq!(pair.receiver.test(receive), Ok(None));
    assert_eq!(pair.receiver.fate().judge(false, false), OUT);
    pair.drive();
    // The application makes no calls for a while.
    for _ in 0..3 {
        assert_eq!(pair.receiver.fate().judge(false, false), Probe::Unseen);
    }
    assert_eq!(pair.receiver.test(receive), Ok(None));
    assert_eq!(pair.receiver.fate().judge(false, false), Probe::Carried);
}

#[test]
fn a_probe_is_out_until_one_rail_has_carried_it_or_none_is_left() {
    for failing in [1, 2] {
        let mut pair = OneSidedPair::new(Setup::two_rails().recovers());
        let receive = pair.irecv();
        pair.drive();
        pair.posted(false);
        assert_eq!(pair.receiver.fate().judge(true, false), Probe::Unposted);
        assert_eq!(pair.receiver.test(receive), Ok(None));
        let rails: Vec<u8> = pair.posted(false).into_iter().map(|(place, _)| place.rail).collect();
        assert_eq!(rails, [0, 1]);
        assert_eq!(pair.receiver.fate().judge(false, false), OUT);
        for rail in &rails[..failing] {
            let mut state = pair.world.lock();
            let end = state.connected_end(0, false, *rail).expect("the rail is up");
            state.fail(end);
        }
        for _ in 0..2 {
            assert_eq!(pair.receiver.test(receive), Ok(None));
        }
        if failing == 1 {
            pair.drive();
            assert_eq!(pair.receiver.test(receive), Ok(None));
            assert_eq!(pair.receiver.fate().judge(false, false), Probe::Carried);
        } else {
            for probe in [Probe::Unseen, Probe::Blocked { by_adapter: true }] {
                assert_eq!(pair.receiver.fate().judge(false, false), probe, "nothing can carry it");
                assert_eq!(pair.receiver.test(receive), Ok(None));
            }
        }
    }
}

#[test]
fn a_probe_that_the_peers_process_was_to_answer_needs_nobody_once_no_rail_is_left() {
    let mut pair = TwoSidedPair::new(Setup::default().recovers());
    let receive = pair.irecv();
    pair.drive();
    pair.posted(false);
    let judge = |pair: &TwoSidedPair, is_due| pair.receiver.fate().judge(is_due, true);
    assert_eq!(judge(&pair, true), Probe::Unposted);
    assert_eq!(pair.receiver.test(receive), Ok(None));
    assert_eq!(judge(&pair, false), Probe::Outstanding { by_adapter: false });
    {
        let mut state = pair.world.lock();
        let end = state.connected_end(0, false, 0).expect("the rail is up");
        state.fail(end);
    }
    for probe in [Probe::Unseen, Probe::Blocked { by_adapter: true }] {
        assert_eq!(pair.receiver.test(receive), Ok(None));
        assert_eq!(judge(&pair, false), probe);
    }
}

#[test]
fn a_rail_that_fails_is_no_answer_to_the_probe_on_another() {
    let mut pair = OneSidedPair::new(Setup::two_rails().recovers());
    let isend = |pair: &mut OneSidedPair| pair.sender.isend(&pair.source.message(8, 0)).expect("it recovers");
    assert_eq!(pair.sender.fate().judge(true, false), Probe::Unposted);
    assert_eq!(isend(&mut pair), None);
    assert_eq!(pair.posted(true).len(), 2);
    assert_eq!(pair.sender.fate().judge(false, false), OUT);
    {
        let mut state = pair.world.lock();
        let end = state.connected_end(0, true, 0).expect("the rail is up");
        state.fail(end);
    }
    for probe in [Probe::Unseen, OUT] {
        assert_eq!(isend(&mut pair), None);
        assert_eq!(pair.sender.fate().judge(false, false), probe);
    }
    pair.drive();
    assert_eq!(isend(&mut pair), None);
    assert_eq!(pair.sender.fate().judge(false, false), Probe::Carried);
}

#[test]
fn where_the_peers_process_must_answer_nothing_is_posted_without_need() {
    let mut pair = TwoSidedPair::new(Setup::default());
    let receive = pair.irecv();
    assert_eq!(pair.receiver.fate().judge(true, false), Probe::Unposted);
    for _ in 0..3 {
        assert_eq!(pair.receiver.test(receive), Ok(None));
        assert_eq!(pair.receiver.fate().judge(false, false), Probe::Unposted);
    }
    assert_eq!(pair.receiver.fate().judge(false, true), Probe::Unposted);
    assert_eq!(pair.receiver.test(receive), Ok(None));
    assert_eq!(pair.receiver.fate().judge(false, true), Probe::Outstanding { by_adapter: false });
    pair.drive();
    assert_eq!(pair.sender.isend(&pair.source.message(8, 1)), Ok(None), "a call of the peer's places it");
    pair.drive();
    assert_eq!(pair.receiver.test(receive), Ok(None));
    assert_eq!(pair.receiver.fate().judge(false, true), Probe::Carried);
}

#[test]
fn a_lost_peer_ends_what_is_stuck_and_its_bye_ends_what_it_had_received() {
    for is_received in [true, false] {
        let mut pair = OneSidedPair::new(Setup::default());
        let receive = pair.irecv();
        pair.drive();
        let send = pair.isend();
        if is_received {
            pair.drive();
            assert_eq!(pair.received(receive), [8]);
        }
        let received = pair.receiver.received().expect("it is the receiver");
        assert_eq!(pair.sender.received(), None);
        pair.sender.fate().set_received(received);
        if is_received {
            assert_eq!(pair.sent(send), 8);
        } else {
            assert_eq!(pair.sender.test(send), Ok(None));
            pair.sender.fate().set_lost(Error::peer("it is gone"));
            assert_eq!(pair.sender.test(send), Err(Error::peer("it is gone")));
        }
    }
}
