//! An opener that has lost its socket dials its peer, and its acceptor looks for its process.

use super::*;

#[test]
fn a_session_that_is_away_dials_at_once_when_paths_may_be_back() {
    let (mut pair, _) = Pair::connected();
    let hang_up = SessionAction::HangUp { flush: false };
    pair.opener.hurry(0);
    assert_eq!(actions(&mut pair.opener), [], "it has its socket");
    pair.cut();
    // A dial whose packets are lost, and one that failed: then it pauses.
    pair.opener.hurry(pair.now_ns);
    assert_eq!(actions(&mut pair.opener), [hang_up, SessionAction::StillAway, dial(address(2))]);
    let mut pauses_ns = Vec::new();
    for _ in 0..4 {
        while !matches!(pair.opener.stage, Stage::Pausing { .. }) {
            pair.opener.handle_lost(end_of_socket(SocketEndKind::Other), pair.now_ns);
        }
        drop(actions(&mut pair.opener));
        let until_ns = pair.opener.timeout_ns().expect("it dials again");
        pauses_ns.push(until_ns - pair.now_ns);
        if pauses_ns.len() == 3 {
            pair.opener.hurry(pair.now_ns);
        } else {
            pair.now_ns = until_ns;
            pair.opener.handle_timeout(pair.now_ns);
        }
        assert!(actions(&mut pair.opener).contains(&dial(address(2))));
    }
    assert_eq!(pauses_ns, [1, 2, 4, 1].map(|times| times * pauses_ns[0]), "they begin again");
    // Its peer cannot dial.
    pair.acceptor.hurry(pair.now_ns);
    assert_eq!(actions(&mut pair.acceptor), []);
    pair.join();
}

#[test]
fn ports_that_flap_keep_no_address_from_its_turn() {
    let (mut pair, _) = Pair::connected();
    pair.opener.learn([address(3)]);
    pair.cut();
    let (mut last, mut turns) = (pair.opener.address(), vec![pair.opener.address()]);
    for step in 1..=25 {
        pair.now_ns = step * SECOND / 10;
        pair.opener.handle_timeout(pair.now_ns);
        drop(actions(&mut pair.opener));
        pair.opener.hurry(pair.now_ns);
        let to = pair.opener.address();
        assert!(actions(&mut pair.opener).contains(&dial(to)), "the event has it dialled now");
        if std::mem::replace(&mut last, to) != to {
            turns.push(to);
        }
    }
    assert_eq!(turns, [2, 3, 2].map(address));
    pair.join();
}

/// Lets time pass until the opener has ended its pause.
fn go_on_until_it_dials(pair: &mut Pair) {
    for _ in 0..100 {
        if !matches!(pair.opener.stage, Stage::Pausing { .. }) {
            return;
        }
        pair.now_ns = pair.opener.timeout_ns().expect("it dials again");
        pair.opener.handle_timeout(pair.now_ns);
    }
    panic!("its pause does not end");
}

#[test]
fn a_peer_that_is_connected_has_little_time_for_its_answer_at_first() {
    let (mut pair, _) = Pair::connected();
    let (first_ns, most_ns) = (pair.opener.config.redial_ns.1, pair.opener.config.peer_timeout_ns / 2);
    for _ in 0..2 {
        pair.cut();
        let mut times = Vec::new();
        while times.last() != Some(&most_ns) {
            assert!(times.len() < u64::BITS as usize, "it has no more time: {times:?}");
            go_on_until_it_dials(&mut pair);
            pair.opener.handle_connected([8; 32], pair.now_ns);
            let Stage::Hello { deadline_ns, .. } = pair.opener.stage else { panic!("it says HELLO") };
            times.push(deadline_ns - pair.now_ns);
            pair.now_ns = deadline_ns;
            pair.opener.handle_timeout(deadline_ns);
        }
        let doubled: Vec<u64> = (0..times.len()).map(|count| (first_ns << count).min(most_ns)).collect();
        assert_eq!(times, doubled);
        assert!(times.len() > 1, "{times:?}");
        go_on_until_it_dials(&mut pair);
        drop(actions(&mut pair.opener));
        pair.join();
    }
}

#[test]
fn an_opener_whose_path_is_gone_dials_another_address_first() {
    let kinds = [SocketEndKind::NoAnswer, SocketEndKind::NoRoute, SocketEndKind::Other, SocketEndKind::Mute];
    for (kind, last) in kinds.into_iter().zip([3, 3, 2, 2]) {
        let (mut pair, _) = Pair::connected();
        pair.opener.learn([address(2), address(3)]);
        pair.opener.handle_lost(end_of_socket(kind), pair.now_ns);
        assert_eq!(pair.opener.address(), address(last), "{kind:?}");
    }
}

#[test]
fn the_opener_dials_on_with_growing_pauses_and_the_acceptor_looks_for_its_process() {
    let (mut pair, _) = Pair::connected();
    pair.opener.learn([address(3), address(2)]);
    pair.cut();
    let mut dialled = vec![pair.opener.address()];
    let mut waits = 0;
    for _ in 0..10 {
        pair.opener.handle_lost(end_of_socket(SocketEndKind::NoRoute), pair.now_ns);
        for action in actions(&mut pair.opener) {
            match action {
                SessionAction::Dial { to, .. } => dialled.push(to),
                SessionAction::StillAway => {}
                other => panic!("{other:?}"),
            }
        }
        if matches!(pair.opener.stage, Stage::Pausing { .. }) {
            waits += 1;
            pair.now_ns = pair.opener.timeout_ns().expect("it dials again");
            pair.opener.handle_timeout(pair.now_ns);
            dialled.extend(actions(&mut pair.opener).into_iter().filter_map(|action| match action {
                SessionAction::Dial { to, .. } => Some(to),
                _ => None,
            }));
        }
    }
    assert_eq!(dialled[..4], [address(2), address(3), address(2), address(3)]);
    assert!(waits == 5 && pair.now_ns > SECOND, "{waits} {}", pair.now_ns);
    let at_ns = pair.acceptor.timeout_ns().expect("it looks");
    pair.acceptor.handle_timeout(at_ns);
    assert_eq!(actions(&mut pair.acceptor), [dial(address(1))], "the port that the opener's HELLO names");
    assert!(pair.acceptor.is_checking());
    pair.acceptor.handle_connected([5; 32], at_ns);
    let checked = actions(&mut pair.acceptor);
    assert_eq!(checked, [SessionAction::HangUp { flush: false }, SessionAction::StillAway], "that is all it wanted");
}

#[test]
fn only_the_first_address_has_long_in_most_rounds() {
    let (mut pair, _) = Pair::connected();
    pair.opener.learn([address(3)]);
    pair.cut();
    for round in 0..8 {
        for long in [true, round % 4 == 3] {
            let Stage::Dialling { deadline_ns } = pair.opener.stage else { panic!("{:?}", pair.opener.stage) };
            let waited_ns = deadline_ns - std::mem::replace(&mut pair.now_ns, deadline_ns);
            assert_eq!(waited_ns / (SECOND / 1000), if long { 1500 } else { 300 }, "round {round}");
            pair.opener.handle_timeout(pair.now_ns);
        }
        let Stage::Pausing { until_ns } = pair.opener.stage else { panic!("{:?}", pair.opener.stage) };
        assert!(until_ns - pair.now_ns <= SECOND);
        pair.now_ns = until_ns;
        pair.opener.handle_timeout(pair.now_ns);
    }
    pair.join();
}

#[test]
fn a_port_of_this_host_that_leads_nowhere_takes_back_no_sign() {
    let (mut pair, _) = Pair::connected();
    let own = vec![[10, 0, 0, 50].into()];
    pair.opener.config = Arc::new(SessionConfig { own, ..(*pair.opener.config).clone() });
    pair.cut();
    let has_sign = |pair: &Pair| pair.opener.away.as_ref().is_some_and(|away| away.sign.is_some());
    for _ in 0..2 {
        pair.opener.handle_lost(end_of_socket(SocketEndKind::Refused), pair.now_ns);
        assert!(has_sign(&pair));
    }
    // From the port that the kernel has not chosen, and then from the one that it chooses.
    pair.opener.handle_lost(end_of_socket(SocketEndKind::Other), pair.now_ns);
    assert!(matches!(pair.opener.stage, Stage::Pausing { .. }) && has_sign(&pair));
    pair.now_ns += SECOND;
    pair.opener.handle_timeout(pair.now_ns);
    assert!(has_sign(&pair));
    pair.opener.handle_lost(end_of_socket(SocketEndKind::Other), pair.now_ns);
    assert!(!has_sign(&pair));
}

#[test]
fn a_refusal_counts_only_where_the_kernel_has_chosen_the_port() {
    let (mut pair, _) = Pair::connected();
    let own = vec![[10, 0, 0, 50].into()];
    pair.opener.config = Arc::new(SessionConfig { own, ..(*pair.opener.config).clone() });
    let has_sign = |pair: &Pair| pair.opener.away.as_ref().is_some_and(|away| away.sign.is_some());
    pair.cut();
    for kind in [SocketEndKind::NoRoute, SocketEndKind::NoRoute, SocketEndKind::Refused] {
        assert_eq!(pair.opener.redial.is_bound(), kind == SocketEndKind::Refused);
        pair.opener.handle_lost(end_of_socket(kind), pair.now_ns);
    }
    assert!(matches!(pair.opener.stage, Stage::Pausing { .. }) && !has_sign(&pair));
    pair.now_ns += SECOND;
    pair.opener.handle_timeout(pair.now_ns);
    pair.opener.handle_lost(end_of_socket(SocketEndKind::Refused), pair.now_ns);
    assert!(has_sign(&pair));
    pair.opener.handle_lost(end_of_socket(SocketEndKind::Refused), pair.now_ns);
    pair.opener.handle_connected([8; 32], pair.now_ns);
    assert!(pair.opener.redial.is_bound() && has_sign(&pair), "another host may have answered");
}

#[test]
fn an_answer_where_the_peer_was_never_found_overrules_no_sign_of_its_end() {
    let (mut pair, _) = Pair::connected();
    pair.opener.learn([address(3)]);
    let has_sign = |pair: &Pair| pair.opener.away.as_ref().is_some_and(|away| away.sign.is_some());
    pair.cut();
    pair.opener.handle_lost(end_of_socket(SocketEndKind::Refused), pair.now_ns);
    assert!(has_sign(&pair) && pair.opener.address() == address(3));
    pair.opener.handle_connected([8; 32], pair.now_ns);
    assert!(has_sign(&pair), "another host may have that address");
}

#[test]
fn a_dial_that_is_begun_again_is_from_the_same_port() {
    let (mut pair, _) = Pair::connected();
    let own = vec![[10, 0, 0, 50].into()];
    pair.opener.config = Arc::new(SessionConfig { own: own.clone(), ..(*pair.opener.config).clone() });
    pair.cut();
    pair.opener.hurry(pair.now_ns);
    while !pair.opener.redial.is_bound() {
        pair.opener.handle_lost(end_of_socket(SocketEndKind::NoRoute), pair.now_ns);
    }
    drop(actions(&mut pair.opener));
    pair.opener.hurry(pair.now_ns);
    let again = SessionAction::Dial { from: Some(own[0]), to: pair.opener.address() };
    assert!(actions(&mut pair.opener).contains(&again));
}

#[test]
fn an_opener_whose_peer_is_silent_dials_another_address_first() {
    let (mut pair, _) = Pair::connected();
    pair.opener.learn([address(3)]);
    while !pair.opener.is_away() {
        pair.now_ns = pair.opener.timeout_ns().expect("it asks the peer");
        pair.opener.handle_timeout(pair.now_ns);
    }
    assert_eq!(pair.opener.address(), address(3));
}
