//! Data that a rail has brought and that nobody can make visible any more, and old copies of CTS that may still land.

use railweave_fabric::{Part, Piece, RailId, RailSet};
use railweave_fabric_sim::{Faults, Outage};
use railweave_transport::{
    ConnectionEnd, Error, Flushed, Incoming, MemoryKeys, Order, RailMessage, Recovers, RecvRequest, Seen,
};

use crate::pair::{Pair, Setup};
use crate::rails_back::{bring_down, offer, open, port};
use crate::recovery::{SIZE, Tasks, give_up_at_receiver, lose_early, say_down, split};

/// Lets the device of an end of a rail fail for good, after which nothing can be flushed there.
fn unplug(pair: &mut Pair<true>, rail: usize, is_sender: bool) {
    let part = if is_sender { &pair.sender.parts()[rail] } else { &pair.receiver.parts()[rail] };
    let device = Part { piece: Piece::Device, ..part.clone() };
    let port = device.device.strip_prefix("port ").and_then(|port| port.parse().ok()).expect("it has a number");
    pair.world.lock().fail_device(port);
    let why = "it was unplugged";
    assert!(match is_sender {
        true => pair.sender.handle_part_failed(&device, why),
        false => pair.receiver.handle_part_failed(&device, why),
    });
}

/// Lets the device of the receiver's end of rail 1 fail, or only its port.
fn fail_at_receiver(pair: &mut Pair<true>, is_gone: bool) {
    if is_gone {
        unplug(pair, 1, false);
    } else {
        pair.give_up(1, false);
    }
}

/// Loses the acknowledgements of the writes of this end of a rail from now on, or no more, and the `writes` themselves.
fn lose(pair: &Pair<true>, end: usize, writes: bool, is_lost: bool) {
    let mut state = pair.world.lock();
    let from_ns = state.now_ns;
    let until_ns = if is_lost { u64::MAX } else { from_ns };
    state.begin_outage(end, Outage { writes, acknowledgements: true, from_ns, until_ns, is_long: true });
}

/// Returns the fabric's number of an end's first lanes of a rail.
fn first_lanes(pair: &Pair<true>, sender: bool, rail: u8) -> usize {
    pair.world.lock().connected_end(0, sender, rail).expect("the rail is up")
}

/// Returns the fabric's number of the sender's end of the lanes that were made last.
fn last_lanes(pair: &Pair<true>) -> usize {
    let state = pair.world.lock();
    let ends = state.connected_ends();
    // The receiver opens its end after the sender.
    ends.iter().flat_map(|(end, peer)| [*end, *peer]).max().expect("they are connected") - 1
}

/// Returns a setup of this many rails whose lanes send again for longer than any story.
fn persistent(rails: usize) -> Setup {
    let max_writes = vec![1 << 30; rails];
    let faults = Faults { retry_ns: 1 << 40, ..Faults::none() };
    Setup { from: max_writes.clone(), to: max_writes, faults, ..Setup::default() }
}

#[test]
fn only_a_flush_of_a_complete_receive_whose_data_can_never_be_made_visible_ends_the_connection() {
    for (is_gone, is_empty) in [(false, false), (true, false), (true, true)] {
        let mut pair = split::<true>(Setup::two_rails().gpu());
        let (receive, other) = (pair.irecv_of([SIZE]), pair.irecv());
        pair.drive();
        let size = if is_empty { 0 } else { SIZE };
        if is_empty {
            // One rail carries an empty message: the one that fails.
            let allowed = RailSet::only(RailId::new(1).expect("it is a rail"));
            pair.sender.steering().order(&Order { allowed, ..pair.sender.steering().current() });
        }
        pair.isend_of(size, 0);
        pair.drive();
        assert_eq!(pair.receiver.test(other), Ok(None), "the first one is complete now, and nobody has asked");
        fail_at_receiver(&mut pair, is_gone);
        let mut tasks = Tasks::default();
        pair.take_due(&mut tasks);
        pair.work(&mut tasks, false);
        assert_eq!(pair.receiver.test(receive), Ok(Some(&[size][..])));
        assert_eq!(pair.receiver.test(other), Ok(None), "it goes on, as some applications flush nothing");
        assert_eq!(flush(&mut pair).is_err(), is_gone && !is_empty);
    }
}

/// Flushes the buffer. Returns an error if that ends the connection.
fn flush(pair: &mut Pair<true>) -> Result<(), Error> {
    let buffer = pair.target.buffer(SIZE, 0);
    if let Flushed::Pending(flush) = pair.receiver.iflush(&[buffer])? {
        pair.drive();
        assert_eq!(pair.receiver.test(flush)?, Some(&[][..]));
    }
    Ok(())
}

#[test]
fn a_part_that_its_sender_knows_as_placed_counts_as_come_although_it_cannot_be_made_visible() {
    // The other part comes before the sender says what it knows, or after; and it is flushed or not.
    for (comes_first, is_flushed) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut pair = split::<true>(persistent(2).gpu());
        let receive = pair.irecv_of([SIZE]);
        pair.drive();
        let end = first_lanes(&pair, true, 0);
        pair.world.lock().set_rate(end, 1000);
        let send = pair.isend_of(SIZE, 0);
        pair.world.advance(20_000);
        assert_eq!((pair.receiver.test(receive), pair.sender.test(send)), (Ok(None), Ok(None)), "one part has come");
        let port = port(&pair, 1);
        pair.world.lock().set_loop_back(port, false);
        fail_at_receiver(&mut pair, false);
        let mut tasks = Tasks::default();
        pair.take_due(&mut tasks);
        pair.work(&mut tasks, false);
        if comes_first {
            pair.drive();
            assert_eq!(pair.receiver.test(receive), Ok(None), "the other part may come again");
        }
        pair.give_up(1, true);
        pair.take_due(&mut tasks);
        pair.work(&mut tasks, true);
        assert_eq!(pair.hear(&mut tasks, true), RailMessage::Suspect);
        assert!(matches!(pair.hear(&mut tasks, false), RailMessage::Down(_)));
        assert_eq!(pair.hear(&mut tasks, true), RailMessage::State(Vec::new()));
        assert_eq!((pair.received(receive), pair.sent(send)), (vec![SIZE], SIZE));
        let next = pair.irecv();
        if is_flushed {
            assert!(flush(&mut pair).is_err());
        } else {
            pair.drive();
            pair.isend();
            assert_eq!(pair.received(next), [8]);
            assert_eq!(flush(&mut pair), Ok(()), "the buffer has other data now");
        }
    }
}

#[test]
fn a_part_that_a_rail_has_brought_and_that_cannot_be_made_visible_comes_again() {
    for is_gone in [false, true] {
        let mut pair = split::<true>(persistent(2).gpu());
        let receive = pair.irecv_of([SIZE]);
        pair.drive();
        // The sender does not hear that the part of rail 1 was placed, and that of rail 0 takes long.
        lose(&pair, first_lanes(&pair, true, 1), false, true);
        let end = first_lanes(&pair, true, 0);
        pair.world.lock().set_rate(end, 1000);
        let send = pair.isend_of(SIZE, 0);
        pair.world.advance(20_000);
        assert_eq!(pair.receiver.test(receive), Ok(None));
        fail_at_receiver(&mut pair, is_gone);
        pair.give_up(1, true);
        pair.posted(true);
        let mut tasks = Tasks::default();
        pair.take_due(&mut tasks);
        pair.work(&mut tasks, false);
        pair.work(&mut tasks, true);
        pair.hear(&mut tasks, false);
        assert_eq!(pair.hear(&mut tasks, true), RailMessage::Suspect);
        let parts = if is_gone { RailSet::EMPTY } else { RailSet::only(RailId::new(1).expect("it is a rail")) };
        assert_eq!(pair.hear(&mut tasks, true), RailMessage::State(vec![Seen { sequence: 0, parts }]));
        assert_eq!(pair.posted(true).len(), usize::from(is_gone));
        assert_eq!((pair.received(receive), pair.sent(send)), (vec![SIZE], SIZE));
    }
}

#[test]
fn what_a_rail_had_brought_before_its_lanes_ended_stays_if_its_device_fails_later() {
    // The other part of the receive comes before these lanes end, before the device fails, or only after that; and the
    // receive is tested as soon as it is complete, or at the end.
    for (comes, is_tested) in [(0, true), (0, false), (1, true), (1, false), (2, false)] {
        let mut pair = split::<true>(persistent(2).gpu());
        let (receive, other) = (pair.irecv_of([SIZE]), pair.irecv_of([8]));
        pair.drive();
        let end = first_lanes(&pair, true, 0);
        pair.world.lock().set_rate(end, [100_000, 1000, 1][comes]);
        let send = pair.isend_of(SIZE, 0);
        pair.world.advance(20_000);
        assert_eq!(pair.receiver.test(other), Ok(None), "the part of rail 1 has come");
        let test = |pair: &mut Pair<true>| assert_eq!(pair.receiver.test(receive), Ok(Some(&[SIZE][..])));
        if is_tested && comes == 0 {
            test(&mut pair);
        }
        let mut tasks = bring_down(&mut pair, 1);
        open(&mut pair, &mut tasks);
        pair.work(&mut tasks, false);
        assert!(matches!(pair.hear(&mut tasks, true), RailMessage::Lanes { .. }));
        assert_eq!(pair.receiver.test(other), Ok(None), "it polls");
        if is_tested && comes == 1 {
            test(&mut pair);
        }
        unplug(&mut pair, 1, false);
        pair.take_due(&mut tasks);
        pair.work(&mut tasks, false);
        if !is_tested {
            assert_eq!(pair.received(receive), [SIZE]);
        }
        assert_eq!(pair.sent(send), SIZE);
        let buffer = pair.target.buffer(SIZE, 0);
        match pair.receiver.iflush(&[buffer]) {
            Ok(Flushed::Pending(flush)) => assert_eq!(pair.received(flush), Vec::<u64>::new()),
            other => panic!("{comes} {is_tested} {other:?}"),
        }
    }
}

/// Lets rail 1 fail at both ends, and have new lanes that are up.
fn renew(pair: &mut Pair<true>) {
    let mut tasks = bring_down(pair, 1);
    offer(pair, &mut tasks);
    pair.work(&mut tasks, true);
    assert_eq!(pair.hear(&mut tasks, false), RailMessage::Up);
}

#[test]
fn a_part_that_comes_again_can_be_lost_with_the_rail_that_has_brought_it_only() {
    // Rail 1 brings its own part, and that of rail 0 after it, over the same lanes or over new ones. New lanes follow
    // in the first case, so that the device that fails then has nothing to do with either part.
    let written = |pair: &Pair<true>| [0, 1, 2].map(|rail: usize| pair.sender.rails()[rail].counters.data_writes());
    for is_renewed_before in [false, true] {
        let mut pair = split::<true>(persistent(3).gpu());
        let (receive, other) = (pair.irecv_of([SIZE]), pair.irecv_of([8]));
        pair.drive();
        for rail in [0, 2] {
            lose(&pair, first_lanes(&pair, true, rail), true, true);
        }
        let silent = first_lanes(&pair, true, 2);
        let send = pair.isend_of(SIZE, 0);
        let order = Order { allowed: RailSet::first_of(2), ..pair.sender.steering().current() };
        pair.sender.steering().order(&order);
        pair.world.advance(20_000);
        assert_eq!(pair.receiver.test(other), Ok(None), "the part of rail 1 has come");
        if is_renewed_before {
            renew(&mut pair);
            lose(&pair, last_lanes(&pair), false, true);
        }
        assert_eq!(written(&pair), [1, 1, 1]);
        unplug(&mut pair, 0, true);
        pair.give_up(0, false);
        pair.agree();
        assert_eq!(written(&pair), [1, 2, 1], "the part of rail 0 comes again");
        pair.world.advance(20_000);
        assert_eq!(pair.receiver.test(other), Ok(None), "it has come");
        if !is_renewed_before {
            renew(&mut pair);
        }
        unplug(&mut pair, 1, false);
        pair.give_up(1, true);
        pair.agree();
        assert_eq!(written(&pair), [1, 2, 1 + u64::from(is_renewed_before)]);
        lose(&pair, silent, true, false);
        pair.world.advance(1 << 40);
        assert_eq!((pair.received(receive), pair.sent(send)), (vec![SIZE], SIZE));
        pair.flushed();
        let buffer = pair.target.buffer(SIZE, 0);
        let Ok(Flushed::Pending(flush)) = pair.receiver.iflush(&[buffer]) else { panic!("rail 2 has brought a part") };
        assert_eq!((pair.received(flush), pair.flushed()), (Vec::new(), vec![2]));
    }
}

#[test]
fn a_flush_asks_nothing_of_rails_that_have_not_brought_the_data() {
    for is_tested in [false, true] {
        let mut pair = split::<true>(Setup::two_rails().gpu());
        let allowed = RailSet::only(RailId::new(1).expect("it is a rail"));
        pair.sender.steering().order(&Order { allowed, ..pair.sender.steering().current() });
        let receive = pair.irecv_of([SIZE]);
        let other = pair.irecv_of([8]);
        pair.drive();
        let send = pair.isend_of(SIZE, 0);
        pair.drive();
        assert_eq!(pair.sent(send), SIZE);
        assert_eq!(pair.receiver.test(other), Ok(None), "the receive is complete");
        if is_tested {
            assert_eq!(pair.received(receive), [SIZE]);
        }
        bring_down(&mut pair, 1);
        if !is_tested {
            assert_eq!(pair.received(receive), [SIZE]);
        }
        let buffer = pair.target.buffer(SIZE, 0);
        assert_eq!(pair.receiver.iflush(&[buffer]), Ok(Flushed::Nothing), "the end of the lanes has shown it");
    }
}

#[test]
fn no_receive_is_posted_while_a_fence_may_fail_to_make_it_visible() {
    let mut pair = split::<true>(Setup::two_rails().gpu());
    let receive = pair.irecv_of([SIZE]);
    pair.drive();
    let send = pair.isend_of(SIZE, 0);
    assert_eq!((pair.received(receive), pair.sent(send)), (vec![SIZE], SIZE));
    // The fence has only the memory of this receive to read back, and the application may have deregistered it.
    check_held(&mut pair);
    // It has none: data may come over the rail until the fence begins.
    check_held(&mut split::<true>(Setup::two_rails().gpu()));
}

/// Checks that no receive into GPU memory is posted while the receiver fences rail 1.
fn check_held(pair: &mut Pair<true>) {
    say_down(pair, Vec::new());
    let mut tasks = Tasks::default();
    tasks.take(&mut pair.receiver, false);
    let irecv = |pair: &mut Pair<true>, host: bool| {
        let keys = MemoryKeys { host, ..*pair.target.buffer(8, 0).keys };
        pair.receiver.irecv(&[Incoming { keys: &keys, ..pair.target.buffer(8, 0) }], false).expect("a rail is left")
    };
    for _ in 0..2 {
        assert_eq!(irecv(pair, false), None);
    }
    assert!(irecv(pair, true).is_some(), "memory of the host needs no flush");
    assert_eq!(irecv(pair, false), None);
    pair.work(&mut tasks, false);
    assert!(irecv(pair, false).is_some());
}

#[test]
fn the_cts_of_a_complete_receive_into_gpu_memory_stay_until_it_is_tested() {
    for is_gpu in [true, false] {
        let setup = Setup { bytes: 1 << 16, ..Setup::two_rails() };
        let mut pair = Pair::<true>::new(if is_gpu { setup.gpu() } else { setup });
        let exchange = |pair: &mut Pair<true>| {
            let group = pair.irecv_of([8; 8]);
            pair.drive();
            (group, [0, 1, 2, 3, 4, 5, 6, 7].map(|tag| pair.isend_of(8, tag)))
        };
        let (first, sends) = exchange(&mut pair);
        for _ in 1..64 {
            let (group, sends) = exchange(&mut pair);
            assert_eq!((pair.received(group), sends.map(|send| pair.sent(send))), (vec![8; 8], [8; 8]));
        }
        sends.into_iter().for_each(|send| assert_eq!(pair.sent(send), 8));
        let irecv = |pair: &mut Pair<true>| {
            let buffer = pair.target.buffer(8, 0);
            (0..3).find_map(|_| pair.receiver.irecv(&[buffer], false).expect("both rails are up"))
        };
        // A fence finds in them what to read back.
        assert_eq!(irecv(&mut pair).is_none(), is_gpu);
        assert_eq!(pair.received(first), [8; 8]);
        assert!(irecv(&mut pair).is_some());
    }
}

#[test]
fn receives_elsewhere_are_posted_while_a_part_of_an_early_one_comes_again_and_none_into_its_buffer() {
    let mut pair = Pair::<true>::new(Setup { bytes: 2 * SIZE as usize, ..Setup::two_rails() }.recovers());
    let lost = lose_early(&mut pair);
    say_down(&mut pair, vec![lost]);
    let irecv = |pair: &mut Pair<true>, offset: u64| {
        let buffer = Incoming { address: pair.target.region.address() + offset, ..pair.target.buffer(8, 0) };
        pair.receiver.irecv(&[buffer], false).expect("a rail is left")
    };
    for _ in 0..2 {
        assert!(irecv(&mut pair, SIZE).is_some());
        assert_eq!(irecv(&mut pair, SIZE - 8), None);
    }
}

#[test]
fn no_place_of_the_ring_is_used_again_before_every_rail_has_carried_what_was_behind_its_old_copies() {
    let mut pair = split::<true>(persistent(3));
    // No CTS that follows fills the queue of rail 2.
    let order = Order { allowed: RailSet::first_of(2), ..pair.receiver.steering().current() };
    let mut receive = pair.irecv();
    pair.world.advance(20_000);
    pair.receiver.steering().order(&order);
    lose(&pair, first_lanes(&pair, false, 2), false, true);
    give_up_at_receiver(&mut pair, receive);
    say_down(&mut pair, Vec::new());
    let irecv = |pair: &mut Pair<true>| -> Option<RecvRequest> {
        let buffer = pair.target.buffer(8, 0);
        (0..2).find_map(|_| pair.receiver.irecv(&[buffer], false).expect("a rail is left"))
    };
    let mut entries = 1;
    loop {
        pair.world.advance(20_000);
        let send = pair.sender.isend(&pair.source.message(8, 0)).expect("it is open").expect("the CTS is there");
        pair.world.advance(20_000);
        assert_eq!(pair.receiver.test(receive), Ok(Some(&[8][..])));
        assert_eq!(pair.sender.test(send), Ok(Some(8)));
        let Some(next) = irecv(&mut pair) else { break };
        (receive, entries) = (next, entries + 1);
        assert!(entries <= 512, "the first entry was written again, and rail 2 may still bring the old copy");
    }
    assert_eq!(entries, 512);
    lose(&pair, first_lanes(&pair, false, 2), false, false);
    pair.world.advance(1 << 40);
    assert!(irecv(&mut pair).is_some(), "rail 2 has carried what was behind its copies");
}
