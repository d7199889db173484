//! The effects of a return of a rail, of one that does not count, and of parts and CTS that go over other rails.

use std::time::Duration;

use railweave_fabric::{Part, Piece, PolicyName, RailId, RailSet};
use railweave_fabric_sim::{Faults, Outage};
use railweave_transport::{
    ConnectionConfig, ConnectionEnd, Event, Flushed, Incarnation, Incoming, MemoryKeys, Order, Probe, RailMessage,
    RailNews, Recovers, RecvRequest, Seen,
};

use crate::pair::{Pair, Setup};
use crate::rails_back::{LOOK_NS, bring_down, flapping, offer, pause_ns, port, silence, time_work};
use crate::recovery::{SIZE, Tasks, split, ups_and_downs};

/// The state of a probe that is on its way.
const OUT: Probe = Probe::Outstanding { by_adapter: true };

/// Lets both ends use new lanes of a rail that is down.
fn bring_up(pair: &mut Pair<true>, tasks: &mut Tasks) {
    offer(pair, tasks);
    pair.work(tasks, true);
    assert_eq!(pair.hear(tasks, false), RailMessage::Up);
}

/// Returns a setup of this many rails of one lane.
fn rails(count: usize) -> Setup {
    let max_writes = vec![1 << 30; count];
    Setup { from: max_writes.clone(), to: max_writes, lanes: vec![1], ..Setup::default() }
}

/// Has the sender use only these of its rails.
fn allow(pair: &Pair<true>, allowed: RailSet) {
    pair.sender.steering().order(&Order { allowed, ..pair.sender.steering().current() });
}

/// Returns the rails of the writes that the sender has posted.
fn rails_posted(pair: &Pair<true>) -> Vec<u8> {
    pair.posted(true).iter().map(|(place, _)| place.rail).collect()
}

/// Sends 8 bytes that find no receive yet.
fn isend_early(pair: &mut Pair<true>) {
    assert_eq!(pair.sender.isend(&pair.source.message(8, 0)), Ok(None));
}

#[test]
fn a_senders_outage_ends_and_its_probe_goes_out_as_soon_as_its_only_rail_is_back() {
    let mut pair = split::<true>(Setup::default());
    let mut tasks = bring_down(&mut pair, 0);
    let judge = |pair: &Pair<true>, is_due| pair.sender.fate().judge(is_due, false);
    assert_eq!(judge(&pair, true), Probe::Unposted);
    isend_early(&mut pair);
    assert_eq!(judge(&pair, false), Probe::Blocked { by_adapter: true });
    bring_up(&mut pair, &mut tasks);
    assert_eq!(pair.sender.recovery_timeout_ns(), None, "its outage is over");
    assert_eq!(judge(&pair, false), Probe::Unposted, "it has its whole time on the rail");
    isend_early(&mut pair);
    assert_eq!(judge(&pair, false), OUT);
}

#[test]
fn a_probe_that_a_rail_has_carried_stays_carried_although_the_rail_fails() {
    let mut pair = split::<true>(Setup::default());
    let judge = |pair: &Pair<true>, is_due| pair.sender.fate().judge(is_due, false);
    assert_eq!(judge(&pair, true), Probe::Unposted);
    isend_early(&mut pair);
    pair.drive();
    assert_eq!(judge(&pair, false), OUT);
    isend_early(&mut pair);
    assert_eq!(judge(&pair, false), Probe::Carried);
    let mut tasks = bring_down(&mut pair, 0);
    assert_eq!(judge(&pair, false), Probe::Carried);
    bring_up(&mut pair, &mut tasks);
    assert_eq!(judge(&pair, false), Probe::Carried);
}

#[test]
fn a_receivers_outage_begins_again_once_its_only_rail_has_been_back() {
    let outage = Duration::from_secs(1);
    let setup = Setup::default();
    let config = ConnectionConfig { outage, ..setup.config };
    let mut pair = split::<true>(Setup { config, ..setup });
    let mut tasks = bring_down(&mut pair, 0);
    bring_up(&mut pair, &mut tasks);
    pair.world.advance(pause_ns());
    pair.give_up(0, false);
    let now_ns = pair.now_ns();
    pair.receiver.recover(now_ns);
    assert_eq!(pair.receiver.recovery_timeout_ns(), Some(now_ns + outage.as_nanos() as u64));
}

#[test]
fn a_receivers_rail_is_down_from_its_first_failure_until_the_sender_uses_it_again() {
    let mut pair = split::<true>(Setup::two_rails());
    let down_ns = pair.now_ns();
    let mut tasks = bring_down(&mut pair, 1);
    // These lanes fail before the sender has connected its own.
    offer(&mut pair, &mut tasks);
    pair.give_up(1, false);
    pair.take_due(&mut tasks);
    assert_eq!(pair.hear(&mut tasks, true), RailMessage::Suspect);
    for is_sender in [true, true, false] {
        pair.work(&mut tasks, is_sender);
    }
    assert_eq!(pair.hear(&mut tasks, false), RailMessage::Down(Vec::new()));
    assert_eq!(pair.hear(&mut tasks, true), RailMessage::State(Vec::new()));
    pair.world.advance(pause_ns());
    bring_up(&mut pair, &mut tasks);
    assert_eq!(ups_and_downs(&tasks.events), "-1-1+1+1");
    for event in &tasks.events[2..] {
        let Event::RailUp { after_ns, .. } = *event else { panic!("{event:?}") };
        assert!(after_ns >= 3 * pause_ns() && after_ns <= pair.now_ns() - down_ns, "{after_ns}");
    }
}

#[test]
fn a_rail_whose_new_lanes_have_failed_at_the_receiver_is_not_said_to_be_back() {
    let mut pair = split::<true>(Setup::two_rails());
    let mut tasks = bring_down(&mut pair, 1);
    offer(&mut pair, &mut tasks);
    pair.work(&mut tasks, true);
    tasks.events.clear();
    // Its fence has not begun when RAIL_UP comes.
    pair.give_up(1, false);
    assert_eq!(pair.hear(&mut tasks, false), RailMessage::Up);
    assert_eq!(ups_and_downs(&tasks.events), "");
}

#[test]
fn a_rail_that_is_back_alone_is_not_measured() {
    let setup = rails(2);
    let config = ConnectionConfig { policy: PolicyName::Adaptive, ..setup.config };
    let mut pair = split::<true>(Setup { config, ..setup });
    let device = Part { piece: Piece::Device, ..pair.sender.parts()[1].clone() };
    assert!(pair.sender.handle_part_failed(&device, "it was unplugged"));
    pair.give_up(1, false);
    pair.agree();
    let mut tasks = bring_down(&mut pair, 0);
    bring_up(&mut pair, &mut tasks);
    pair.posted(true);
    isend_early(&mut pair);
    // All new lanes count as the receiver's.
    assert_eq!(pair.posted(false), [], "there is nothing to choose");
}

#[test]
fn first_packets_of_a_rail_that_flaps_have_no_longer_than_others_while_it_is_alone() {
    for (is_alone, time) in [(false, 30), (true, 10)] {
        let mut pair = flapping();
        pair.world.lock().faults.retry_ns = 1 << 40;
        let mut tasks = bring_down(&mut pair, 1);
        if is_alone {
            pair.give_up(0, true);
            pair.take_due(&mut tasks);
            tasks.of_sender.clear();
        }
        pair.world.advance(20 * pause_ns());
        offer(&mut pair, &mut tasks);
        silence(&pair, 1);
        let took_ns = time_work(&mut pair, &mut tasks, true);
        assert!((0..2 * LOOK_NS).contains(&(took_ns - time * pause_ns())), "{is_alone} {took_ns}");
    }
}

#[test]
fn parts_that_a_rail_has_lost_take_turns_on_the_others() {
    let mut pair = split::<true>(rails(3));
    let receives = [0; 4].map(|_| pair.irecv());
    pair.drive();
    allow(&pair, RailSet::first_of(1));
    let sends = [0; 4].map(|_| pair.isend());
    assert_eq!(rails_posted(&pair), [0; 4]);
    bring_down(&mut pair, 0);
    assert_eq!(rails_posted(&pair), [1, 2, 1, 2]);
    receives.into_iter().for_each(|receive| assert_eq!(pair.received(receive), [8]));
    sends.into_iter().for_each(|send| assert_eq!(pair.sent(send), 8));
}

#[test]
fn cts_are_written_again_once_every_rail_has_room_for_what_follows_them() {
    let faults = Faults { retry_ns: 1 << 40, ..Faults::none() };
    let mut pair = split::<true>(Setup { faults, ..rails(3) });
    // Rail 2 carries CTS, and brings no acknowledgement, until its queue is full.
    let end = pair.world.lock().connected_end(0, false, 2).expect("the rail is up");
    let lose = |pair: &Pair<true>, until_ns| {
        let mut state = pair.world.lock();
        let from_ns = state.now_ns;
        let outage = Outage { writes: false, acknowledgements: true, from_ns, until_ns, is_long: true };
        state.begin_outage(end, outage);
    };
    lose(&pair, u64::MAX);
    let allowed = RailSet::only(RailId::new(2).expect("it is a rail"));
    pair.receiver.steering().order(&Order { allowed, ..pair.receiver.steering().current() });
    let receive = pair.irecv();
    let buffer = pair.target.buffer(8, 0);
    while pair.receiver.irecv(&[buffer], false).expect("it is open").is_some() {}
    pair.give_up(1, false);
    pair.posted(false);
    let rewritten = |pair: &mut Pair<true>| -> Vec<u8> {
        let now_ns = pair.now_ns();
        pair.receiver.recover(now_ns);
        pair.posted(false).iter().map(|(place, _)| place.rail).collect()
    };
    assert_eq!(rewritten(&mut pair), [0; 0]);
    let now_ns = pair.now_ns();
    lose(&pair, now_ns);
    pair.world.advance(1 << 41);
    assert_eq!(pair.receiver.test(receive), Ok(None));
    let mut rails = rewritten(&mut pair);
    rails.dedup();
    assert_eq!(rails, [0, 2]);
}

/// Has the sender give up a rail, whose work was refused, and hear that these parts of messages have come.
fn refuse(pair: &mut Pair<true>, tasks: &mut Tasks, rail: u8, parts: &[(u32, RailSet)]) {
    pair.sender.recover(pair.now_ns());
    tasks.take(&mut pair.sender, true);
    pair.work(tasks, true);
    assert!(matches!(tasks.to_receiver.pop_back(), Some(RailNews { message: RailMessage::Down(_), .. })));
    let seen = parts.iter().map(|(sequence, parts)| Seen { sequence: *sequence, parts: *parts }).collect();
    let rail = RailId::new(rail.into()).expect("it is a rail");
    let news = RailNews { rail, incarnation: Incarnation(0), message: RailMessage::State(seen) };
    pair.sender.handle_rail_news(news, pair.now_ns());
}

#[test]
fn refusals_count_for_the_oldest_of_several_messages_that_are_unseen() {
    let mut pair = split::<true>(rails(4));
    for _ in 0..2 {
        pair.irecv();
    }
    pair.drive();
    pair.target.deregister();
    allow(&pair, RailSet::first_of(1));
    let sends = [0; 2].map(|_| pair.isend());
    let none = RailSet::EMPTY;
    // Both are sent again, each over another rail, and refused there too.
    let mut tasks = Tasks::default();
    for (rail, unseen, pauses) in [(0, &[(0, none), (1, none)][..], 2), (1, &[(0, none)][..], 4)] {
        pair.drive();
        // The first call looks at one of two rails that have failed.
        for _ in 0..2 {
            assert_eq!(pair.sender.test(sends[0]), Ok(None), "a rail is left");
        }
        pair.posted(true);
        refuse(&mut pair, &mut tasks, rail, unseen);
        for (after_ns, posted) in [(pauses * pause_ns() - 1, 0), (1, unseen.len())] {
            pair.world.advance(after_ns);
            pair.sender.recover(pair.now_ns());
            assert_eq!(rails_posted(&pair).len(), posted, "rail {rail}");
        }
        // No rail comes back.
        tasks.take(&mut pair.sender, true);
        tasks.of_sender.clear();
    }
}

#[test]
fn a_fence_reads_the_last_tested_receive_back_if_none_is_in_use() {
    for is_gone in [false, true] {
        let mut pair = split::<true>(Setup::two_rails().gpu());
        let receive = pair.irecv_of([SIZE]);
        pair.drive();
        let send = pair.isend_of(SIZE, 0);
        assert_eq!((pair.received(receive), pair.sent(send)), (vec![SIZE], SIZE));
        pair.give_up(1, false);
        if is_gone {
            let port = port(&pair, 1);
            pair.world.lock().fail_device(port);
        }
        let mut tasks = Tasks::default();
        pair.take_due(&mut tasks);
        pair.work(&mut tasks, false);
        // It had not been flushed.
        let buffer = pair.target.buffer(SIZE, 0);
        let Ok(Flushed::Pending(flush)) = pair.receiver.iflush(&[buffer]) else { panic!("a rail is left") };
        pair.drive();
        assert_eq!(pair.receiver.test(flush).is_err(), is_gone);
    }
}

/// Ends the receiver's lanes of rail 1. Returns true if their fence has read memory back.
fn reads_back(pair: &mut Pair<true>, tasks: &mut Tasks) -> bool {
    pair.give_up(1, false);
    pair.take_due(tasks);
    pair.work(tasks, false);
    !pair.read_back().is_empty()
}

#[test]
fn a_fence_reads_a_tested_receive_back_only_if_these_lanes_have_a_part_in_it() {
    // The fence of the first lanes has read it back, or could not.
    for is_sure in [true, false] {
        let mut pair = split::<true>(Setup::two_rails().gpu());
        let port = port(&pair, 1);
        let receive = pair.irecv_of([SIZE]);
        pair.drive();
        let send = pair.isend_of(SIZE, 0);
        assert_eq!((pair.received(receive), pair.sent(send)), (vec![SIZE], SIZE));
        pair.world.lock().set_loop_back(port, is_sure);
        let mut tasks = bring_down(&mut pair, 1);
        assert_eq!(pair.read_back().len(), usize::from(is_sure));
        pair.world.lock().set_loop_back(port, true);
        bring_up(&mut pair, &mut tasks);
        assert!(!reads_back(&mut pair, &mut tasks), "the new lanes have brought nothing");
    }
}

/// Posts a receive into the memory that only `pair.spare` has.
fn irecv_spare(pair: &mut Pair<true>, size: u64, optional: bool) -> RecvRequest {
    let buffer = pair.spare.buffer(size, 0);
    let receive = (0..3).find_map(|_| pair.receiver.irecv(&[buffer], optional).expect("it is open"));
    pair.drive();
    receive.expect("there is room")
}

/// Moves a message into a receive. Tests both ends.
fn move_into(pair: &mut Pair<true>, receive: RecvRequest, size: u64) {
    pair.drive();
    let send = pair.isend_of(size, 0);
    assert_eq!((pair.received(receive), pair.sent(send)), (vec![size], size));
}

#[test]
fn a_fence_reads_back_no_receive_that_needs_no_flush() {
    // One of a rail; one of both, that of an application that may have its data before, or one that was flushed.
    for (size, optional, is_flushed) in [(8, false, false), (SIZE, true, false), (SIZE, false, true)] {
        let mut pair = split::<true>(Setup::two_rails().gpu());
        let receive = irecv_spare(&mut pair, size, optional);
        move_into(&mut pair, receive, size);
        if is_flushed {
            let buffer = pair.spare.buffer(size, 0);
            let Ok(Flushed::Pending(flush)) = pair.receiver.iflush(&[buffer]) else { panic!("it has been tested") };
            pair.drive();
            assert_eq!(pair.receiver.test(flush), Ok(Some(&[][..])));
        }
        assert!(!reads_back(&mut pair, &mut Tasks::default()), "{size} bytes, {optional}, {is_flushed}");
    }
}

#[test]
fn a_fence_reads_back_the_last_tested_receive_alone() {
    // Nothing of a rail has to be registered any more but that.
    for is_early in [false, true] {
        let mut pair = split::<true>(Setup::two_rails().gpu());
        if is_early {
            let receive = pair.irecv_of([SIZE]);
            move_into(&mut pair, receive, SIZE);
            let early = irecv_spare(&mut pair, SIZE, true);
            assert_eq!(pair.receiver.test(early), Ok(Some(&[SIZE][..])));
        } else {
            let older = irecv_spare(&mut pair, SIZE, false);
            move_into(&mut pair, older, SIZE);
            let receive = pair.irecv_of([SIZE]);
            move_into(&mut pair, receive, SIZE);
        }
        pair.spare.deregister();
        assert!(reads_back(&mut pair, &mut Tasks::default()));
    }
}

#[test]
fn a_fence_reads_back_what_was_tested_last_in_whatever_order_receives_were_posted() {
    let mut pair = split::<true>(Setup::two_rails().gpu());
    let first = pair.irecv_of([SIZE]);
    let second = irecv_spare(&mut pair, SIZE, false);
    let sends = [pair.isend_of(SIZE, 0), pair.isend_of(SIZE, 0)];
    pair.drive();
    assert_eq!(pair.received(second), [SIZE]);
    assert_eq!(pair.received(first), [SIZE]);
    assert_eq!(sends.map(|send| pair.sent(send)), [SIZE; 2]);
    pair.spare.deregister();
    assert!(reads_back(&mut pair, &mut Tasks::default()));
}

#[test]
fn an_empty_message_is_not_read_back() {
    let mut pair = split::<true>(Setup::two_rails().gpu());
    let receive = pair.irecv_of([SIZE]);
    move_into(&mut pair, receive, SIZE);
    let empty = irecv_spare(&mut pair, SIZE, false);
    move_into(&mut pair, empty, 0);
    pair.spare.deregister();
    assert!(reads_back(&mut pair, &mut Tasks::default()), "the message before it");
}

/// Returns a pair whose receiver has tested a receive of which both rails have brought a part. Only rail 0 carries
/// anything from then on.
fn brought_by_both() -> Pair<true> {
    let mut pair = split::<true>(Setup::two_rails().gpu());
    let receive = pair.irecv_of([SIZE]);
    move_into(&mut pair, receive, SIZE);
    allow(&pair, RailSet::first_of(1));
    pair
}

#[test]
fn a_rail_makes_visible_what_it_has_brought_however_many_receives_were_tested_since() {
    for count in [255, 256] {
        let mut pair = brought_by_both();
        for _ in 0..count {
            let receive = irecv_spare(&mut pair, 8, false);
            move_into(&mut pair, receive, 8);
        }
        assert!(reads_back(&mut pair, &mut Tasks::default()), "after {count}");
    }
}

#[test]
fn a_flush_over_one_rail_makes_nothing_visible_that_another_has_brought() {
    let mut pair = split::<true>(Setup::two_rails().gpu());
    for rail in [1, 0] {
        let receive = pair.irecv_of([SIZE]);
        allow(&pair, RailSet::only(RailId::new(rail).expect("it is a rail")));
        move_into(&mut pair, receive, SIZE);
    }
    // The last one lies in the same buffer, so it alone is flushed.
    let buffer = pair.target.buffer(SIZE, 0);
    let Ok(Flushed::Pending(flush)) = pair.receiver.iflush(&[buffer]) else { panic!("it has been tested") };
    pair.drive();
    assert_eq!(pair.receiver.test(flush), Ok(Some(&[][..])));
    assert_eq!(pair.flushed(), [0]);
    assert!(reads_back(&mut pair, &mut Tasks::default()));
}

#[test]
fn a_fence_that_finds_nothing_to_read_back_makes_nothing_visible() {
    for count in [255, 256] {
        let mut pair = brought_by_both();
        // It is not flushed yet. Then come as many receives into memory of the host.
        for _ in 0..count {
            let keys = MemoryKeys { host: true, ..*pair.spare.buffer(8, 0).keys };
            let buffer = Incoming { keys: &keys, ..pair.spare.buffer(8, 0) };
            let receive = (0..3).find_map(|_| pair.receiver.irecv(&[buffer], false).expect("it is open"));
            move_into(&mut pair, receive.expect("there is room"), 8);
        }
        assert_eq!(reads_back(&mut pair, &mut Tasks::default()), count == 255);
        let buffer = pair.target.buffer(SIZE, 0);
        let Ok(Flushed::Pending(flush)) = pair.receiver.iflush(&[buffer]) else { panic!("a rail is left") };
        pair.drive();
        assert_eq!(pair.receiver.test(flush).is_ok(), count == 255, "after {count}");
    }
}
