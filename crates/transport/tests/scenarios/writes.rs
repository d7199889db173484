//! The writes of messages: the rails and lanes that carry them, and where their bytes are.

use std::collections::BTreeSet;

use railweave_fabric::PolicyName;
use railweave_transport::{ConnectionConfig, ConnectionEnd, Event, Flushed, MAX_MESSAGE_BYTES, MemoryKeys, Truncated};

use crate::pair::{OneSidedPair, Pair, Setup};

on_both_fabrics!(
    whole_messages_take_turns_on_the_lanes_of_their_rail,
    a_striped_message_goes_over_every_lane_from_64_kib_on,
    striped_messages_go_round_the_slots_over_rails_of_unlike_lanes,
    each_write_says_if_its_source_is_host_memory,
    the_counters_of_a_rail_have_the_bytes_that_it_carried,
    the_first_truncated_message_is_an_event,
    a_truncated_message_of_one_write_has_no_record,
    a_flush_goes_over_the_rail_that_carried_the_data,
    the_parts_of_a_connection_are_those_of_its_rails,
);

fn whole_messages_take_turns_on_the_lanes_of_their_rail<const ONE_SIDED: bool>() {
    for lanes in 1..=3 {
        let mut pair = Pair::<ONE_SIDED>::new(Setup { lanes: vec![lanes], ..Setup::default() });
        let mut used = Vec::new();
        for _ in 0..6 {
            let receive = pair.irecv();
            pair.drive();
            pair.posted(true);
            let send = pair.isend();
            used.extend(pair.posted(true).iter().map(|(place, _)| place.lane.0));
            assert_eq!((pair.received(receive), pair.sent(send)), (vec![8], 8));
        }
        let expected: Vec<u8> = (0..6).map(|message| message % lanes).collect();
        assert_eq!(used, expected);
    }
}

fn a_striped_message_goes_over_every_lane_from_64_kib_on<const ONE_SIDED: bool>() {
    const LONG: usize = 64 << 10;
    let config = ConnectionConfig { striped: true, ..ConnectionConfig::default() };
    let mut pair = Pair::<ONE_SIDED>::new(Setup { lanes: vec![3], bytes: LONG, config, ..Setup::two_rails() });
    for (size, lanes) in [(LONG, 3), (LONG - 128, 1), (LONG, 3)] {
        let receive = pair.irecv_of([size as u64]);
        pair.drive();
        pair.posted(true);
        let send = pair.isend_of(size as u64, 0);
        let used: BTreeSet<(u8, u8)> = pair.posted(true).iter().map(|(place, _)| (place.rail, place.lane.0)).collect();
        assert_eq!(used.len(), 2 * lanes, "{size} bytes: {used:?}");
        assert_eq!((pair.received(receive), pair.sent(send)), (vec![size as u64], size as u64));
    }
}

/// Sends more messages than a connection has slots. A rail with a single lane is the first of some to arrive.
fn striped_messages_go_round_the_slots_over_rails_of_unlike_lanes<const ONE_SIDED: bool>() {
    const LONG: usize = 64 << 10;
    let config = ConnectionConfig { striped: true, policy: PolicyName::Speed, ..ConnectionConfig::default() };
    for lanes in [vec![1, 4], vec![4, 1]] {
        let setup = Setup { lanes, bytes: LONG, config: config.clone(), ..Setup::two_rails() };
        let mut pair = Pair::<ONE_SIDED>::new(setup);
        for number in 0..600 {
            let receive = pair.irecv_of([LONG as u64]);
            pair.drive();
            pair.posted(true);
            let send = pair.isend_of(LONG as u64, 0);
            assert_eq!(pair.posted(true).len(), 5, "message {number}");
            let both = (pair.received(receive), pair.sent(send));
            assert_eq!(both, (vec![LONG as u64], LONG as u64), "message {number}");
        }
    }
}

/// One-sided: otherwise this many CTS have no room on their way to a sender that does not poll.
#[test]
fn striped_messages_find_a_receive_on_every_lane() {
    const LONG: usize = 64 << 10;
    let config = ConnectionConfig { striped: true, ..ConnectionConfig::default() };
    let mut pair = OneSidedPair::new(Setup { lanes: vec![3], bytes: LONG, config, ..Setup::default() });
    for _ in 0..2 {
        let mut receives = Vec::new();
        for _ in 0..256 {
            pair.drive();
            receives.extend(pair.receiver.irecv(&[pair.target.buffer(LONG as u64, 0)], false).unwrap());
        }
        pair.drive();
        assert!(receives.len() > 100, "only {} fit", receives.len());
        // The world panics if an immediate finds no receive.
        let sends: Vec<_> = receives.iter().map(|_| pair.isend_of(LONG as u64, 0)).collect();
        receives.into_iter().for_each(|receive| assert_eq!(pair.received(receive), [LONG as u64]));
        sends.into_iter().for_each(|send| assert_eq!(pair.sent(send), LONG as u64));
    }
}

fn each_write_says_if_its_source_is_host_memory<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(Setup::default());
    for host in [true, false] {
        let keys = MemoryKeys { host, ..pair.source.keys };
        let message = |pair: &Pair<ONE_SIDED>, tag| pair.source.message(8, tag).address;
        // A message that is alone in its receive, and a group with its record.
        for buffers in [1, 2] {
            let receive = if buffers == 1 { pair.irecv() } else { pair.irecv_of([8, 8]) };
            assert!(pair.posted(false).iter().all(|(_, write)| write.host), "CTS entries are in host memory");
            pair.drive();
            for tag in 0..buffers {
                let address = message(&pair, tag);
                let message = railweave_transport::Outgoing { address, size: 8, tag, keys: &keys };
                assert!((0..2).any(|_| pair.sender.isend(&message).unwrap().is_some()));
            }
            let writes: Vec<(u32, bool)> =
                pair.posted(true).iter().map(|(_, write)| (write.local.length, write.host)).collect();
            let expected = if buffers == 1 { vec![(8, host)] } else { vec![(8, host), (8, host), (64, true)] };
            assert_eq!(writes, expected, "the record is in host memory");
            assert_eq!(pair.received(receive).len(), buffers as usize);
        }
    }
}

fn the_counters_of_a_rail_have_the_bytes_that_it_carried<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(Setup { bytes: 16384, ..Setup::two_rails() });
    let mut sum = 0;
    for sizes in [vec![8], vec![16384], vec![8192, 100], vec![0], vec![0, 16384]] {
        let (receive, sizes): (_, Vec<u64>) = match sizes[..] {
            [one] => (pair.irecv_of([one]), sizes),
            [first, second] => (pair.irecv_of([first, second]), sizes),
            _ => unreachable!("there are no other groups"),
        };
        pair.drive();
        let sends: Vec<_> = (0..).zip(&sizes).map(|(tag, size)| pair.isend_of(*size, tag)).collect();
        assert_eq!(pair.received(receive), sizes);
        assert_eq!(sends.into_iter().map(|send| pair.sent(send)).collect::<Vec<_>>(), sizes);
        sum += sizes.iter().sum::<u64>();
        let carried =
            |end: &dyn ConnectionEnd| -> u64 { end.rails().iter().map(|rail| rail.counters.data_bytes()).sum() };
        assert_eq!(carried(&pair.sender), sum);
    }
}

fn the_first_truncated_message_is_an_event<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(Setup::default());
    let mut truncated = Vec::new();
    for (sizes, messages) in
        [([8, 8], [8, 8]), ([8, 8], [0, 7]), ([8, 5], [3, 6]), ([5, 8], [MAX_MESSAGE_BYTES, 8]), ([8, 8], [8, 8])]
    {
        let receive = pair.irecv_of(sizes);
        pair.drive();
        let mut sends = Vec::new();
        for (tag, size) in (0..).zip(messages) {
            sends.push(pair.isend_of(size, tag));
            truncated.extend(pair.sender.poll_event());
        }
        let expected: Vec<u64> = sizes.iter().zip(messages).map(|(size, message)| message.min(*size)).collect();
        assert_eq!(pair.received(receive), expected);
        let sent: Vec<u64> = sends.into_iter().map(|send| pair.sent(send)).collect();
        assert_eq!(sent, expected);
    }
    assert_eq!(truncated, [Event::MessageTruncated(Truncated { tag: 1, message: 6, receive: 5 })]);
}

fn a_truncated_message_of_one_write_has_no_record<const ONE_SIDED: bool>() {
    const MAX_WRITE: u32 = 4096;
    for (receive, writes) in [(8, 1), (u64::from(MAX_WRITE), 1), (u64::from(MAX_WRITE) + 128, 3)] {
        let setup = Setup { from: vec![MAX_WRITE], bytes: 8192, ..Setup::default() };
        let mut pair = Pair::<ONE_SIDED>::new(setup);
        let request = pair.irecv_of([receive]);
        pair.drive();
        pair.posted(true);
        let send = pair.isend_of(8192, 0);
        assert_eq!(pair.posted(true).len(), writes, "{receive} bytes");
        assert_eq!((pair.received(request), pair.sent(send)), (vec![receive], receive));
    }
}

fn a_flush_goes_over_the_rail_that_carried_the_data<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(Setup { bytes: 8192, ..Setup::two_rails() }.gpu());
    for (size, rails) in [(8, vec![0]), (8192, vec![0, 1]), (8, vec![0])] {
        let receive = pair.irecv_of([size]);
        pair.drive();
        let send = pair.isend_of(size, 0);
        assert_eq!((pair.received(receive), pair.sent(send)), (vec![size], size));
        let flushed = pair.receiver.iflush(&[pair.target.buffer(size, 0)]).unwrap();
        let Flushed::Pending(flush) = flushed else { panic!("GPU memory needs a flush") };
        assert_eq!(pair.flushed(), rails, "{size} bytes");
        pair.drive();
        assert_eq!(pair.receiver.test(flush), Ok(Some(&[][..])));
    }
}

fn the_parts_of_a_connection_are_those_of_its_rails<const ONE_SIDED: bool>() {
    let pair = Pair::<ONE_SIDED>::new(Setup::two_rails());
    let names =
        |end: &dyn ConnectionEnd| -> Vec<String> { end.parts().iter().map(|part| part.device.to_string()).collect() };
    assert_eq!(
        (names(&pair.sender), names(&pair.receiver)),
        (vec!["port 0".to_owned(), "port 1".to_owned()], vec!["port 2".to_owned(), "port 3".to_owned()])
    );
}
