//! Many connections: several hundred at once, and abandoned ones, which must leave nothing behind: no descriptor, no
//! thread, no memory.

mod common;

use common::{
    Buffer, ONE_RAIL, Pair, Stranger, TWO_RAILS, accept, alone, connect, control_threads, descriptors, each,
    heap_bytes, listen, load, noise, start, until, until_freed, until_heap_is_freed, warnings, warnings_with,
    with_peer,
};
use railweave_fabric::{Fault, Step};
use railweave_nccl_host::LoadedNet;
use railweave_nccl_host::net::{Comm, Handle, NetApi, Request};
use railweave_transport::{Handle as WireHandle, Message, RailAnswer, Token};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

/// Returns the number of connections between two processes; fewer if a tool slows everything down.
fn many() -> usize {
    if std::env::var_os("RAILWEAVE_TEST_SMALL").is_some() { 30 } else { 300 }
}

/// Freed memory that allocators keep in the caches of each thread. A leak exceeds it: one end of a connection takes
/// more than half of it, and each test makes dozens.
const SLACK_BYTES: usize = 256 << 10;

/// Returns the number of repetitions that makes a leak visible.
fn times() -> u64 {
    if std::env::var_os("RAILWEAVE_TEST_SMALL").is_some() { 10 } else { 100 }
}

fn done(net: &LoadedNet, request: &Request) -> bool {
    // SAFETY: callers test no request that is done, and keep its buffers.
    unsafe { net.test(request, None) }.expect("a transfer goes on")
}

fn forget_what_is_done(net: &LoadedNet, requests: &mut [Option<Request>]) {
    for request in requests {
        request.take_if(|request| done(net, request));
    }
}

#[test]
fn hundreds_of_connections_are_set_up_at_once_over_one_session_and_each_carries_its_message() {
    with_peer(
        &[TWO_RAILS],
        &[],
        |mut peer| {
            let (_plugin, net) = start();
            let first = listen(&net, 0);
            peer.link.write_all(&first.1.0).unwrap();
            let first_recv = accept(&net, &first.0);
            let before = descriptors();
            let (listens, handles): (Vec<_>, Vec<_>) = (0..many()).map(|_| listen(&net, 0)).unzip();
            handles.iter().for_each(|handle| peer.link.write_all(&handle.0).unwrap());
            // accept is not called before every connect has begun.
            peer.link.read_exact(&mut [0]).unwrap();
            let mut recvs: Vec<_> = (0..many()).map(|_| None).collect();
            until("all connections", || {
                for (recv, listening) in recvs.iter_mut().zip(&listens).filter(|(recv, _)| recv.is_none()) {
                    *recv = net.accept(listening).unwrap();
                }
                recvs.iter().all(Option::is_some).then_some(())
            });
            assert_eq!(descriptors(), before + 2 * many(), "a lane on each rail, and no further session");
            let recvs: Vec<_> = recvs.into_iter().flatten().collect();
            let buffers: Vec<_> = recvs.iter().map(|recv| Buffer::new(&net, Comm::Recv(recv), 3000)).collect();
            let post = |(recv, to): (_, &Buffer)| {
                // SAFETY: the buffers stay until the end.
                unsafe { net.irecv(recv, &[to.part(1)], false) }.unwrap().expect("a fresh connection has room")
            };
            let mut requests: Vec<_> = recvs.iter().zip(&buffers).map(post).map(Some).collect();
            until("all messages", || {
                forget_what_is_done(&net, &mut requests);
                requests.iter().all(Option::is_none).then_some(())
            });
            buffers.iter().enumerate().for_each(|(seed, buffer)| buffer.assert_holds(&noise(seed as u64, 3000)));
            recvs.into_iter().for_each(|recv| net.close_recv(recv).unwrap());
            listens.into_iter().for_each(|listen| net.close_listen(listen).unwrap());
            peer.link.write_all(&[1]).unwrap();
            until_freed("every lane is closed", || descriptors() == before);
            net.close_recv(first_recv).unwrap();
            peer.wait();
            assert_eq!(warnings(), Vec::<String>::new());
        },
        |mut link| {
            let (_plugin, net) = start();
            let mut read_handle = || {
                let mut handle = Handle::default();
                link.read_exact(&mut handle.0).unwrap();
                handle
            };
            let first = connect(&net, 0, &read_handle());
            let before = descriptors();
            let mut handles: Vec<_> = (0..many()).map(|_| read_handle()).collect();
            let mut sends: Vec<_> = handles.iter_mut().map(|handle| net.connect(0, handle).unwrap()).collect();
            link.write_all(&[1]).unwrap();
            until("all connections", || {
                for (send, handle) in sends.iter_mut().zip(&mut handles).filter(|(send, _)| send.is_none()) {
                    *send = net.connect(0, handle).unwrap();
                }
                sends.iter().all(Option::is_some).then_some(())
            });
            assert_eq!(descriptors(), before + 2 * many(), "a lane on each rail, and no further session");
            let sends: Vec<_> = sends.into_iter().flatten().collect();
            let hold = |(seed, send)| Buffer::holding(&net, Comm::Send(send), &noise(seed as u64, 3000));
            let buffers: Vec<_> = sends.iter().enumerate().map(hold).collect();
            let post = |(send, from): (_, &Buffer)| {
                // SAFETY: the buffers stay until the end.
                let isend = || unsafe { net.isend(send, from.start(), 3000, 1, from.registration()) };
                until("a receive", || isend().unwrap())
            };
            let mut requests: Vec<_> = sends.iter().zip(&buffers).map(post).map(Some).collect();
            until("all messages", || {
                forget_what_is_done(&net, &mut requests);
                requests.iter().all(Option::is_none).then_some(())
            });
            sends.into_iter().for_each(|send| net.close_send(send).unwrap());
            link.read_exact(&mut [0]).unwrap();
            until_freed("every lane is closed", || descriptors() == before);
            net.close_send(first).unwrap();
            assert_eq!(warnings(), Vec::<String>::new());
        },
    );
}

/// The point at which NCCL abandons a communicator: it closes nothing more, and only `finalize` follows.
#[derive(Clone, Copy, Debug)]
enum AbandonedAt {
    /// A listen.
    Listen,
    /// A listen, and a connect to it that was called once.
    Connect,
    /// A connect whose listen was closed before it could be accepted.
    ConnectToClosed,
    /// A connect to a process that never answers.
    ConnectToNobody,
    /// Both ends are ready, and neither was returned to NCCL.
    Ready,
    /// connect returned its end, which was closed; accept was never called.
    Connected,
    /// accept returned its end, which was closed; connect was never called again.
    Accepted,
}

const STEPS: [AbandonedAt; 7] = [
    AbandonedAt::Listen,
    AbandonedAt::Connect,
    AbandonedAt::ConnectToClosed,
    AbandonedAt::ConnectToNobody,
    AbandonedAt::Ready,
    AbandonedAt::Connected,
    AbandonedAt::Accepted,
];

/// Takes a set-up to this point. `quiet` is the number of descriptors open while no set-up is in progress.
fn abandon(net: &LoadedNet, other: &LoadedNet, at: AbandonedAt, nobody: &Handle, quiet: usize) {
    if matches!(at, AbandonedAt::Ready) {
        // Lanes of the previous round must not count as this round's.
        until_freed("the lanes of the previous round are closed", || descriptors() <= quiet);
    }
    let (listening, mut handle) = listen(net, 0);
    match at {
        AbandonedAt::Listen => {}
        AbandonedAt::Connect => assert!(net.connect(0, &mut handle).unwrap().is_none()),
        AbandonedAt::ConnectToClosed => {
            assert!(net.connect(0, &mut handle).unwrap().is_none());
            net.close_listen(listening).unwrap();
        }
        AbandonedAt::ConnectToNobody => assert!(net.connect(0, &mut nobody.clone()).unwrap().is_none()),
        AbandonedAt::Ready => {
            let before = descriptors();
            assert!(net.connect(0, &mut handle).unwrap().is_none());
            // Two lanes, with both ends in this process; either side may not know of them yet.
            until("the lanes", || (descriptors() >= before + 4).then_some(()));
        }
        AbandonedAt::Connected => net.close_send(connect(other, 0, &handle)).unwrap(),
        AbandonedAt::Accepted => {
            assert!(net.connect(0, &mut handle).unwrap().is_none());
            net.close_recv(accept(net, &listening)).unwrap();
        }
    }
}

#[test]
fn a_set_up_that_is_abandoned_at_any_step_is_freed_with_its_context_while_others_go_on() {
    each(
        &STEPS,
        |_| vec![TWO_RAILS],
        |at| {
            let plugin = load(None);
            // Another communicator keeps the control thread alive, so that its end does not hide a leak.
            let other = plugin.init(1, None).unwrap();
            let pair = Pair::open(&other, &other, 0);
            let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let nobody = Stranger::handle(silent.local_addr().unwrap());
            let before = descriptors();
            let round = |number: u64| {
                let net = plugin.init(2, None).unwrap();
                abandon(&net, &other, *at, &nobody, before);
                net.finalize().unwrap();
                pair.exchange(number, 10_000);
            };
            (0..times() / 5).for_each(round);
            let session_to_nobody = usize::from(matches!(at, AbandonedAt::ConnectToNobody));
            until_freed("descriptors are closed", || descriptors() <= before + session_to_nobody);
            let heap = heap_bytes();
            (20..20 + times()).for_each(round);
            until_freed("descriptors are closed", || descriptors() <= before + session_to_nobody);
            assert_eq!(control_threads(), 1);
            let limit = heap + SLACK_BYTES;
            until_heap_is_freed(limit);
            pair.close();
            other.finalize().unwrap();
            until_freed("all is closed", || control_threads() == 0);
            assert_eq!(warnings(), Vec::<String>::new());
        },
    );
}

#[test]
fn a_connection_that_comes_and_goes_leaves_no_memory() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let keep = Pair::open(&net, &net, 0);
        let round = |number: u64| {
            let pair = Pair::open(&net, &net, 0);
            pair.exchange(number, 20_000);
            pair.close();
        };
        (0..times() / 4).for_each(round);
        let before = descriptors();
        until_freed("closed connections are over", || descriptors() <= before);
        let heap = heap_bytes();
        (30..30 + 2 * times()).for_each(round);
        until_heap_is_freed(heap + SLACK_BYTES);
        keep.exchange(1, 1000);
        keep.close();
        assert_eq!(warnings(), Vec::<String>::new());
    });
}

#[test]
fn a_session_that_comes_and_goes_leaves_no_memory() {
    alone(&[ONE_RAIL], || {
        let (_plugin, net) = start();
        let (_listening, handle) = listen(&net, 0);
        let before = descriptors();
        let round = |_| drop(Stranger::greeted(&handle));
        (0..times()).for_each(round);
        until_freed("their sockets are closed", || descriptors() <= before);
        let limit = heap_bytes() + SLACK_BYTES;
        (0..5 * times()).for_each(round);
        until_freed("their sockets are closed", || descriptors() <= before);
        until_heap_is_freed(limit);
    });
}

#[test]
fn a_connect_that_nobody_answers_fails_at_its_deadline_and_is_freed() {
    alone(&[TWO_RAILS, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "2")], || {
        let (_plugin, net) = start();
        let keep = Pair::open(&net, &net, 0);
        let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let before = descriptors();
        let mut handle = Stranger::handle(silent.local_addr().unwrap());
        let error = until("connect", || net.connect(0, &mut handle).map(|_| None).unwrap_or_else(Some));
        assert!(error.to_string().contains("ncclRemoteError"), "{error}");
        until_freed("its socket closes", || descriptors() == before);
        assert_eq!((warnings().len(), warnings_with(&["connect: ", "Handshake timeout"]).len()), (1, 1));
        keep.exchange(1, 1000);
    });
}

#[test]
fn connects_that_wait_for_others_fail_with_their_session() {
    alone(&[ONE_RAIL], || {
        let (_plugin, net) = start();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let known = WireHandle::decode(&Stranger::handle(listener.local_addr().unwrap()).0).unwrap();
        // More than the 512 that are in progress at once on a session.
        let handle = |nonce| Handle(WireHandle { nonce, ..known.clone() }.encode());
        let mut handles: Vec<_> = (0..600).map(handle).collect();
        for handle in &mut handles {
            assert!(net.connect(0, handle).unwrap().is_none());
        }
        let mut stranger = Stranger::welcome(&listener);
        stranger.offered();
        // If the session ends before all have begun, the rest reach nobody.
        drop(listener);
        drop(stranger);
        for handle in &mut handles {
            let error = until("connect", || net.connect(0, handle).map(|_| None).unwrap_or_else(Some));
            assert!(error.to_string().contains("ncclRemoteError"), "{error}");
        }
        let reasons = ["ended while a connection was set up", "cannot be reached", "has just ended"];
        let named = warnings().iter().filter(|line| reasons.iter().any(|reason| line.contains(reason))).count();
        assert_eq!(named, 600);
    });
}

#[test]
fn a_connection_whose_listener_is_closed_while_it_is_set_up_is_closed_for_its_peer_too() {
    alone(&[ONE_RAIL], || {
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let mut stranger = Stranger::greeted(&handle);
        let token = stranger.offer(1);
        net.close_listen(listening).unwrap();
        stranger.lanes(1);
        let _lane = stranger.lane(token);
        stranger.send(1, Message::Ready { usable: 1 });
        assert!(matches!(stranger.receive(), Message::Bye(_)));
    });
}

#[test]
fn a_connection_that_is_closed_here_is_over_when_its_peer_gives_it_up() {
    alone(&[ONE_RAIL], || {
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let mut stranger = Stranger::greeted(&handle);
        let token = stranger.offer(1);
        let _lane = stranger.go_on(1, token);
        net.close_recv(accept(&net, &listening)).unwrap();
        assert!(matches!(stranger.receive(), Message::Bye(_)));
        // The peer sends no BYE after this message.
        stranger
            .send(1, Message::Refuse { fault: Fault::Peer, of_rails: false, reason: "it took too long".to_owned() });
        // The connection's number is free again.
        stranger.offer(1);
    });
}

#[test]
fn what_is_closed_here_stays_until_its_peer_has_closed_it_too() {
    alone(&[ONE_RAIL], || {
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let mut stranger = Stranger::greeted(&handle);
        let token = stranger.offer(1);
        let mut lane = stranger.go_on(1, token);
        let recv = accept(&net, &listening);
        let begin = Instant::now();
        net.close_recv(recv).unwrap();
        assert!(matches!(stranger.receive(), Message::Bye(_)));
        // Shorter than the three seconds that a peer has, and longer than an end needs if it waits for no peer.
        lane.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        match lane.read(&mut [0]) {
            Ok(bytes) => assert!(bytes == 0 && begin.elapsed() >= Duration::from_secs(3), "it ended too early"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        stranger.send(1, Message::Bye(None));
        lane.set_read_timeout(None).unwrap();
        assert_eq!(lane.read(&mut [0]).expect("it ends"), 0);
    });
}

#[test]
fn connect_may_be_asked_again_until_two_handshake_times_have_passed() {
    alone(&[ONE_RAIL, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "6")], || {
        let (_plugin, net) = start();
        let (listening, mut handle) = listen(&net, 0);
        assert!(net.connect(0, &mut handle).unwrap().is_none());
        let recv = accept(&net, &listening);
        // Connect is called again only after four thirds of the timeout.
        thread::sleep(Duration::from_secs(8));
        let send = connect(&net, 0, &handle);
        let pair = Pair { from: &net, to: &net, send, recv };
        pair.exchange(1, 1000);
        pair.close();
        assert_eq!(warnings(), Vec::<String>::new());
    });
}

#[test]
fn an_acceptor_that_always_answers_with_the_first_step_is_asked_a_few_times() {
    alone(&[ONE_RAIL], || {
        let (_plugin, net) = start();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut handle = Stranger::handle(listener.local_addr().unwrap());
        assert!(net.connect(0, &mut handle).expect("connect begins").is_none());
        let mut stranger = Stranger::welcome(&listener);
        let mut offers = 0;
        until("connect's failure", || {
            if stranger.has_input()
                && let Message::Offer(offer) = stranger.receive()
            {
                offers += 1;
                let rails = vec![RailAnswer { connector_port: 0, lanes: 1, port: offer.ports[0] }];
                stranger.send(offers, Message::Answer { token: Token([6; 16]), step: Step::Subnet, rails });
                let reason = "no rail".to_owned();
                stranger.send(offers, Message::Refuse { fault: Fault::Peer, of_rails: true, reason });
            }
            net.connect(0, &mut handle).err()
        });
        // Step 1, then step 2, and both again without the way that has failed.
        assert!((2..=4).contains(&offers), "{offers} offers");
    });
}
