//! Sessions that lose their sockets while connections use them, are set up on them, or wait for them.

mod common;

use common::{
    ONE_RAIL, Pair, Relay, accept, alone, connect, info_lines, listen, start, until, warnings, warnings_with,
};
use railweave_abi::NcclResult;
use railweave_nccl_host::LoadedNet;
use railweave_nccl_host::net::{Handle, ListenComm, NetApi, NetError};
use railweave_transport::Message;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Connects by way of a relay. Returns the pair, and the session's socket at the relay.
fn pair_through<'a>(net: &'a LoadedNet, relay: &Relay, listening: &ListenComm) -> (Pair<'a>, TcpStream) {
    assert!(net.connect(0, &mut relay.handle()).unwrap().is_none());
    let session = relay.accept();
    let (theirs, cut) = (relay.dial(&session), session.socket.try_clone().unwrap());
    session.pass(theirs);
    let lane = relay.accept();
    let theirs = relay.dial(&lane);
    lane.pass(theirs);
    let (send, recv) = (connect(net, 0, &relay.handle()), accept(net, listening));
    (Pair { from: net, to: net, send, recv }, cut)
}

#[test]
fn a_session_that_is_cut_goes_on_at_another_address_and_its_connections_with_it() {
    // With this time, a dialled socket on which nobody answers is given up after half a second.
    alone(&[ONE_RAIL, ("RAILWEAVE_PEER_TIMEOUT", "1")], || {
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let relay = Relay::before(&handle);
        let (pair, cut) = pair_through(&net, &relay, &listening);
        pair.exchange(1, 1000);
        cut.shutdown(Shutdown::Both).unwrap();
        // Nothing passes through the relay any more, but the data needs no session.
        let said = until("the loss of the session", || {
            pair.exchange(2, 100_000);
            let lines = info_lines();
            lines.iter().any(|line| line.contains("has lost its socket")).then_some(lines)
        });
        assert!(said.iter().any(|line| line.contains("its connections go on")), "{said:?}");
        // A connect brings the address by which the peer can be reached.
        let (send, other) = (connect(&net, 0, &handle), accept(&net, &listening));
        let second = Pair { from: &net, to: &net, send, recv: other };
        for seed in 3..6 {
            pair.exchange(seed, 1000);
            second.exchange(seed, 1000);
        }
        assert!(info_lines().iter().any(|line| line.contains("goes on over another socket")), "{:?}", info_lines());
        second.close();
        pair.close();
        assert_eq!(warnings(), Vec::<String>::new());
    });
}

#[test]
fn a_connection_comes_up_though_its_session_loses_its_socket_at_ready() {
    alone(&[ONE_RAIL], || {
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let relay = Relay::before(&handle);
        assert!(net.connect(0, &mut relay.handle()).unwrap().is_none());
        let session = relay.accept();
        let theirs = relay.dial(&session);
        let sockets = Arc::new([&session.socket, &theirs].map(|socket| socket.try_clone().unwrap()));
        session.pass_frames(theirs, move |message| {
            // The connector has its connection, and the acceptor has not heard it.
            if matches!(message, Message::Ready { .. }) {
                sockets.iter().for_each(|socket| drop(socket.shutdown(Shutdown::Both)));
            }
        });
        thread::spawn(move || {
            loop {
                let dialled = relay.accept();
                let theirs = relay.dial(&dialled);
                dialled.pass(theirs);
            }
        });
        let (send, recv) = (connect(&net, 0, &handle), accept(&net, &listening));
        let pair = Pair { from: &net, to: &net, send, recv };
        pair.exchange(1, 1000);
        let back = "goes on over another socket";
        until("the new socket", || info_lines().iter().any(|line| line.contains(back)).then_some(()));
        pair.close();
        assert_eq!(warnings(), Vec::<String>::new());
    });
}

#[test]
fn a_connect_waits_for_a_session_that_is_away_for_a_handshake_timeout() {
    // A dialled socket on which nobody answers is given up after half of the peer's time, which is much longer.
    alone(&[ONE_RAIL, ("RAILWEAVE_PEER_TIMEOUT", "120"), ("RAILWEAVE_HANDSHAKE_TIMEOUT", "2")], || {
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let relay = Relay::before(&handle);
        let (pair, cut) = pair_through(&net, &relay, &listening);
        cut.shutdown(Shutdown::Both).unwrap();
        let _mute = relay.accept();
        let begin = Instant::now();
        let mut again: Handle = relay.handle();
        let error = until("the connect's failure", || net.connect(0, &mut again).err());
        assert!(matches!(error, NetError::Call { code: NcclResult::REMOTE_ERROR, .. }), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
        let said = warnings_with(&["has not gone on for", "RAILWEAVE_HANDSHAKE_TIMEOUT", "check that the peer runs"]);
        assert_eq!(said.len(), 1, "{:?}", warnings());
        pair.exchange(2, 100_000);
        pair.close();
    });
}
