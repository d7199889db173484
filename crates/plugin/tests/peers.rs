//! Faulty peers: strangers, other versions, peers that stop half-way, peers that die.

mod common;

use common::{
    ONE_RAIL, OUR_VERSIONS, Pair, Stranger, TWO_RAILS, accept, alone, connect, descriptors, each, listen, noise, start,
    until, until_freed, until_within, warnings, warnings_with, with_peer,
};
use railweave_abi::NcclResult;
use railweave_nccl_host::net::{Comm, Handle, NetApi, Request, SendComm};
use railweave_nccl_host::{LoadedNet, NetError};
use railweave_transport::{Message, Preface};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

#[test]
fn a_peer_of_another_protocol_version_is_refused_by_name_and_others_go_on() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let (listen, handle) = listen(&net, 0);
        let mut stranger = Stranger::dial(&handle);
        stranger.begin();
        let hello = stranger.hello((7, 9));
        stranger.send(0, hello);
        // It receives our HELLO, so that it can name the difference itself, and then nothing more.
        assert!(matches!(stranger.receive(), Message::Hello(_)));
        assert_eq!(stranger.socket.read(&mut [0; 16]).unwrap(), 0);
        let address = stranger.address().to_string();
        assert_eq!(warnings_with(&[&address, "stranger (pid 4711)", "7 to 9", "2 to 2", "install"]).len(), 1);
        assert_eq!(warnings().len(), 1);
        assert!(net.accept(&listen).unwrap().is_none());
        pair.exchange(1, 100_000);
        let (send, recv) = (connect(&net, 0, &handle), accept(&net, &listen));
        Pair { from: &net, to: &net, send, recv }.exchange(2, 1000);
    });
}

#[test]
fn a_range_of_versions_that_holds_ours_is_welcome() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let (_listen, handle) = listen(&net, 0);
        let mut stranger = Stranger::dial(&handle);
        stranger.begin();
        let hello = stranger.hello((1, 9));
        stranger.send(0, hello);
        assert!(matches!(stranger.receive(), Message::Hello(_)));
        stranger.send(1, Message::Bye);
        stranger.socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert!(stranger.socket.read(&mut [0; 16]).is_err(), "the session stays open");
        assert!(warnings().is_empty());
    });
}

#[test]
fn whoever_does_not_speak_the_protocol_is_named_once_and_dropped() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let (_listen, handle) = listen(&net, 0);
        let before = descriptors();
        let mut wrong_frame = Preface::Session.encode().to_vec();
        wrong_frame.extend([0xff; 64]);
        let cases: [(&[u8], &str); 4] = [
            (b"GET / HTTP/1.1\r\nHost: node7\r\n\r\n..............", "magic number"),
            (b"RWCT\x01\x00", "closed after 6 of the first 40 bytes"),
            (&wrong_frame, "broke the control protocol"),
            (&noise(1, 4096), "magic number"),
        ];
        for (number, (bytes, words)) in cases.into_iter().enumerate() {
            let mut stranger = Stranger::dial(&handle);
            stranger.write(bytes);
            let address = stranger.address().to_string();
            // This fails if the plugin was faster.
            let _ = stranger.socket.shutdown(std::net::Shutdown::Write);
            until("its line", || (warnings().len() > number).then_some(()));
            assert_eq!(warnings_with(&[&address, words]).len(), 1);
            drop(stranger);
            until_freed("its socket closes", || descriptors() == before);
        }
        // A check that the port is open is not worth a line.
        drop(Stranger::dial(&handle));
        pair.exchange(1, 100_000);
        assert_eq!(warnings().len(), 4);
    });
}

/// The point up to which a stranger goes before it closes.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Until {
    Connected,
    Preface,
    Hello,
    Offer,
    Lanes,
    Lane,
}

fn half_way(handle: &Handle, until: Until) {
    let mut stranger = Stranger::dial(handle);
    if until == Until::Preface {
        stranger.begin();
    }
    if until >= Until::Hello {
        stranger.shake_hands();
    }
    let token = (until >= Until::Offer).then(|| stranger.offer(1));
    if until >= Until::Lanes {
        stranger.lanes(1);
    }
    if until >= Until::Lane {
        drop(stranger.lane(token.expect("it made an offer")));
    }
}

#[test]
fn a_peer_that_closes_half_way_leaves_nothing_and_disturbs_nobody() {
    let all = [Until::Connected, Until::Preface, Until::Hello, Until::Offer, Until::Lanes, Until::Lane];
    each(
        &all,
        |_| vec![TWO_RAILS],
        |end| {
            let (_plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            let (listen, handle) = listen(&net, 0);
            let before = descriptors();
            for round in 1..=3 {
                half_way(&handle, *end);
                if *end >= Until::Offer {
                    // A stranger that made an offer has begun a connection: its failure is a line, and accept still
                    // waits.
                    let words = ["accept keeps waiting", "stranger (pid 4711)", "while a connection was set up"];
                    until("the line", || (warnings_with(&words).len() == round).then_some(()));
                    assert!(net.accept(&listen).unwrap().is_none());
                }
                until_freed("all is freed", || descriptors() == before);
                pair.exchange(1, 100_000);
            }
            let (send, recv) = (connect(&net, 0, &handle), accept(&net, &listen));
            Pair { from: &net, to: &net, send, recv }.exchange(2, 1000);
            assert_eq!(warnings().len(), if *end >= Until::Offer { 3 } else { 0 });
        },
    );
}

#[test]
fn a_peer_that_stops_half_way_without_closing_is_given_up_in_time() {
    let all = [Until::Preface, Until::Offer, Until::Lanes];
    each(
        &all,
        |_| vec![TWO_RAILS, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "2s")],
        |end| {
            let (_plugin, net) = start();
            let (listen, handle) = listen(&net, 0);
            let mut stranger = Stranger::dial(&handle);
            if *end == Until::Preface {
                stranger.begin();
                until("the session's end", || {
                    (warnings_with(&["opened a session", "in time; it was closed"]).len() == 1).then_some(())
                });
                assert!(net.accept(&listen).unwrap().is_none());
            } else {
                stranger.shake_hands();
                stranger.offer(1);
                if *end == Until::Lanes {
                    stranger.lanes(1);
                }
                assert!(matches!(stranger.receive(), Message::Refuse { .. }));
                let words = ["accept keeps waiting", "stranger (pid 4711)", "Handshake timeout"];
                until("the line", || (warnings_with(&words).len() == 1).then_some(()));
                assert!(net.accept(&listen).unwrap().is_none());
            }
            let (send, recv) = (connect(&net, 0, &handle), accept(&net, &listen));
            Pair { from: &net, to: &net, send, recv }.exchange(2, 1000);
        },
    );
}

fn write_handle(link: &mut UnixStream, handle: &Handle) {
    link.write_all(&handle.0).unwrap();
}

fn read_handle(link: &mut UnixStream) -> Handle {
    let mut handle = Handle::default();
    link.read_exact(&mut handle.0).unwrap();
    handle
}

/// The two connections of a process with its peer.
struct Ends<'a> {
    net: &'a LoadedNet,
    send: SendComm,
    recv: railweave_nccl_host::net::RecvComm,
}

/// Connects both ways with the process at the other end of the socket.
fn meet<'a>(net: &'a LoadedNet, link: &mut UnixStream) -> Ends<'a> {
    let (listen, handle) = listen(net, 0);
    write_handle(link, &handle);
    let send = connect(net, 0, &read_handle(link));
    let recv = accept(net, &listen);
    net.close_listen(listen).unwrap();
    Ends { net, send, recv }
}

/// Tests a request until it fails, which it must.
fn failure(net: &LoadedNet, request: &Request) -> NcclResult {
    // The limit is shorter than the default timeout of a silent peer.
    // SAFETY: the request is not done, and its buffers stay.
    let error = until_within(Duration::from_secs(25), "the failure", || match unsafe { net.test(request, None) } {
        Ok(done) => {
            assert!(!done, "it cannot be done");
            None
        }
        Err(error) => Some(error),
    });
    let NetError::Call { code, .. } = error else { panic!("{error}") };
    code
}

#[test]
fn a_peer_that_is_killed_fails_requests_in_progress_and_is_named() {
    with_peer(
        &[TWO_RAILS],
        &[],
        |mut peer| {
            let (_plugin, net) = start();
            let before = descriptors();
            let own = Pair::open(&net, &net, 0);
            let ends = meet(&net, &mut peer.link);
            let from = common::Buffer::holding(&net, Comm::Send(&ends.send), &noise(1, 64 << 20));
            let to = common::Buffer::new(&net, Comm::Recv(&ends.recv), 1000);
            // SAFETY: both buffers stay until the end.
            let recv = unsafe { net.irecv(&ends.recv, &[to.part(7)], false) }.unwrap().unwrap();
            // SAFETY: as above.
            let isend = || unsafe { net.isend(&ends.send, from.start(), from.bytes(), 7, from.registration()) };
            let send = until("the peer's receive", || isend().unwrap());
            peer.kill();
            assert_eq!(failure(&net, &send), NcclResult::REMOTE_ERROR);
            assert_eq!(failure(&net, &recv), NcclResult::REMOTE_ERROR);
            assert_eq!(warnings().len(), 2, "one for each request");
            let name = format!("(pid {})", peer_pid(&mut peer.link));
            assert_eq!(warnings_with(&["test: ", &name]).len(), 2);
            assert!(!warnings_with(&["rail ", "127.0.0."]).is_empty(), "{:?}", warnings());
            own.exchange(2, 100_000);
            net.close_send(ends.send).unwrap();
            net.close_recv(ends.recv).unwrap();
            own.close();
            net.finalize().unwrap();
            assert_eq!((descriptors(), common::control_threads()), (before, 0));
        },
        |mut link| {
            let (_plugin, net) = start();
            let ends = meet(&net, &mut link);
            let to = common::Buffer::new(&net, Comm::Recv(&ends.recv), 64 << 20);
            // SAFETY: the buffer stays until this process is killed.
            let _recv = unsafe { net.irecv(&ends.recv, &[to.part(7)], false) }.unwrap().unwrap();
            link.write_all(&std::process::id().to_le_bytes()).unwrap();
            // It does nothing more until it is killed.
            let _ = link.read(&mut [0]);
        },
    );
}

#[test]
fn a_peer_that_is_killed_while_a_child_of_it_lives_is_missed_in_time() {
    with_peer(
        &[TWO_RAILS, ("RAILWEAVE_PEER_TIMEOUT", "3")],
        &[],
        |mut peer| {
            let (_plugin, net) = start();
            let before = descriptors();
            let own = Pair::open(&net, &net, 0);
            let ends = meet(&net, &mut peer.link);
            let from = common::Buffer::holding(&net, Comm::Send(&ends.send), &noise(1, 64 << 20));
            let to = common::Buffer::new(&net, Comm::Recv(&ends.recv), 1000);
            // SAFETY: both buffers stay until the end.
            let recv = unsafe { net.irecv(&ends.recv, &[to.part(7)], false) }.unwrap().unwrap();
            // SAFETY: as above.
            let isend = || unsafe { net.isend(&ends.send, from.start(), from.bytes(), 7, from.registration()) };
            let send = until("the peer's receive", || isend().unwrap());
            let (parent, child) = (peer_pid(&mut peer.link), peer_pid(&mut peer.link));
            peer.kill();
            assert_eq!(failure(&net, &send), NcclResult::REMOTE_ERROR);
            assert_eq!(failure(&net, &recv), NcclResult::REMOTE_ERROR);
            // The child still holds every socket: only the silence revealed it.
            assert_eq!(signal(child, 0), 0);
            let name = format!("(pid {parent})");
            let words = ["test: ", &name, "has been silent for", "RAILWEAVE_PEER_TIMEOUT (3 s)"];
            assert_eq!((warnings().len(), warnings_with(&words).len()), (2, 2), "{:?}", warnings());
            own.exchange(2, 100_000);
            finish(ends);
            own.close();
            net.finalize().unwrap();
            assert_eq!((descriptors(), common::control_threads()), (before, 0));
            signal(child, libc::SIGKILL);
        },
        |mut link| {
            let (_plugin, net) = start();
            let ends = meet(&net, &mut link);
            let to = common::Buffer::new(&net, Comm::Recv(&ends.recv), 64 << 20);
            // SAFETY: the buffer stays until this process is killed.
            let _recv = unsafe { net.irecv(&ends.recv, &[to.part(7)], false) }.unwrap().unwrap();
            // SAFETY: the child does nothing but wait to be killed.
            let child = unsafe { libc::fork() };
            if child == 0 {
                loop {
                    // SAFETY: no memory is involved.
                    unsafe { libc::pause() };
                }
            }
            link.write_all(&std::process::id().to_le_bytes()).unwrap();
            link.write_all(&child.to_le_bytes()).unwrap();
            let _ = link.read(&mut [0]);
        },
    );
}

/// Sends a signal to a process of this test; signal 0 only checks that it exists. Returns 0 if it exists.
fn signal(pid: u32, number: libc::c_int) -> libc::c_int {
    let pid = libc::pid_t::try_from(pid).expect("a process id");
    // SAFETY: no memory is involved.
    unsafe { libc::kill(pid, number) }
}

#[test]
fn a_peer_that_is_quiet_or_makes_no_progress_for_longer_than_its_time_stays() {
    const LONG: Duration = Duration::from_millis(6500);
    with_peer(
        &[TWO_RAILS, ("RAILWEAVE_PEER_TIMEOUT", "3")],
        &[],
        |mut peer| {
            let (_plugin, net) = start();
            let ends = meet(&net, &mut peer.link);
            std::thread::sleep(LONG);
            converse(&ends);
            // Far more than the kernel takes: the rest waits for a peer that does not read.
            let from = common::Buffer::holding(&net, Comm::Send(&ends.send), &noise(1, 64 << 20));
            // SAFETY: the buffer stays until the request is done.
            let isend = || unsafe { net.isend(&ends.send, from.start(), from.bytes(), 7, from.registration()) };
            let send = until("the peer's receive", || isend().unwrap());
            // SAFETY: as above.
            until("the send", || unsafe { net.test(&send, None) }.unwrap().then_some(()));
            finish(ends);
            peer.wait();
            assert_eq!(warnings(), Vec::<String>::new());
        },
        |mut link| {
            let (_plugin, net) = start();
            let ends = meet(&net, &mut link);
            std::thread::sleep(LONG);
            converse(&ends);
            let to = common::Buffer::new(&net, Comm::Recv(&ends.recv), 64 << 20);
            // SAFETY: the buffer stays until the request is done.
            let recv = unsafe { net.irecv(&ends.recv, &[to.part(7)], false) }.unwrap().unwrap();
            std::thread::sleep(LONG);
            // SAFETY: as above.
            until("the receive", || unsafe { net.test(&recv, None) }.unwrap().then_some(()));
            to.assert_holds(&noise(1, 64 << 20));
            finish(ends);
            assert_eq!(warnings(), Vec::<String>::new());
        },
    );
}

#[test]
fn a_peer_that_is_stopped_for_less_than_its_time_stays_and_one_that_is_stopped_for_longer_is_missed() {
    with_peer(
        &[TWO_RAILS, ("RAILWEAVE_PEER_TIMEOUT", "6")],
        &[],
        |mut peer| {
            let (_plugin, net) = start();
            let ends = meet(&net, &mut peer.link);
            let pid = peer_pid(&mut peer.link);
            assert_eq!(signal(pid, libc::SIGSTOP), 0);
            std::thread::sleep(Duration::from_secs(2));
            assert_eq!(signal(pid, libc::SIGCONT), 0);
            converse(&ends);
            assert_eq!(signal(pid, libc::SIGSTOP), 0);
            let to = common::Buffer::new(&net, Comm::Recv(&ends.recv), 1000);
            // SAFETY: the buffer stays until the end.
            let recv = unsafe { net.irecv(&ends.recv, &[to.part(7)], false) }.unwrap().unwrap();
            assert_eq!(failure(&net, &recv), NcclResult::REMOTE_ERROR);
            assert_eq!((warnings().len(), warnings_with(&["test: ", "has been silent for"]).len()), (1, 1));
        },
        |mut link| {
            let (_plugin, net) = start();
            let ends = meet(&net, &mut link);
            link.write_all(&std::process::id().to_le_bytes()).unwrap();
            converse(&ends);
            let _ = link.read(&mut [0]);
        },
    );
}

fn peer_pid(link: &mut UnixStream) -> u32 {
    let mut bytes = [0; 4];
    link.read_exact(&mut bytes).unwrap();
    u32::from_le_bytes(bytes)
}

#[test]
fn a_peer_that_is_killed_fails_what_is_posted_afterwards() {
    with_peer(
        &[TWO_RAILS],
        &[],
        |mut peer| {
            let (_plugin, net) = start();
            let ends = meet(&net, &mut peer.link);
            peer.kill();
            let from = common::Buffer::holding(&net, Comm::Send(&ends.send), &noise(1, 1000));
            let to = common::Buffer::new(&net, Comm::Recv(&ends.recv), 1000);
            // SAFETY: the buffers stay until the end.
            let isend = || unsafe { net.isend(&ends.send, from.start(), 1000, 7, from.registration()) };
            // SAFETY: as above.
            let irecv = || unsafe { net.irecv(&ends.recv, &[to.part(7)], false) };
            let send = until("the send's failure", || isend().map(|_| None).unwrap_or_else(Some));
            let recv = until("the receive's failure", || irecv().map(|_| None).unwrap_or_else(Some));
            for error in [send, recv] {
                assert!(error.to_string().contains("ncclRemoteError"), "{error}");
            }
            assert_eq!(warnings().len(), 2);
        },
        |mut link| {
            let (_plugin, net) = start();
            let _ends = meet(&net, &mut link);
            let _ = link.read(&mut [0]);
        },
    );
}

#[test]
fn processes_that_end_in_any_order_after_their_last_test_lose_nothing() {
    with_peer(
        &[TWO_RAILS],
        &[],
        |mut peer| {
            let (_plugin, net) = start();
            let ends = meet(&net, &mut peer.link);
            let from = common::Buffer::holding(&net, Comm::Send(&ends.send), &noise(1, 1 << 20));
            // SAFETY: the buffer stays until the request is done.
            let isend = || unsafe { net.isend(&ends.send, from.start(), from.bytes(), 7, from.registration()) };
            let send = until("the peer's receive", || isend().unwrap());
            // SAFETY: as above.
            until("the send", || unsafe { net.test(&send, None) }.unwrap().then_some(()));
            finish(ends);
            net.finalize().unwrap();
            peer.wait();
            assert!(warnings().is_empty());
        },
        |mut link| {
            let (_plugin, net) = start();
            let ends = meet(&net, &mut link);
            let to = common::Buffer::new(&net, Comm::Recv(&ends.recv), 1 << 20);
            // SAFETY: the buffer stays until the request is done.
            let recv = unsafe { net.irecv(&ends.recv, &[to.part(7)], false) }.unwrap().unwrap();
            // SAFETY: as above.
            until("the receive", || unsafe { net.test(&recv, None) }.unwrap().then_some(()));
            to.assert_holds(&noise(1, 1 << 20));
            finish(ends);
            net.finalize().unwrap();
            assert!(warnings().is_empty());
        },
    );
}

fn finish(ends: Ends<'_>) {
    ends.net.close_send(ends.send).unwrap();
    ends.net.close_recv(ends.recv).unwrap();
}

/// Sends a megabyte to the peer and receives one from it.
fn converse(ends: &Ends<'_>) {
    let net = ends.net;
    let message = noise(77, 1 << 20);
    let from = common::Buffer::holding(net, Comm::Send(&ends.send), &message);
    let to = common::Buffer::new(net, Comm::Recv(&ends.recv), 1 << 20);
    // SAFETY: the buffers stay until both requests are done.
    let recv = unsafe { net.irecv(&ends.recv, &[to.part(7)], false) }.unwrap().unwrap();
    // SAFETY: as above.
    let isend = || unsafe { net.isend(&ends.send, from.start(), from.bytes(), 7, from.registration()) };
    let send = until("the peer's receive", || isend().unwrap());
    let (mut sent, mut received) = (false, false);
    until("both messages", || {
        // SAFETY: neither is tested once it is done.
        sent = sent || unsafe { net.test(&send, None) }.unwrap();
        // SAFETY: as above.
        received = received || unsafe { net.test(&recv, None) }.unwrap();
        (sent && received).then_some(())
    });
    to.assert_holds(&message);
}

#[test]
fn processes_with_unlike_versions_of_the_api_and_unlike_lanes_understand_one_another() {
    with_peer(
        &[TWO_RAILS],
        &[("RAILWEAVE_LANES", "4"), ("RAILWEAVE_WEIGHTS", "1,5")],
        |mut peer| {
            let net = common::load(Some(12)).init(1, None).unwrap();
            let ends = meet(&net, &mut peer.link);
            converse(&ends);
            finish(ends);
            peer.wait();
            assert!(warnings().is_empty());
        },
        |mut link| {
            let net = common::load(Some(6)).init(1, None).unwrap();
            let ends = meet(&net, &mut link);
            converse(&ends);
            finish(ends);
            assert!(warnings().is_empty());
        },
    );
}

#[test]
fn processes_with_unlike_modes_name_the_difference_on_both_sides() {
    let words = ["RAILWEAVE_MODE=", "set the same on every host"];
    with_peer(
        &[TWO_RAILS],
        &[("RAILWEAVE_MODE", "ports")],
        |mut peer| {
            let (_plugin, net) = start();
            let (listen, handle) = listen(&net, 0);
            write_handle(&mut peer.link, &handle);
            peer.wait();
            assert!(net.accept(&listen).unwrap().is_none());
            assert_eq!((warnings().len(), warnings_with(&words).len()), (1, 1));
            Pair::open(&net, &net, 0).exchange(1, 1000);
        },
        |mut link| {
            let (_plugin, net) = start();
            let mut handle = read_handle(&mut link);
            let error = until("connect", || net.connect(0, &mut handle).map(|_| None).unwrap_or_else(Some));
            assert!(error.to_string().contains("ncclInvalidUsage"), "{error}");
            assert_eq!((warnings().len(), warnings_with(&words).len()), (1, 1));
        },
    );
}

#[test]
fn a_listening_peer_that_closes_half_way_fails_connect_and_nothing_else() {
    let all = [Until::Connected, Until::Preface, Until::Hello, Until::Offer, Until::Lanes];
    each(
        &all,
        |_| vec![TWO_RAILS],
        |end| {
            let (_plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            let before = descriptors();
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let mut handle = Stranger::handle(listener.local_addr().unwrap());
            assert!(net.connect(0, &mut handle).unwrap().is_none());
            let mut stranger = Stranger::accept(&listener);
            if *end >= Until::Preface {
                stranger.expect_preface();
            }
            if *end >= Until::Hello {
                assert!(matches!(stranger.receive(), Message::Hello(_)));
                let hello = stranger.hello(OUR_VERSIONS);
                stranger.send(0, hello);
            }
            if *end >= Until::Offer {
                let offer = stranger.offered();
                if *end >= Until::Lanes {
                    stranger.answer(&offer);
                    assert!(matches!(stranger.receive(), Message::Lanes(_)));
                }
            }
            drop((stranger, listener));
            let error = until("connect", || net.connect(0, &mut handle).map(|_| None).unwrap_or_else(Some));
            assert!(error.to_string().contains("ncclRemoteError"), "{error}");
            assert_eq!((warnings().len(), warnings_with(&["connect: ", "127.0.0.1:"]).len()), (1, 1));
            until_freed("all is freed", || descriptors() == before);
            pair.exchange(1, 100_000);
        },
    );
}

#[test]
fn a_session_that_is_closed_before_hello_is_dialled_again_until_its_deadline() {
    each(
        &[true, false],
        |_| vec![ONE_RAIL, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "5s")],
        |is_welcome_in_the_end| {
            let (_plugin, net) = start();
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let mut handle = Stranger::handle(listener.local_addr().unwrap());
            let begin = Instant::now();
            assert!(net.connect(0, &mut handle).expect("connect begins").is_none());
            // With its preface read or not: a socket that makes room is closed whatever it has sent.
            drop(Stranger::accept(&listener));
            let mut second = Stranger::accept(&listener);
            second.expect_preface();
            assert!(matches!(second.receive(), Message::Hello(_)));
            drop(second);
            if *is_welcome_in_the_end {
                let mut stranger = Stranger::welcome(&listener);
                stranger.offered();
                assert_eq!(warnings(), Vec::<String>::new());
                return;
            }
            listener.set_nonblocking(true).unwrap();
            let mut tries = 2;
            let error = until("connect", || {
                tries += u32::from(listener.accept().is_ok());
                net.connect(0, &mut handle).map(|_| None).unwrap_or_else(Some)
            });
            assert!(error.to_string().contains("ncclRemoteError"), "{error}");
            // Pauses of 10 ms, doubled each time up to 640 ms: about ten attempts if nothing else takes time.
            assert!((3..=14).contains(&tries), "{tries} tries");
            assert!(begin.elapsed() >= Duration::from_secs(4), "given up after {:?}", begin.elapsed());
            // The deadline may pass while it is dialled again.
            let said = warnings_with(&["127.0.0.1:"]);
            let ends = ["each time that it was dialled", "Handshake timeout"];
            assert!(said.len() == 1 && ends.iter().any(|end| said[0].contains(end)), "{:?}", warnings());
            assert_eq!(warnings().len(), 1, "{:?}", warnings());
        },
    );
}
