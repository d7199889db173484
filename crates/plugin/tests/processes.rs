//! Two processes with a connection each way: peers that die, fall silent, end in any order, or have other settings.

mod common;

use common::{
    Pair, TWO_RAILS, accept, connect, descriptors, listen, noise, start, until, until_within, warnings, warnings_with,
    with_peer,
};
use railweave_abi::NcclResult;
use railweave_nccl_host::net::{Comm, Handle, NetApi, RecvComm, Request, SendComm};
use railweave_nccl_host::{LoadedNet, NetError};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

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
    recv: RecvComm,
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
            let said = (warnings_with(&[" is down: "]).len(), warnings().len());
            assert_eq!(said, (4, 6), "one for each rail of each connection, then one for each request");
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
            // The child still holds the sockets of sessions and lanes, but nobody listens any more.
            assert_eq!(signal(child, 0), 0);
            let name = format!("(pid {parent})");
            let words = ["test: ", &name, "its process seems to have ended", "Connection refused"];
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
            // Far more than the kernel buffers: the rest waits for a peer that does not read.
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
fn a_peer_that_is_stopped_for_however_long_goes_on_where_it_was() {
    with_peer(
        &[TWO_RAILS, ("RAILWEAVE_PEER_TIMEOUT", "1")],
        &[],
        |mut peer| {
            let (_plugin, net) = start();
            let ends = meet(&net, &mut peer.link);
            let pid = peer_pid(&mut peer.link);
            for stopped_ms in [300, 5000] {
                let to = common::Buffer::new(&net, Comm::Recv(&ends.recv), 1000);
                assert_eq!(signal(pid, libc::SIGSTOP), 0);
                // SAFETY: the buffer stays until the request is done.
                let recv = unsafe { net.irecv(&ends.recv, &[to.part(7)], false) }.unwrap().unwrap();
                let begin = std::time::Instant::now();
                while begin.elapsed() < Duration::from_millis(stopped_ms) {
                    // SAFETY: as above.
                    assert!(!unsafe { net.test(&recv, None) }.unwrap(), "the peer sends nothing");
                }
                assert_eq!(signal(pid, libc::SIGCONT), 0);
                peer.link.write_all(&[1]).unwrap();
                // SAFETY: as above.
                until("the receive", || unsafe { net.test(&recv, None) }.unwrap().then_some(()));
                to.assert_holds(&noise(5, 1000));
                to.release(&net, Comm::Recv(&ends.recv));
                converse(&ends);
            }
            finish(ends);
            peer.wait();
            assert_eq!(warnings(), Vec::<String>::new());
        },
        |mut link| {
            let (_plugin, net) = start();
            let ends = meet(&net, &mut link);
            link.write_all(&std::process::id().to_le_bytes()).unwrap();
            for _ in 0..2 {
                link.read_exact(&mut [0]).unwrap();
                let from = common::Buffer::holding(&net, Comm::Send(&ends.send), &noise(5, 1000));
                // SAFETY: the buffer stays until the request is done.
                let isend = || unsafe { net.isend(&ends.send, from.start(), 1000, 7, from.registration()) };
                let send = until("the peer's receive", || isend().unwrap());
                // SAFETY: as above.
                until("the send", || unsafe { net.test(&send, None) }.unwrap().then_some(()));
                from.release(&net, Comm::Send(&ends.send));
                converse(&ends);
            }
            finish(ends);
            assert_eq!(warnings(), Vec::<String>::new());
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
            assert_eq!((warnings_with(&[" is down: "]).len(), warnings().len()), (4, 6), "{:?}", warnings());
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
fn processes_whose_ports_do_not_pair_name_the_ports_and_connect_returns_an_invalid_usage() {
    let words = ["No local NIC found", "127.0.0.1", "::1", "addresses of one family"];
    with_peer(
        &[("RAILWEAVE_RAILS", "127.0.0.1/32")],
        &[("RAILWEAVE_RAILS", "::1/128")],
        |mut peer| {
            let (_plugin, net) = start();
            let (listen, handle) = listen(&net, 0);
            write_handle(&mut peer.link, &handle);
            peer.wait();
            assert!(net.accept(&listen).unwrap().is_none());
            assert_eq!(warnings_with(&words).len(), 1, "{:?}", warnings());
        },
        |mut link| {
            let (_plugin, net) = start();
            let mut handle = read_handle(&mut link);
            let error = until("connect", || net.connect(0, &mut handle).map(|_| None).unwrap_or_else(Some));
            assert!(error.to_string().contains("ncclInvalidUsage"), "{error}");
            assert_eq!(warnings_with(&words).len(), 1, "{:?}", warnings());
        },
    );
}
