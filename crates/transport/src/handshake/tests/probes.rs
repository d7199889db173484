//! The first packets of rails that both ends connect.

use super::plain::Packets;
use super::*;

fn port(number: u8, packets: Packets) -> Port<false> {
    Port { packets, ..Port::new(number, 1) }
}

/// Lets both ends look at their packets at this time.
fn look(ends: &mut Ends<false>, now_ns: u64) {
    ends.connector.go_on(now_ns);
    ends.acceptor.go_on(now_ns);
    ends.exchange();
}

const SECOND_NS: u64 = 1_000_000_000;

#[test]
fn a_packet_of_the_smaller_mtu_goes_over_each_lane_both_ways_before_ready() {
    let from = [Port { mtu: 4096, ..Port::new(1, 2) }, Port { mtu: 9000, ..Port::new(2, 1) }];
    let to = [Port { mtu: 1024, ..Port::new(11, 2) }, Port { mtu: 9000, ..Port::new(12, 1) }];
    let mut ends = Ends::<false>::new(&from, &to);
    ends.exchange();
    assert_eq!(ends.names(), ["ANSWER", "LANES", "LANES", "PROBE", "PROBE", "READY"]);
    assert_eq!(ends.made(), [vec![0, 1], vec![0, 1]]);
    let [_, Message::Lanes(connectors), Message::Lanes(acceptors), ..] = &ends.messages[..] else { panic!() };
    for (ports, theirs, stream) in [(&from, [111, 121], acceptors.stream), (&to, [11, 21], connectors.stream)] {
        for (((port, lanes), bytes), key) in ports.iter().zip([2, 1]).zip([1024, 4096]).zip(theirs) {
            let writes = port.writes.lock().unwrap().clone();
            let over: Vec<u8> = writes.iter().map(|(lane, _)| lane.0).collect();
            assert_eq!(over, (0..lanes).collect::<Vec<_>>(), "one over each lane");
            for (_, write) in writes {
                assert_eq!((write.remote.address, write.remote.key), (stream, key));
                // No immediate: the peer has no receive for it yet.
                assert_eq!((write.local.length, write.immediate, write.signalled), (bytes, None, true));
                assert_eq!(write.local.key, u32::from(port.number) * 10);
            }
        }
    }
}

#[test]
fn packets_are_looked_for_again_and_again_and_repeated_every_200_ms() {
    let mut ends = Ends::<false>::new(&[port(1, Packets::CarriedWith(3))], &[port(11, Packets::CarriedWith(2))]);
    ends.exchange();
    assert_eq!(ends.names(), ["ANSWER", "LANES", "LANES", "PROBE"]);
    assert!(ends.connector.pause().is_some() && ends.acceptor.pause().is_some());
    let (from, to) = (Arc::clone(&ends.writes[0]), Arc::clone(&ends.writes[1]));
    let counts = || [from.lock().unwrap().len(), to.lock().unwrap().len()];
    let mut pauses = Vec::new();
    for step in 0..30 {
        look(&mut ends, SECOND_NS + step);
        pauses.extend(ends.connector.pause());
    }
    assert!(pauses.is_sorted() && pauses[0] < pauses[29], "{pauses:?}");
    assert_eq!(pauses[29], Duration::from_millis(10));
    assert_eq!(counts(), [1, 1]);
    look(&mut ends, SECOND_NS + 199_999_999);
    assert_eq!(counts(), [1, 1]);
    look(&mut ends, SECOND_NS + 200_000_000);
    assert_eq!(counts(), [2, 2]);
    assert_eq!(ends.names()[3..], ["PROBE", "PROBE"], "the acceptor's have come through");
    look(&mut ends, SECOND_NS + 200_000_001);
    assert_eq!(counts(), [2, 2]);
    assert!(ends.sender.is_none());
    look(&mut ends, SECOND_NS + 400_000_000);
    assert_eq!(counts(), [3, 2]);
    assert_eq!(ends.made(), [vec![0], vec![0]]);
}

#[test]
fn a_rail_that_brings_nothing_through_is_left_out_at_both_ends() {
    for lost_here in [true, false] {
        let packets = |is_lost| if is_lost { Packets::Lost } else { Packets::Carried };
        let from = [port(1, packets(lost_here)), Port::new(2, 1)];
        let mut ends = Ends::<false>::new(&from, &[port(11, packets(!lost_here)), Port::new(12, 1)]);
        ends.exchange();
        look(&mut ends, SECOND_NS);
        let deadline_ns = SECOND_NS + 10 * SECOND_NS;
        let late = |ends: &mut Ends<false>, now_ns| {
            if lost_here {
                ends.connector.handle_timeout(now_ns);
            } else {
                ends.acceptor.handle_timeout(now_ns);
            }
            ends.exchange();
        };
        late(&mut ends, deadline_ns - 1);
        assert!(ends.sender.is_none() && ends.events.iter().all(Vec::is_empty));
        late(&mut ends, deadline_ns);
        assert_eq!(ends.made(), [vec![1], vec![1]]);
        let silent = left_out(0, LeftOut::Silent { bytes: 1500, timeout: Duration::from_secs(10) });
        let here = usize::from(!lost_here);
        assert_eq!(ends.events[here], [silent]);
        assert_eq!(ends.events[1 - here], [left_out(0, LeftOut::PeerSilent)]);
    }
}

#[test]
fn a_message_of_the_peer_does_not_prolong_the_time_of_the_packets() {
    let mut ends = Ends::<false>::new(&[port(1, Packets::Lost)], &[Port::new(11, 1)]);
    ends.exchange();
    look(&mut ends, SECOND_NS);
    assert_eq!(ends.connector.timeout_ns(), Some(11 * SECOND_NS));
    // Each message gives a handshake a new deadline.
    ends.connector.set_deadline(99 * SECOND_NS);
    look(&mut ends, 2 * SECOND_NS);
    assert_eq!(ends.connector.timeout_ns(), Some(11 * SECOND_NS));
}

#[test]
fn a_refusal_leads_to_the_next_step_only_if_it_is_of_rails() {
    for of_rails in [true, false] {
        let refuse = || Message::Refuse { fault: Fault::Configuration, of_rails, reason: "no".to_owned() };
        let mut ends = Ends::<false>::new(&[Port::new(1, 1)], &[Port::new(11, 1)]);
        ends.connector.handle_message(refuse());
        assert_eq!((ends.connector.step(), ends.connector.is_of_rails()), (None, of_rails));
        let mut ends = Ends::<false>::new(&[Port::new(1, 1)], &[Port::new(11, 1)]);
        let Some(Action::Send(answer)) = ends.acceptor.poll_action() else { panic!("no answer") };
        ends.connector.handle_message(answer);
        ends.connector.handle_message(refuse());
        assert_eq!((ends.connector.step(), ends.connector.is_of_rails()), (Some(Step::Subnet), of_rails));
    }
}

#[test]
fn the_connector_goes_on_from_the_step_that_the_acceptor_took() {
    // That of TCP has an offer of its own.
    for step in Step::ALL.iter().copied().filter(|step| *step != Step::Tcp) {
        let mut ends = Ends::<false>::by(step, 0, &[Port::new(1, 1)], &[Port::new(11, 1)]);
        assert_eq!(ends.connector.step(), None);
        let Some(Action::Send(answer)) = ends.acceptor.poll_action() else { panic!("no answer") };
        ends.connector.handle_message(answer);
        assert_eq!(ends.connector.step(), Some(step));
        let refuse = Message::Refuse { fault: Fault::Configuration, of_rails: true, reason: "no".to_owned() };
        ends.connector.handle_message(refuse);
        assert!(ends.connector.is_of_rails());
        ends.exchange();
        let says = LeftOut::PeerSays { reason: "no".to_owned(), is_of_way: false };
        assert_eq!(ends.events[0], [left_out(0, says)], "the log names the rail");
    }
}

#[test]
fn once_a_rail_is_connected_the_others_have_as_long_as_their_packets_would_have() {
    const LATE: &[u64] = &[1; 99];
    let late = |number| Port { pauses: LATE, ..Port::new(number, 1) };
    let mut ends = Ends::<false>::new(&[Port::new(1, 1), Port::new(2, 1)], &[Port::new(11, 1), late(12)]);
    ends.acceptor.set_deadline(99 * SECOND_NS);
    ends.exchange();
    look(&mut ends, SECOND_NS);
    assert_eq!(ends.acceptor.timeout_ns(), Some(11 * SECOND_NS));
    // The time in a thread's queue counts.
    ends.acceptor.set_deadline(99 * SECOND_NS);
    look(&mut ends, 2 * SECOND_NS);
    assert_eq!(ends.acceptor.timeout_ns(), Some(11 * SECOND_NS));
    ends.acceptor.handle_timeout(11 * SECOND_NS);
    ends.exchange();
    assert_eq!(ends.made(), [vec![0], vec![0]]);
    let reason = LeftOut::PeerSays { reason: ends.events[1][0].1.to_string(), is_of_way: true };
    assert_eq!(ends.events[0], [left_out(1, reason)]);
    assert!(ends.events[1][0].1.to_string().contains("raise probe_timeout"), "{}", ends.events[1][0].1);
    // Other ports of the connector do as well, at both ends.
    for (from, to) in [(late(1), Port::new(11, 1)), (Port::new(1, 1), late(11))] {
        let mut ends = Ends::<false>::by(Step::Subnet, 1, &[from, Port::new(2, 1)], &[to]);
        ends.connector.set_deadline(99 * SECOND_NS);
        ends.acceptor.set_deadline(99 * SECOND_NS);
        ends.exchange();
        look(&mut ends, SECOND_NS);
        let ends = [ends.connector.timeout_ns(), ends.acceptor.timeout_ns()];
        assert!(ends.contains(&Some(11 * SECOND_NS)), "{ends:?}");
    }
    // A rail alone has the handshake's time.
    let mut alone = Ends::<false>::new(&[Port::new(1, 1)], &[late(11)]);
    alone.acceptor.set_deadline(99 * SECOND_NS);
    alone.exchange();
    look(&mut alone, SECOND_NS);
    assert_eq!(alone.acceptor.timeout_ns(), Some(99 * SECOND_NS));
}

#[test]
fn packets_that_come_through_at_the_last_moment_count_and_a_thread_that_was_away_gives_them_their_time() {
    let mut ends = Ends::<false>::new(&[port(1, Packets::CarriedWith(2))], &[Port::new(11, 1)]);
    ends.exchange();
    // The time begins with the first look, whatever the deadline was.
    ends.connector.handle_timeout(100 * SECOND_NS);
    ends.exchange();
    assert!(ends.sender.is_none());
    // It ends ten seconds later with one more look, for which the packet was repeated.
    ends.connector.handle_timeout(110 * SECOND_NS);
    ends.exchange();
    assert_eq!(ends.made(), [vec![0], vec![0]]);
}

#[test]
fn if_no_rail_brings_anything_through_the_next_step_of_the_ladder_follows() {
    for lost_here in [true, false] {
        let packets = |is_lost| if is_lost { Packets::Lost } else { Packets::Carried };
        let mut ends = Ends::<false>::new(&[port(1, packets(lost_here))], &[port(11, packets(!lost_here))]);
        ends.exchange();
        look(&mut ends, 0);
        assert!(!ends.connector.is_of_rails());
        if lost_here {
            ends.connector.handle_timeout(10 * SECOND_NS);
        } else {
            ends.acceptor.handle_timeout(10 * SECOND_NS);
        }
        ends.exchange();
        let [Some(sender), Some(receiver)] = ends.failures() else { panic!("both fail") };
        assert!(matches!(sender, HandshakeFailure::NoRail { failed_here: false, .. }), "{sender:?}");
        assert!(matches!(receiver, HandshakeFailure::GaveUp(_)), "{receiver:?}");
        assert_eq!(ends.connector.step(), Some(Step::Subnet));
        assert!(ends.connector.is_of_rails());
    }
}

#[test]
fn a_rail_whose_first_packets_fail_is_left_out_with_the_reason() {
    let mut ends =
        Ends::<false>::new(&[Port::new(1, 1), Port::new(2, 1)], &[port(11, Packets::Broken), Port::new(12, 1)]);
    ends.exchange();
    assert_eq!(ends.made(), [vec![1], vec![1]]);
    let [(_, LeftOut::Broke { reason, is_of_way: false })] = &ends.events[1][..] else { panic!() };
    assert!(reason.contains("closed"), "{reason}");
    let mut names = ends.names_left_out.clone();
    names.sort();
    assert_eq!(names, ["10.0.0.1 - 10.0.0.11", "10.0.0.11 - 10.0.0.1"]);
    assert_eq!(ends.events[0], [left_out(0, LeftOut::PeerSilent)]);
}

#[test]
fn probe_names_rails_that_both_ends_have_and_comes_once() {
    let two = || Ends::<false>::new(&[Port::new(1, 1), Port::new(2, 1)], &[Port::new(11, 1), Port::new(12, 1)]);
    let wrong = |named| {
        let named = RailSet::from_bits(named);
        Some(HandshakeFailure::WrongRailSet { message: "PROBE", named, rails: 2 })
    };
    // The acceptor's LANES are on their way: its rails are connected.
    let lanes = |ends: &mut Ends<false>| {
        for _ in 0..2 {
            let Some(Action::Send(message)) = ends.acceptor.poll_action() else { panic!("ANSWER, then LANES") };
            ends.connector.handle_message(message);
            if let Some(Action::Send(message)) = ends.connector.poll_action() {
                ends.acceptor.handle_message(message);
            }
        }
    };
    let mut ends = two();
    ends.acceptor.handle_message(Message::Probe { rails: 1 });
    ends.exchange();
    assert_eq!(ends.failures()[1], Some(HandshakeFailure::OutOfTurn("PROBE")), "it has no lanes yet");
    let mut ends = two();
    ends.exchange();
    assert!(matches!((&ends.sender, &ends.receiver), (Some(Ok(_)), Some(Ok(_)))));
    let none = HandshakeFailure::WrongRailSet { message: "READY", named: RailSet::EMPTY, rails: 2 };
    for (rails, failure) in [(0b100, wrong(0b100)), (0, Some(none))] {
        let mut ends = two();
        let Some(Action::Send(answer)) = ends.acceptor.poll_action() else { panic!("no answer") };
        ends.connector.handle_message(answer);
        let Some(Action::Send(from_connector)) = ends.connector.poll_action() else { panic!("no lanes") };
        ends.acceptor.handle_message(from_connector);
        ends.acceptor.handle_message(Message::Probe { rails });
        if rails == 0 {
            ends.acceptor.handle_message(Message::Ready { usable: 0 });
        }
        let mut other = two();
        std::mem::swap(&mut ends.connector, &mut other.connector);
        ends.exchange();
        assert_eq!(ends.failures()[1], failure);
    }
    let mut ends = two();
    lanes(&mut ends);
    ends.connector.handle_message(Message::Probe { rails: 0b100 });
    let mut other = two();
    std::mem::swap(&mut ends.acceptor, &mut other.acceptor);
    ends.exchange();
    assert_eq!(ends.failures()[0], wrong(0b100));
}

#[test]
fn ready_names_rails_that_have_carried_the_acceptors_packets() {
    let mut ends =
        Ends::<false>::new(&[Port::new(1, 1), Port::new(2, 1)], &[port(11, Packets::Broken), Port::new(12, 1)]);
    // A connector that does not care.
    let Some(Action::Send(answer)) = ends.acceptor.poll_action() else { panic!("no answer") };
    ends.connector.handle_message(answer);
    let Some(Action::Send(lanes)) = ends.connector.poll_action() else { panic!("no lanes") };
    ends.acceptor.handle_message(lanes);
    ends.acceptor.handle_message(Message::Probe { rails: 0b11 });
    ends.acceptor.handle_message(Message::Ready { usable: 0b11 });
    ends.connector.handle_message(Message::Bye(None));
    ends.exchange();
    let named = RailSet::from_bits(0b11);
    assert_eq!(ends.failures()[1], Some(HandshakeFailure::WrongRailSet { message: "READY", named, rails: 2 }));
}

#[test]
fn the_parts_of_rails_that_try_their_packets_are_known() {
    let mut ends = Ends::<false>::new(&[port(1, Packets::Lost)], &[port(11, Packets::Lost)]);
    ends.exchange();
    assert_eq!(ends.connector.parts(), [Port::<false>::new(1, 1).part()]);
    assert_eq!(ends.acceptor.parts(), [Port::<false>::new(11, 1).part()]);
}

#[test]
fn the_rails_of_a_part_that_fails_are_left_out_and_the_others_carry_on() {
    let reason = || LeftOut::Broke { reason: "the device failed".to_owned(), is_of_way: true };
    // While the connector's first packets are out, over its rail or over both.
    let mut ends =
        Ends::<false>::new(&[port(1, Packets::Lost), Port::new(2, 1)], &[Port::new(11, 1), Port::new(12, 1)]);
    ends.exchange();
    assert!(ends.connector.handle_part_failed(&port(1, Packets::Lost).part(), "the device failed"));
    assert!(ends.connector.poll_event().is_none(), "what ends a queue pair may block");
    look(&mut ends, 0);
    assert_eq!(ends.made(), [vec![1], vec![1]]);
    assert_eq!(ends.events[0], [left_out(0, reason())]);
    // The deadline may come before another look.
    for is_of_connector in [true, false] {
        let packets = |is_lost| if is_lost { Packets::Lost } else { Packets::Carried };
        let from = [port(1, packets(is_of_connector)), Port::new(2, 1)];
        let mut ends = Ends::<false>::new(&from, &[port(11, packets(!is_of_connector)), Port::new(12, 1)]);
        ends.exchange();
        look(&mut ends, 0);
        if is_of_connector {
            ends.connector.handle_part_failed(&port(1, Packets::Lost).part(), "the device failed");
            ends.connector.handle_timeout(10 * SECOND_NS);
        } else {
            ends.acceptor.handle_part_failed(&port(11, Packets::Lost).part(), "the device failed");
            ends.acceptor.handle_timeout(10 * SECOND_NS);
        }
        ends.exchange();
        assert_eq!(ends.made(), [vec![1], vec![1]]);
        assert_eq!(ends.events[usize::from(!is_of_connector)], [left_out(0, reason())]);
    }
    // Without another rail, the next step of the ladder follows.
    let mut ends = Ends::<false>::new(&[port(1, Packets::Lost)], &[Port::new(11, 1)]);
    ends.exchange();
    assert!(ends.connector.handle_part_failed(&port(1, Packets::Lost).part(), "the device failed"));
    look(&mut ends, 0);
    assert_eq!(ends.failures()[0], Some(HandshakeFailure::NoRail { failed_here: false, first: reason() }));
    assert!(ends.connector.is_of_rails());
    // The acceptor awaits PROBE, which then names a rail that it has no more.
    let mut ends = Ends::<false>::new(&[Port::new(1, 1), Port::new(2, 1)], &[Port::new(11, 1), Port::new(12, 1)]);
    let Some(Action::Send(answer)) = ends.acceptor.poll_action() else { panic!("no answer") };
    ends.connector.handle_message(answer);
    let Some(Action::Send(lanes)) = ends.connector.poll_action() else { panic!("no lanes") };
    ends.acceptor.handle_message(lanes);
    assert!(ends.acceptor.handle_part_failed(&Port::<false>::new(11, 1).part(), "the device failed"));
    ends.exchange();
    assert_eq!(ends.made(), [vec![1], vec![1]]);
    assert_eq!(ends.events, [vec![left_out(0, LeftOut::PeerSilent)], vec![left_out(0, reason())]]);
    // It has said that both carry. The connector does without the one that has failed, or counts on it.
    for (packets, failure) in
        [(Packets::Lost, None), (Packets::CarriedWith(2), Some(HandshakeFailure::Broke(reason())))]
    {
        let from = [port(1, packets), port(2, Packets::CarriedWith(2))];
        let mut ends = Ends::<false>::new(&from, &[Port::new(11, 1), Port::new(12, 1)]);
        ends.exchange();
        assert_eq!(ends.names().last(), Some(&"PROBE"));
        assert!(ends.acceptor.handle_part_failed(&Port::<false>::new(11, 1).part(), "the device failed"));
        look(&mut ends, 0);
        look(&mut ends, SECOND_NS);
        ends.connector.handle_timeout(10 * SECOND_NS);
        ends.exchange();
        match failure {
            None => assert_eq!(ends.made(), [vec![1], vec![1]]),
            Some(failure) => assert_eq!(ends.failures()[1], Some(failure)),
        }
    }
    // Without another rail, it gives the set-up up.
    let mut ends = Ends::<false>::new(&[port(1, Packets::Lost)], &[Port::new(11, 1)]);
    ends.exchange();
    assert_eq!(ends.names().last(), Some(&"PROBE"));
    assert!(!ends.acceptor.handle_part_failed(&Port::<false>::new(11, 1).part(), "the device failed"));
}

#[test]
fn an_end_that_waits_takes_only_the_message_that_it_waits_for() {
    // The connector's packets are out; the acceptor's have come through.
    let out = || {
        let mut ends = Ends::<false>::new(&[port(1, Packets::Lost)], &[Port::new(11, 1)]);
        ends.exchange();
        assert_eq!(ends.names()[3..], ["PROBE", "PROBE"]);
        ends
    };
    let mut ends = out();
    ends.connector.handle_message(Message::Probe { rails: 1 });
    ends.exchange();
    assert_eq!(ends.failures()[0], Some(HandshakeFailure::OutOfTurn("PROBE")));
    let mut ends = out();
    ends.acceptor.handle_message(Message::Probe { rails: 1 });
    ends.exchange();
    assert_eq!(ends.failures()[1], Some(HandshakeFailure::OutOfTurn("PROBE")));
    // The acceptor's packets are out.
    let mut ends = Ends::<false>::new(&[Port::new(1, 1)], &[port(11, Packets::Lost)]);
    ends.exchange();
    assert_eq!(ends.names()[3..], ["PROBE"]);
    ends.acceptor.handle_message(Message::Ready { usable: 1 });
    ends.exchange();
    assert_eq!(ends.failures()[1], Some(HandshakeFailure::OutOfTurn("READY")));
}

#[test]
fn a_connector_whose_packets_came_through_does_not_wait_forever_for_the_acceptors() {
    let mut ends = Ends::<false>::new(&[Port::new(1, 1)], &[port(11, Packets::Lost)]);
    ends.exchange();
    ends.connector.set_deadline(30 * SECOND_NS);
    ends.connector.handle_timeout(30 * SECOND_NS - 1);
    assert!(ends.connector.timeout_ns().is_some());
    ends.connector.handle_timeout(30 * SECOND_NS);
    ends.exchange();
    assert_eq!(ends.failures()[0], Some(HandshakeFailure::Late(Awaited::Probe)));
    assert!(!ends.connector.is_of_rails(), "other ports would not make the peer faster");
}
