//! The doubt about peers whose sessions are away: which connections are lost, and who lingers for them.

use super::away::{OUT, PROOF, judged, until_dialled};
use super::*;
use crate::Probe;

#[test]
fn a_process_that_has_ended_is_believed_once_no_rail_carries_anything() {
    for at_acceptor in [false, true] {
        let (mut pair, number) = Pair::connected();
        pair.cut();
        let end = if at_acceptor { &mut pair.acceptor } else { &mut pair.opener };
        if at_acceptor {
            let at_ns = end.timeout_ns().unwrap();
            end.handle_timeout(at_ns);
            drop(actions(end));
        }
        end.handle_lost(end_of_socket(SocketEndKind::Refused), SECOND);
        drop(actions(end));
        end.handle_timeout(SECOND);
        let judge = |is_due| SessionAction::Judge { connection: number, is_due, insists: true };
        assert!(actions(end).contains(&judge(true)));
        assert_eq!(judged(end, number, Probe::Unposted, SECOND), [], "the application makes no calls");
        assert_eq!(judged(end, number, OUT, 2 * SECOND), []);
        // An answer overrules the sign; the next one has all of its time.
        assert_eq!(judged(end, number, Probe::Carried, 3 * SECOND - 1), []);
        end.handle_timeout(4 * SECOND);
        assert!(actions(end).contains(&judge(true)), "it is asked for again");
        assert_eq!(judged(end, number, OUT, 4 * SECOND), []);
        end.handle_timeout(4 * SECOND + PROOF);
        assert!(actions(end).contains(&judge(false)));
        let lost = judged(end, number, OUT, 4 * SECOND + PROOF);
        let said = lost.iter().find_map(|action| match action {
            SessionAction::Lost { connection, lost } if *connection == number => Some(lost.to_string()),
            _ => None,
        });
        let said = said.unwrap_or_else(|| panic!("{lost:?}"));
        assert!(said.contains("is gone: its process seems to have ended") && said.contains("it ended"), "{said}");
        assert!(lost.contains(&SessionAction::PeerLeft(number)) && end.ended().is_some(), "nothing needs it any more");
        // Nothing of it will ever be acknowledged.
        assert!(end.close(number, None, 6 * SECOND));
        end.handle_timeout(6 * SECOND);
        assert_eq!(actions(end), [SessionAction::Linger(number)]);
        end.handle_lingered(number, false, 6 * SECOND);
        assert_eq!(actions(end), [SessionAction::Over(number)]);
        assert!(end.is_over());
    }
}

#[test]
fn closed_connections_linger_no_longer_for_a_process_that_another_connection_has_shown_to_be_gone() {
    /// Closes the connection, and returns true if its end is dropped although not all is out.
    fn is_cut(end: &mut Session, number: u32, now_ns: u64) -> bool {
        end.close(number, None, now_ns);
        end.handle_timeout(now_ns);
        assert!(actions(end).contains(&SessionAction::Linger(number)));
        end.handle_lingered(number, false, now_ns);
        actions(end).contains(&SessionAction::Over(number))
    }
    for is_gone in [false, true] {
        let gone = |end: &mut Session, now_ns| {
            if is_gone {
                end.peer_is_gone(now_ns);
            }
        };
        // Closed before that is known, while the session is away, or over.
        for has_sign in [false, true] {
            let (mut pair, number) = Pair::connected();
            pair.cut();
            let end = &mut pair.acceptor;
            assert!(!is_cut(end, number, 0));
            if has_sign {
                let at_ns = until_dialled(end, address(1));
                end.handle_lost(end_of_socket(SocketEndKind::Refused), at_ns);
                end.handle_timeout(at_ns);
                drop(actions(end));
                assert!(end.ended().is_some());
            }
            gone(end, SECOND);
            end.handle_timeout(SECOND);
            drop(actions(end));
            end.handle_lingered(number, false, SECOND);
            assert_eq!(actions(end).contains(&SessionAction::Over(number)), is_gone, "sign: {has_sign}");
        }
        // Closed later.
        let (mut pair, number) = Pair::connected();
        pair.cut();
        gone(&mut pair.opener, SECOND);
        assert_eq!(is_cut(&mut pair.opener, number, SECOND), is_gone);
        let (mut pair, number) = Pair::connected();
        pair.cut();
        gone(&mut pair.opener, 0);
        drop(judged(&mut pair.opener, number, Probe::Carried, SECOND));
        assert!(!is_cut(&mut pair.opener, number, SECOND), "it answers");
        let (mut pair, number) = Pair::connected();
        pair.cut();
        pair.opener.handle_lost(end_of_socket(SocketEndKind::Refused), 0);
        drop(judged(&mut pair.opener, number, Probe::Carried, SECOND));
        gone(&mut pair.opener, 4 * SECOND);
        assert!(!is_cut(&mut pair.opener, number, 4 * SECOND), "it has answered here");
        // A process whose session has a socket is there.
        let (mut pair, number) = Pair::connected();
        gone(&mut pair.opener, 0);
        assert!(!is_cut(&mut pair.opener, number, 0));
        let (mut pair, number) = Pair::connected();
        pair.cut();
        gone(&mut pair.opener, 0);
        pair.join();
        assert!(!is_cut(&mut pair.opener, number, 0), "it has come back");
    }
}

#[test]
fn silence_condemns_only_connections_whose_adapters_get_no_answer() {
    for (probe, is_lost) in [(OUT, true), (Probe::Outstanding { by_adapter: false }, false), (Probe::Carried, false)] {
        let (mut pair, number) = Pair::connected();
        pair.cut();
        let mut lost_ns = None;
        for step in 0..100 {
            let now_ns = step * SECOND / 4;
            pair.acceptor.handle_timeout(now_ns);
            for action in actions(&mut pair.acceptor) {
                match action {
                    SessionAction::Judge { .. } => {
                        assert!(now_ns >= 2 * SECOND, "it may still come back: {now_ns}");
                        pair.acceptor.handle_judged(number, probe, now_ns);
                    }
                    SessionAction::Lost { .. } => lost_ns = Some(now_ns),
                    _ => {}
                }
            }
        }
        let expected = is_lost.then_some(4 * SECOND + SECOND / 4);
        assert!(lost_ns <= expected && lost_ns.is_some() == is_lost, "{probe:?}: {lost_ns:?}");
    }
}

#[test]
fn a_process_that_answers_for_one_connection_has_not_ended_for_another() {
    let (mut pair, busy) = Pair::connected();
    let idle = pair.opener.begin(0).expect("it is up");
    pair.cut();
    let end = &mut pair.opener;
    end.handle_lost(end_of_socket(SocketEndKind::Refused), 0);
    assert!(end.opened(idle, 0));
    let (mut looks, mut lost) = (0, Vec::new());
    let ended_ns = 20 * SECOND;
    for now_ns in (0..120).map(|step| step * SECOND / 4) {
        end.handle_timeout(now_ns);
        for action in actions(end) {
            if let SessionAction::Judge { connection, .. } = action {
                looks += u32::from(connection == busy);
                let is_answered = connection == busy && now_ns < ended_ns;
                end.handle_judged(connection, if is_answered { Probe::Carried } else { OUT }, now_ns);
            }
        }
        for action in actions(end) {
            if let SessionAction::Lost { connection, .. } = action {
                lost.push((connection, now_ns));
            }
        }
    }
    assert!(looks >= 20, "it is asked as long as it answers: {looks}");
    lost.sort_unstable();
    assert!(lost.iter().map(|(connection, _)| *connection).eq([busy, idle]), "{lost:?}");
    assert!(lost.iter().all(|(_, at_ns)| (ended_ns..ended_ns + 3 * SECOND).contains(at_ns)), "{lost:?}");
}

/// Lets an end wait until it looks at this connection. Returns when it does.
fn until_judged(end: &mut Session, number: u32) -> u64 {
    loop {
        let at_ns = end.timeout_ns().expect("it looks");
        end.handle_timeout(at_ns);
        let is_it =
            |action: &SessionAction| matches!(action, SessionAction::Judge { connection, .. } if *connection == number);
        if actions(end).iter().any(is_it) {
            return at_ns;
        }
    }
}

#[test]
fn a_sign_is_worth_quick_looks_at_an_application_that_has_made_no_calls_for_long() {
    let (mut pair, number) = Pair::connected();
    pair.cut();
    let end = &mut pair.opener;
    let (mut at_ns, mut pauses) = (until_judged(end, number), Vec::new());
    for _ in 0..6 {
        assert_eq!(judged(end, number, Probe::Unposted, at_ns), []);
        let next_ns = until_judged(end, number);
        pauses.push(next_ns - at_ns);
        at_ns = next_ns;
    }
    let first_ns = pauses[0];
    assert_eq!(pauses, [1, 2, 4, 8, 16, 16].map(|times| times * first_ns));
    let at_ns = until_dialled(end, address(2));
    end.handle_lost(end_of_socket(SocketEndKind::Refused), at_ns);
    assert_eq!(until_judged(end, number), at_ns);
    assert_eq!(judged(end, number, Probe::Unposted, at_ns), []);
    assert_eq!(until_judged(end, number), at_ns + first_ns);
}
