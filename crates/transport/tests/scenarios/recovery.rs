//! Rails that fail, and connections that go on.

use std::collections::VecDeque;
use std::time::Duration;

use railweave_fabric::{LaneEndpoint, RailId, RailSet};
use railweave_transport::{
    Cause, ConnectionConfig, ConnectionEnd, Event, Incarnation, Listed, Message, RailMessage, RailNews, RailWork,
    Recovers, RecoveryAction, RecvRequest, Seen,
};

use crate::pair::{Pair, Setup};

on_both_fabrics!(
    a_part_that_its_sender_calls_placed_and_that_has_not_come_ends_the_connection,
    a_part_that_a_rail_has_lost_goes_again_over_another,
    a_message_of_one_rail_goes_again_over_the_other,
    a_connection_of_one_rail_waits_until_it_is_back,
    a_group_keeps_its_sizes,
);

/// Bytes of a message that is split.
pub(crate) const SIZE: u64 = 64 << 10;

/// The longest time that any work may take, in nanoseconds.
const MOST_WORK_NS: u64 = 10_000_000_000;

/// The tasks of the recovery of both ends that are not done.
#[derive(Default)]
pub(crate) struct Tasks {
    pub(crate) to_sender: VecDeque<RailNews>,
    pub(crate) to_receiver: VecDeque<RailNews>,
    pub(crate) of_sender: VecDeque<Box<dyn RailWork>>,
    pub(crate) of_receiver: VecDeque<Box<dyn RailWork>>,
    pub(crate) events: Vec<Event>,
    /// The number of lanes and remains of lanes that were handed over to be dropped.
    pub(crate) freed: usize,
}

impl Tasks {
    /// Takes the tasks of an end.
    pub(crate) fn take(&mut self, end: &mut impl Recovers, is_sender: bool) {
        let (messages, works) = if is_sender {
            (&mut self.to_receiver, &mut self.of_sender)
        } else {
            (&mut self.to_sender, &mut self.of_receiver)
        };
        while let Some(action) = end.poll_recovery() {
            match action {
                RecoveryAction::Send(Message::Rail(news)) => messages.push_back(news),
                RecoveryAction::Send(other) => panic!("{other:?} is no step of a recovery"),
                RecoveryAction::Work(work) => works.push_back(work),
                RecoveryAction::Free(_) => self.freed += 1,
                RecoveryAction::Event(event) => self.events.push(event),
                RecoveryAction::Dial(_) | RecoveryAction::Await(_) => panic!("lanes of the simulation are no sockets"),
            }
        }
    }
}

impl<const ONE_SIDED: bool> Pair<ONE_SIDED> {
    pub(crate) fn now_ns(&self) -> u64 {
        self.world.lock().now_ns
    }

    /// Lets an end give a rail up, because its port there is down.
    pub(crate) fn give_up(&mut self, rail: usize, is_sender: bool) {
        let is_used = if is_sender {
            let part = &self.sender.parts()[rail];
            self.sender.handle_part_failed(part, "its port is down")
        } else {
            let part = &self.receiver.parts()[rail];
            self.receiver.handle_part_failed(part, "its port is down")
        };
        assert!(is_used, "rail {rail} was up");
    }

    /// Lets both ends do what is due, and takes their tasks.
    pub(crate) fn take_due(&mut self, tasks: &mut Tasks) {
        let now_ns = self.now_ns();
        self.sender.recover(now_ns);
        self.receiver.recover(now_ns);
        tasks.take(&mut self.sender, true);
        tasks.take(&mut self.receiver, false);
    }

    /// Lets the oldest work of an end be done, and takes the tasks that follow.
    pub(crate) fn work(&mut self, tasks: &mut Tasks, is_sender: bool) {
        let works = if is_sender { &mut tasks.of_sender } else { &mut tasks.of_receiver };
        let mut work = works.pop_front().expect("there is work");
        let began_ns = self.now_ns();
        while let Some(pause) = work.run(self.now_ns()) {
            self.world.advance(pause.as_nanos() as u64 + 1);
            assert!(self.now_ns() - began_ns < MOST_WORK_NS, "the work does not end");
        }
        let now_ns = self.now_ns();
        if is_sender {
            self.sender.handle_worked(work, now_ns);
            tasks.take(&mut self.sender, true);
        } else {
            self.receiver.handle_worked(work, now_ns);
            tasks.take(&mut self.receiver, false);
        }
    }

    /// Lets an end hear the oldest message for it, and takes the tasks that follow. Returns the message.
    pub(crate) fn hear(&mut self, tasks: &mut Tasks, is_sender: bool) -> RailMessage {
        let messages = if is_sender { &mut tasks.to_sender } else { &mut tasks.to_receiver };
        let news = messages.pop_front().expect("there is a message");
        let (message, now_ns) = (news.message.clone(), self.now_ns());
        if is_sender {
            self.sender.handle_rail_news(news, now_ns);
            tasks.take(&mut self.sender, true);
        } else {
            self.receiver.handle_rail_news(news, now_ns);
            tasks.take(&mut self.receiver, false);
        }
        message
    }

    /// Lets both ends agree on what a rail had carried that both have given up.
    pub(crate) fn agree(&mut self) -> Tasks {
        let mut tasks = Tasks::default();
        self.take_due(&mut tasks);
        self.work(&mut tasks, true);
        self.work(&mut tasks, false);
        assert_eq!(self.hear(&mut tasks, true), RailMessage::Suspect);
        assert!(matches!(self.hear(&mut tasks, false), RailMessage::Down(_)));
        assert!(matches!(self.hear(&mut tasks, true), RailMessage::State(_)));
        tasks
    }

    /// Lets both ends recover until `is_over`, which is told the rails that went down and came up so far. Returns them.
    fn recover(&mut self, mut is_over: impl FnMut(&mut Self, &str) -> bool) -> String {
        let mut tasks = Tasks::default();
        for _ in 0..10_000 {
            let now_ns = self.now_ns();
            self.sender.recover(now_ns);
            self.receiver.recover(now_ns);
            tasks.take(&mut self.sender, true);
            tasks.take(&mut self.receiver, false);
            if let Some(news) = tasks.to_receiver.pop_front() {
                self.receiver.handle_rail_news(news, now_ns);
            } else if let Some(news) = tasks.to_sender.pop_front() {
                self.sender.handle_rail_news(news, now_ns);
            } else if let Some(mut work) = tasks.of_receiver.pop_front() {
                match work.run(now_ns) {
                    None => self.receiver.handle_worked(work, now_ns),
                    Some(_) => tasks.of_receiver.push_back(work),
                }
            } else if let Some(mut work) = tasks.of_sender.pop_front() {
                match work.run(now_ns) {
                    None => self.sender.handle_worked(work, now_ns),
                    Some(_) => tasks.of_sender.push_back(work),
                }
            }
            self.world.advance(20_000);
            let events = ups_and_downs(&tasks.events);
            if is_over(self, &events) {
                return events;
            }
        }
        panic!("the recovery has stalled: {:?}", tasks.events);
    }

    /// Fails both ends of a rail.
    pub(crate) fn fail_rail(&self, rail: u8) {
        let mut state = self.world.lock();
        for sender in [true, false] {
            let end = state.connected_end(0, sender, rail).expect("the rail is up");
            state.fail(end);
        }
    }
}

#[test]
fn messages_wait_for_the_peers_word_no_longer_than_for_a_rail() {
    for seconds in [0, 1] {
        let setup = Setup::two_rails().recovers();
        let config = ConnectionConfig { outage: Duration::from_secs(seconds), ..setup.config.clone() };
        let mut pair = split::<true>(Setup { config, ..setup });
        pair.irecv_of([SIZE]);
        pair.drive();
        // The part of rail 1 is lost with it, and RAIL_DOWN with the session.
        let send = pair.isend_of(SIZE, 0);
        pair.give_up(1, true);
        let mut tasks = Tasks::default();
        pair.take_due(&mut tasks);
        pair.work(&mut tasks, true);
        let down_ns = pair.now_ns();
        assert!(matches!(tasks.to_receiver.pop_back(), Some(RailNews { message: RailMessage::Down(_), .. })));
        for after_ns in [500_000_000, 2_000_000_000] {
            pair.world.advance(down_ns + after_ns - pair.now_ns());
            pair.take_due(&mut tasks);
            let is_over = seconds == 1 && after_ns > 1_000_000_000;
            let due_ns = pair.sender.recovery_timeout_ns();
            assert!(is_over || (due_ns.is_some() == (seconds == 1)), "{due_ns:?}");
            let tested = pair.sender.test(send);
            if is_over {
                let error = tested.expect_err("nobody has answered");
                assert!(matches!(*error, Cause::Unanswered { for_ns, .. } if for_ns > 1_000_000_000), "{error}");
            } else {
                assert_eq!(tested, Ok(None));
            }
        }
    }
}

/// Returns the rails that went down and those that came up, in order.
pub(crate) fn ups_and_downs(events: &[Event]) -> String {
    let mark = |event: &Event| match event {
        Event::RailDown { rail, .. } => format!("-{rail}"),
        Event::RailUp { rail, .. } => format!("+{rail}"),
        other => panic!("{other:?}"),
    };
    events.iter().map(mark).collect()
}

pub(crate) fn split<const ONE_SIDED: bool>(setup: Setup) -> Pair<ONE_SIDED> {
    Pair::new(Setup { bytes: SIZE as usize, ..setup }.recovers())
}

fn a_part_that_a_rail_has_lost_goes_again_over_another<const ONE_SIDED: bool>() {
    let mut pair = split::<ONE_SIDED>(Setup::two_rails());
    let receive = pair.irecv_of([SIZE]);
    pair.drive();
    let send = pair.isend_of(SIZE, 0);
    pair.posted(true);
    pair.fail_rail(1);
    let (mut sent, mut received) = (None, None);
    let events = pair.recover(|pair, events| {
        sent = sent.or_else(|| pair.sender.test(send).expect("a rail is left"));
        received =
            received.clone().or_else(|| pair.receiver.test(receive).expect("a rail is left").map(<[u64]>::to_vec));
        sent.is_some() && received.is_some() && events.contains("-1-1")
    });
    assert_eq!((sent, received.as_deref()), (Some(SIZE), Some(&[SIZE][..])));
    assert_eq!(events.matches("-1").count(), 2, "{events:?}");
    let rails: Vec<_> = pair.posted(true).iter().map(|(place, _)| place.rail).collect();
    assert_eq!(rails, [0], "the lost part is one write");
    let counted: Vec<_> =
        pair.sender.rails().iter().map(|rail| (rail.counters.repaired(), rail.counters.failovers())).collect();
    assert_eq!(counted, [(0, 0), (1, 1)], "of the rail that has lost it");
    let failovers: Vec<_> = pair.receiver.rails().iter().map(|rail| rail.counters.failovers()).collect();
    assert_eq!(failovers, [0, 1]);
}

fn a_message_of_one_rail_goes_again_over_the_other<const ONE_SIDED: bool>() {
    let mut pair = split::<ONE_SIDED>(Setup::two_rails());
    let receives = [0; 8].map(|_| pair.irecv());
    pair.drive();
    let sends = [0; 8].map(|_| pair.isend());
    pair.fail_rail(0);
    pair.fail_rail(1);
    let mut done = (0, 0);
    pair.recover(|pair, events| {
        while done.0 < 8 && pair.sender.test(sends[done.0]).expect("rails come back").is_some() {
            done.0 += 1;
        }
        while done.1 < 8 && pair.receiver.test(receives[done.1]).expect("rails come back") == Some(&[8]) {
            done.1 += 1;
        }
        done == (8, 8) && events.matches('+').count() == 4
    });
    // The connection is as good as before.
    let receive = pair.irecv();
    pair.drive();
    let send = pair.isend();
    assert_eq!((pair.received(receive), pair.sent(send)), (vec![8], 8));
}

fn a_connection_of_one_rail_waits_until_it_is_back<const ONE_SIDED: bool>() {
    let mut pair = split::<ONE_SIDED>(Setup::default());
    let receives = [0; 3].map(|_| pair.irecv_of([SIZE]));
    pair.drive();
    let send = pair.isend_of(SIZE, 0);
    pair.fail_rail(0);
    assert_eq!(pair.sender.test(send), Ok(None), "it comes back");
    assert_eq!(pair.sender.isend(&pair.source.message(SIZE, 0)), Ok(None), "there is no rail");
    let (mut sent, mut received) = (None, None);
    let events = pair.recover(|pair, events| {
        sent = sent.or_else(|| pair.sender.test(send).expect("it comes back"));
        received =
            received.clone().or_else(|| pair.receiver.test(receives[0]).expect("it comes back").map(<[u64]>::to_vec));
        sent.is_some() && received.is_some() && events.contains("+0+0")
    });
    assert_eq!((sent, received.as_deref()), (Some(SIZE), Some(&[SIZE][..])));
    assert_eq!(events, "-0-0+0+0");
    // CTS that were lost have gone again.
    let next = pair.isend_of(SIZE, 0);
    assert_eq!((pair.received(receives[1]), pair.sent(next)), (vec![SIZE], SIZE));
}

fn a_group_keeps_its_sizes<const ONE_SIDED: bool>() {
    for lost in [0, 1] {
        let mut pair = split::<ONE_SIDED>(Setup::two_rails());
        let receive = pair.irecv_of([SIZE; 3]);
        pair.drive();
        let sizes = [SIZE, 0, 9000];
        let sends = [0, 1, 2].map(|tag| pair.isend_of(sizes[tag], tag as u32));
        pair.fail_rail(lost);
        let mut received = None;
        pair.recover(|pair, events| {
            received = received.clone().or_else(|| pair.receiver.test(receive).unwrap().map(<[u64]>::to_vec));
            let _ = pair.sender.test(sends[0]).unwrap();
            received.is_some() && !events.is_empty()
        });
        assert_eq!(received.as_deref(), Some(&sizes[..]), "without rail {lost}");
    }
}

#[test]
fn an_optional_receive_is_not_over_while_a_fence_may_read_its_memory_back() {
    let mut pair = split::<true>(Setup::two_rails().gpu());
    let buffer = pair.target.buffer(SIZE, 0);
    let optional = pair.receiver.irecv(&[buffer], true).expect("it is open").expect("there is room");
    let other = pair.irecv_of([SIZE]);
    pair.drive();
    pair.fail_rail(1);
    let mut first = None;
    pair.recover(|pair, events| {
        if events.is_empty() {
            assert_eq!(pair.receiver.test(other), Ok(None), "it sees that the rail has failed");
            return false;
        }
        let tested = pair.receiver.test(optional).expect("a rail is left").map(<[u64]>::to_vec);
        first.get_or_insert(tested.clone());
        tested.is_some()
    });
    assert_eq!(first, Some(None), "its owner may deregister the memory once it is over");
}

#[test]
fn a_connection_whose_device_does_not_end_its_lanes_is_lost() {
    for is_sender in [true, false] {
        let mut pair = split::<true>(Setup::two_rails());
        let receive = pair.irecv_of([SIZE]);
        pair.drive();
        let send = pair.isend_of(SIZE, 0);
        pair.give_up(1, is_sender);
        let mut tasks = Tasks::default();
        pair.take_due(&mut tasks);
        pair.world.lock().refuses_ends = true;
        pair.work(&mut tasks, is_sender);
        let error = if is_sender {
            pair.sender.test(send).err().map(|error| error.to_string())
        } else {
            pair.receiver.test(receive).err().map(|error| error.to_string())
        };
        let error = error.expect("its lanes may still place or take data");
        assert!(error.contains("refuses to end its queue pairs") && error.contains("reset the adapter"), "{error}");
        assert!(!tasks.events.is_empty());
    }
}

#[test]
fn an_answer_about_an_older_incarnation_changes_nothing() {
    let mut pair = split::<true>(Setup::two_rails());
    let receive = pair.irecv_of([SIZE]);
    pair.drive();
    pair.fail_rail(1);
    pair.recover(|pair, events| {
        assert_eq!(pair.receiver.test(receive), Ok(None), "nothing was sent");
        events.matches("+1").count() == 2
    });
    let send = pair.isend_of(SIZE, 0);
    let (mut tasks, now_ns) = (Tasks::default(), pair.now_ns());
    let rail = RailId::new(1).expect("it is a rail");
    let suspect = RailNews { rail, incarnation: Incarnation(1), message: RailMessage::Suspect };
    pair.sender.handle_rail_news(suspect, now_ns);
    tasks.take(&mut pair.sender, true);
    let mut fence = tasks.of_sender.pop_front().expect("its lanes end");
    assert_eq!(fence.run(now_ns), None);
    pair.sender.handle_worked(fence, now_ns);
    tasks.take(&mut pair.sender, true);
    let Some(RailNews { message: RailMessage::Down(listed), .. }) = tasks.to_receiver.pop_front() else {
        panic!("it asks");
    };
    pair.drive();
    assert_eq!(pair.sender.test(send), Ok(None), "the part of rail 1 is unsure");
    let seen: Vec<_> = listed.iter().map(|slot| Seen { sequence: slot.sequence, parts: slot.unsure }).collect();
    for (incarnation, sent) in [(0, None), (1, Some(SIZE))] {
        let message = RailMessage::State(seen.clone());
        pair.sender.handle_rail_news(RailNews { rail, incarnation: Incarnation(incarnation), message }, now_ns);
        assert_eq!(pair.sender.test(send), Ok(sent), "incarnation {incarnation}");
    }
}

/// Lets the receiving end give up rail 1, whose lanes fail there only. Its fence is done, and the sender has not heard.
pub(crate) fn give_up_at_receiver(pair: &mut Pair<true>, seen_by: RecvRequest) {
    let mut state = pair.world.lock();
    let end = state.connected_end(0, false, 1).expect("the rail is up");
    state.fail(end);
    drop(state);
    assert_eq!(pair.receiver.test(seen_by), Ok(None));
    end_lanes(pair);
}

/// Ends the lanes of the rail that the receiving end has given up.
fn end_lanes<const ONE_SIDED: bool>(pair: &mut Pair<ONE_SIDED>) {
    let (mut tasks, now_ns) = (Tasks::default(), pair.now_ns());
    pair.receiver.recover(now_ns);
    tasks.take(&mut pair.receiver, false);
    let mut fence = tasks.of_receiver.pop_front().expect("its lanes end");
    assert_eq!(fence.run(now_ns), None);
    pair.receiver.handle_worked(fence, now_ns);
}

/// Has the receiving end report a receive of a split message early, and give rail 1 up. Returns what its sender would
/// ask about the part there.
pub(crate) fn lose_early(pair: &mut Pair<true>) -> Listed {
    let other = pair.irecv();
    let buffer = pair.target.buffer(SIZE, 0);
    let early = pair.receiver.irecv(&[buffer], true).expect("it is open").expect("there is room");
    pair.drive();
    give_up_at_receiver(pair, other);
    assert_eq!(pair.receiver.test(early), Ok(Some(&[SIZE][..])));
    let (mask, unsure) = (RailSet::first_of(2), RailSet::only(RailId::new(1).expect("it is a rail")));
    let (placed, size) = (RailSet::EMPTY, Some(SIZE as u32));
    Listed { sequence: 1, mask, unsure, placed, size, is_refused: false }
}

/// Lets the receiving end hear that the sender's lanes of rail 1 are gone.
pub(crate) fn say_down<const ONE_SIDED: bool>(pair: &mut Pair<ONE_SIDED>, listed: Vec<Listed>) {
    let rail = RailId::new(1).expect("it is a rail");
    let news = RailNews { rail, incarnation: Incarnation(0), message: RailMessage::Down(listed) };
    pair.receiver.handle_rail_news(news, pair.now_ns());
}

fn a_part_that_its_sender_calls_placed_and_that_has_not_come_ends_the_connection<const ONE_SIDED: bool>() {
    for is_gpu in [false, true] {
        let setup = if is_gpu { Setup::two_rails().gpu() } else { Setup::two_rails() };
        let mut pair = split::<ONE_SIDED>(setup);
        let receive = pair.irecv();
        let placed = RailSet::only(RailId::new(1).expect("it is a rail"));
        let (mask, unsure) = (RailSet::first_of(2), RailSet::EMPTY);
        let listed = Listed { sequence: 0, mask, unsure, placed, size: Some(8), is_refused: false };
        say_down(&mut pair, vec![listed]);
        end_lanes(&mut pair);
        let error = pair.receiver.test(receive).expect_err("the data are nowhere").to_string();
        // An adapter acknowledges before its process knows, and may be gone since, with what it had yet to bring into
        // GPU memory. A process that reads sockets knows what has come into its own.
        let expected = if ONE_SIDED || is_gpu {
            "its adapter has acknowledged data to the peer"
        } else {
            "parts 0b10 of receive 0x0 have come, and not all"
        };
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn no_place_of_the_ring_is_used_again_while_a_copy_of_its_entry_may_land() {
    let mut pair = split::<true>(Setup::two_rails());
    let mut receive = pair.irecv();
    pair.drive();
    give_up_at_receiver(&mut pair, receive);
    let irecv = |pair: &mut Pair<true>| {
        let buffer = pair.target.buffer(8, 0);
        (0..2).find_map(|_| pair.receiver.irecv(&[buffer], false).expect("a rail is left"))
    };
    let mut entries = 1;
    loop {
        pair.drive();
        let send = pair.isend();
        assert_eq!((pair.received(receive), pair.sent(send)), (vec![8], 8));
        let Some(next) = irecv(&mut pair) else { break };
        (receive, entries) = (next, entries + 1);
        assert!(entries <= 512, "the first entry was written again, and rail 1 may still bring the old copy");
    }
    assert_eq!(entries, 512);
    say_down(&mut pair, Vec::new());
    assert!(irecv(&mut pair).is_some(), "now nothing comes over rail 1 any more");
}

#[test]
fn no_cts_is_written_again_before_the_fences_that_are_due_have_begun() {
    let three = vec![1 << 30; 3];
    let mut pair = split::<true>(Setup { from: three.clone(), to: three, ..Setup::default() });
    let receive = pair.irecv();
    pair.drive();
    // No rail has room for a copy.
    let now_ns = pair.now_ns();
    pair.world.lock().faults.room_withheld_permille = 1000;
    pair.world.lock().faults.room_withheld_ns = 1 << 40;
    assert!(pair.receiver.test(receive).unwrap().is_none());
    let fail = |pair: &mut Pair<true>, rail| {
        let end = pair.world.lock().connected_end(0, false, rail).expect("the rail is up");
        pair.world.lock().fail(end);
        pair.world.advance(1);
        assert!(pair.receiver.test(receive).unwrap().is_none());
    };
    pair.posted(false);
    fail(&mut pair, 1);
    pair.receiver.recover(now_ns);
    assert_eq!(pair.posted(false).len(), 0, "it waits for room");
    let mut tasks = Tasks::default();
    tasks.take(&mut pair.receiver, false);
    // Another rail is given up; its fence is due, and has not begun.
    fail(&mut pair, 0);
    pair.world.lock().faults.room_withheld_permille = 0;
    pair.world.advance(1 << 41);
    let mut fence = tasks.of_receiver.pop_front().expect("the lanes of rail 1 have to end");
    assert!(fence.run(now_ns).is_none());
    pair.receiver.handle_worked(fence, now_ns);
    assert_eq!(pair.posted(false).len(), 0, "what is on its way over rail 0 is unknown");
    pair.receiver.recover(now_ns);
    assert!(pair.posted(false).iter().all(|(place, _)| place.rail == 2));
    tasks.take(&mut pair.receiver, false);
    assert_eq!(ups_and_downs(&tasks.events), "-1-0");
}

#[test]
fn the_lost_part_of_an_early_receive_comes_again_unless_its_buffer_is_in_use_again() {
    for is_in_use in [false, true] {
        let mut pair = split::<true>(Setup::two_rails());
        let lost = lose_early(&mut pair);
        let later = |pair: &mut Pair<true>| {
            let buffer = pair.target.buffer(SIZE, 0);
            (0..2).find_map(|_| pair.receiver.irecv(&[buffer], false).expect("a rail is left"))
        };
        if is_in_use {
            later(&mut pair).expect("the application has the data of the early one");
        }
        say_down(&mut pair, vec![lost]);
        let mut tasks = Tasks::default();
        tasks.take(&mut pair.receiver, false);
        let said: Vec<_> = tasks.to_sender.iter().map(|news| news.message.clone()).collect();
        let parts = if is_in_use { lost.unsure } else { RailSet::EMPTY };
        assert_eq!(said, [RailMessage::State(vec![Seen { sequence: 1, parts }])]);
        if !is_in_use {
            assert_eq!(later(&mut pair), None, "the part comes to this buffer first");
        }
    }
}

#[test]
fn a_peer_that_breaks_the_rules_of_a_recovery_ends_its_connection() {
    let news = |message| {
        let rail = RailId::default();
        RailNews { rail, incarnation: Incarnation(0), message }
    };
    for message in [RailMessage::Up, RailMessage::Down(Vec::new()), RailMessage::State(Vec::new())] {
        let mut pair = split::<true>(Setup::default());
        pair.sender.handle_rail_news(news(message.clone()), 0);
        let error = pair.sender.isend(&pair.source.message(8, 0)).expect_err("it is out of turn");
        assert!(error.to_string().contains("it came out of turn"), "{message:?}: {error}");
    }
}

#[test]
fn a_sender_that_offers_lanes_without_a_pause_ends_its_connection() {
    let mut pair = split::<true>(Setup::two_rails());
    let receive = pair.irecv();
    let now_ns = pair.now_ns();
    let say = |pair: &mut Pair<true>, number, message| {
        pair.world.lock().opening = None;
        let rail = RailId::new(1).expect("it is a rail");
        pair.receiver.handle_rail_news(RailNews { rail, incarnation: Incarnation(number), message }, now_ns);
        let mut tasks = Tasks::default();
        tasks.take(&mut pair.receiver, false);
        while !tasks.of_receiver.is_empty() {
            pair.work(&mut tasks, false);
        }
        pair.receiver.test(receive).err().map(|error| error.to_string())
    };
    let mut offers = 0;
    let error = loop {
        assert_eq!(say(&mut pair, offers, RailMessage::Down(Vec::new())), None);
        offers += 1;
        // They are connected to nothing.
        if let Some(error) = say(&mut pair, offers, RailMessage::Offer(vec![LaneEndpoint::default(); 2])) {
            break error;
        }
        assert!(offers < 1000, "nothing stops it");
    };
    assert!(offers == 257 && error.contains("offered again and again without a pause"), "{offers}: {error}");
}
