//! Rails that come back: the pauses before that, and new lanes that turn out to be of no use.

use railweave_fabric::{Part, Piece};
use railweave_transport::{ConnectionConfig, ConnectionEnd, Probe, RailMessage, Recovers};

use crate::pair::{Pair, Setup};
use crate::recovery::{Tasks, split, ups_and_downs};

/// The first pause before a rail is brought up again, in nanoseconds.
fn pause_ns() -> u64 {
    ConnectionConfig::default().rail_pause.as_nanos() as u64
}

/// Lets both ends of a connection agree that a rail is down. Returns their tasks.
fn bring_down(pair: &mut Pair<true>, rail: usize) -> Tasks {
    pair.give_up(rail, true);
    pair.give_up(rail, false);
    pair.agree()
}

/// Lets the sender wait until it opens new lanes of a rail that is down, and both ends until they can be connected.
fn offer(pair: &mut Pair<true>, tasks: &mut Tasks) {
    pair.world.advance(pause_ns());
    pair.take_due(tasks);
    pair.work(tasks, true);
    assert!(matches!(pair.hear(tasks, false), RailMessage::Offer(_)));
    pair.work(tasks, false);
    assert!(matches!(pair.hear(tasks, true), RailMessage::Lanes { .. }));
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
    let mut pair = split::<true>(Setup::two_rails());
    let mut tasks = bring_down(&mut pair, 1);
    offer(&mut pair, &mut tasks);
    pair.give_up(1, false);
    pair.take_due(&mut tasks);
    assert_eq!(pair.hear(&mut tasks, true), RailMessage::Suspect);
    pair.work(&mut tasks, true);
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
            let name = pair.receiver.parts()[1].device.clone();
            let port = name.strip_prefix("port ").and_then(|port| port.parse().ok()).expect("it has a number");
            pair.world.lock().silence_port(port);
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
    assert_eq!(judge(&pair, false), Probe::Outstanding { by_adapter: true });
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
