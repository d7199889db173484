//! Queues, rings and slots that are filled to the last place.

use std::collections::BTreeSet;

use railweave_transport::{Flushed, MAX_MESSAGE_BYTES, Misuse, RecvRequest, SLOTS, SendRequest};

use crate::pair::{OneSidedPair, Pair, Setup};

/// Places in the queue of a receiver's lane.
const CTS_PLACES: usize = 128;

/// Places in the queue of a sender's lane.
const DATA_PLACES: usize = 256;

on_both_fabrics!(
    a_receive_of_one_buffer_takes_the_last_place_of_its_queue,
    a_receive_of_a_group_takes_the_last_two_places_of_its_queue,
    a_receive_may_have_a_gibibyte,
    a_group_whose_cts_go_round_the_end_of_the_ring_takes_two_writes,
    every_32nd_cts_is_signalled_even_if_it_goes_round_the_end_of_the_ring,
);

/// One lane, so that all messages of a rail share a queue.
fn one_lane(setup: Setup) -> Setup {
    Setup { lanes: vec![1], bytes: 8192, ..setup }
}

/// Posts receives of one buffer until no more fit. Returns their number.
fn fill<const ONE_SIDED: bool>(pair: &mut Pair<ONE_SIDED>, most: usize) -> usize {
    let buffer = pair.target.buffer(8, 0);
    (0..most).take_while(|_| pair.receiver.irecv(&[buffer], false).unwrap().is_some()).count()
}

fn a_receive_of_one_buffer_takes_the_last_place_of_its_queue<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(one_lane(Setup::default()));
    assert_eq!(fill(&mut pair, SLOTS), CTS_PLACES);
}

fn a_receive_of_a_group_takes_the_last_two_places_of_its_queue<const ONE_SIDED: bool>() {
    for (taken, fits) in [(CTS_PLACES - 2, true), (CTS_PLACES - 1, false)] {
        let mut pair = Pair::<ONE_SIDED>::new(one_lane(Setup::default()));
        assert_eq!(fill(&mut pair, taken), taken);
        let group = [0, 1].map(|tag| pair.target.buffer(8, tag));
        assert_eq!(pair.receiver.irecv(&group, false).unwrap().is_some(), fits, "{taken} places are taken");
    }
}

fn a_receive_may_have_a_gibibyte<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(Setup::default());
    for _ in 0..2 {
        let receive = pair.irecv_of([MAX_MESSAGE_BYTES]);
        pair.drive();
        let send = pair.isend();
        assert_eq!((pair.received(receive), pair.sent(send)), (vec![8], 8));
    }
}

fn a_group_whose_cts_go_round_the_end_of_the_ring_takes_two_writes<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(one_lane(Setup::default()));
    let mut posted = Vec::new();
    // Twice round the ring's 512 entries.
    for _ in 0..360 {
        let group = pair.irecv_of([8, 8, 8]);
        let lengths: Vec<u32> = pair.posted(false).iter().map(|(_, write)| write.local.length / 64).collect();
        posted.push(lengths);
        pair.drive();
        let sends = [0, 1, 2].map(|tag| pair.isend_of(8, tag));
        assert_eq!((pair.received(group), sends.map(|send| pair.sent(send))), (vec![8; 3], [8; 3]));
    }
    posted.retain(|lengths| *lengths != [3]);
    assert_eq!(posted, [[2, 1], [1, 2]], "512 = 170 * 3 + 2, 1024 = 341 * 3 + 1");
}

fn every_32nd_cts_is_signalled_even_if_it_goes_round_the_end_of_the_ring<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(one_lane(Setup::default()));
    let mut signalled = Vec::new();
    // 95 groups take 507 of the ring's 512 entries, and the next one has 8 buffers.
    for (number, buffers) in [vec![6; 32], vec![5; 63], vec![8]].concat().into_iter().enumerate() {
        let all: Vec<_> = (0..buffers).map(|tag| pair.target.buffer(8, tag)).collect();
        let group = (0..2).find_map(|_| pair.receiver.irecv(&all, false).unwrap()).expect("there is room");
        let writes = pair.posted(false);
        assert_eq!(writes.len(), if number == 95 { 2 } else { 1 });
        signalled.extend(writes.last().filter(|(_, write)| write.signalled).map(|_| number));
        pair.drive();
        let sends: Vec<SendRequest> = (0..buffers).map(|tag| pair.isend_of(8, tag)).collect();
        assert_eq!(pair.received(group), vec![8; buffers as usize]);
        sends.into_iter().for_each(|send| assert_eq!(pair.sent(send), 8));
    }
    assert_eq!(signalled, [31, 63, 95]);
}

/// One-sided: otherwise this many CTS have no room on their way to a sender that does not poll.
#[test]
fn as_many_messages_as_slots_are_on_their_way_at_once() {
    // Messages that travel whole, and messages that are split between two rails.
    for (setup, size) in [(Setup::default(), 8), (Setup::two_rails(), 8192)] {
        let mut pair = OneSidedPair::new(one_lane(setup));
        // A group first: it takes another path, which the messages after it leave again.
        let group = pair.irecv_of([8, 8]);
        pair.drive();
        let sends = [pair.isend_of(8, 0), pair.isend_of(8, 1)];
        assert_eq!((pair.received(group), sends.map(|send| pair.sent(send))), (vec![8, 8], [8, 8]));

        let irecv = |pair: &mut OneSidedPair| {
            pair.drive();
            pair.irecv_of([size])
        };
        let receives: Vec<RecvRequest> = (0..SLOTS).map(|_| irecv(&mut pair)).collect();
        assert_eq!(pair.receiver.irecv(&[pair.target.buffer(8, 0)], false), Ok(None), "all slots are open");
        pair.drive();
        let sends: Vec<SendRequest> = (0..SLOTS).map(|_| pair.isend_of(size, 0)).collect();
        let indices = |requests: &[SendRequest]| requests.iter().map(|request| request.index()).collect();
        assert_eq!(BTreeSet::from_iter(0..SendRequest::COUNT), indices(&sends));
        assert!((0..SendRequest::COUNT).all(|index| SendRequest::from_index(index).index() == index));
        receives.into_iter().for_each(|receive| assert_eq!(pair.received(receive), [size]));
        sends.into_iter().for_each(|send| assert_eq!(pair.sent(send), size));
    }
}

/// One-sided, for the same reason.
#[test]
fn a_group_goes_out_when_its_queue_has_room_for_its_messages_and_its_record() {
    // Each group of two takes three places, so four places are left, less those of the single messages.
    const GROUPS: usize = DATA_PLACES / 3 - 1;
    for (singles, fits) in [(1, true), (2, false), (3, false)] {
        let mut pair = OneSidedPair::new(one_lane(Setup::default()));
        let mut receives = Vec::new();
        for number in 0..GROUPS + singles + 2 {
            pair.drive();
            let is_single = (GROUPS..GROUPS + singles).contains(&number) || number > GROUPS + singles;
            receives.push(if is_single { pair.irecv() } else { pair.irecv_of([8, 8]) });
        }
        pair.drive();
        let mut sends: Vec<_> = (0..2 * GROUPS).map(|number| pair.isend_of(8, number as u32 % 2)).collect();
        sends.extend((0..singles).map(|_| pair.isend()));
        sends.push(pair.isend_of(8, 0));
        let last = pair.sender.isend(&pair.source.message(8, 1)).unwrap();
        assert_eq!(last.is_some(), fits, "after {singles} single messages");
        if fits {
            assert_eq!(pair.sender.isend(&pair.source.message(8, 0)), Ok(None), "the queue is full");
        }
        sends.extend(last);
        let first = sends.remove(0);
        assert_eq!(pair.sent(first), 8, "this polls, and so makes room");
        if !fits {
            sends.push(pair.isend_of(8, 1));
        }
        sends.push(pair.isend());
        receives.into_iter().for_each(|receive| assert!(pair.received(receive).iter().all(|size| *size == 8)));
        sends.into_iter().for_each(|send| assert_eq!(pair.sent(send), 8));
    }
}

/// One-sided, for the same reason.
#[test]
fn a_full_ring_of_cts_has_no_place_for_a_receive_of_one_buffer() {
    let mut pair = OneSidedPair::new(one_lane(Setup::default()));
    let groups: Vec<RecvRequest> = (0..64)
        .map(|_| {
            pair.drive();
            pair.irecv_of([8; 8])
        })
        .collect();
    pair.drive();
    let buffer = pair.target.buffer(8, 0);
    for _ in 0..3 {
        assert_eq!(pair.receiver.irecv(&[buffer], false), Ok(None), "the ring has 512 entries");
    }
    let sends: Vec<_> = (0..8).map(|tag| pair.isend_of(8, tag)).collect();
    assert_eq!(pair.received(groups[0]), [8; 8]);
    sends.into_iter().for_each(|send| assert_eq!(pair.sent(send), 8));
    // The group gave eight places back.
    assert_eq!(fill(&mut pair, 16), 8);
}

/// One-sided, for the same reason.
#[test]
fn every_request_of_a_receiver_may_be_in_progress_at_once() {
    let mut pair = OneSidedPair::new(Setup { lanes: vec![1], ..Setup::default() }.gpu());
    let mut indices = BTreeSet::new();
    for _ in 0..SLOTS {
        pair.drive();
        indices.insert(pair.irecv().index());
    }
    let buffer = pair.target.buffer(8, 0);
    let mut flushes = Vec::new();
    while let Ok(Flushed::Pending(flush)) = pair.receiver.iflush(&[buffer]) {
        assert!(indices.insert(flush.index()));
        flushes.push(flush);
    }
    assert_eq!(indices, BTreeSet::from_iter(0..RecvRequest::COUNT));
    assert!(indices.iter().all(|index| RecvRequest::from_index(*index).index() == *index));
    pair.drive();
    for flush in flushes {
        assert!((0..32).any(|_| pair.receiver.test(flush).unwrap().is_some()));
        assert_eq!(pair.receiver.test(flush), Err(Misuse::NoReceive(flush.index()).into()), "it has ended");
    }
}
