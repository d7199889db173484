//! The start of a session: addresses, HELLO and proofs, and what is said about a peer meanwhile.

use super::*;
use crate::DecodeError;

/// Returns the HELLO that an end says next.
fn said(end: &mut Session) -> Hello {
    match &actions(end)[..] {
        [SessionAction::Send(Frame { connection: 0, message: Message::Hello(bytes) })] => Hello::decode(bytes).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn hello_frame(hello: &Hello) -> Frame {
    Frame { connection: 0, message: Message::Hello(hello.encode()) }
}

/// Returns the results of an opener's attempts, with which it gave up in these actions.
fn tries(actions: &[SessionAction]) -> &[String] {
    match actions {
        [.., SessionAction::Unreachable(Unreachable::Tried { tries, .. }), SessionAction::Ended(_)] => tries,
        other => panic!("{other:?}"),
    }
}

#[test]
fn hello_says_the_process_that_is_wanted_and_a_nonce_of_each_dial() {
    let mut opener = Session::open(config(1, None), ProcessId([2; 16]), [address(3), address(2)], 0);
    drop(actions(&mut opener));
    for nonce in [[8; 32], [9; 32]] {
        opener.handle_connected(nonce, 0);
        assert_eq!(said(&mut opener), Hello { nonce, wanted: ProcessId([2; 16]), ..hello(1, false) });
        opener.handle_lost(end_of_socket(SocketEndKind::Other), 0);
        drop(actions(&mut opener));
    }
    let mut acceptor = Session::accept(config(2, Some(3)), [7; 32], address(1), 0);
    assert_eq!(said(&mut acceptor), Hello { nonce: [7; 32], ..hello(2, true) }, "an acceptor wants nobody");
    assert_eq!((acceptor.side(), acceptor.address()), (Side::Acceptor, address(1)));
}

#[test]
fn hello_is_said_once_for_each_dial() {
    let mut opener = Session::open(config(1, None), ProcessId([2; 16]), [address(2)], 0);
    drop(actions(&mut opener));
    opener.handle_frame(hello_frame(&hello(2, false)), 0);
    assert_eq!(actions(&mut opener), [], "nobody has been dialled yet");
    opener.handle_connected([1; 32], 0);
    said(&mut opener);
    opener.handle_connected([1; 32], 0);
    assert_eq!(actions(&mut opener), []);
}

#[test]
fn an_address_that_is_silent_leaves_its_turn_to_the_next() {
    for is_connected in [false, true] {
        let mut opener = Session::open(config(1, None), ProcessId([2; 16]), [address(3), address(2)], SECOND);
        if is_connected {
            opener.handle_connected([1; 32], 0);
        }
        drop(actions(&mut opener));
        assert_eq!(opener.timeout_ns(), Some(5 * SECOND), "8 seconds for two addresses");
        opener.handle_timeout(5 * SECOND - 1);
        assert_eq!(actions(&mut opener), []);
        opener.handle_timeout(5 * SECOND);
        assert_eq!(actions(&mut opener), [SessionAction::HangUp { flush: false }, dial(address(2))]);
        assert_eq!((opener.address(), opener.timeout_ns()), (address(2), Some(9 * SECOND)));
        opener.handle_timeout(9 * SECOND);
        let ended = actions(&mut opener);
        let [first, second] = tries(&ended) else { panic!("{ended:?}") };
        assert!(first.starts_with("10.0.0.3:7: Handshake timeout"), "{first}");
        assert!(second.starts_with("10.0.0.2:7: Handshake timeout"), "{second}");
        assert_eq!(opener.poll_event(), None, "it is not a stranger that is late");
    }
}

#[test]
fn a_proof_that_does_not_come_in_time_is_late() {
    let mut pair = Pair::dialled([Some(3); 2]);
    let hellos = [actions(&mut pair.opener), actions(&mut pair.acceptor)];
    let [SessionAction::Send(opener), ..] = &hellos[0][..] else { panic!() };
    pair.acceptor.handle_frame(opener.clone(), 0);
    assert_eq!(pair.acceptor.peer_name(), "node1, rank 1 (pid 1) at 10.0.0.1:7", "it has said so itself");
    assert!(pair.acceptor.peer().is_none(), "but it has not proved it");
    assert_eq!(actions(&mut pair.acceptor), [], "an acceptor proves nothing to a stranger");
    pair.acceptor.handle_timeout(8 * SECOND - 1);
    assert!(pair.acceptor.ended().is_none());
    pair.acceptor.handle_timeout(8 * SECOND);
    assert_eq!(pair.acceptor.ended().map(|why| (**why).clone()), Some(Ended::Late));
}

#[test]
fn a_peer_that_says_something_else_than_hello_is_not_heard() {
    for message in [Message::Ping(Pulse::default()), Message::Proof([0; 32]), Message::Offer(offer())] {
        let mut pair = Pair::dialled([None; 2]);
        let frame = Frame { connection: 0, message };
        pair.acceptor.handle_frame(frame.clone(), 0);
        assert_eq!(unwelcome(&mut pair.acceptor), Unwelcome::OutOfTurn { peer: address(1).to_string() });
        assert_eq!(pair.acceptor.ended().map(|why| (**why).clone()), Some(Ended::OutOfTurn));
        // The opener has no other address.
        pair.opener.handle_frame(frame, 0);
        assert_eq!(tries(&actions(&mut pair.opener)), ["10.0.0.2:7: a control message came out of turn"]);
    }
}

#[test]
fn a_difference_between_two_hosts_is_not_looked_for_at_the_next_address() {
    let mut opener = Session::open(config(1, None), ProcessId([2; 16]), [address(3), address(2)], 0);
    opener.handle_connected([1; 32], 0);
    drop(actions(&mut opener));
    opener.handle_frame(hello_frame(&Hello { mode: 0, ..hello(2, false) }), 0);
    let said = actions(&mut opener);
    let [SessionAction::HangUp { flush: true }, SessionAction::Unreachable(why), SessionAction::Ended(_)] = &said[..]
    else {
        panic!("{said:?}")
    };
    assert!(matches!(why, Unreachable::Hello { address: at, .. } if *at == address(3)), "{why}");
    assert_eq!(why.fault(), Fault::Configuration);
}

#[test]
fn an_address_where_another_process_answers_is_named_if_no_other_leads_to_the_wanted_one() {
    let mut opener = Session::open(config(1, None), ProcessId([2; 16]), [address(3)], 0);
    opener.handle_connected([1; 32], 0);
    opener.handle_frame(hello_frame(&hello(3, false)), 0);
    let ended = actions(&mut opener);
    let [other] = tries(&ended) else { panic!("{ended:?}") };
    assert!(other.starts_with("10.0.0.3:7: node3, rank 3 (pid 1) answered instead of the process 02020202"), "{other}");
}

#[test]
fn a_socket_that_ends_during_the_pause_before_a_redial_changes_nothing() {
    let mut opener = Session::open(config(1, None), ProcessId([2; 16]), [address(2)], 0);
    opener.handle_lost(end_of_socket(SocketEndKind::Mute), 5);
    drop(actions(&mut opener));
    let at_ns = opener.timeout_ns();
    assert!(at_ns.is_some());
    opener.handle_lost(end_of_socket(SocketEndKind::Other), 6);
    opener.handle_frame(hello_frame(&hello(2, false)), 7);
    assert_eq!((actions(&mut opener), opener.timeout_ns()), (vec![], at_ns));
}

#[test]
fn bytes_that_are_no_message_are_blamed_on_their_sender() {
    let garbled = Ended::Garbled(DecodeError::Long { what: "BYE", extra: 1 });
    let mut pair = Pair::up();
    let peer = pair.acceptor.peer_name();
    pair.acceptor.end(garbled.clone(), 0);
    let said = unwelcome(&mut pair.acceptor).to_string();
    assert_eq!(said, format!("{peer} broke the control protocol: BYE has 1 bytes too many"));
    assert_eq!(
        actions(&mut pair.acceptor)[..2],
        [SessionAction::HangUp { flush: false }, SessionAction::Ended(Arc::new(garbled.clone()))]
    );
    pair.acceptor.end(garbled, 0);
    assert_eq!((pair.acceptor.poll_event(), actions(&mut pair.acceptor)), (None, vec![]), "it has ended already");
}

#[test]
fn a_session_is_over_once_it_has_ended_and_all_is_said() {
    let (mut pair, number) = Pair::connected();
    assert!(!pair.opener.is_over());
    pair.opener.close(number, None, 0);
    pair.acceptor.close(number, None, 0);
    pair.exchange();
    pair.opener.handle_lingered(number, true, 0);
    assert_eq!(actions(&mut pair.opener), [SessionAction::Over(number)]);
    assert!(!pair.opener.has_connections() && !pair.opener.is_over(), "it is up, although nothing is left to do");
    pair.opener.handle_timeout(SECOND);
    assert!(pair.opener.ended().is_some() && !pair.opener.is_over(), "the caller has not heard of it");
    assert_eq!(actions(&mut pair.opener).len(), 2);
    assert!(pair.opener.is_over());
    assert_eq!(pair.opener.peer().map(|peer| peer.process), Some(ProcessId([2; 16])), "its peer keeps its name");
    assert_eq!(pair.opener.peer_name(), "node2, rank 2 (pid 1) at 10.0.0.2:7");
}

#[test]
fn the_time_without_connections_begins_when_the_session_is_up() {
    let mut pair = Pair::dialled([Some(3); 2]);
    pair.now_ns = 5 * SECOND;
    pair.exchange();
    assert_eq!([&pair.opener, &pair.acceptor].map(Session::idle_since_ns), [5 * SECOND; 2]);
    assert_eq!([&pair.opener, &pair.acceptor].map(Session::timeout_ns), [Some(6 * SECOND), Some(65 * SECOND)]);
    pair.acceptor.touch(7 * SECOND);
    assert_eq!(pair.acceptor.timeout_ns(), Some(67 * SECOND));
    pair.acceptor.handle_timeout(67 * SECOND - 1);
    assert!(pair.acceptor.is_up());
    pair.acceptor.handle_timeout(67 * SECOND);
    assert_eq!(pair.acceptor.ended().map(|why| (**why).clone()), Some(Ended::Idle));
}
