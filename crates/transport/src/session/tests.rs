//! Two ends of a session and a clock, without a network between them.

mod away;
mod doubting;
mod redialling;
mod set_up;
mod start;

use std::net::SocketAddr;
use std::sync::Arc;

use super::*;
use railweave_fabric::Fault;

use crate::{Offer, PROTOCOL_VERSION, Received, Ways};

const SECOND: u64 = 1_000_000_000;

/// More steps than any session of these tests takes until it ends.
const MOST_STEPS: usize = 10_000;

/// A proof that is its maker's key and role.
struct Password(u8);

impl Prover for Password {
    fn proof(&self, side: Side, opener_hello: &[u8], acceptor_hello: &[u8]) -> [u8; 32] {
        assert_ne!(opener_hello, acceptor_hello, "each end has a nonce of its own");
        [self.0 * 2 + u8::from(side == Side::Opener); 32]
    }

    fn is_proof(&self, side: Side, opener_hello: &[u8], acceptor_hello: &[u8], proof: &[u8; 32]) -> bool {
        self.proof(side, opener_hello, acceptor_hello) == *proof
    }
}

fn hello(process: u8, is_keyed: bool) -> Hello {
    Hello {
        protocol_min: PROTOCOL_VERSION,
        protocol_max: PROTOCOL_VERSION,
        features: if is_keyed { Hello::KEYED } else { 0 },
        mode: 1,
        fabrics: 1,
        network: 1,
        process: ProcessId([process; 16]),
        wanted: ProcessId::default(),
        nonce: [0; 32],
        pid: 1,
        rank: process.into(),
        world: 2,
        host: format!("node{process}"),
        build: "test".to_owned(),
        control_port: 7,
    }
}

fn config(process: u8, key: Option<u8>) -> Arc<SessionConfig> {
    let prover = key.map(|key| Arc::new(Password(key)) as Arc<dyn Prover>);
    Arc::new(SessionConfig::new(hello(process, key.is_some()), prover, 8 * SECOND, 4 * SECOND))
}

fn address(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], 7))
}

fn dial(to: SocketAddr) -> SessionAction {
    SessionAction::Dial { from: None, to }
}

fn end_of_socket(kind: SocketEndKind) -> SocketEnd {
    SocketEnd { kind, text: "it ended".to_owned() }
}

/// Returns why the peer of an end is not welcome.
fn unwelcome(end: &mut Session) -> Unwelcome {
    match end.poll_event() {
        Some(Event::Unwelcome(unwelcome)) => unwelcome,
        other => panic!("{other:?}"),
    }
}

/// Returns all actions of an end.
fn actions(end: &mut Session) -> Vec<SessionAction> {
    std::iter::from_fn(|| end.poll_action()).collect()
}

/// An opener and the acceptor that it dials.
struct Pair {
    now_ns: u64,
    opener: Session,
    acceptor: Session,
}

impl Pair {
    fn dialled(keys: [Option<u8>; 2]) -> Self {
        let mut opener = Session::open(config(1, keys[0]), ProcessId([2; 16]), [address(2)], 0);
        assert_eq!(actions(&mut opener), [dial(address(2))]);
        opener.handle_connected([1; 32], 0);
        let acceptor = Session::accept(config(2, keys[1]), [2; 32], address(1), 0);
        Self { now_ns: 0, opener, acceptor }
    }

    fn up() -> Self {
        let mut pair = Self::dialled([Some(3); 2]);
        assert_eq!(pair.exchange(), [vec![SessionAction::Up], vec![SessionAction::Up]]);
        pair
    }

    /// A pair with a connection that both ends set up, and its number.
    fn setting_up() -> (Self, u32) {
        let mut pair = Self::up();
        let number = pair.opener.begin(pair.now_ns).expect("it is up");
        pair.opener.send(number, Message::Offer(offer()));
        assert_eq!(pair.exchange()[1], [SessionAction::Offer { connection: number, offer: offer() }]);
        pair.acceptor.accept_offer(number, pair.now_ns);
        (pair, number)
    }

    /// A pair with a connection that is open at both ends, and its number.
    fn connected() -> (Self, u32) {
        let (mut pair, number) = Self::setting_up();
        pair.opener.opened(number, pair.now_ns);
        pair.acceptor.opened(number, pair.now_ns);
        assert_eq!(pair.exchange(), [vec![], vec![]]);
        (pair, number)
    }

    /// Carries frames both ways until there are none. Returns all other actions of the opener and the acceptor.
    fn exchange(&mut self) -> [Vec<SessionAction>; 2] {
        let mut wanted = [Vec::new(), Vec::new()];
        let mut moved = true;
        while std::mem::take(&mut moved) {
            for at in [0, 1] {
                let (from, to) = if at == 0 {
                    (&mut self.opener, &mut self.acceptor)
                } else {
                    (&mut self.acceptor, &mut self.opener)
                };
                for action in actions(from) {
                    match action {
                        SessionAction::Send(frame) => {
                            moved = true;
                            to.handle_frame(frame, self.now_ns);
                        }
                        other => wanted[at].push(other),
                    }
                }
                to.handle_all_read(self.now_ns);
            }
        }
        wanted
    }

    /// Lets time pass.
    fn wait(&mut self, ns: u64) -> [Vec<SessionAction>; 2] {
        self.now_ns += ns;
        self.opener.handle_timeout(self.now_ns);
        self.acceptor.handle_timeout(self.now_ns);
        self.exchange()
    }
}

fn offer() -> Offer {
    Offer { nonce: 5, striped: false, traffic_class: None, ports: Vec::new(), ways: Ways::default() }
}

fn refuse(reason: &str) -> Message {
    Message::Refuse { fault: Fault::Peer, of_rails: false, reason: reason.to_owned() }
}

#[test]
fn a_session_comes_up_with_a_key_and_without() {
    for keys in [[None; 2], [Some(3); 2]] {
        let mut pair = Pair::dialled(keys);
        assert_eq!(pair.exchange(), [vec![SessionAction::Up], vec![SessionAction::Up]]);
        assert_eq!(pair.opener.peer_name(), "node2, rank 2 (pid 1) at 10.0.0.2:7");
        assert_eq!(pair.acceptor.peer().map(|peer| peer.process), Some(ProcessId([1; 16])));
    }
}

#[test]
fn both_ends_name_the_key_that_differs_and_one_that_is_missing() {
    let mut pair = Pair::dialled([Some(3), Some(4)]);
    let [opener, acceptor] = pair.exchange();
    let peer = "node2, rank 2 (pid 1) at 10.0.0.2:7".to_owned();
    assert!(opener.contains(&SessionAction::Unreachable(Unreachable::OtherKey { peer })), "{opener:?}");
    assert!(matches!(unwelcome(&mut pair.acceptor), Unwelcome::OtherKey { .. }));
    assert_eq!(acceptor[0], SessionAction::HangUp { flush: true }, "the opener is to hear of it");
    assert!(pair.opener.is_over() && pair.acceptor.is_over());
    let mut pair = Pair::dialled([Some(3), None]);
    let [opener, _] = pair.exchange();
    assert!(opener.iter().any(|action| matches!(action, SessionAction::Unreachable(Unreachable::Hello { .. }))));
    assert!(matches!(unwelcome(&mut pair.acceptor), Unwelcome::Hello { .. }));
}

#[test]
fn a_session_is_dialled_at_the_next_address_where_another_process_answers() {
    let mut opener = Session::open(config(1, None), ProcessId([2; 16]), [address(3), address(2)], 0);
    assert_eq!(actions(&mut opener), [dial(address(3))]);
    opener.handle_connected([1; 32], 0);
    drop(actions(&mut opener));
    opener.handle_frame(Frame { connection: 0, message: Message::Hello(hello(3, false).encode()) }, 1);
    assert_eq!(actions(&mut opener), [SessionAction::HangUp { flush: true }, dial(address(2))]);
    opener.handle_connected([1; 32], 0);
    opener.handle_frame(Frame { connection: 0, message: Message::Hello(hello(2, false).encode()) }, 2);
    assert_eq!(actions(&mut opener).last(), Some(&SessionAction::Up));
}

#[test]
fn a_session_is_dialled_again_where_the_socket_was_closed_before_a_byte_came() {
    let mut opener = Session::open(config(1, None), ProcessId([2; 16]), [address(2)], 0);
    drop(actions(&mut opener));
    opener.handle_lost(end_of_socket(SocketEndKind::Mute), 5);
    assert_eq!(actions(&mut opener), []);
    let at_ns = opener.timeout_ns().expect("it is dialled again");
    opener.handle_timeout(at_ns - 1);
    assert_eq!(actions(&mut opener), []);
    opener.handle_timeout(at_ns);
    assert_eq!(actions(&mut opener), [dial(address(2))]);
    opener.handle_lost(end_of_socket(SocketEndKind::Other), at_ns);
    let [SessionAction::Unreachable(Unreachable::Tried { tries, .. }), SessionAction::Ended(_)] =
        &actions(&mut opener)[..]
    else {
        panic!()
    };
    assert_eq!(tries[..], ["10.0.0.2:7: it ended"]);
    assert!(opener.is_over());
    // An acceptor that says HELLO and then hangs up without a word does not want this peer.
    let mut pair = Pair::dialled([Some(3); 2]);
    let welcome = actions(&mut pair.acceptor);
    let [SessionAction::Send(hello)] = &welcome[..] else { panic!("{welcome:?}") };
    pair.opener.handle_frame(hello.clone(), 0);
    pair.opener.handle_lost(end_of_socket(SocketEndKind::Mute), 0);
    drop(actions(&mut pair.opener));
    assert!(pair.opener.is_over());
}

#[test]
fn an_end_that_does_not_say_hello_in_time_is_unwelcome() {
    let mut acceptor = Session::accept(config(2, None), [2; 32], address(1), 0);
    acceptor.handle_timeout(8 * SECOND - 1);
    assert_eq!(actions(&mut acceptor).len(), 1, "its own HELLO");
    acceptor.handle_timeout(8 * SECOND);
    assert!(matches!(unwelcome(&mut acceptor), Unwelcome::Late { .. }));
    let [SessionAction::HangUp { flush: false }, SessionAction::Ended(why)] = &actions(&mut acceptor)[..] else {
        panic!()
    };
    assert_eq!(**why, Ended::Late);
}

#[test]
fn what_comes_out_of_turn_ends_the_session() {
    for message in [Message::Hello(hello(1, false).encode()), Message::Proof([0; 32])] {
        let mut pair = Pair::up();
        pair.acceptor.handle_frame(Frame { connection: 0, message }, 0);
        assert_eq!(pair.acceptor.ended().map(|why| (**why).clone()), Some(Ended::OutOfTurn));
    }
    let mut pair = Pair::up();
    pair.opener.handle_frame(Frame { connection: 1, message: Message::Offer(offer()) }, 0);
    assert_eq!(pair.opener.ended().map(|why| (**why).clone()), Some(Ended::OutOfTurn), "openers alone offer");
    assert_eq!(unwelcome(&mut pair.opener), Unwelcome::OutOfTurn { peer: pair.opener.peer_name() });
}

#[test]
fn a_peer_that_breaks_a_limit_is_unwelcome_and_one_whose_socket_ends_is_not() {
    let limits = [Limit::Unconnected { most: 65_536 }, Limit::Place { others: 63 }];
    for limit in limits {
        let mut pair = Pair::up();
        let peer = pair.acceptor.peer_name();
        pair.acceptor.end(limit.into(), 0);
        let said = unwelcome(&mut pair.acceptor);
        assert_eq!(said, Unwelcome::Limit { peer: peer.clone(), limit });
        assert_eq!(said.to_string(), format!("{peer} {limit}; its session was closed"));
        assert_eq!(pair.acceptor.ended().map(ToString::to_string), Some(limit.to_string()));
    }
    let mut pair = Pair::up();
    pair.acceptor.handle_lost(end_of_socket(SocketEndKind::Other), 0);
    assert_eq!(pair.acceptor.poll_event(), None);
    assert!(pair.acceptor.begin(0).is_none() && pair.opener.begin(0).is_some(), "openers of what is up begin");
}

#[test]
fn an_idle_session_is_ended_by_its_opener_and_one_in_use_is_not() {
    let mut pair = Pair::up();
    assert_eq!(pair.wait(SECOND - 1), [vec![], vec![]]);
    let [opener, _] = pair.wait(1);
    assert_eq!(opener, [SessionAction::HangUp { flush: false }, SessionAction::Ended(Arc::new(Ended::Idle))]);
    assert!(pair.opener.is_over() && pair.acceptor.is_up(), "the other end sees its socket end");
    // An offer that waits keeps the session in use: only the acceptor makes it wait.
    let mut pair = Pair::up();
    let number = pair.opener.begin(0).expect("it is up");
    pair.opener.send(number, Message::Offer(offer()));
    pair.exchange();
    assert_eq!(pair.acceptor.timeout_ns(), None);
    assert!(!pair.acceptor.has_connections(), "it is no connection yet");
    assert_eq!(pair.wait(100 * SECOND), [vec![], vec![]]);
    pair.acceptor.refuse(number, Fault::Protocol, "no".to_owned(), pair.now_ns);
    // Its minute ended long ago: a refused offer does not restart it.
    assert_eq!(pair.acceptor.timeout_ns(), Some(60 * SECOND));
}

#[test]
fn offers_that_are_refused_do_not_keep_a_session() {
    let mut pair = Pair::up();
    for number in 1..100 {
        let now_ns = u64::from(number) * SECOND / 2;
        pair.acceptor.handle_frame(Frame { connection: number, message: Message::Offer(offer()) }, now_ns);
        pair.acceptor.refuse(number, Fault::Protocol, "there is no such listener".to_owned(), now_ns);
        assert_eq!((pair.acceptor.timeout_ns(), pair.acceptor.idle_since_ns()), (Some(60 * SECOND), 0));
    }
    pair.acceptor.handle_frame(Frame { connection: 100, message: Message::Offer(offer()) }, 55 * SECOND);
    pair.acceptor.accept_offer(100, 55 * SECOND);
    pair.acceptor.failed(100, 56 * SECOND);
    assert_eq!(pair.acceptor.timeout_ns(), Some(116 * SECOND), "one that is begun is a step");
}

#[test]
fn a_session_has_a_limit_of_connections() {
    let mut pair = Pair::up();
    for number in 1..=65_536 {
        pair.acceptor.handle_frame(Frame { connection: number, message: Message::Offer(offer()) }, 0);
    }
    let offers = actions(&mut pair.acceptor);
    assert!(offers.len() == 65_536 && offers.iter().all(|action| matches!(action, SessionAction::Offer { .. })));
    pair.acceptor.handle_frame(Frame { connection: 65_537, message: Message::Offer(offer()) }, 0);
    let refused = actions(&mut pair.acceptor);
    assert!(
        matches!(&refused[..], [SessionAction::Send(Frame { message: Message::Refuse { .. }, .. })]),
        "{refused:?}"
    );
}

#[test]
fn however_often_a_peer_asks_it_gets_one_answer() {
    let mut pair = Pair::up();
    (0..1000)
        .for_each(|_| pair.acceptor.handle_frame(Frame { connection: 0, message: Message::Ping(Pulse::default()) }, 0));
    pair.acceptor.handle_all_read(0);
    pair.acceptor.handle_all_read(0);
    assert_eq!(
        actions(&mut pair.acceptor),
        [SessionAction::Send(Frame { connection: 0, message: Message::Pong(Pulse::default()) })]
    );
}

#[test]
fn a_connection_that_the_peer_has_closed_is_lost_after_its_grace() {
    let (mut pair, number) = Pair::connected();
    pair.opener.close(number, None, 0);
    assert_eq!(pair.exchange()[1], [SessionAction::PeerLeft(number)]);
    assert_eq!(pair.wait(SECOND - 1)[1], []);
    let lost = Lost { peer: pair.acceptor.peer_name(), cause: LostCause::Bye };
    assert_eq!(pair.wait(1)[1], [SessionAction::Lost { connection: number, lost }]);
    // A connection that the peer gave up during its set-up has nothing in progress.
    let (mut pair, number) = Pair::connected();
    pair.opener.send(number, refuse("too late"));
    pair.exchange();
    let [_, acceptor] = pair.wait(0);
    let [SessionAction::Lost { lost, .. }] = &acceptor[..] else { panic!("{acceptor:?}") };
    assert!(lost.to_string().ends_with("gave the connection up: too late"), "{lost}");
}

#[test]
fn a_closed_connection_lingers_until_its_peer_has_closed_it_too_and_all_is_out() {
    let (mut pair, number) = Pair::connected();
    pair.opener.close(number, None, 0);
    pair.exchange();
    assert_eq!(pair.wait(0)[0], [SessionAction::Linger(number)]);
    pair.opener.handle_lingered(number, true, pair.now_ns);
    assert_eq!(pair.wait(200_000)[0], [SessionAction::Linger(number)], "all is out, but the peer may need its lanes");
    pair.opener.handle_lingered(number, false, pair.now_ns);
    pair.acceptor.close(number, None, pair.now_ns);
    pair.exchange();
    assert_eq!(pair.wait(0)[0], [SessionAction::Linger(number)], "the peer's BYE is looked at at once");
    pair.opener.handle_lingered(number, false, pair.now_ns);
    assert_eq!(actions(&mut pair.opener), [], "not all is out");
    assert_eq!(pair.wait(1_400_000)[0], [SessionAction::Linger(number)], "pauses grow, and looks fall together");
    pair.opener.handle_lingered(number, true, pair.now_ns);
    assert_eq!(actions(&mut pair.opener), [SessionAction::Over(number)]);
}

#[test]
fn a_closed_connection_waits_three_seconds_and_no_longer() {
    let (mut pair, number) = Pair::connected();
    pair.opener.close(number, None, 0);
    pair.now_ns = 3 * SECOND - 1;
    pair.opener.handle_lingered(number, true, pair.now_ns);
    assert!(!actions(&mut pair.opener).contains(&SessionAction::Over(number)));
    pair.opener.handle_lingered(number, false, 3 * SECOND);
    assert_eq!(actions(&mut pair.opener), [SessionAction::Over(number)]);
}

#[test]
fn a_session_lasts_until_the_peer_has_closed_each_connection() {
    let (mut pair, number) = Pair::connected();
    pair.acceptor.close(number, None, 0);
    pair.exchange();
    pair.now_ns = 3 * SECOND;
    pair.acceptor.handle_lingered(number, true, pair.now_ns);
    assert_eq!(actions(&mut pair.acceptor), [SessionAction::Over(number)]);
    assert!(pair.acceptor.has_connections(), "no newcomer may have its place");
    // Its opener's application takes its time. The acceptor has nothing to do but to ask whether the peer is there.
    for _ in 0..100 {
        let [_, acceptor] = pair.wait(SECOND);
        assert_eq!(acceptor, []);
    }
    let offered = Frame { connection: number, message: Message::Offer(offer()) };
    pair.acceptor.handle_frame(offered, pair.now_ns);
    let refused = actions(&mut pair.acceptor);
    assert!(
        matches!(&refused[..], [SessionAction::Send(Frame { message: Message::Refuse { .. }, .. })]),
        "{refused:?}"
    );
    // Its BYE ends it; then the session is idle.
    pair.opener.close(number, None, pair.now_ns);
    pair.exchange();
    assert!(!pair.acceptor.has_connections() && pair.acceptor.idle_since_ns() == pair.now_ns);
}

#[test]
fn a_number_is_free_again_when_both_ends_have_closed_its_connection() {
    let (mut pair, number) = Pair::connected();
    pair.acceptor.close(number, None, 0);
    drop(actions(&mut pair.acceptor));
    let offered = Frame { connection: number, message: Message::Offer(offer()) };
    pair.acceptor.handle_frame(offered.clone(), 0);
    assert!(matches!(
        &actions(&mut pair.acceptor)[..],
        [SessionAction::Send(Frame { message: Message::Refuse { .. }, .. })]
    ));
    pair.acceptor.handle_frame(Frame { connection: number, message: Message::Bye(None) }, 0);
    pair.acceptor.handle_frame(offered, 0);
    let wanted = actions(&mut pair.acceptor);
    assert_eq!(wanted, [SessionAction::Over(number), SessionAction::Offer { connection: number, offer: offer() }]);
}

#[test]
fn the_end_of_a_session_reaches_each_of_its_connections_once() {
    let mut pair = Pair::up();
    let numbers: Vec<u32> = (0..4).map(|_| pair.opener.begin(0).expect("it is up")).collect();
    for number in &numbers {
        pair.opener.send(*number, Message::Offer(offer()));
    }
    pair.exchange();
    let [offered, set_up, open, closed] = numbers[..] else { panic!() };
    [set_up, open, closed].iter().for_each(|number| pair.acceptor.accept_offer(*number, 0));
    assert!([open, closed].iter().all(|number| pair.acceptor.opened(*number, 0)));
    pair.acceptor.close(closed, None, 0);
    pair.exchange();
    pair.acceptor.end(Ended::OutOfTurn, 0);
    pair.acceptor.end(Ended::OutOfTurn, 0);
    let why = Arc::new(Ended::OutOfTurn);
    assert_eq!(
        actions(&mut pair.acceptor),
        [
            SessionAction::HangUp { flush: false },
            SessionAction::Ended(why),
            SessionAction::Withdrawn(offered),
            SessionAction::Interrupted(set_up),
            SessionAction::PeerLeft(open)
        ]
    );
    // A connection that was being set up may already have its last message.
    pair.acceptor.opened(set_up, 0);
    assert_eq!(actions(&mut pair.acceptor), [SessionAction::PeerLeft(set_up)]);
    pair.acceptor.handle_timeout(SECOND);
    let lost = actions(&mut pair.acceptor);
    assert_eq!(lost.iter().filter(|action| matches!(action, SessionAction::Lost { .. })).count(), 2);
    for number in [set_up, open] {
        pair.acceptor.close(number, None, SECOND);
    }
    for number in [set_up, open, closed] {
        pair.acceptor.handle_lingered(number, true, SECOND);
    }
    assert_eq!(actions(&mut pair.acceptor).len(), 3, "nothing is sent, and each is over");
    assert!(pair.acceptor.is_over());
}

#[test]
fn what_the_peer_takes_back_is_forgotten() {
    for message in [Message::Bye(None), refuse("never mind")] {
        let mut pair = Pair::up();
        let number = pair.opener.begin(0).expect("it is up");
        pair.opener.send(number, Message::Offer(offer()));
        pair.opener.send(number, message);
        let [_, wanted] = pair.exchange();
        let offered = SessionAction::Offer { connection: number, offer: offer() };
        assert_eq!(wanted, [offered, SessionAction::Withdrawn(number)]);
        assert!(pair.acceptor.timeout_ns().is_some(), "the session is idle again");
    }
}

#[test]
fn numbers_of_connections_go_round_and_leave_out_those_in_use() {
    let mut pair = Pair::up();
    let first = pair.opener.begin(0).expect("it is up");
    let second = pair.opener.begin(0).expect("it is up");
    assert_eq!((first, second), (1, 2));
    pair.opener.failed(first, 0);
    pair.opener.last_number = u32::MAX - 1;
    let numbers = [(); 3].map(|()| pair.opener.begin(0).expect("it is up"));
    assert_eq!(numbers, [u32::MAX, 1, 3], "0 is the session's own, and 2 is in use");
}
