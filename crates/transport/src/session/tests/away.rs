//! Sessions that lose their sockets: what survives, how both ends find each other again, and when connections are lost.

use super::*;
use crate::sequence::Sequence;
use crate::{Probe, Resume};

/// The time for which rails must carry nothing, and a moment beyond.
pub(super) const PROOF: u64 = SECOND + SECOND / 4;

impl Pair {
    /// Ends the socket at both ends. Whatever is on its way is lost.
    pub(super) fn cut(&mut self) -> [Vec<SessionAction>; 2] {
        for end in [&mut self.opener, &mut self.acceptor] {
            drop(actions(end));
            end.handle_lost(end_of_socket(SocketEndKind::Other), self.now_ns);
        }
        [actions(&mut self.opener), actions(&mut self.acceptor)]
    }

    /// Joins the ends by a new socket. Returns all actions that are not about it.
    pub(super) fn join(&mut self) -> [Vec<SessionAction>; 2] {
        let mut newcomer = Session::accept(config(2, Some(3)), [9; 32], address(77), self.now_ns);
        self.opener.handle_connected([8; 32], self.now_ns);
        let mut wanted = [Vec::new(), Vec::new()];
        loop {
            for action in actions(&mut self.opener) {
                match action {
                    SessionAction::Send(frame) => newcomer.handle_frame(frame, self.now_ns),
                    other => wanted[0].push(other),
                }
            }
            for action in actions(&mut newcomer) {
                match action {
                    SessionAction::Send(frame) => self.opener.handle_frame(frame, self.now_ns),
                    SessionAction::Up => {}
                    SessionAction::Resume(resume) => {
                        let peer = newcomer.peer().expect("it is up").clone();
                        assert_eq!(self.acceptor.check_resume(&resume, &peer), Ok(()));
                        self.acceptor.resume(&resume, address(77), self.now_ns);
                        let [opener, acceptor] = self.exchange();
                        wanted[0].extend(opener);
                        wanted[1].extend(acceptor);
                        return wanted;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

/// Answers a look at a connection, and returns what follows from it.
pub(super) fn judged(end: &mut Session, number: u32, probe: Probe, now_ns: u64) -> Vec<SessionAction> {
    end.handle_judged(number, probe, now_ns);
    actions(end)
}

/// Lets an end that is away wait until it dials this address. Returns when it does.
pub(super) fn until_dialled(end: &mut Session, to: SocketAddr) -> u64 {
    loop {
        let at_ns = end.timeout_ns().expect("it dials");
        end.handle_timeout(at_ns);
        if actions(end).contains(&dial(to)) {
            return at_ns;
        }
    }
}

pub(super) const OUT: Probe = Probe::Outstanding { by_adapter: true };

#[test]
fn a_session_that_connections_need_survives_its_socket() {
    let (mut pair, number) = Pair::connected();
    let why = || SessionAction::Away(Arc::new(Ended::Socket("it ended".to_owned())));
    let still = || SessionAction::StillAway;
    assert_eq!(pair.cut(), [vec![why(), still(), dial(address(2))], vec![why(), still()]]);
    assert!(pair.opener.is_away() && pair.acceptor.is_away() && pair.opener.begin(0).is_none());
    pair.now_ns += 7;
    let back = SessionAction::Back { after_ns: 7 };
    assert_eq!(pair.join(), [vec![back.clone(), SessionAction::Up], vec![back, SessionAction::Up]]);
    assert_eq!((pair.acceptor.address(), pair.opener.address()), (address(77), address(2)));
    // It is as good as before, as often as it happens.
    for _ in 0..3 {
        pair.cut();
        pair.join();
    }
    assert!(pair.acceptor.close(number, None, pair.now_ns));
    assert_eq!(pair.exchange()[0], [SessionAction::PeerLeft(number)]);
    // Without connections it ends with its socket.
    let mut pair = Pair::up();
    let ended = SessionAction::Ended(Arc::new(Ended::Socket("it ended".to_owned())));
    assert_eq!(pair.cut(), [vec![ended.clone()], vec![ended]]);
}

#[test]
fn a_set_up_outlives_its_socket_once_the_peer_may_have_the_connection() {
    let (mut pair, number) = Pair::setting_up();
    pair.cut();
    assert!(pair.opener.is_away(), "its acceptor may wait for it");
    assert_eq!(pair.acceptor.ended().map(|why| (**why).clone()), Some(Ended::Socket("it ended".to_owned())));
    // The set-up's own limit ends a session that nothing else needs.
    pair.opener.failed(number, SECOND);
    assert!(pair.opener.ended().is_some());
    // The last two messages of a set-up come, whichever of them is lost.
    let probe = Message::Probe { rails: 1 };
    let ready = Message::Ready { usable: 1 };
    let (mut pair, number) = Pair::setting_up();
    pair.acceptor.send(number, probe.clone());
    pair.cut();
    assert!(pair.opener.is_away() && pair.acceptor.is_away());
    let [opener, _] = pair.join();
    assert!(opener.contains(&SessionAction::Message { connection: number, message: probe }), "{opener:?}");
    pair.opener.send(number, ready.clone());
    assert!(pair.opener.opened(number, 0));
    pair.cut();
    let [_, acceptor] = pair.join();
    assert!(acceptor.contains(&SessionAction::Message { connection: number, message: ready }), "{acceptor:?}");
    assert!(pair.acceptor.opened(number, 0));
    // Where lanes are sockets, nobody says PROBE.
    let (mut pair, number) = Pair::setting_up();
    pair.acceptor.peer_may_have(number);
    pair.acceptor.peer_may_have(number + 1);
    pair.cut();
    assert!(pair.acceptor.is_away() && pair.acceptor.opened(number, 0) && !pair.acceptor.opened(number + 1, 0));
}

#[test]
fn no_message_is_lost_or_comes_twice() {
    let (mut pair, open) = Pair::connected();
    let message = |usable| Message::Ready { usable };
    let [kept, set_up] = [(); 2].map(|()| pair.opener.begin(0).expect("it is up"));
    pair.opener.send(kept, Message::Offer(offer()));
    pair.exchange();
    pair.acceptor.accept_offer(kept, 0);
    assert!(pair.opener.opened(kept, 0) && pair.acceptor.opened(kept, 0));
    pair.opener.send(set_up, Message::Offer(offer()));
    pair.exchange();
    pair.acceptor.accept_offer(set_up, 0);
    // One message that came and whose HAVE is lost, one that is lost, and one that is said while there is no socket.
    pair.opener.send(set_up, message(1));
    for action in actions(&mut pair.opener) {
        let SessionAction::Send(frame) = action else { panic!("{action:?}") };
        pair.acceptor.handle_frame(frame, 0);
    }
    pair.acceptor.handle_all_read(0);
    let first = SessionAction::Message { connection: set_up, message: message(1) };
    assert_eq!(actions(&mut pair.acceptor)[0], first);
    pair.opener.send(set_up, message(2));
    pair.acceptor.send(set_up, Message::Wait);
    pair.cut();
    pair.opener.send(set_up, message(3));
    let received = Received::new(Sequence::new(5), |_| true);
    pair.opener.close(open, Some(received), 0);
    pair.opener.send(0, Message::Ping(Pulse::default()));
    let [opener, acceptor] = pair.join();
    assert!(opener.contains(&SessionAction::Waits(set_up)), "{opener:?}");
    let told: Vec<_> = acceptor.into_iter().filter(|action| !matches!(action, SessionAction::Back { .. })).collect();
    assert_eq!(
        told,
        [
            SessionAction::Up,
            SessionAction::Message { connection: set_up, message: message(2) },
            SessionAction::Message { connection: set_up, message: message(3) },
            SessionAction::Received { connection: open, received },
            SessionAction::PeerLeft(open),
        ]
    );
    pair.cut();
    let [opener, acceptor] = pair.join();
    assert_eq!([opener.len(), acceptor.len()], [2, 2], "nothing is said again: {opener:?} {acceptor:?}");
}

#[test]
fn only_the_address_that_led_to_the_peer_shows_that_its_process_has_ended() {
    let (mut pair, _) = Pair::connected();
    pair.opener.learn([address(3)]);
    pair.cut();
    pair.opener.handle_lost(end_of_socket(SocketEndKind::NoRoute), 0);
    assert_eq!(actions(&mut pair.opener), [SessionAction::StillAway, dial(address(3))]);
    for kind in [SocketEndKind::Refused, SocketEndKind::Mute] {
        pair.opener.handle_lost(end_of_socket(kind), 0);
        pair.opener.handle_timeout(SECOND);
        let judged = actions(&mut pair.opener).iter().any(|action| matches!(action, SessionAction::Judge { .. }));
        assert!(!judged, "any host may have that address: {kind:?}");
    }
    // Another process at the peer's own address is as good as a refusal.
    let (mut pair, _) = Pair::connected();
    pair.cut();
    pair.opener.handle_connected([4; 32], 0);
    let other = Hello { features: Hello::KEYED, ..hello(3, true) };
    pair.opener.handle_frame(Frame { connection: 0, message: Message::Hello(other.encode()) }, 0);
    pair.opener.handle_timeout(0);
    assert!(actions(&mut pair.opener).iter().any(|action| matches!(action, SessionAction::Judge { .. })));
}

#[test]
fn an_address_that_lanes_have_proven_shows_it_too_and_keeps_its_sign() {
    let (mut pair, _) = Pair::connected();
    pair.opener.learn([address(3)]);
    pair.opener.prove(address(3).ip());
    pair.cut();
    let judges = |end: &mut Session, now_ns| {
        end.handle_timeout(now_ns);
        actions(end).iter().any(|action| matches!(action, SessionAction::Judge { insists: true, .. }))
    };
    // The address of the lost socket is on a dead path.
    pair.opener.handle_lost(end_of_socket(SocketEndKind::NoRoute), 0);
    assert_eq!(actions(&mut pair.opener), [SessionAction::StillAway, dial(address(3))]);
    pair.opener.handle_lost(end_of_socket(SocketEndKind::Refused), 0);
    assert!(judges(&mut pair.opener, 0));
    pair.now_ns = until_dialled(&mut pair.opener, address(2));
    pair.opener.handle_lost(end_of_socket(SocketEndKind::NoRoute), pair.now_ns);
    assert!(pair.opener.insists(pair.now_ns), "the dead path says nothing");
    // The acceptor looks for its opener at each in turn.
    let (mut pair, _) = Pair::connected();
    pair.acceptor.prove(address(4).ip());
    pair.cut();
    let mut looked_at = Vec::new();
    for _ in 0..3 {
        let at_ns = pair.acceptor.timeout_ns().expect("it looks");
        pair.acceptor.handle_timeout(at_ns);
        looked_at.extend(actions(&mut pair.acceptor).into_iter().filter_map(|action| match action {
            SessionAction::Dial { to, .. } => Some(to.ip()),
            _ => None,
        }));
        pair.acceptor.handle_lost(end_of_socket(SocketEndKind::NoRoute), at_ns);
    }
    assert_eq!(looked_at, [1, 4, 1].map(|last| address(last).ip()));
}

#[test]
fn a_sign_is_forgotten_once_something_answers_or_nothing_does() {
    let (mut pair, number) = Pair::connected();
    for kind in [None, Some(SocketEndKind::NoRoute), Some(SocketEndKind::Other)] {
        pair.cut();
        pair.opener.handle_lost(end_of_socket(SocketEndKind::Refused), pair.now_ns);
        drop(actions(&mut pair.opener));
        pair.opener.handle_timeout(pair.now_ns);
        let judge = |is_due, insists| SessionAction::Judge { connection: number, is_due, insists };
        assert!(actions(&mut pair.opener).contains(&judge(true, true)), "it seems to have ended");
        pair.now_ns = until_dialled(&mut pair.opener, address(2));
        match kind {
            None => pair.opener.handle_connected([8; 32], pair.now_ns),
            Some(kind) => pair.opener.handle_lost(end_of_socket(kind), pair.now_ns),
        }
        drop(actions(&mut pair.opener));
        assert_eq!(judged(&mut pair.opener, number, Probe::Unposted, pair.now_ns), []);
        let at_ns = pair.now_ns + SECOND;
        pair.opener.handle_timeout(at_ns);
        let said = actions(&mut pair.opener);
        assert!(said.contains(&judge(false, false)), "{kind:?}: {said:?}");
        for out_ns in [at_ns, at_ns + PROOF] {
            assert_eq!(judged(&mut pair.opener, number, OUT, out_ns), [], "{kind:?}");
        }
        pair = Pair::connected().0;
    }
}

#[test]
fn only_a_sign_or_a_longer_silence_insists_on_a_probe() {
    let (mut pair, number) = Pair::connected();
    pair.cut();
    let mut insisted_ns = None;
    for step in 0..=24 {
        let now_ns = step * SECOND / 4;
        pair.acceptor.handle_timeout(now_ns);
        for action in actions(&mut pair.acceptor) {
            if let SessionAction::Judge { insists, .. } = action {
                insisted_ns = insisted_ns.or(insists.then_some(now_ns));
                pair.acceptor.handle_judged(number, Probe::Unposted, now_ns);
            }
        }
    }
    assert!(insisted_ns.is_some_and(|at_ns| (5 * SECOND..=6 * SECOND).contains(&at_ns)), "{insisted_ns:?}");
}

#[test]
fn only_the_peer_itself_is_heard_while_a_session_is_away() {
    let (mut pair, _) = Pair::connected();
    pair.cut();
    assert_eq!(pair.opener.judging_from_ns(), Some(2 * SECOND), "half of the peer's time after it was heard");
    pair.opener.handle_connected([4; 32], SECOND);
    let other = Hello { features: Hello::KEYED, ..hello(3, true) };
    pair.opener.handle_frame(Frame { connection: 0, message: Message::Hello(other.encode()) }, SECOND);
    pair.opener.forget_sign();
    let (mut quiet, _) = Pair::connected();
    quiet.cut();
    for end in [&mut pair.opener, &mut quiet.opener] {
        assert!(end.insists(5 * SECOND) && !end.insists(5 * SECOND - 1), "any process may say HELLO there");
    }
    // A session that goes on has heard its peer.
    quiet.now_ns = 3 * SECOND;
    quiet.join();
    quiet.cut();
    assert_eq!(quiet.opener.judging_from_ns(), Some(5 * SECOND));
    assert_eq!(quiet.acceptor.judging_from_ns(), Some(5 * SECOND));
}

#[test]
fn a_peer_that_seems_to_have_ended_owes_closed_connections_nothing() {
    let (mut pair, number) = Pair::connected();
    pair.acceptor.close(number, None, 0);
    pair.acceptor.handle_lingered(number, false, 0);
    pair.cut();
    let at_ns = until_dialled(&mut pair.acceptor, address(1));
    pair.acceptor.handle_lost(end_of_socket(SocketEndKind::Refused), at_ns);
    pair.acceptor.handle_timeout(at_ns);
    assert_eq!(pair.acceptor.ended().map(|why| (**why).clone()), Some(Ended::Socket("it ended".to_owned())));
}

#[test]
fn a_session_that_is_away_ends_once_nothing_needs_it() {
    let (mut pair, number) = Pair::connected();
    pair.acceptor.close(number, None, 0);
    pair.acceptor.handle_lingered(number, false, 0);
    pair.cut();
    pair.acceptor.handle_lingered(number, true, 3 * SECOND);
    assert_eq!(actions(&mut pair.acceptor), [SessionAction::Over(number)]);
    assert!(!pair.acceptor.is_over(), "the peer should hear its BYE");
    pair.acceptor.handle_timeout(4 * SECOND - 1);
    assert!(pair.acceptor.is_away());
    pair.acceptor.handle_timeout(4 * SECOND);
    assert!(pair.acceptor.ended().is_some(), "but not forever");
    // The opener has heard nothing of it. When it comes back, it is told that there is no such session; that is final.
    let answer = Frame { connection: 0, message: Message::Resumed(None) };
    pair.opener.handle_connected([4; 32], 0);
    for message in [Message::Hello(hello(2, true).encode()), Message::Proof([6; 32])] {
        pair.opener.handle_frame(Frame { connection: 0, message }, 0);
    }
    drop(actions(&mut pair.opener));
    pair.opener.handle_frame(answer, 0);
    let forgotten = SessionAction::Ended(Arc::new(Ended::Forgotten));
    let left = SessionAction::PeerLeft(number);
    assert_eq!(actions(&mut pair.opener), [SessionAction::HangUp { flush: false }, forgotten, left]);
    pair.opener.handle_timeout(SECOND);
    assert!(matches!(actions(&mut pair.opener)[..], [SessionAction::Lost { .. }]));
}

#[test]
fn what_may_not_resume_changes_nothing() {
    let (mut pair, _) = Pair::connected();
    let ours = hello(1, true);
    let resume = Resume { session: pair.acceptor.id(), attempt: 1, received: 0 };
    assert_eq!(pair.acceptor.check_resume(&resume, &ours), Ok(()), "even if its own socket is not known to be gone");
    let lies = [
        (Resume { session: SessionId([7; 16]), ..resume }, ours.clone(), ResumeFault::Unknown),
        (resume, hello(3, true), ResumeFault::Unknown),
        (Resume { attempt: 0, ..resume }, ours.clone(), ResumeFault::Old),
        (Resume { attempt: u32::MAX, ..resume }, ours.clone(), ResumeFault::Old),
        (Resume { received: 1, ..resume }, ours.clone(), ResumeFault::Frames { received: 1 }),
        (Resume { received: u64::MAX, ..resume }, ours.clone(), ResumeFault::Frames { received: u64::MAX }),
    ];
    for (resume, peer, fault) in lies {
        assert_eq!(pair.acceptor.check_resume(&resume, &peer), Err(fault));
    }
    assert_eq!(pair.opener.check_resume(&resume, &ours), Err(ResumeFault::Unknown), "openers dial");
    // A socket on which a session has begun is no place to resume another.
    pair.acceptor.handle_frame(Frame { connection: 0, message: Message::Resume(resume) }, 0);
    assert_eq!(pair.acceptor.ended().map(|why| (**why).clone()), Some(Ended::OutOfTurn));
    // A newcomer that is refused hears of it before its socket is closed.
    let mut newcomer = Pair::up().acceptor;
    newcomer.handle_frame(Frame { connection: 0, message: Message::Resume(resume) }, 0);
    assert_eq!(actions(&mut newcomer), [SessionAction::Resume(resume)]);
    newcomer.refuse_resume(0);
    let said = Frame { connection: 0, message: Message::Resumed(None) };
    assert_eq!(actions(&mut newcomer)[..2], [SessionAction::Send(said), SessionAction::HangUp { flush: true }]);
}

#[test]
fn an_answer_that_lies_about_frames_is_no_answer() {
    let (mut pair, _) = Pair::connected();
    pair.cut();
    pair.opener.handle_connected([4; 32], 0);
    for message in [Message::Hello(hello(2, true).encode()), Message::Proof([6; 32])] {
        pair.opener.handle_frame(Frame { connection: 0, message }, 0);
    }
    drop(actions(&mut pair.opener));
    pair.opener.handle_frame(Frame { connection: 0, message: Message::Resumed(Some(99)) }, 0);
    assert!(matches!(unwelcome(&mut pair.opener), Unwelcome::OutOfTurn { .. }));
    assert!(actions(&mut pair.opener).contains(&SessionAction::HangUp { flush: false }) && pair.opener.is_away());
    // While it is up, such a claim ends the session.
    let (mut pair, _) = Pair::connected();
    pair.opener.handle_frame(Frame { connection: 0, message: Message::Have(99) }, 0);
    assert_eq!(pair.opener.ended().map(|why| (**why).clone()), Some(Ended::OutOfTurn));
}

#[test]
fn connections_that_come_up_while_the_session_is_away_are_judged_too() {
    let (mut pair, open) = Pair::connected();
    let set_up = pair.opener.begin(0).expect("it is up");
    pair.cut();
    pair.opener.handle_lost(end_of_socket(SocketEndKind::Refused), 0);
    assert!(pair.opener.opened(set_up, 0));
    pair.opener.handle_timeout(0);
    let judged: Vec<u32> = actions(&mut pair.opener)
        .into_iter()
        .filter_map(|action| match action {
            SessionAction::Judge { connection, .. } => Some(connection),
            _ => None,
        })
        .collect();
    assert_eq!(judged, [open, set_up]);
}

#[test]
fn clocks_are_compared_by_every_answer() {
    let (mut pair, _) = Pair::connected();
    assert_eq!(pair.opener.peer_clock(), None);
    pair.wait(SECOND / 2);
    let clock = pair.opener.peer_clock().expect("it was answered");
    assert_eq!((clock.ahead_ns, clock.within_ns, clock.at_ns), (0, 0, SECOND / 2));
    let pong = Message::Pong(Pulse { number: 99, clock_ns: 7 });
    pair.opener.handle_frame(Frame { connection: 0, message: pong }, SECOND);
    assert_eq!(pair.opener.peer_clock(), Some(clock), "nobody asked that");
}

#[test]
fn nothing_is_kept_for_a_peer_whose_offers_are_refused() {
    let mut pair = Pair::up();
    for number in 1..=3 {
        pair.acceptor.handle_frame(Frame { connection: number, message: Message::Offer(offer()) }, 0);
        pair.acceptor.refuse(number, Fault::Protocol, "no".to_owned(), 0);
    }
    assert_eq!((pair.acceptor.numbered.kept().count(), pair.acceptor.numbered.lacks_some()), (0, true));
    // A socket on which it has heard none of this is no way to go on.
    pair.acceptor.handle_frame(Frame { connection: 9, message: Message::Offer(offer()) }, 0);
    pair.acceptor.accept_offer(9, 0);
    pair.acceptor.send(9, Message::Wait);
    for (received, may) in [(0, false), (2, false), (3, true), (4, true), (5, false)] {
        let resume = Resume { session: pair.acceptor.id(), attempt: 1, received };
        assert_eq!(pair.acceptor.check_resume(&resume, &hello(1, true)).is_ok(), may, "{received}");
    }
    pair.acceptor.failed(9, 0);
    pair.acceptor.handle_frame(Frame { connection: 0, message: Message::Have(4) }, 0);
    // Once the peer says that it has all, the session is as good as any.
    pair.acceptor.handle_frame(Frame { connection: 4, message: Message::Offer(offer()) }, 0);
    pair.acceptor.accept_offer(4, 0);
    pair.acceptor.send(4, Message::Probe { rails: 1 });
    assert_eq!((pair.acceptor.numbered.kept().count(), pair.acceptor.numbered.lacks_some()), (1, false));
    pair.acceptor.handle_lost(end_of_socket(SocketEndKind::Other), 0);
    assert!(pair.acceptor.is_away());
}

#[test]
fn a_session_whose_peer_never_says_what_it_has_ends_with_its_socket() {
    let (mut pair, number) = Pair::connected();
    let reason = "x".repeat(1000);
    for _ in 0..5000 {
        pair.acceptor.send(number, refuse(&reason));
    }
    pair.acceptor.handle_lost(end_of_socket(SocketEndKind::Other), 0);
    assert_eq!(pair.acceptor.ended().map(|why| (**why).clone()), Some(Ended::Socket("it ended".to_owned())));
}
