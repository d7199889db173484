//! What an accepted call promises the peer needs no later call: receives are posted, and then nothing more is called.

use crate::pair::{Process, connect};
use railweave_fabric::MemoryKind;
use railweave_fabric_sim::{Faults, World};
use railweave_transport::{
    Cause, ConnectionConfig, ConnectionEnd, Error, Flushed, Incoming, Lost, LostCause, Outgoing,
};

/// Time for anything to arrive.
const SOON_NS: u64 = 100_000;

/// What the rest of the process says of a peer that has closed the connection.
fn closed() -> Error {
    Lost { peer: "node2".to_owned(), cause: LostCause::Bye }.into()
}

#[test]
fn receives_that_are_posted_before_a_silence_are_all_known_to_the_sender() {
    for ahead in [1, 2, 3, 8, 32] {
        let world = World::new(1, Faults::none());
        let (near, far) = (Process::new(&world, &[1 << 30; 2]), Process::new(&world, &[1 << 30; 2]));
        let (mut sender, mut receiver) = connect(&ConnectionConfig::default(), &near, &far);
        let (source, target) = (near.memory(64), far.memory(64));
        let buffer = Incoming { address: target.region.address(), size: 8, tag: 0, keys: &target.keys };
        let message = Outgoing { address: source.region.address(), size: 8, tag: 0, keys: &source.keys };
        // In rounds, because what was learnt from earlier messages must change nothing.
        for _ in 0..200 {
            // Where there is no room the call looks for some, and the next one has it.
            let mut post = || (0..2).find_map(|_| receiver.irecv(&[buffer], false).unwrap()).expect("there is room");
            let receives: Vec<_> = (0..ahead).map(|_| post()).collect();
            world.advance(SOON_NS);
            // From here on the receiver makes no call until all is over.
            let sends: Vec<_> = (0..ahead)
                .map(|number| sender.isend(&message).unwrap().unwrap_or_else(|| panic!("no CTS for receive {number}")))
                .collect();
            world.advance(SOON_NS);
            sends.into_iter().for_each(|send| assert_eq!(sender.test(send).unwrap(), Some(8)));
            receives.into_iter().for_each(|receive| {
                assert_eq!(receiver.test(receive).unwrap(), Some(&[8][..]));
            });
        }
        let written: u64 = receiver.rails().iter().map(|rail| rail.counters.cts_writes()).sum();
        assert_eq!(written, 200 * ahead, "each receive has a write of its own");
    }
}

#[test]
fn a_flush_asks_nobody_but_the_adapter() {
    let world = World::new(1, Faults::none());
    let (near, far) = (Process::new(&world, &[1 << 30]), Process::new(&world, &[1 << 30]));
    let (mut sender, mut receiver) = connect(&ConnectionConfig::default(), &near, &far);
    let (source, target) = (near.memory(64), far.memory_of(MemoryKind::Cuda, 64));
    let buffer = Incoming { address: target.region.address(), size: 8, tag: 0, keys: &target.keys };
    let message = Outgoing { address: source.region.address(), size: 8, tag: 0, keys: &source.keys };
    let receive = receiver.irecv(&[buffer], false).unwrap().expect("there is room");
    world.advance(SOON_NS);
    let send = sender.isend(&message).unwrap().expect("the CTS is there");
    world.advance(SOON_NS);
    assert_eq!(sender.test(send).unwrap(), Some(8));
    // The peer closes, as it may: all that it sent is acknowledged.
    drop(sender);
    receiver.link().set_lost(closed());
    assert_eq!(receiver.test(receive).unwrap(), Some(&[8][..]));
    let Flushed::Pending(flush) = receiver.iflush(&[buffer]).unwrap() else { panic!("GPU memory needs a flush") };
    assert_eq!(receiver.test(flush), Ok(None), "the adapter takes its time");
    world.advance(SOON_NS);
    assert_eq!(receiver.test(flush), Ok(Some(&[][..])));
    let second = receiver.irecv(&[buffer], false).unwrap().expect("there is room");
    assert_eq!(receiver.test(second), Err(closed()), "what the peer still owes never comes");
}

#[test]
fn a_flush_ends_when_its_adapter_is_gone_though_that_completes_nothing() {
    let world = World::new(1, Faults::none());
    let (near, far) = (Process::new(&world, &[1 << 30]), Process::new(&world, &[1 << 30]));
    let (mut sender, mut receiver) = connect(&ConnectionConfig::default(), &near, &far);
    let (source, target) = (near.memory(64), far.memory_of(MemoryKind::Cuda, 64));
    let buffer = Incoming { address: target.region.address(), size: 8, tag: 0, keys: &target.keys };
    let message = Outgoing { address: source.region.address(), size: 8, tag: 0, keys: &source.keys };
    let receive = receiver.irecv(&[buffer], false).unwrap().expect("there is room");
    world.advance(SOON_NS);
    sender.isend(&message).unwrap().expect("the CTS is there");
    world.advance(SOON_NS);
    assert_eq!(receiver.test(receive).unwrap(), Some(&[8][..]));
    let Flushed::Pending(flush) = receiver.iflush(&[buffer]).unwrap() else { panic!("GPU memory needs a flush") };
    // The peer leaves, which is nothing to a flush, and then the adapter fails: time stands still, so it completes nothing.
    receiver.link().set_lost(closed());
    assert_eq!(receiver.test(flush), Ok(None));
    let failed = Error::local("the adapter has failed");
    receiver.link().set_failed(failed.clone());
    assert_eq!(receiver.test(flush), Err(failed), "the flush never ends otherwise");
}

#[test]
fn a_request_is_done_though_the_same_poll_brings_the_end_of_a_lane() {
    const LATE_NS: u64 = 1_000_000;
    // Completions come late, so that one poll brings all.
    let world = World::new(1, Faults { completion_late_ns: LATE_NS, ..Faults::none() });
    for dies in ["the sender", "the receiver"] {
        let (near, far) = (Process::new(&world, &[1 << 30]), Process::new(&world, &[1 << 30]));
        let (mut sender, mut receiver) = connect(&ConnectionConfig::default(), &near, &far);
        let (source, target) = (near.memory(64), far.memory(64));
        let buffer = Incoming { address: target.region.address(), size: 8, tag: 0, keys: &target.keys };
        let message = Outgoing { address: source.region.address(), size: 8, tag: 0, keys: &source.keys };
        let first = receiver.irecv(&[buffer], false).unwrap().expect("there is room");
        let second = receiver.irecv(&[buffer], false).unwrap().expect("there is room");
        world.advance(SOON_NS);
        let send = sender.isend(&message).unwrap().expect("the CTS is there");
        world.advance(SOON_NS);
        if dies == "the sender" {
            drop(sender);
            // Its CTS reaches nobody.
            assert!(receiver.irecv(&[buffer], false).unwrap().is_some());
            world.advance(10 * LATE_NS);
            assert_eq!(receiver.test(first).unwrap(), Some(&[8][..]));
            let error = receiver.test(second).expect_err("the lane has ended");
            assert!(matches!(*error, Cause::Lane { .. }), "{error}");
        } else {
            drop(receiver);
            let lost = sender.isend(&message).unwrap().expect("the CTS is there");
            world.advance(10 * LATE_NS);
            assert_eq!(sender.test(send).unwrap(), Some(8));
            let error = sender.test(lost).expect_err("the lane has ended");
            assert!(matches!(*error, Cause::Lane { .. }), "{error}");
        }
    }
}

#[test]
fn a_broken_connection_says_why_at_every_call_and_sends_nothing_more() {
    let world = World::new(1, Faults::none());
    let (near, far) = (Process::new(&world, &[1 << 30]), Process::new(&world, &[1 << 30]));
    let (mut sender, mut receiver) = connect(&ConnectionConfig::default(), &near, &far);
    let (source, target) = (near.memory(64), far.memory(64));
    let buffer = Incoming { address: target.region.address(), size: 8, tag: 0, keys: &target.keys };
    let message = Outgoing { address: source.region.address(), size: 8, tag: 0, keys: &source.keys };
    for _ in 0..4 {
        receiver.irecv(&[buffer], false).unwrap().expect("there is room");
    }
    world.advance(SOON_NS);
    let send = sender.isend(&message).unwrap().expect("the CTS is there");
    drop(receiver);
    world.advance(1_000 * SOON_NS);
    let first = loop {
        match sender.test(send) {
            Ok(None) => world.advance(SOON_NS),
            // It was there before the lane ended.
            Ok(Some(_)) => break sender.isend(&message).map(drop),
            Err(error) => break Err(error),
        }
    };
    let error = match first {
        Err(error) => error,
        Ok(()) => panic!("the lane has ended"),
    };
    assert!(matches!(*error, Cause::Lane { .. }), "{error}");
    // What is learnt later changes nothing, and there are CTS for two more messages.
    sender.link().set_failed(Error::local("the adapter has failed"));
    let before = sender_writes(&sender);
    for _ in 0..3 {
        assert_eq!(sender.isend(&message), Err(error.clone()));
        assert_eq!(sender.test(send), Err(error.clone()));
    }
    assert_eq!(sender_writes(&sender), before);
}

/// Writes of data that a connection has posted.
fn sender_writes(sender: &impl ConnectionEnd) -> u64 {
    sender.rails().iter().map(|rail| rail.counters.data_writes()).sum()
}

#[test]
fn a_closed_connection_is_drained_when_each_of_its_rails_is() {
    for earlier in 0..2 {
        let world = World::new(1, Faults::none());
        let (near, far) = (Process::new(&world, &[1 << 30; 2]), Process::new(&world, &[1 << 30; 2]));
        let (mut sender, mut receiver) = connect(&ConnectionConfig::default(), &near, &far);
        let (source, target) = (near.memory(64), far.memory(64));
        let buffer = Incoming { address: target.region.address(), size: 8, tag: 0, keys: &target.keys };
        let message = Outgoing { address: source.region.address(), size: 8, tag: 0, keys: &source.keys };
        // Short messages take turns on the rails.
        for _ in 0..earlier {
            let receive = receiver.irecv(&[buffer], false).unwrap().expect("there is room");
            world.advance(SOON_NS);
            let send = sender.isend(&message).unwrap().expect("the CTS is there");
            world.advance(SOON_NS);
            assert_eq!((sender.test(send), receiver.test(receive)), (Ok(Some(8)), Ok(Some(&[8][..]))));
        }
        receiver.irecv(&[buffer], false).unwrap().expect("there is room");
        world.advance(SOON_NS);
        sender.isend(&message).unwrap().expect("the CTS is there");
        sender.start_linger();
        assert!(!sender.linger(), "the message is under way");
        world.advance(SOON_NS);
        assert!((0..3).any(|_| sender.linger()), "it has arrived");
    }
}
