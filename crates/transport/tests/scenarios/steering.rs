//! The split of an open connection: measured, steered, and sampled.

use railweave_fabric::{MAX_RAILS, PolicyName, RailSet};
use railweave_fabric_sim::Faults;
use railweave_transport::{ConnectionConfig, ConnectionEnd, Order};

use crate::pair::{OneSidedPair, Pair, Setup};

const LONG: u64 = 64 << 10;

on_both_fabrics!(
    an_order_holds_from_the_next_message_on,
    a_drained_rail_carries_neither_data_nor_cts,
    the_next_message_is_sampled_whatever_the_rails,
    an_adapting_sender_measures_each_rail_by_three_empty_writes,
    an_order_waits_for_the_cts_of_the_message_that_follows_it,
    an_order_holds_for_a_group_that_is_not_filled_yet,
    cts_follow_the_receivers_order,
    a_group_leaves_nothing_in_flight,
    an_order_to_adapt_begins_with_empty_writes,
    a_sample_counts_in_microseconds,
    a_message_that_waits_for_its_cts_counts_once,
);

fn setup(policy: PolicyName) -> Setup {
    let config = ConnectionConfig { policy, ..ConnectionConfig::default() };
    Setup { config, bytes: LONG as usize, lanes: vec![1], ..Setup::two_rails() }
}

fn order(policy: PolicyName, weights: [u32; 2]) -> Order {
    let mut all = [0; MAX_RAILS];
    all[..2].copy_from_slice(&weights);
    Order::new(policy, all)
}

/// Sends a message. Returns the bytes that each rail carried.
fn exchange<const ONE_SIDED: bool>(pair: &mut Pair<ONE_SIDED>, size: u64) -> [u64; 2] {
    let receive = pair.irecv_of([size]);
    pair.drive();
    pair.posted(true);
    let send = pair.isend_of(size, 0);
    let mut carried = [0; 2];
    for (place, write) in pair.posted(true) {
        carried[usize::from(place.rail)] += u64::from(write.local.length);
    }
    assert_eq!((pair.received(receive), pair.sent(send)), (vec![size], size));
    carried
}

fn an_order_holds_from_the_next_message_on<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(setup(PolicyName::Speed));
    assert_eq!(exchange(&mut pair, LONG), [LONG / 2; 2]);
    pair.sender.steering().order(&order(PolicyName::Agent, [3, 1]));
    assert_eq!(exchange(&mut pair, LONG), [LONG / 4 * 3, LONG / 4]);
    pair.sender.steering().order(&order(PolicyName::Agent, [0, 1]));
    assert_eq!(exchange(&mut pair, 8), [0, 8]);
    assert_eq!(pair.sender.steering().current().weights[..2], [0, 1]);
    pair.sender.steering().order(&order(PolicyName::Adaptive, [0, 1]));
    assert!(exchange(&mut pair, LONG)[0] > 0, "the weights say nothing under this policy");
}

fn a_drained_rail_carries_neither_data_nor_cts<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(setup(PolicyName::Adaptive));
    let first = RailSet::first_of(1);
    let drained = Order { allowed: first, ..order(PolicyName::Adaptive, [1, 1]) };
    pair.sender.steering().order(&drained);
    pair.receiver.steering().order(&drained);
    let message = pair.source.message(LONG, 0);
    assert_eq!(pair.sender.isend(&message).unwrap(), None, "no receive is posted");
    for _ in 0..4 {
        let receive = pair.irecv_of([LONG]);
        assert!(pair.posted(false).iter().all(|(place, _)| place.rail == 0));
        pair.drive();
        let send = pair.isend_of(LONG, 0);
        assert!(pair.posted(true).iter().all(|(place, _)| place.rail == 0), "no empty write goes there either");
        assert_eq!((pair.received(receive), pair.sent(send)), (vec![LONG], LONG));
    }
    let nothing = Order { allowed: RailSet::EMPTY, ..drained };
    pair.sender.steering().order(&nothing);
    assert_eq!(exchange(&mut pair, LONG).iter().sum::<u64>(), LONG, "some rail has to");
}

/// Returns the number of latencies that the sender's rails have counted.
fn samples<const ONE_SIDED: bool>(pair: &Pair<ONE_SIDED>) -> Vec<u32> {
    pair.sender.rails().iter().map(|rail| rail.counters.latencies().iter().sum()).collect()
}

fn the_next_message_is_sampled_whatever_the_rails<const ONE_SIDED: bool>() {
    for policy in [PolicyName::Adaptive, PolicyName::Speed] {
        let one = Setup { lanes: vec![1], bytes: LONG as usize, config: setup(policy).config, ..Setup::default() };
        let mut pair = Pair::<ONE_SIDED>::new(one);
        exchange(&mut pair, 1000);
        assert_eq!(samples(&pair), [0], "nobody asked");
        pair.sender.steering().ask_for_sample();
        exchange(&mut pair, 1000);
        exchange(&mut pair, 1000);
        assert_eq!(samples(&pair), [1]);
        assert_eq!(pair.sender.rails()[0].counters.in_flight(), 0);

        let mut pair = Pair::<ONE_SIDED>::new(setup(policy));
        pair.sender.steering().ask_for_sample();
        exchange(&mut pair, LONG);
        exchange(&mut pair, LONG);
        assert_eq!(samples(&pair), [1, 1]);
    }
}

fn an_adapting_sender_measures_each_rail_by_three_empty_writes<const ONE_SIDED: bool>() {
    for (policy, most) in [(PolicyName::Adaptive, 3), (PolicyName::Speed, 0)] {
        let mut pair = Pair::<ONE_SIDED>::new(setup(policy));
        let mut pings = [0; 2];
        for _ in 0..10 {
            let receive = pair.irecv_of([LONG]);
            pair.drive();
            let send = pair.isend_of(LONG, 0);
            pair.drive();
            for (place, write) in pair.posted(true) {
                let is_ping = write.local.length == 0 && write.immediate.is_none();
                pings[usize::from(place.rail)] += u32::from(is_ping);
            }
            assert_eq!((pair.received(receive), pair.sent(send)), (vec![LONG], LONG));
        }
        assert_eq!(pings, [most; 2]);
    }
}

fn an_order_waits_for_the_cts_of_the_message_that_follows_it<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(setup(PolicyName::Speed));
    pair.sender.steering().order(&order(PolicyName::Agent, [1, 0]));
    let message = pair.source.message(LONG, 0);
    assert_eq!(pair.sender.isend(&message).unwrap(), None, "no receive is posted");
    assert_eq!(exchange(&mut pair, LONG), [LONG, 0]);
    assert_eq!(samples(&pair), [1, 0]);
}

fn an_order_holds_for_a_group_that_is_not_filled_yet<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(setup(PolicyName::Speed));
    let receive = pair.irecv_of([LONG; 2]);
    pair.drive();
    pair.posted(true);
    let first = pair.isend_of(LONG, 0);
    pair.sender.steering().order(&order(PolicyName::Agent, [0, 1]));
    let second = pair.isend_of(LONG, 1);
    assert!(pair.posted(true).iter().all(|(place, _)| place.rail == 1), "no other CTS has to come");
    assert_eq!((pair.received(receive), pair.sent(first), pair.sent(second)), (vec![LONG; 2], LONG, LONG));
}

fn cts_follow_the_receivers_order<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(setup(PolicyName::Speed));
    pair.receiver.steering().order(&order(PolicyName::Agent, [0, 1]));
    for _ in 0..3 {
        let receive = pair.irecv();
        let rails: Vec<u8> = pair.posted(false).iter().map(|(place, _)| place.rail).collect();
        assert_eq!(rails, [1]);
        pair.drive();
        let send = pair.isend();
        assert_eq!((pair.received(receive), pair.sent(send)), (vec![8], 8));
    }
}

fn a_group_leaves_nothing_in_flight<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(setup(PolicyName::Adaptive));
    let sizes = [100, LONG, 300];
    for _ in 0..5 {
        let receive = pair.irecv_of(sizes);
        pair.drive();
        let sends: Vec<_> = sizes.iter().zip(0..).map(|(size, tag)| pair.isend_of(*size, tag)).collect();
        let in_flight: u64 = pair.sender.rails().iter().map(|rail| rail.counters.in_flight()).sum();
        assert_eq!(in_flight, LONG + 300, "those of 256 bytes or more");
        assert_eq!(pair.received(receive), sizes);
        sends.into_iter().zip(sizes).for_each(|(send, size)| assert_eq!(pair.sent(send), size));
        assert!(pair.sender.rails().iter().all(|rail| rail.counters.in_flight() == 0));
    }
}

fn an_order_to_adapt_begins_with_empty_writes<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(setup(PolicyName::Speed));
    exchange(&mut pair, LONG);
    pair.sender.steering().order(&order(PolicyName::Adaptive, [1, 1]));
    let receive = pair.irecv_of([LONG]);
    pair.drive();
    pair.posted(true);
    let send = pair.isend_of(LONG, 0);
    let empty = pair.posted(true).into_iter().filter(|(_, write)| write.local.length == 0).count();
    assert_eq!((empty, pair.received(receive), pair.sent(send)), (2, vec![LONG], LONG));
}

fn a_sample_counts_in_microseconds<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(setup(PolicyName::Speed));
    pair.sender.steering().order(&order(PolicyName::Agent, [1, 0]));
    let receive = pair.irecv_of([LONG]);
    pair.drive();
    let send = pair.isend_of(LONG, 0);
    assert_eq!(pair.received(receive), [LONG]);
    // 1.5 times 2^20 microseconds, beside which the rest does not count.
    pair.world.advance(1_572_864_000);
    assert_eq!(pair.sent(send), LONG);
    assert_eq!(pair.sender.rails()[0].counters.latencies().iter().position(|count| *count > 0), Some(15));
    let receive = pair.irecv_of([LONG]);
    pair.drive();
    pair.sender.steering().ask_for_sample();
    let send = pair.isend_of(LONG, 0);
    assert_eq!(pair.received(receive), [LONG]);
    // 1.5 times 2^10 microseconds, and less than half as much for the rest.
    pair.world.advance(1_572_864);
    assert_eq!(pair.sent(send), LONG);
    assert_eq!(pair.sender.rails()[0].counters.latencies()[10], 1);
}

fn a_message_that_waits_for_its_cts_counts_once<const ONE_SIDED: bool>() {
    let mut pair = Pair::<ONE_SIDED>::new(setup(PolicyName::Adaptive));
    for waits in 1..4 {
        let message = pair.source.message(8, 0);
        for _ in 0..10 {
            assert_eq!(pair.sender.isend(&message).unwrap(), None, "no receive is posted");
        }
        assert_eq!(pair.sender.steering().waited_for_cts(), waits);
        exchange(&mut pair, 8);
        assert_eq!(pair.sender.steering().waited_for_cts(), waits);
    }
}

/// One-sided: otherwise the first empty writes are as late as the first messages, and tell a latency.
#[test]
fn whole_messages_say_nothing_more_once_pieces_of_split_ones_are_complete() {
    let faults = Faults { rate_mbps: (10, 10), ..Faults::none() };
    let mut pair = OneSidedPair::new(Setup { faults, ..setup(PolicyName::Adaptive) });
    // Sends a message whose completions the sender sees at once, or only after `late_ns` if the first rail carries all.
    // Returns the bytes on the first rail.
    let mut exchange = |size: u64, late_ns: u64| {
        let receive = pair.irecv_of([size]);
        pair.drive();
        pair.posted(true);
        let send = pair.isend_of(size, 0);
        let first = pair.posted(true).into_iter().filter(|(place, _)| place.rail == 0);
        let first: u64 = first.map(|(_, write)| u64::from(write.local.length)).sum();
        let (mut sent, mut received) = (None, None);
        if first == size {
            pair.world.advance(late_ns);
        }
        for _ in 0..10_000 {
            sent = sent.or_else(|| pair.sender.test(send).unwrap());
            received = received.or_else(|| pair.receiver.test(receive).unwrap().map(<[u64]>::to_vec));
            pair.world.advance(20_000);
        }
        assert_eq!((sent, received), (Some(size), Some(vec![size])));
        first
    };
    // The first rail seems to be ten times slower than the second.
    for _ in 0..20 {
        exchange(4096, 33_000_000);
    }
    let before = exchange(LONG, 0);
    assert!(before > 0 && before < LONG / 4, "{before} of {LONG} bytes: whole messages tell the rates at first");
    let shares: Vec<u64> = (0..6).map(|_| exchange(LONG, 0)).collect();
    assert!(shares[1] > LONG / 3, "{shares:?} of {LONG} bytes after split messages");
}
