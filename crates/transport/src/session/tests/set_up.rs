//! Connections of a session: the messages of their set-up, their numbers, and the times of what is due for them.

use super::*;

#[test]
fn connections_are_begun_by_the_opener_of_a_session_that_is_up_and_count_from_1() {
    let mut pair = Pair::dialled([Some(3); 2]);
    assert_eq!(pair.opener.begin(0), None, "it is not up");
    pair.exchange();
    assert_eq!(pair.acceptor.begin(0), None, "it is not the opener");
    assert_eq!([0, 0, 0].map(|at_ns| pair.opener.begin(at_ns)), [Some(1), Some(2), Some(3)]);
    assert!(pair.opener.has_connections() && !pair.acceptor.has_connections());
    pair.opener.handle_lost(end_of_socket(SocketEndKind::Other), 0);
    assert_eq!(pair.opener.begin(0), None, "it is away");
}

#[test]
fn messages_of_a_set_up_are_handed_on_and_wait_restarts_its_time() {
    let (mut pair, number) = Pair::setting_up();
    let message = Message::Ready { usable: 1 };
    for (from_opener, message) in [(true, Message::Wait), (false, Message::Wait), (true, message.clone())] {
        let from = if from_opener { &mut pair.opener } else { &mut pair.acceptor };
        from.send(number, message.clone());
        let [opener, acceptor] = pair.exchange();
        let (heard, other) = if from_opener { (acceptor, opener) } else { (opener, acceptor) };
        let expected = match message {
            Message::Wait => SessionAction::Waits(number),
            message => SessionAction::Message { connection: number, message },
        };
        assert_eq!((heard, other), (vec![expected], vec![]));
    }
    // They mean nothing to a connection that is open, or that does not exist.
    assert!(pair.acceptor.opened(number, 0));
    for connection in [number, number + 1] {
        for message in [Message::Wait, message.clone()] {
            pair.acceptor.handle_frame(Frame { connection, message }, 0);
            assert_eq!(actions(&mut pair.acceptor), []);
        }
    }
}

#[test]
fn a_set_up_that_is_refused_is_told_to_the_peer_and_ends() {
    let (mut pair, number) = Pair::setting_up();
    pair.acceptor.refuse(number, Fault::Local, "no queue".to_owned(), 7);
    let message = Message::Refuse { fault: Fault::Local, of_rails: false, reason: "no queue".to_owned() };
    assert_eq!(pair.exchange(), [vec![SessionAction::Message { connection: number, message }], vec![]]);
    assert!(!pair.acceptor.has_connections());
    assert_eq!(pair.acceptor.idle_since_ns(), 7);
    assert!(pair.opener.has_connections(), "its handshake has yet to say that it failed");
    pair.opener.failed(number, 8);
    assert!(!pair.opener.has_connections());
    assert_eq!(pair.opener.idle_since_ns(), 8);
}

#[test]
fn only_a_connection_that_is_set_up_can_open_and_only_an_open_one_can_be_closed() {
    let (mut pair, number) = Pair::setting_up();
    for connection in [number, number + 1] {
        assert!(!pair.acceptor.close(connection, None, 9), "it is not open");
    }
    assert!(!pair.acceptor.opened(number + 1, 9), "there is none");
    assert_eq!(pair.acceptor.idle_since_ns(), 0, "nothing has changed");
    assert!(pair.acceptor.opened(number, 9));
    assert!(!pair.acceptor.opened(number, 10), "it is open already");
    pair.acceptor.failed(number, 11);
    pair.acceptor.accept_offer(number, 12);
    assert_eq!(pair.acceptor.idle_since_ns(), 9);
    assert_eq!(actions(&mut pair.acceptor), []);
    assert!(pair.acceptor.close(number, None, 13));
    let bye = SessionAction::Send(Frame { connection: number, message: Message::Bye(None) });
    assert_eq!(actions(&mut pair.acceptor), [bye]);
    assert!(!pair.acceptor.close(number, None, 14), "it is closed already");
    assert_eq!((actions(&mut pair.acceptor), pair.acceptor.idle_since_ns()), (vec![], 13));
}

#[test]
fn a_closed_connection_is_looked_at_after_pauses_that_double_up_to_ten_milliseconds() {
    let (mut pair, number) = Pair::connected();
    pair.opener.close(number, None, 0);
    drop(actions(&mut pair.opener));
    let mut looks = Vec::new();
    for _ in 0..MOST_STEPS {
        let Some(at_ns) = pair.opener.timeout_ns().filter(|at_ns| *at_ns < SECOND / 2) else { break };
        pair.opener.handle_timeout(at_ns);
        if actions(&mut pair.opener).contains(&SessionAction::Linger(number)) {
            looks.push(at_ns / 100_000);
            pair.opener.handle_lingered(number, false, at_ns);
        }
    }
    // In tenths of a millisecond. Each is the first multiple of its pause that is at least a pause away.
    assert_eq!(looks[..9], [0, 2, 8, 16, 32, 64, 128, 300, 400]);
    assert!(looks[7..].windows(2).all(|pair| pair[1] - pair[0] == 100), "{looks:?}");
}

#[test]
fn a_closed_connection_that_the_peer_gives_up_has_been_left() {
    let (mut pair, number) = Pair::connected();
    pair.opener.close(number, None, 0);
    pair.acceptor.send(number, refuse("too late"));
    pair.exchange();
    assert!(!pair.opener.has_connections() && pair.opener.timeout_ns() == Some(0), "it is looked at at once");
    pair.opener.handle_lingered(number, true, 0);
    assert_eq!(actions(&mut pair.opener), [SessionAction::Over(number)]);
}

#[test]
fn the_first_report_that_the_peer_has_left_counts() {
    let (mut pair, number) = Pair::connected();
    pair.acceptor.close(number, None, 0);
    assert_eq!(pair.exchange()[0], [SessionAction::PeerLeft(number)]);
    pair.opener.handle_frame(Frame { connection: number, message: refuse("too late") }, SECOND / 2);
    pair.opener.handle_lost(end_of_socket(SocketEndKind::Other), SECOND / 2);
    let ended = Arc::new(Ended::Socket("it ended".to_owned()));
    assert_eq!(actions(&mut pair.opener), [SessionAction::Ended(ended)]);
    assert_eq!(pair.opener.timeout_ns(), Some(SECOND));
    pair.opener.handle_timeout(SECOND);
    let lost = Lost { peer: pair.opener.peer_name(), cause: LostCause::Bye };
    assert_eq!(actions(&mut pair.opener), [SessionAction::Lost { connection: number, lost }]);
    assert_eq!(pair.opener.timeout_ns(), None, "it is said once");
}

#[test]
fn a_peer_is_asked_only_while_connections_need_it() {
    let (mut pair, number) = Pair::setting_up();
    for end in [&mut pair.opener, &mut pair.acceptor] {
        assert_eq!(end.timeout_ns(), None, "a set-up has a time of its own");
        end.handle_timeout(100 * SECOND);
        assert_eq!((actions(end), end.overdue_ns(100 * SECOND)), (vec![], None));
    }
    let mut idle = Pair::up();
    idle.acceptor.handle_timeout(59 * SECOND);
    assert_eq!(actions(&mut idle.acceptor), [], "nor is it asked for nobody");
    assert!(pair.opener.opened(number, 0));
    assert_eq!(pair.opener.timeout_ns(), Some(SECOND / 2), "an eighth of the 4 seconds for which it may be silent");
    pair.opener.handle_timeout(SECOND / 2);
    let ping = Message::Ping(Pulse { number: 1, clock_ns: SECOND / 2 });
    assert_eq!(actions(&mut pair.opener), [SessionAction::Send(Frame { connection: 0, message: ping })]);
    assert_eq!(pair.opener.overdue_ns(3 * SECOND / 2 - 1), None);
    assert_eq!(pair.opener.overdue_ns(2 * SECOND), Some(2 * SECOND), "since it was heard");
    pair.opener.handle_timeout(3 * SECOND / 2);
    let why = Arc::new(Ended::Silent { for_ns: 3 * SECOND / 2 });
    let away =
        [SessionAction::HangUp { flush: false }, SessionAction::Away(why), SessionAction::StillAway, dial(address(2))];
    assert_eq!(actions(&mut pair.opener), away);
    assert_eq!(pair.opener.overdue_ns(50 * SECOND), None, "nobody is asked any more");
}

#[test]
fn an_answer_that_was_owed_when_the_session_ended_is_not_sent() {
    let mut pair = Pair::up();
    pair.acceptor.handle_frame(Frame { connection: 0, message: Message::Ping(Pulse::default()) }, 0);
    pair.acceptor.handle_lost(end_of_socket(SocketEndKind::Other), 0);
    pair.acceptor.handle_all_read(0);
    let ended = Arc::new(Ended::Socket("it ended".to_owned()));
    assert_eq!(actions(&mut pair.acceptor), [SessionAction::Ended(ended)]);
    pair.acceptor.handle_frame(Frame { connection: 0, message: Message::Ping(Pulse::default()) }, 0);
    pair.acceptor.handle_all_read(0);
    pair.acceptor.send(1, Message::Bye(None));
    assert_eq!(actions(&mut pair.acceptor), []);
}

/// An end that has sent everything after this many looks.
struct Ending {
    lingers: bool,
    looks_left: u32,
    fate: Arc<crate::Fate>,
    steering: Arc<crate::Steering>,
}

impl crate::ConnectionEnd for Ending {
    fn peer(&self) -> &'static str {
        "node2"
    }
    fn fate(&self) -> &Arc<crate::Fate> {
        &self.fate
    }
    fn steering(&self) -> &Arc<crate::Steering> {
        &self.steering
    }
    fn parts(&self) -> Vec<railweave_fabric::Part> {
        Vec::new()
    }
    fn rails(&self) -> Vec<crate::RailInfo> {
        Vec::new()
    }
    fn describe_lanes(&self) -> Vec<String> {
        Vec::new()
    }
    fn received(&mut self) -> Option<Received> {
        assert!(!self.lingers, "what comes now is discarded");
        None
    }
    fn start_linger(&mut self) {
        self.lingers = true;
    }
    fn linger(&mut self) -> bool {
        assert!(self.lingers, "it was not closed");
        self.looks_left = self.looks_left.saturating_sub(1);
        self.looks_left == 0
    }
}

fn ending() -> Box<Ending> {
    let order = crate::Order::new(railweave_fabric::PolicyName::Adaptive, [0; railweave_fabric::MAX_RAILS]);
    let weights = crate::OwnWeights { speed: order.weights, fixed: None };
    let steering = Arc::new(crate::Steering::new(&order, weights));
    Box::new(Ending { lingers: false, looks_left: 2, fate: Arc::default(), steering })
}

#[test]
fn an_end_that_lingers_says_bye_and_is_over_once_it_has_sent_everything_and_its_peer_has_closed() {
    let (mut pair, number) = Pair::connected();
    let mut closed = crate::Lingering::begin(ending(), &mut pair.opener, number, 0);
    assert_eq!(pair.exchange()[1], [SessionAction::PeerLeft(number)], "it has heard BYE");
    pair.acceptor.close(number, None, 0);
    pair.exchange();
    assert_eq!(pair.wait(0)[0], [SessionAction::Linger(number)]);
    closed.linger(&mut pair.opener, number, pair.now_ns);
    assert_eq!(actions(&mut pair.opener), [], "not all is out");
    closed.linger(&mut pair.opener, number, pair.now_ns);
    assert_eq!(actions(&mut pair.opener), [SessionAction::Over(number)]);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "only an open connection is closed")]
fn an_end_whose_connection_is_not_open_cannot_linger() {
    let (mut pair, number) = Pair::setting_up();
    crate::Lingering::begin(ending(), &mut pair.acceptor, number, 0);
}
