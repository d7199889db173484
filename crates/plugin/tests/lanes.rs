//! Lanes over TCP: sockets that are closed before their answer, that nobody answers in time, and that come twice.

mod common;

use common::{
    Buffer, ONE_RAIL, OUR_VERSIONS, Relay, Stranger, TWO_RAILS, accept, alone, connect, in_time, listen, noise, start,
    until, warnings, warnings_with, with_peer,
};
use railweave_host::net::{Comm, Handle, NetApi};
use railweave_transport::{Message, PREFACE_BYTES, Preface};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;

#[test]
fn a_lane_that_is_closed_before_its_answer_is_dialled_again() {
    alone(&[ONE_RAIL], || {
        let (_plugin, net) = start();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut handle = Stranger::handle(listener.local_addr().unwrap());
        assert!(net.connect(0, &mut handle).expect("connect begins").is_none());
        let mut stranger = Stranger::accept(&listener);
        stranger.expect_preface();
        assert!(matches!(stranger.receive(), Message::Hello(_)));
        let hello = stranger.hello(OUR_VERSIONS);
        stranger.send(0, hello);
        let Message::Offer(offer) = stranger.receive() else { panic!("OFFER follows") };
        stranger.answer(&offer);
        stranger.lanes(1);
        listener.set_nonblocking(true).unwrap();
        let next = || until("a lane", || listener.accept().ok()).0;
        // With its preface read or not: a socket that makes place is closed whatever has come.
        drop(next());
        let read = |mut lane: TcpStream| {
            let mut preface = [0; PREFACE_BYTES];
            lane.read_exact(&mut preface).expect("the plugin says what it dials");
            assert!(matches!(Preface::decode(&preface), Ok(Preface::Lane(_))));
            lane
        };
        drop(read(next()));
        let mut lane = read(next());
        lane.write_all(b"RWLNTKN1").expect("the plugin reads");
        let send = until("connect", || net.connect(0, &mut handle).expect("connect succeeds"));
        assert!(matches!(stranger.receive(), Message::Ready { usable: 1 }));
        assert_eq!(warnings(), Vec::<String>::new());
        net.close_send(send).expect("the sending end is closed");
    });
}

#[test]
fn a_socket_takes_the_place_of_one_that_its_peer_has_closed_and_of_no_other() {
    alone(&[ONE_RAIL], || {
        let (_plugin, net) = start();
        let (listen, handle) = listen(&net, 0);
        let mut stranger = Stranger::dial(&handle);
        stranger.shake_hands();
        let token = stranger.offer(1);
        stranger.lanes(1);
        drop(stranger.lane(token));
        let mut lane = until("the lane's second socket", || stranger.try_lane(token));
        assert!(stranger.try_lane(token).is_none(), "the second is open");
        until("its line", || (!warnings_with(&["it has its socket already"]).is_empty()).then_some(()));
        stranger.send(1, Message::Ready { usable: 1 });
        let recv = accept(&net, &listen);
        assert!(stranger.try_lane(token).is_none(), "the lane is in use");
        until("its line", || (!warnings_with(&["that no connection here awaits"]).is_empty()).then_some(()));
        let to = Buffer::new(&net, Comm::Recv(&recv), 1000);
        // SAFETY: the buffer stays until the end.
        let request = unsafe { net.irecv(&recv, &[to.part(7)], false) }.unwrap().unwrap();
        lane.set_nonblocking(true).unwrap();
        until("what the plugin sends on the second socket", || {
            // SAFETY: the request is not done: nobody sends.
            assert!(!unsafe { net.test(&request, None) }.unwrap());
            lane.read(&mut [0; 64]).is_ok_and(|count| count > 0).then_some(())
        });
    });
}

/// Ends what is sent on a socket, and returns once the other side's kernel knows.
fn end(socket: &TcpStream) {
    socket.shutdown(Shutdown::Write).unwrap();
    until("the acknowledgement of a socket's end", || {
        // The first byte of the kernel's struct tcp_info (linux/tcp.h) is the state; net/tcp_states.h numbers them.
        const ESTABLISHED: u8 = 1;
        const FIN_WAIT1: u8 = 4;
        let (mut state, mut size) = (0_u8, 1);
        // SAFETY: the descriptor is open; the kernel writes at most `size` bytes.
        let result = unsafe {
            let (level, option) = (libc::IPPROTO_TCP, libc::TCP_INFO);
            libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut state).cast(), &raw mut size)
        };
        assert_eq!((result, size), (0, 1));
        (state != ESTABLISHED && state != FIN_WAIT1).then_some(())
    });
}

#[test]
fn lanes_that_their_acceptor_took_too_late_are_dialled_again_and_carry_every_byte() {
    // Each try has an eighth of this, and all together half.
    let timeout = ("RAILWEAVE_HANDSHAKE_TIMEOUT", "24s");
    with_peer(
        &[TWO_RAILS, timeout],
        &[],
        |mut peer| {
            let (_plugin, net) = start();
            let mut handle = Handle::default();
            peer.link.read_exact(&mut handle.0).unwrap();
            let relay = Relay::before(&handle);
            let mut handle = relay.handle();
            assert!(net.connect(0, &mut handle).unwrap().is_none());
            let session = relay.accept();
            let theirs = relay.dial(&session);
            session.pass(theirs);

            // One lane for each rail; both reach a process that stands still, until they are given up.
            let first = relay.accept();
            peer.stop();
            let first_theirs = relay.dial(&first);
            let second = relay.accept();
            let mut second_theirs = relay.dial(&second);
            for mut dialled in [first, second] {
                assert_eq!(in_time(dialled.socket.read(&mut [0]), "the end of a try"), 0);
            }
            // The end of the one arrives before the process goes on, that of the other once it was taken.
            end(&first_theirs);
            drop(first_theirs);
            peer.go_on();
            in_time(second_theirs.read_exact(&mut [0; 8]), "the answer to a socket that was given up");
            end(&second_theirs);
            thread::spawn(move || {
                loop {
                    let again = relay.accept();
                    let theirs = relay.dial(&again);
                    again.pass(theirs);
                }
            });

            let send = connect(&net, 0, &handle);
            let from = Buffer::holding(&net, Comm::Send(&send), &noise(1, 1 << 20));
            // SAFETY: the buffer stays until the request is done.
            let isend = || unsafe { net.isend(&send, from.start(), from.bytes(), 7, from.registration()) };
            let request = until("the peer's receive", || isend().unwrap());
            // SAFETY: as above.
            until("the send", || unsafe { net.test(&request, None) }.unwrap().then_some(()));
            net.close_send(send).unwrap();
            peer.wait();
            // Not even that a rail is left out.
            assert_eq!(warnings(), Vec::<String>::new());
        },
        |mut link| {
            let (_plugin, net) = start();
            let (listen, handle) = listen(&net, 0);
            link.write_all(&handle.0).unwrap();
            let recv = accept(&net, &listen);
            let to = Buffer::new(&net, Comm::Recv(&recv), 1 << 20);
            // SAFETY: the buffer stays until the request is done.
            let request = unsafe { net.irecv(&recv, &[to.part(7)], false) }.unwrap().unwrap();
            // SAFETY: as above.
            until("the receive", || unsafe { net.test(&request, None) }.unwrap().then_some(()));
            to.assert_holds(&noise(1, 1 << 20));
            net.close_recv(recv).unwrap();
            assert_eq!(warnings(), Vec::<String>::new());
        },
    );
}
