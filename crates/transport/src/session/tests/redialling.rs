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
fn addresses_have_little_time_in_most_rounds_and_long_in_patient_ones() {
    let (mut pair, _) = Pair::connected();
    pair.opener.learn([address(3)]);
    pair.cut();
    let wait = |pair: &mut Pair| {
        let (Stage::Pausing { until_ns: at_ns }
        | Stage::Dialling { deadline_ns: at_ns }
        | Stage::Hello { deadline_ns: at_ns, .. }
        | Stage::Resuming { deadline_ns: at_ns }) = pair.opener.stage
        else {
            panic!("{:?}", pair.opener.stage)
        };
        let waited_ns = at_ns - std::mem::replace(&mut pair.now_ns, at_ns);
        waited_ns / (SECOND / 1000)
    };
    for round in 0..8 {
        let (dial, answer) = if round % 4 == 3 { (1500, 2000) } else { (300, 1000) };
        // A path that leads nowhere.
        assert_eq!(wait(&mut pair), dial, "round {round}");
        pair.opener.handle_timeout(pair.now_ns);
        drop(actions(&mut pair.opener));
        // One whose process says nothing, and every other round one that ends before RESUMED.
        pair.opener.handle_connected([4; 32], pair.now_ns);
        if round % 2 == 1 {
            pair.now_ns += SECOND / 2;
            let mut newcomer = Session::accept(config(2, Some(3)), [9; 32], address(77), pair.now_ns);
            for _ in 0..4 {
                for action in actions(&mut pair.opener) {
                    if let SessionAction::Send(frame) = action {
                        newcomer.handle_frame(frame, pair.now_ns);
                    }
                }
                for action in actions(&mut newcomer) {
                    if let SessionAction::Send(frame) = action {
                        pair.opener.handle_frame(frame, pair.now_ns);
                    }
                }
            }
        }
        let is_resuming = matches!(pair.opener.stage, Stage::Resuming { .. });
        assert_eq!((wait(&mut pair), is_resuming), (answer, round % 2 == 1), "round {round}");
        pair.opener.handle_timeout(pair.now_ns);
        assert!(matches!(pair.opener.stage, Stage::Pausing { .. }), "round {round}");
        assert!(wait(&mut pair) <= 1000, "round {round}");
        pair.opener.handle_timeout(pair.now_ns);
    }
    pair.join();
}
