//! Promises: an accepted call does what it promises the peer without a later call, and a request that is done stays
//! done.

use railweave_fabric_sim::Faults;
use railweave_transport::{Cause, ConnectionEnd, Error, Flushed, Lost, LostCause, SendRequest};

use crate::pair::{OneSidedPair, Pair, Setup, TwoSidedPair, drive};

/// The report by the rest of the process that the peer has closed the connection.
fn closed() -> Error {
    Lost { peer: "node2".to_owned(), cause: LostCause::Bye }.into()
}

on_both_fabrics!(
    receives_that_are_posted_before_a_silence_are_all_known_to_the_sender,
    a_flush_ends_when_its_adapter_is_gone_though_that_completes_nothing,
    a_send_is_done_though_the_same_poll_brings_the_end_of_a_lane,
    a_broken_connection_says_why_at_every_call_and_sends_nothing_more,
    a_message_that_only_one_rail_took_breaks_the_connection,
    a_closed_connection_is_drained_when_each_of_its_rails_is,
    a_lost_peer_ends_a_call_that_waits_for_it,
    a_message_without_a_receive_fails_if_the_peer_is_lost_and_nothing_moves,
    a_receive_that_may_end_early_does_so_where_data_lands_by_itself,
    no_receive_is_done_once_the_peer_has_broken_the_protocol,
);

fn receives_that_are_posted_before_a_silence_are_all_known_to_the_sender<const ONE_SIDED: bool>() {
    for ahead in [1, 2, 3, 8, 32] {
        let mut pair = Pair::<ONE_SIDED>::new(Setup::two_rails());
        // In rounds, because earlier messages must not change the outcome.
        for _ in 0..200 {
            let receives: Vec<_> = (0..ahead).map(|_| pair.irecv()).collect();
            pair.drive();
            // From here on the receiver makes no call until all messages are on their way.
            let sends: Vec<_> = (0..ahead).map(|_| pair.isend()).collect();
            receives.into_iter().for_each(|receive| assert_eq!(pair.received(receive), [8]));
            sends.into_iter().for_each(|send| assert_eq!(pair.sent(send), 8));
        }
        let written: u64 = pair.receiver.rails().iter().map(|rail| rail.counters.cts_writes()).sum();
        assert_eq!(written, 200 * ahead, "each receive has a write of its own");
    }
}

// One-sided: otherwise data lands when the receiver polls, and then this peer has closed already.
#[test]
fn a_flush_needs_the_adapter_and_not_the_peer() {
    let mut pair = OneSidedPair::new(Setup::default().gpu());
    let receive = pair.irecv();
    pair.drive();
    let send = pair.isend();
    assert_eq!(pair.sent(send), 8);
    // The peer closes, as it may: all that it sent is acknowledged.
    drop(pair.sender);
    pair.receiver.fate().set_lost(closed());
    assert_eq!(pair.receiver.test(receive).unwrap(), Some(&[8][..]));
    let buffer = pair.target.buffer(8, 0);
    let Flushed::Pending(flush) = pair.receiver.iflush(&[buffer]).unwrap() else { panic!("GPU memory needs a flush") };
    assert_eq!(pair.receiver.test(flush), Ok(None), "the adapter takes its time");
    drive(&pair.world);
    assert_eq!(pair.receiver.test(flush), Ok(Some(&[][..])));
    let second = pair.receiver.irecv(&[buffer], false).unwrap().expect("there is room");
    assert_eq!(pair.receiver.test(second), Err(closed()), "what the peer still owes never comes");
}

fn a_flush_ends_when_its_adapter_is_gone_though_that_completes_nothing<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(Setup::default().gpu());
    let receive = pair.irecv();
    pair.drive();
    pair.isend();
    assert_eq!(pair.received(receive), [8]);
    let buffer = pair.target.buffer(8, 0);
    let Flushed::Pending(flush) = pair.receiver.iflush(&[buffer]).unwrap() else { panic!("GPU memory needs a flush") };
    // The peer leaves, which does not matter to a flush. Then the adapter fails: time stands still, so it completes
    // nothing.
    pair.receiver.fate().set_lost(closed());
    assert_eq!(pair.receiver.test(flush), Ok(None));
    let failed = Error::local("the adapter has failed");
    pair.receiver.fate().set_failed(failed.clone());
    assert_eq!(pair.receiver.test(flush), Err(failed), "the flush never ends otherwise");
}

/// Completions that come so late that one poll brings all of them.
fn late() -> Setup {
    Setup { faults: Faults { completion_late_ns: 1_000_000, ..Faults::none() }, ..Setup::default() }
}

// One-sided, for the same reason.
#[test]
fn a_receive_is_done_though_the_same_poll_brings_the_end_of_a_lane() {
    let mut pair = OneSidedPair::new(late());
    let (first, second) = (pair.irecv(), pair.irecv());
    pair.drive();
    pair.isend();
    pair.drive();
    drop(pair.sender);
    // Its CTS reaches nobody.
    assert!(pair.receiver.irecv(&[pair.target.buffer(8, 0)], false).unwrap().is_some());
    drive(&pair.world);
    assert_eq!(pair.receiver.test(first).unwrap(), Some(&[8][..]));
    let error = pair.receiver.test(second).expect_err("the lane has ended");
    assert!(matches!(*error, Cause::Lane { .. }), "{error}");
    assert!(error.to_string().contains("rail 0 (port 1 - "), "{error}");
}

fn a_send_is_done_though_the_same_poll_brings_the_end_of_a_lane<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(late());
    let receive = pair.irecv();
    pair.irecv();
    pair.drive();
    let send = pair.isend();
    pair.drive();
    // Only this poll places the data on a two-sided fabric; then its completion is late.
    assert_eq!(pair.receiver.test(receive).unwrap().is_some(), ONE_SIDED);
    pair.drive();
    let lost = pair.isend();
    drop(pair.receiver);
    drive(&pair.world);
    assert_eq!(pair.sender.test(send).unwrap(), Some(8));
    let error = pair.sender.test(lost).expect_err("the lane has ended");
    assert!(matches!(*error, Cause::Lane { .. }), "{error}");
}

fn a_broken_connection_says_why_at_every_call_and_sends_nothing_more<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(Setup::default());
    for _ in 0..4 {
        pair.irecv();
    }
    pair.drive();
    let send = pair.isend();
    drop(pair.receiver);
    drive(&pair.world);
    let error = pair.sender.test(send).expect_err("the lane has ended");
    assert!(matches!(*error, Cause::Lane { .. }), "{error}");
    // Later reports change nothing, although there are CTS for three more messages.
    pair.sender.fate().set_failed(Error::local("the adapter has failed"));
    let writes =
        |sender: &dyn ConnectionEnd| sender.rails().iter().map(|rail| rail.counters.data_writes()).sum::<u64>();
    let before = writes(&pair.sender);
    for _ in 0..3 {
        assert_eq!(pair.sender.isend(&pair.source.message(8, 0)), Err(error.clone()));
        assert_eq!(pair.sender.test(send), Err(error.clone()));
    }
    assert_eq!(writes(&pair.sender), before);
}

fn a_message_that_only_one_rail_took_breaks_the_connection<const ONE_SIDED: bool>() {
    // A message that is as long as its receive, and one that is truncated, which takes the other path.
    for size in [8192, 9000] {
        let mut pair = Pair::<ONE_SIDED>::new(Setup { bytes: 16384, ..Setup::two_rails() });
        let receive = pair.irecv_of([8192]);
        pair.drive();
        assert!(pair.sender.isend(&pair.source.message(8, 1)).unwrap().is_none(), "no buffer has this tag");
        // The sender's rails are the first two ends in the world.
        pair.world.lock().fail(1);
        let error = pair.sender.isend(&pair.source.message(size, 0)).expect_err("its second rail is gone");
        assert_eq!(pair.posted(true).iter().map(|(place, _)| place.rail).collect::<Vec<_>>(), [0]);
        // The first rail's part arrives, and its completion belongs to nobody.
        pair.drive();
        let _ = pair.receiver.test(receive);
        pair.drive();
        for _ in 0..3 {
            assert_eq!(pair.sender.test(SendRequest::from_index(0)), Err(error.clone()));
        }
    }
}

fn a_closed_connection_is_drained_when_each_of_its_rails_is<const ONE_SIDED: bool>() {
    // Short messages take turns on the rails, so the last one is on either of them.
    for earlier in 0..2 {
        let mut pair = Pair::<ONE_SIDED>::new(Setup::two_rails());
        for _ in 0..earlier {
            let receive = pair.irecv();
            pair.drive();
            let send = pair.isend();
            assert_eq!((pair.received(receive), pair.sent(send)), (vec![8], 8));
        }
        let receive = pair.irecv();
        pair.drive();
        pair.isend();
        pair.sender.start_linger();
        assert!(!pair.sender.linger(), "the message is on its way");
        assert_eq!(pair.received(receive), [8]);
        pair.drive();
        assert!((0..3).any(|_| pair.sender.linger()), "it has arrived");
    }
}

/// Two-sided: elsewhere data lands without this side's processor.
#[test]
fn a_receiver_that_is_closed_discards_what_arrives() {
    for closes in [false, true] {
        let mut pair = TwoSidedPair::new(Setup::default());
        pair.source.region.write(0, &[7; 8]);
        let receive = pair.irecv();
        pair.drive();
        let send = pair.isend();
        if closes {
            pair.receiver.start_linger();
        }
        pair.drive();
        if closes {
            assert!((0..3).any(|_| pair.receiver.linger()), "nothing is owed any more");
        } else {
            assert_eq!(pair.received(receive), [8]);
        }
        assert_eq!(pair.sent(send), 8, "the sender need not wait");
        let mut bytes = [0; 8];
        pair.target.region.read(0, &mut bytes);
        assert_eq!(bytes, if closes { [0; 8] } else { [7; 8] });
    }
}

/// A call that finds that the peer is lost looks at the rails first: as long as they report anything, nothing is stuck.
fn a_message_without_a_receive_fails_if_the_peer_is_lost_and_nothing_moves<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(Setup::default());
    let receive = pair.irecv();
    pair.drive();
    let send = pair.isend();
    assert_eq!(pair.received(receive), [8]);
    pair.drive();
    pair.sender.fate().set_lost(closed());
    let message = pair.source.message(8, 0);
    assert_eq!(pair.sender.isend(&message), Ok(None), "its polls brought the end of the first message");
    assert_eq!(pair.sender.isend(&message), Err(closed()));
    assert_eq!(pair.sender.test(send), Ok(Some(8)), "it was done before");
}

fn a_lost_peer_ends_a_call_that_waits_for_it<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(Setup::two_rails());
    let receives = [pair.irecv(), pair.irecv()];
    pair.drive();
    let sends = [pair.isend(), pair.isend()];
    receives.into_iter().for_each(|receive| assert_eq!(pair.received(receive), [8]));
    sends.into_iter().for_each(|send| assert_eq!(pair.sent(send), 8));
    let receive = pair.irecv();
    pair.drive();
    let send = pair.isend();
    pair.sender.fate().set_lost(closed());
    pair.receiver.fate().set_lost(closed());
    assert_eq!(pair.receiver.test(receive), Err(closed()), "time stands still");
    assert_eq!(pair.sender.test(send), Err(closed()));
}

/// One-sided, so that no call of one end depends on the calls of the other.
#[test]
fn a_call_that_brought_something_does_not_ask_for_the_peer() {
    // Short messages go over one rail, long ones over both.
    for size in [8, 8192] {
        let mut pair = OneSidedPair::new(Setup { bytes: 8192, ..Setup::two_rails() });
        let receives = [pair.irecv_of([size]), pair.irecv_of([size])];
        pair.drive();
        pair.isend_of(size, 0);
        pair.drive();
        let second = pair.isend_of(size, 0);
        pair.sender.fate().set_lost(closed());
        pair.receiver.fate().set_lost(closed());
        assert_eq!(pair.sender.test(second), Ok(None), "the first one is done");
        assert_eq!(pair.receiver.test(receives[1]), Ok(None), "the first one is there");
        assert_eq!(pair.sender.test(second), Err(closed()));
        assert_eq!(pair.receiver.test(receives[1]), Err(closed()));
        assert_eq!(pair.receiver.test(receives[0]), Ok(Some(&[size][..])), "it was complete before");
    }
}

/// One-sided: otherwise this many CTS have no room on their way to a sender that does not poll.
#[test]
fn a_receive_without_a_slot_asks_for_the_peer_if_its_poll_brought_nothing() {
    for size in [8, 8192] {
        let mut pair = OneSidedPair::new(Setup { bytes: 8192, ..Setup::two_rails() });
        for _ in 0..256 {
            pair.irecv_of([size]);
            pair.drive();
        }
        pair.isend_of(size, 0);
        pair.drive();
        pair.receiver.fate().set_lost(closed());
        let buffer = pair.target.buffer(size, 0);
        let mut posted = (0..3).map(|_| pair.receiver.irecv(&[buffer], false));
        assert_eq!(posted.next(), Some(Ok(None)), "its poll brought a message");
        assert_eq!(posted.next(), Some(Err(closed())));
    }
}

fn a_receive_that_may_end_early_does_so_where_data_lands_by_itself<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(Setup::default());
    for is_group in [false, true] {
        let group = [pair.target.buffer(8, 0), pair.target.buffer(6, 1)];
        let buffers = if is_group { &group[..] } else { &group[..1] };
        // As many as there are slots, twice: an early receive gives its slot back.
        for _ in 0..512 {
            let receive = (0..2).find_map(|_| pair.receiver.irecv(buffers, true).unwrap()).expect("there is room");
            let sizes: &[u64] = if is_group { &[8, 6] } else { &[8] };
            assert_eq!(pair.receiver.test(receive), Ok(ONE_SIDED.then_some(sizes)), "these are the buffers' sizes");
            if ONE_SIDED {
                let error = pair.receiver.test(receive).expect_err("it has ended");
                assert!(matches!(*error, Cause::Misuse(_)), "{error}");
            }
            drive(&pair.world);
            let messages = (0..buffers.len() as u32).map(|tag| pair.source.message(6, tag));
            let mut isend = |message| (0..2).find_map(|_| pair.sender.isend(&message).unwrap()).expect("there is room");
            let sends: Vec<_> = messages.map(&mut isend).collect();
            drive(&pair.world);
            if !ONE_SIDED {
                assert_eq!(pair.receiver.test(receive), Ok(Some(&[6, 6][..buffers.len()])), "these are exact");
                drive(&pair.world);
            }
            sends.into_iter().for_each(|send| assert_eq!(pair.sender.test(send), Ok(Some(6))));
        }
    }
}

fn no_receive_is_done_once_the_peer_has_broken_the_protocol<const ONE_SIDED: bool>() {
    for is_broken in [false, true] {
        let mut pair = Pair::<ONE_SIDED>::new(Setup::default());
        let receive = pair.irecv();
        pair.drive();
        // An immediate that names no rail. One poll reports it and, after it, that of a message.
        assert!(!is_broken || pair.world.lock().forge(0, u8::MAX, |_| 0));
        pair.isend();
        pair.drive();
        match pair.receiver.test(receive) {
            Ok(done) => assert!(!is_broken && done == Some(&[8])),
            Err(error) => assert!(is_broken && matches!(*error, Cause::Violation { .. }), "{error}"),
        }
    }
}
