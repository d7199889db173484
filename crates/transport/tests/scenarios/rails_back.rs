//! Rails that come back: the pauses before that, and new lanes that turn out to be of no use.

use std::ops::RangeInclusive;

use railweave_fabric::{Part, Piece, PolicyName, RailId};
use railweave_fabric_sim::{Faults, Outage};
use railweave_transport::{ConnectionConfig, ConnectionEnd, Incarnation, Probe, RailMessage, RailNews, Recovers};

use crate::pair::{Pair, Setup};
use crate::recovery::{SIZE, Tasks, split, ups_and_downs};

/// The first pause before a rail is brought up again, in nanoseconds.
pub(crate) fn pause_ns() -> u64 {
    ConnectionConfig::default().rail_pause.as_nanos() as u64
}

/// The time that an attempt to bring a rail up has until its lanes are connected, in nanoseconds, and that by which it
/// may be longer: its last look.
fn attempt_ns() -> RangeInclusive<u64> {
    30 * pause_ns()..=30 * pause_ns() + 2 * LOOK_NS
}

/// The same for the first packet of lanes that are connected.
fn proof_ns() -> RangeInclusive<u64> {
    10 * pause_ns()..=10 * pause_ns() + 2 * LOOK_NS
}

/// The pause between two looks at new lanes, in nanoseconds.
pub(crate) const LOOK_NS: u64 = 1_000_000;

/// Returns a setup of two rails whose lanes never fail by themselves.
fn patient() -> Setup {
    Setup { faults: Faults { retry_ns: 1 << 40, ..Faults::none() }, ..Setup::two_rails() }
}

/// Lets the oldest work of an end be done. Returns the time that it took, in nanoseconds.
pub(crate) fn time_work(pair: &mut Pair<true>, tasks: &mut Tasks, is_sender: bool) -> u64 {
    let began_ns = pair.now_ns();
    pair.work(tasks, is_sender);
    pair.now_ns() - began_ns
}

/// Returns the number of the receiver's port of a rail.
pub(crate) fn port(pair: &Pair<true>, rail: usize) -> usize {
    let name = pair.receiver.parts()[rail].device.clone();
    name.strip_prefix("port ").and_then(|port| port.parse().ok()).expect("it has a number")
}

/// Makes the receiver's port of a rail silent: nothing comes through there any more.
pub(crate) fn silence(pair: &Pair<true>, rail: usize) {
    let port = port(pair, rail);
    pair.world.lock().silence_port(port);
}

/// Lets both ends of a connection agree that a rail is down. Returns their tasks.
pub(crate) fn bring_down(pair: &mut Pair<true>, rail: usize) -> Tasks {
    pair.give_up(rail, true);
    pair.give_up(rail, false);
    pair.agree()
}

/// Lets the sender wait until it opens new lanes of a rail that is down, and the receiver until it hears of them.
pub(crate) fn open(pair: &mut Pair<true>, tasks: &mut Tasks) {
    pair.world.advance(pause_ns());
    pair.take_due(tasks);
    pair.work(tasks, true);
    assert!(matches!(pair.hear(tasks, false), RailMessage::Offer(_)));
}

/// Does the same, and lets both ends go on until the lanes can be connected.
pub(crate) fn offer(pair: &mut Pair<true>, tasks: &mut Tasks) {
    open(pair, tasks);
    pair.work(tasks, false);
    assert!(matches!(pair.hear(tasks, true), RailMessage::Lanes { .. }));
}

/// Lets the sender connect new lanes of rail 1 that the receiver has given up meanwhile.
fn offer_in_vain() -> (Pair<true>, Tasks) {
    let mut pair = split::<true>(Setup::two_rails());
    let mut tasks = bring_down(&mut pair, 1);
    offer(&mut pair, &mut tasks);
    pair.give_up(1, false);
    pair.take_due(&mut tasks);
    assert_eq!(pair.hear(&mut tasks, true), RailMessage::Suspect);
    pair.work(&mut tasks, true);
    (pair, tasks)
}

#[test]
fn a_rail_rests_before_new_lanes_are_opened_unless_its_path_may_be_back() {
    for is_hurried in [false, true] {
        let mut pair = split::<true>(Setup::two_rails());
        let mut tasks = bring_down(&mut pair, 1);
        let now_ns = pair.now_ns();
        let soonest_ns = if is_hurried { now_ns } else { now_ns + pause_ns() };
        if is_hurried {
            pair.sender.hurry_recovery(now_ns);
        } else {
            pair.take_due(&mut tasks);
            assert!(tasks.of_sender.is_empty());
        }
        assert_eq!(pair.sender.recovery_timeout_ns(), Some(soonest_ns));
        pair.world.advance(soonest_ns - now_ns);
        pair.take_due(&mut tasks);
        assert_eq!(tasks.of_sender.len(), 1, "lanes are opened");
    }
}

/// Has the receiver see an event that says that paths may be back. Takes its tasks.
fn hurry_receiver(pair: &mut Pair<true>, tasks: &mut Tasks) {
    let now_ns = pair.now_ns();
    pair.receiver.hurry_recovery(now_ns);
    tasks.take(&mut pair.receiver, false);
}

#[test]
fn a_receiver_whose_path_may_be_back_asks_for_an_offer_once() {
    for is_answered in [true, false] {
        let mut pair = split::<true>(Setup::two_rails());
        let mut tasks = Tasks::default();
        hurry_receiver(&mut pair, &mut tasks);
        assert!(tasks.to_sender.is_empty(), "its rails are up");
        if is_answered {
            tasks = bring_down(&mut pair, 1);
            assert!(tasks.to_sender.is_empty(), "its rail was up at that word");
            pair.sender.recover(pair.now_ns());
            assert_eq!(pair.sender.recovery_timeout_ns(), Some(pair.now_ns() + pause_ns()));
        } else {
            pair.give_up(1, true);
            pair.give_up(1, false);
            pair.take_due(&mut tasks);
        }
        (0..3).for_each(|_| hurry_receiver(&mut pair, &mut tasks));
        if !is_answered {
            // The sender hears it after the answer, or it would take it for the word that the rail is given up.
            assert_eq!(pair.hear(&mut tasks, true), RailMessage::Suspect);
            assert!(tasks.to_sender.is_empty());
            pair.work(&mut tasks, true);
            pair.work(&mut tasks, false);
            assert!(matches!(pair.hear(&mut tasks, false), RailMessage::Down(_)));
            assert!(matches!(pair.hear(&mut tasks, true), RailMessage::State(_)));
        }
        assert_eq!(pair.hear(&mut tasks, true), RailMessage::Suspect);
        assert!(tasks.to_sender.is_empty());
        assert_eq!(pair.sender.recovery_timeout_ns(), Some(pair.now_ns()));
        pair.take_due(&mut tasks);
        // Lanes are being opened.
        hurry_receiver(&mut pair, &mut tasks);
        assert!(tasks.to_sender.is_empty(), "it has asked");
        pair.work(&mut tasks, true);
        assert!(matches!(pair.hear(&mut tasks, false), RailMessage::Offer(_)));
        hurry_receiver(&mut pair, &mut tasks);
        assert!(tasks.to_sender.is_empty(), "its answer follows");
    }
}

#[test]
fn an_attempt_during_which_the_receivers_path_may_be_back_is_followed_by_one_more_soon() {
    let (usual_ns, short_ns) = (2 * pause_ns(), pause_ns() / 2);
    for (during_offer, pause_ns) in [(None, usual_ns), (Some(false), short_ns), (Some(true), short_ns)] {
        let mut pair = split::<true>(Setup::two_rails());
        let mut tasks = bring_down(&mut pair, 1);
        let rests_until_ns = pair.sender.recovery_timeout_ns().expect("it rests");
        pair.world.advance(rests_until_ns - pair.now_ns());
        let began_ns = pair.now_ns();
        pair.take_due(&mut tasks);
        if during_offer == Some(false) {
            hurry_receiver(&mut pair, &mut tasks);
            assert_eq!(pair.hear(&mut tasks, true), RailMessage::Suspect);
            pair.world.lock().faults.open_fails_permille = 1000;
            pair.work(&mut tasks, true);
        } else {
            pair.work(&mut tasks, true);
            assert!(matches!(pair.hear(&mut tasks, false), RailMessage::Offer(_)));
            if during_offer.is_some() {
                hurry_receiver(&mut pair, &mut tasks);
            }
            pair.world.lock().faults.open_fails_permille = 1000;
            pair.work(&mut tasks, false);
            assert_eq!(pair.hear(&mut tasks, true), RailMessage::Suspect);
            assert!(matches!(pair.hear(&mut tasks, false), RailMessage::Down(_)));
            assert!(matches!(pair.hear(&mut tasks, true), RailMessage::State(_)));
            if during_offer.is_some() {
                assert_eq!(pair.hear(&mut tasks, true), RailMessage::Suspect);
            }
        }
        assert!(tasks.to_sender.is_empty());
        let next_ns = (began_ns + pause_ns).max(pair.now_ns());
        assert_eq!(pair.sender.recovery_timeout_ns(), Some(next_ns), "{during_offer:?}");
    }
}

#[test]
fn a_rail_whose_device_is_gone_is_never_opened_again() {
    let mut pair = split::<true>(Setup::two_rails());
    let device = Part { piece: Piece::Device, ..pair.sender.parts()[1].clone() };
    assert!(pair.sender.handle_part_failed(&device, "it was unplugged"));
    pair.give_up(1, false);
    let mut tasks = pair.agree();
    for _ in 0..2 {
        assert_eq!(pair.sender.recovery_timeout_ns(), None);
        pair.world.advance(1000 * pause_ns());
        pair.take_due(&mut tasks);
        assert!(tasks.of_sender.is_empty());
        let now_ns = pair.now_ns();
        pair.sender.hurry_recovery(now_ns);
    }
}

#[test]
fn new_lanes_that_the_peer_gives_up_while_they_are_connected_are_ended() {
    let (mut pair, mut tasks) = offer_in_vain();
    assert_eq!(tasks.to_receiver.len(), 0, "it does not say that they are up");
    pair.work(&mut tasks, true);
    assert_eq!(tasks.to_receiver[0].message, RailMessage::Down(Vec::new()));
    assert!(!ups_and_downs(&tasks.events).contains('+'));
}

#[test]
fn new_lanes_that_carry_no_packet_never_come_up() {
    for carries in [true, false] {
        let mut pair = split::<true>(Setup::two_rails());
        let mut tasks = bring_down(&mut pair, 1);
        offer(&mut pair, &mut tasks);
        if !carries {
            silence(&pair, 1);
        }
        pair.work(&mut tasks, true);
        if !carries {
            assert!(tasks.to_receiver.is_empty(), "their fence comes first: they may still send");
            pair.work(&mut tasks, true);
        }
        let expected = if carries { RailMessage::Up } else { RailMessage::Down(Vec::new()) };
        assert_eq!(pair.hear(&mut tasks, false), expected);
    }
}

#[test]
fn a_first_packet_that_comes_through_too_late_is_nobodys_work() {
    let mut pair = split::<true>(Setup::two_rails());
    let mut tasks = bring_down(&mut pair, 1);
    offer(&mut pair, &mut tasks);
    let mut making = tasks.of_sender.pop_front().expect("the lanes are being connected");
    // The time is over before the packet has come through, which is posted a step or two before.
    let mut now_ns = pair.now_ns();
    for _ in 0..3 {
        assert!(making.run(now_ns).is_some());
    }
    now_ns += 3_600_000_000_000;
    assert_eq!(making.run(now_ns), None);
    pair.sender.handle_worked(making, now_ns);
    tasks.take(&mut pair.sender, true);
    pair.world.advance(1_000_000);
    pair.work(&mut tasks, true);
    assert_eq!(pair.hear(&mut tasks, false), RailMessage::Down(Vec::new()));
}

#[test]
fn a_receiver_writes_its_cts_and_its_probe_again_as_soon_as_its_only_rail_is_back() {
    let mut pair = split::<true>(Setup::default());
    let receive = pair.irecv();
    pair.drive();
    let mut tasks = bring_down(&mut pair, 0);
    let judge = |pair: &Pair<true>, is_due| pair.receiver.fate().judge(is_due, false);
    assert_eq!(judge(&pair, true), Probe::Unposted);
    assert_eq!(pair.receiver.test(receive), Ok(None), "it waits for the rail");
    assert_eq!(judge(&pair, false), Probe::Blocked { by_adapter: true });
    offer(&mut pair, &mut tasks);
    pair.work(&mut tasks, true);
    pair.posted(false);
    assert_eq!(pair.hear(&mut tasks, false), RailMessage::Up);
    let written: Vec<_> = pair.posted(false).iter().map(|(_, write)| write.local.length).collect();
    assert!(written.iter().any(|length| *length > 0), "{written:?}");
    assert_eq!(judge(&pair, false), Probe::Unposted, "it has its whole time on the rail");
    pair.drive();
    let send = pair.isend();
    assert_eq!((pair.received(receive), pair.sent(send)), (vec![8], 8));
}

#[test]
fn lanes_that_cannot_be_connected_are_given_up_at_the_end_of_their_time() {
    let mut pair = split::<true>(Setup::two_rails());
    let mut tasks = bring_down(&mut pair, 1);
    offer(&mut pair, &mut tasks);
    let mut state = pair.world.lock();
    (state.faults.connect_later_permille, state.faults.connect_later_ns) = (1000, LOOK_NS);
    drop(state);
    assert!(attempt_ns().contains(&time_work(&mut pair, &mut tasks, true)));
    assert_eq!(pair.hear(&mut tasks, false), RailMessage::Down(Vec::new()));
}

#[test]
fn lanes_that_take_no_receives_are_given_up_at_the_end_of_their_time() {
    let mut pair = split::<true>(Setup::two_rails());
    let mut tasks = bring_down(&mut pair, 1);
    open(&mut pair, &mut tasks);
    pair.world.lock().refuses_receives = true;
    assert!(attempt_ns().contains(&time_work(&mut pair, &mut tasks, false)));
    assert_eq!(pair.hear(&mut tasks, true), RailMessage::Suspect);
}

#[test]
fn lanes_whose_queue_is_full_for_a_moment_get_their_receives_later() {
    let mut pair = split::<true>(Setup::two_rails());
    let mut tasks = bring_down(&mut pair, 1);
    open(&mut pair, &mut tasks);
    pair.world.lock().refuses_receives = true;
    for _ in 0..5 {
        let now_ns = pair.now_ns();
        assert!(tasks.of_receiver[0].run(now_ns).is_some(), "it waits for room");
    }
    pair.world.lock().refuses_receives = false;
    pair.work(&mut tasks, false);
    assert!(matches!(pair.hear(&mut tasks, true), RailMessage::Lanes { .. }));
}

#[test]
fn lanes_that_carry_no_packet_and_report_nothing_are_given_up_at_the_end_of_their_time() {
    let mut pair = split::<true>(patient());
    let mut tasks = bring_down(&mut pair, 1);
    offer(&mut pair, &mut tasks);
    silence(&pair, 1);
    assert!(proof_ns().contains(&time_work(&mut pair, &mut tasks, true)));
    assert!(tasks.to_receiver.is_empty() && tasks.of_sender.len() == 1, "their fence comes first");
}

/// New lanes may carry nothing even when their port does again: the peer's only request for the packets that it missed
/// was lost, and the adapter's own timer is long. The next attempt carries.
#[test]
fn an_attempt_that_took_longer_than_its_pause_is_followed_by_the_next_at_once() {
    let mut pair = split::<true>(patient());
    let mut tasks = bring_down(&mut pair, 1);
    let port = port(&pair, 1);
    silence(&pair, 1);
    offer(&mut pair, &mut tasks);
    let began_ns = pair.now_ns();
    for _ in 0..10 {
        let pause = tasks.of_sender[0].run(pair.now_ns()).expect("no packet comes through");
        pair.world.advance(pause.as_nanos() as u64);
    }
    pair.world.lock().heal_port(port);
    // The lanes, and their fence.
    pair.work(&mut tasks, true);
    pair.work(&mut tasks, true);
    assert_eq!(pair.hear(&mut tasks, false), RailMessage::Down(Vec::new()));
    pair.work(&mut tasks, false);
    assert_eq!(pair.hear(&mut tasks, true), RailMessage::State(Vec::new()));
    assert!(pair.sender.recovery_timeout_ns().is_some_and(|due_ns| due_ns <= pair.now_ns()), "its pause is over");
    pair.take_due(&mut tasks);
    pair.work(&mut tasks, true);
    assert!(matches!(pair.hear(&mut tasks, false), RailMessage::Offer(_)));
    pair.work(&mut tasks, false);
    assert!(matches!(pair.hear(&mut tasks, true), RailMessage::Lanes { .. }));
    pair.work(&mut tasks, true);
    assert_eq!(pair.hear(&mut tasks, false), RailMessage::Up);
    assert!(pair.now_ns() - began_ns < 11 * pause_ns());
}

#[test]
fn first_packets_have_their_time_from_when_the_lanes_are_connected() {
    let mut pair = split::<true>(patient());
    let mut tasks = bring_down(&mut pair, 1);
    offer(&mut pair, &mut tasks);
    let mut state = pair.world.lock();
    (state.faults.connect_later_permille, state.faults.connect_later_ns) = (1000, 25 * pause_ns());
    drop(state);
    let began_ns = pair.now_ns();
    let pause = tasks.of_sender[0].run(began_ns).expect("it cannot be connected yet");
    assert!(pause.as_nanos() as u64 > 0);
    pair.world.advance(25 * pause_ns());
    pair.world.lock().faults.connect_later_permille = 0;
    silence(&pair, 1);
    let took_ns = time_work(&mut pair, &mut tasks, true);
    assert!(proof_ns().contains(&took_ns), "{took_ns}");
}

#[test]
fn a_first_packet_that_is_lost_is_followed_by_another() {
    let mut pair = split::<true>(patient());
    let mut tasks = bring_down(&mut pair, 1);
    offer(&mut pair, &mut tasks);
    let now_ns = pair.now_ns();
    assert!(tasks.of_sender[0].run(now_ns).is_some(), "the lanes are connected, and carry nothing yet");
    let mut state = pair.world.lock();
    let end = state.connected_ends().iter().flat_map(|(end, peer)| [*end, *peer]).max().expect("they are connected");
    let until_ns = now_ns + 100 * LOOK_NS;
    // The receiver opens its end after the sender.
    let outage = Outage { writes: true, acknowledgements: false, from_ns: now_ns, until_ns, is_long: true };
    state.begin_outage(end - 1, outage);
    drop(state);
    let took_ns = time_work(&mut pair, &mut tasks, true);
    assert!(took_ns > 100 * LOOK_NS, "the first packet was lost");
    assert_eq!(pair.hear(&mut tasks, false), RailMessage::Up);
}

#[test]
fn the_remains_of_lanes_and_offers_that_the_peer_gives_up_are_handed_over_to_be_freed() {
    let mut pair = split::<true>(Setup::two_rails());
    let mut tasks = Tasks::default();
    pair.give_up(1, true);
    pair.take_due(&mut tasks);
    pair.work(&mut tasks, true);
    assert_eq!(tasks.freed, 1);
    let mut pair = split::<true>(Setup::two_rails());
    let mut tasks = bring_down(&mut pair, 1);
    open(&mut pair, &mut tasks);
    let (freed, now_ns) = (tasks.freed, pair.now_ns());
    let rail = RailId::new(1).expect("it is a rail");
    let suspect = RailNews { rail, incarnation: Incarnation(1), message: RailMessage::Suspect };
    pair.sender.handle_rail_news(suspect, now_ns);
    tasks.take(&mut pair.sender, true);
    assert_eq!(tasks.freed, freed + 1);
    assert_eq!(tasks.to_receiver[0].message, RailMessage::Down(Vec::new()));
}

#[test]
fn the_memory_of_new_lanes_that_are_not_wanted_outlives_them() {
    let (pair, mut tasks) = offer_in_vain();
    let mut fence = tasks.of_sender.pop_front().expect("their lanes end");
    let Pair { world, sender, receiver: _receiver, source: _source, target: _target, spare: _spare } = pair;
    drop(sender);
    let before = world.lock().left().0;
    assert_eq!(fence.run(0), None);
    assert!(world.lock().left().0 < before, "the fence deregisters it, once the lanes have ended");
}

#[test]
fn new_lanes_of_a_device_that_has_failed_meanwhile_are_not_used() {
    for of_sender in [true, false] {
        let mut pair = split::<true>(Setup::two_rails());
        let mut tasks = bring_down(&mut pair, 1);
        let parts = if of_sender { pair.sender.parts() } else { pair.receiver.parts() };
        let device = parts.iter().rfind(|part| part.piece == Piece::Device).expect("one is down").clone();
        let port = device.device.strip_prefix("port ").and_then(|port| port.parse().ok()).expect("it has a number");
        if of_sender {
            offer(&mut pair, &mut tasks);
        } else {
            open(&mut pair, &mut tasks);
        }
        // The lanes are done before the device fails, and the end hears of it before it hears of them.
        let works = if of_sender { &mut tasks.of_sender } else { &mut tasks.of_receiver };
        let mut making = works.pop_front().expect("the lanes are in the making");
        while let Some(pause) = making.run(pair.now_ns()) {
            pair.world.advance(pause.as_nanos() as u64 + 1);
        }
        pair.world.lock().fail_device(port);
        let now_ns = pair.now_ns();
        if of_sender {
            assert!(!pair.sender.handle_part_failed(&device, "it was unplugged"), "the rail was down");
            pair.sender.handle_worked(making, now_ns);
            tasks.take(&mut pair.sender, true);
            pair.work(&mut tasks, true);
            assert_eq!(pair.hear(&mut tasks, false), RailMessage::Down(Vec::new()));
        } else {
            assert!(!pair.receiver.handle_part_failed(&device, "it was unplugged"), "the rail was down");
            pair.receiver.handle_worked(making, now_ns);
            tasks.take(&mut pair.receiver, false);
            assert_eq!(pair.hear(&mut tasks, true), RailMessage::Suspect);
        }
        assert!(pair.sender.rails()[1].counters.is_down());
        assert!(of_sender || pair.receiver.rails()[1].counters.is_down());
    }
}

/// Returns a connection whose rail 1 has failed four times soon after it came up, and is up.
pub(crate) fn flapping() -> Pair<true> {
    let mut pair = split::<true>(Setup::two_rails());
    for _ in 0..4 {
        let mut tasks = bring_down(&mut pair, 1);
        pair.world.advance(20 * pause_ns());
        offer(&mut pair, &mut tasks);
        pair.work(&mut tasks, true);
        assert_eq!(pair.hear(&mut tasks, false), RailMessage::Up);
    }
    pair
}

#[test]
fn a_rail_that_flaps_rests_no_longer_than_others_once_no_other_is_left() {
    let mut pair = flapping();
    pair.world.advance(pause_ns());
    bring_down(&mut pair, 1);
    let now_ns = pair.now_ns();
    assert_eq!(pair.sender.recovery_timeout_ns(), Some(now_ns + 16 * pause_ns()));
    pair.give_up(0, true);
    pair.sender.recover(now_ns);
    assert_eq!(pair.sender.recovery_timeout_ns(), Some(now_ns + 2 * pause_ns()));
    pair.sender.hurry_recovery(now_ns);
    assert_eq!(pair.sender.recovery_timeout_ns(), Some(now_ns), "its path may be back");
}

/// Lets the sender's next attempt to open lanes of a rail fail, at the time for it. A word that paths may be back comes
/// while it is in progress, if `is_hurried`. Returns the pause after it.
fn attempt_in_vain(pair: &mut Pair<true>, tasks: &mut Tasks, is_hurried: bool) -> u64 {
    pair.world.lock().faults.open_fails_permille = 1000;
    let due_ns = pair.sender.recovery_timeout_ns().expect("it rests");
    pair.world.advance(due_ns.saturating_sub(pair.now_ns()));
    pair.take_due(tasks);
    if is_hurried {
        let now_ns = pair.now_ns();
        pair.sender.hurry_recovery(now_ns);
    }
    pair.work(tasks, true);
    pair.sender.recovery_timeout_ns().expect("it rests again").saturating_sub(pair.now_ns())
}

#[test]
fn an_attempt_during_which_paths_may_be_back_is_followed_by_one_more_soon() {
    let mut pair = split::<true>(Setup::two_rails());
    let now_ns = pair.now_ns();
    pair.sender.hurry_recovery(now_ns);
    let mut tasks = bring_down(&mut pair, 1);
    assert_eq!(pair.sender.recovery_timeout_ns(), Some(pair.now_ns() + pause_ns()), "its rail was up at that word");
    let pauses = [false, true, false].map(|is_hurried| attempt_in_vain(&mut pair, &mut tasks, is_hurried));
    assert_eq!(pauses, [2 * pause_ns(), pause_ns() / 2, 8 * pause_ns()]);
}

#[test]
fn a_rail_that_flaps_rests_less_after_an_attempt_too_while_no_other_is_left() {
    let mut pair = flapping();
    let mut tasks = bring_down(&mut pair, 1);
    let now_ns = pair.now_ns();
    pair.sender.hurry_recovery(now_ns);
    assert_eq!(pair.sender.recovery_timeout_ns(), Some(now_ns + 16 * pause_ns()), "it flaps, and another is left");
    let among_others = [true, false].map(|is_hurried| attempt_in_vain(&mut pair, &mut tasks, is_hurried));
    assert_eq!(among_others, [pause_ns() / 2, 64 * pause_ns()]);
    pair.give_up(0, true);
    pair.take_due(&mut tasks);
    // The other rail's fence.
    let fence = tasks.of_sender.pop_front();
    assert!(fence.is_some());
    let alone = [false, true].map(|is_hurried| attempt_in_vain(&mut pair, &mut tasks, is_hurried));
    assert!(alone[0] <= 10 * pause_ns(), "{alone:?}");
    assert_eq!(alone[1], pause_ns() / 2);
    // Earlier than it may be among others.
    let mut pair = flapping();
    let mut tasks = bring_down(&mut pair, 1);
    pair.give_up(0, true);
    pair.take_due(&mut tasks);
    let fence = tasks.of_sender.pop_front();
    assert!(fence.is_some());
    assert_eq!(attempt_in_vain(&mut pair, &mut tasks, true), pause_ns() / 2);
}

#[test]
fn a_receiver_whose_device_has_failed_refuses_new_lanes_at_once() {
    let mut pair = split::<true>(Setup::two_rails());
    let mut tasks = bring_down(&mut pair, 1);
    let device = pair.receiver.parts().into_iter().rfind(|part| part.piece == Piece::Device).expect("one is down");
    assert!(!pair.receiver.handle_part_failed(&device, "it was unplugged"));
    open(&mut pair, &mut tasks);
    assert!(tasks.of_receiver.is_empty(), "it does not open lanes");
    assert_eq!(pair.hear(&mut tasks, true), RailMessage::Suspect);
}

#[test]
fn a_rail_that_is_down_has_nothing_in_flight() {
    let both = Setup::two_rails();
    let config = ConnectionConfig { policy: PolicyName::Adaptive, ..both.config };
    let mut pair = split::<true>(Setup { config, ..both });
    let receive = pair.irecv_of([SIZE]);
    pair.drive();
    let send = pair.isend_of(SIZE, 0);
    assert!(pair.sender.rails()[1].counters.in_flight() > 0);
    bring_down(&mut pair, 1);
    assert_eq!(pair.sender.rails()[1].counters.in_flight(), 0);
    assert_eq!((pair.received(receive), pair.sent(send)), (vec![SIZE], SIZE));
}
