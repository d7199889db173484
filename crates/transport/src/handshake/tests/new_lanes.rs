//! Lanes that are sockets, and that the peer dials for a rail that comes up again after the set-up.

use super::*;
use crate::{Incarnation, RailMessage, RailNews, Recovers, RecoveryAction};

/// Returns a receiver that awaits the sockets of new lanes of rail 0, which has two.
fn awaiting() -> RecvConnection<Plain<true>> {
    let mut ends = sockets();
    ends.exchange();
    for dial in ends.dials.clone() {
        ends.join(dial);
    }
    let Some(Ok(mut receiver)) = ends.receiver.take() else { panic!("not made") };
    let offer = RailMessage::Offer(vec![LaneEndpoint::default(); 2]);
    for (incarnation, message) in [(0, RailMessage::Down(Vec::new())), (1, offer)] {
        let news = RailNews { rail: rail(0), incarnation: Incarnation(incarnation), message };
        receiver.handle_rail_news(news, 0);
        while let Some(action) = receiver.poll_recovery() {
            if let RecoveryAction::Work(mut work) = action {
                assert_eq!(work.run(0), None);
                receiver.handle_worked(work, 0);
            }
        }
    }
    receiver
}

#[test]
fn a_receiver_awaits_one_socket_for_each_new_lane_until_all_are_there() {
    let mut receiver = awaiting();
    let asked = |receiver: &mut RecvConnection<_>| {
        [(0, 0), (0, 1), (0, 2), (1, 0), (u8::MAX, 0)].map(|(rail, lane)| receiver.awaits_lane(rail, lane))
    };
    let none = [0, 0, 0, 1, u8::MAX].map(|rail| Err(LaneRefused::NotAwaited(rail)));
    let beyond = Err(LaneRefused::NoSuchLane { rail: 0, lanes: 2 });
    assert_eq!(asked(&mut receiver), [Ok(()), Ok(()), beyond.clone(), none[3].clone(), none[4].clone()]);
    let (_theirs, ours): (Vec<_>, Vec<_>) = (0..4).map(|_| UnixStream::pair().expect("sockets")).unzip();
    let [first, second, third, last] = ours.try_into().expect("they are four");
    assert_eq!(receiver.handle_lane(0, 2, first.into()), beyond);
    assert_eq!(receiver.handle_lane(0, 1, second.into()), Ok(()));
    assert_eq!(receiver.handle_lane(0, 1, third.into()), Err(LaneRefused::HasSocket));
    assert_eq!(receiver.handle_lane(0, 0, last.into()), Ok(()));
    assert_eq!(asked(&mut receiver), none, "the rail has its lanes");
}

#[test]
fn sockets_that_do_not_come_are_given_up_once_a_port_may_have_another_address() {
    // The event may come early. A path that works needs no 1.5 s, and such events may come without end.
    for at_ns in [1, 1_499_999_999, 1_500_000_000] {
        let mut receiver = awaiting();
        let suspects = |receiver: &mut RecvConnection<_>| match receiver.poll_recovery() {
            Some(RecoveryAction::Send(Message::Rail(news))) => {
                assert_eq!((news.incarnation, news.message), (Incarnation(1), RailMessage::Suspect));
                true
            }
            Some(_) => panic!("it is no message"),
            None => false,
        };
        receiver.recover(1_600_000_000);
        assert_eq!((suspects(&mut receiver), receiver.recovery_timeout_ns()), (false, None), "there is no event");
        receiver.hurry_recovery(at_ns);
        if at_ns < 1_500_000_000 {
            assert_eq!((suspects(&mut receiver), receiver.recovery_timeout_ns()), (false, Some(1_500_000_000)));
            assert_eq!(receiver.awaits_lane(0, 0), Ok(()));
            receiver.recover(1_500_000_000);
        }
        assert_eq!((suspects(&mut receiver), receiver.recovery_timeout_ns()), (true, None));
        assert_eq!(receiver.awaits_lane(0, 0), Err(LaneRefused::NotAwaited(0)));
    }
}

#[test]
fn sockets_of_which_one_has_come_are_awaited_longer() {
    let mut receiver = awaiting();
    receiver.hurry_recovery(1);
    assert_eq!(receiver.recovery_timeout_ns(), Some(1_500_000_000));
    let (_theirs, ours) = UnixStream::pair().expect("sockets");
    assert_eq!(receiver.handle_lane(0, 1, ours.into()), Ok(()));
    assert_eq!(receiver.recovery_timeout_ns(), None, "the path works");
    receiver.recover(1_600_000_000);
    assert!(receiver.poll_recovery().is_none() && receiver.awaits_lane(0, 0) == Ok(()));
}

/// Has the receiver hear of new lanes of a rail that is up, or was given up at this incarnation.
fn hear(receiver: &mut RecvConnection<Plain<true>>, number: usize, incarnation: u16, lanes: usize, now_ns: u64) {
    let offer = RailMessage::Offer(vec![LaneEndpoint::default(); lanes]);
    for (incarnation, message) in [(incarnation, RailMessage::Down(Vec::new())), (incarnation + 1, offer)] {
        let news = RailNews { rail: rail(number), incarnation: Incarnation(incarnation), message };
        receiver.handle_rail_news(news, now_ns);
        while let Some(action) = receiver.poll_recovery() {
            if let RecoveryAction::Work(mut work) = action {
                assert_eq!(work.run(now_ns), None);
                receiver.handle_worked(work, now_ns);
            }
        }
    }
}

#[test]
fn the_time_for_sockets_begins_with_each_offer_and_counts_events_since() {
    const SECOND: u64 = 1_000_000_000;
    let mut receiver = awaiting();
    hear(&mut receiver, 1, 0, 1, SECOND);
    // No rail is left.
    let outage = Some(SECOND + 300 * SECOND);
    assert_eq!(receiver.recovery_timeout_ns(), outage, "there is no event");
    receiver.hurry_recovery(SECOND);
    assert_eq!(receiver.recovery_timeout_ns(), Some(3 * SECOND / 2), "the older offer comes first");
    // Both are late at one look.
    receiver.recover(5 * SECOND / 2);
    let suspects = std::iter::from_fn(|| receiver.poll_recovery()).filter(|action| {
        matches!(action, RecoveryAction::Send(Message::Rail(RailNews { message: RailMessage::Suspect, .. })))
    });
    assert_eq!((suspects.count(), receiver.recovery_timeout_ns()), (2, outage));
    hear(&mut receiver, 0, 1, 2, 10 * SECOND);
    assert_eq!(receiver.recovery_timeout_ns(), outage, "the event is older than the offer");
    receiver.hurry_recovery(10 * SECOND);
    assert_eq!(receiver.recovery_timeout_ns(), Some(10 * SECOND + 3 * SECOND / 2));
}
