//! Ready connections that are not accepted: which of them are kept, and for how long.

mod common;

use common::{
    Buffer, ONE_RAIL, Pair, Stranger, accept, alone, connect, descriptors, info_lines, listen, start, until,
    until_freed, warnings, warnings_with,
};
use railweave_fabric::{Fault, RailId};
use railweave_nccl_host::net::{Comm, NetApi, SendComm};
use railweave_transport::{Incarnation, Message, RailMessage, RailNews, Token};
use std::net::TcpStream;
use std::ops::RangeInclusive;

/// Sets up a connection completely.
fn come(stranger: &mut Stranger, connection: u32) -> TcpStream {
    let token = stranger.offer(connection);
    stranger.go_on(connection, token)
}

/// Sets up connections completely and closes them, but not the session.
fn come_and_leave(stranger: &mut Stranger, connections: RangeInclusive<u32>) {
    for connection in connections {
        let lane = come(stranger, connection);
        // REFUSE of an open connection means the same as BYE.
        let refuse = Message::Refuse { fault: Fault::Peer, of_rails: false, reason: "no more".to_owned() };
        stranger.send(connection, if connection % 2 == 0 { refuse } else { Message::Bye(None) });
        drop(lane);
    }
    stranger.until_read();
}

const CLOSED: &[&str] = &["nobody had accepted was closed", "stranger (pid 4711)"];

#[test]
fn of_connections_that_their_peers_have_left_accept_has_the_last_one_and_others_first() {
    alone(&[ONE_RAIL, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "4s")], || {
        let (_plugin, net) = start();
        let keep = Pair::open(&net, &net, 0);
        let (listen, handle) = listen(&net, 0);
        let before = descriptors();
        let mut stranger = Stranger::greeted(&handle);
        come_and_leave(&mut stranger, 1..=3);
        assert!(matches!(stranger.receive(), Message::Bye(_)), "the first is closed, so that its peer forgets it too");
        until("the second is closed", || (warnings_with(CLOSED).len() == 2).then_some(()));
        let last = stranger.address();
        drop(stranger);
        // The last connection whose peer has left stays, with its lane's descriptor.
        until_freed("the others", || descriptors() == before + 1);
        let mut other = Stranger::greeted(&handle);
        let _lane = come(&mut other, 1);
        for peer in [other.address(), last] {
            let recv = accept(&net, &listen);
            let lines = info_lines().into_iter().filter(|line| line.contains("receives from")).collect::<Vec<_>>();
            assert!(lines.last().is_some_and(|line| line.contains(&peer.to_string())), "{peer}: {lines:?}");
            net.close_recv(recv).expect("whatever the peer did, it can be closed");
        }
        assert!(net.accept(&listen).expect("accept keeps waiting").is_none());
        assert_eq!(warnings().len(), 2, "{:?}", warnings());
        keep.exchange(1, 1000);
    });
}

#[test]
fn connections_that_a_crowd_has_left_are_closed_at_once() {
    alone(&[ONE_RAIL, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "600s")], || {
        let (_plugin, net) = start();
        let (listen, handle) = listen(&net, 0);
        let before = descriptors();
        let mut stranger = Stranger::greeted(&handle);
        come_and_leave(&mut stranger, 1..=256);
        assert_eq!(warnings(), Vec::<String>::new());
        // One more is too many, and the first is closed.
        let lane = come(&mut stranger, 257);
        stranger.send(257, Message::Bye(None));
        assert!(matches!(stranger.receive(), Message::Bye(_)));
        until("the line", || (warnings_with(CLOSED).len() == 1).then_some(()));
        drop((stranger, lane));
        net.close_listen(listen).expect("the listen is closed");
        until_freed("all of them", || descriptors() == before);
    });
}

#[test]
fn connections_that_nobody_accepts_are_bounded_and_accept_makes_room() {
    alone(&[ONE_RAIL], || {
        // A quarter as many connections may wait as there are descriptors.
        let few = libc::rlimit { rlim_cur: 160, rlim_max: 160 };
        // SAFETY: the call reads a variable of this function (setrlimit(2)).
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const few) }, 0);
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let mut sends: Vec<SendComm> = (0..40).map(|_| connect(&net, 0, &handle)).collect();
        let mut again = handle.clone();
        let refused = until("a refusal", || net.connect(0, &mut again).err());
        assert!(refused.to_string().contains("ncclRemoteError"), "{refused}");
        assert_eq!(warnings_with(&["wait to be accepted; has the process stopped calling accept?"]).len(), 1);
        let mut recvs = vec![accept(&net, &listening)];
        sends.push(connect(&net, 0, &handle));
        recvs.extend((0..40).map(|_| accept(&net, &listening)));
        net.close_listen(listening).unwrap();
        for (index, (send, recv)) in sends.into_iter().zip(recvs).enumerate() {
            let pair = Pair { from: &net, to: &net, send, recv };
            pair.exchange(index as u64, 1000);
            pair.close();
        }
    });
}

#[test]
fn connections_that_come_up_after_others_have_taken_their_places_are_closed() {
    alone(&[ONE_RAIL], || {
        let few = libc::rlimit { rlim_cur: 160, rlim_max: 160 };
        // SAFETY: the call reads a variable of this function (setrlimit(2)).
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const few) }, 0);
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let mut stranger = Stranger::greeted(&handle);
        let before = descriptors();
        let mut lanes: Vec<TcpStream> = (1..=30).map(|connection| come(&mut stranger, connection)).collect();
        // There is a place for each of these when it is offered, but only for ten once all are up.
        let offered: Vec<Token> = (31..=60).map(|connection| stranger.offer(connection)).collect();
        for (connection, token) in (31..=40).zip(&offered) {
            lanes.push(stranger.go_on(connection, *token));
        }
        for (connection, token) in (41..=60).zip(&offered[10..]) {
            stranger.lanes(connection);
            lanes.push(stranger.lane(*token));
            stranger.send(connection, Message::Ready { usable: 1 });
            assert!(matches!(stranger.receive(), Message::Bye(_)), "it is closed");
        }
        assert!(!warnings_with(&["was closed, because too many connections of this listener"]).is_empty());
        drop(stranger);
        drop(lanes.split_off(40));
        until_freed("what was closed", || descriptors() <= before - 1 + 2 * 40);
        net.close_listen(listening).expect("the listen is closed");
    });
}

#[test]
fn messages_about_the_rails_of_a_connection_that_nobody_accepts_do_not_pile_up() {
    alone(&[ONE_RAIL, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "600s")], || {
        let (_plugin, net) = start();
        let (listen, handle) = listen(&net, 0);
        let mut stranger = Stranger::greeted(&handle);
        let _lane = come(&mut stranger, 1);
        let rail = RailId::new(0).expect("there is a first rail");
        let (incarnation, message) = (Incarnation::default(), RailMessage::Down(Vec::new()));
        let down = Message::Rail(RailNews { rail, incarnation, message });
        for _ in 0..8 {
            stranger.send(1, down.clone());
        }
        stranger.until_read();
        assert_eq!(warnings(), Vec::<String>::new());
        for _ in 0..100 {
            stranger.send(1, down.clone());
        }
        until("the line", || (warnings_with(&["than the protocol allows before an answer"]).len() == 1).then_some(()));
        let recv = accept(&net, &listen);
        let buffer = Buffer::new(&net, Comm::Recv(&recv), 1000);
        // SAFETY: the buffer stays until the connection is closed.
        let failed = until("the receive's failure", || unsafe { net.irecv(&recv, &[buffer.part(7)], false) }.err());
        assert!(failed.to_string().contains("ncclInternalError"), "{failed}");
        buffer.release(&net, Comm::Recv(&recv));
        net.close_recv(recv).expect("whatever the peer did, it can be closed");
    });
}
