//! Lanes over TCP: sockets that are not awaited, closed before their answer, not answered in time, or dialled twice.

mod common;

use common::{
    Buffer, ONE_RAIL, Relay, Stranger, TWO_RAILS, accept, alone, connect, in_time, listen, noise, start, until,
    warnings, warnings_with, with_peer,
};
use railweave_fabric::{LaneEndpoint, Step};
use railweave_nccl_host::net::{Comm, Handle, NetApi};
use railweave_transport::{
    Handle as WireHandle, LanePreface, Lanes, Message, PREFACE_BYTES, Preface, RailAnswer, RailLanes, Token,
};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

#[test]
fn a_lane_that_is_not_awaited_or_already_has_its_socket_gets_no_answer() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let (_listening, handle) = listen(&net, 0);
        let mut stranger = Stranger::greeted(&handle);
        let token = stranger.offer(1);
        assert_eq!(Stranger::answer_to_lane(&handle, token), b"", "LANES has not come");
        stranger.lanes(1);
        let _lane = stranger.lane(token);
        assert_eq!(Stranger::answer_to_lane(&handle, token), b"", "it is there");
        let lines = warnings_with(&["lane 0 of rail 0 was refused"]);
        assert_eq!((lines.len(), warnings().len()), (2, 2), "{:?}", warnings());
    });
}

#[test]
fn a_lane_that_is_closed_before_its_answer_is_dialled_again() {
    alone(&[ONE_RAIL], || {
        let (_plugin, net) = start();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut handle = Stranger::handle(listener.local_addr().unwrap());
        assert!(net.connect(0, &mut handle).expect("connect begins").is_none());
        let mut stranger = Stranger::welcome(&listener);
        let offer = stranger.offered();
        stranger.answer(&offer);
        stranger.lanes(1);
        listener.set_nonblocking(true).unwrap();
        let next = || until("a lane", || listener.accept().ok()).0;
        // The first socket is closed with its preface unread, the second after its preface: a socket that makes room is
        // closed whatever it has sent.
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
        let mut stranger = Stranger::greeted(&handle);
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
            // SAFETY: the request is not done, because nothing is sent.
            assert!(!unsafe { net.test(&request, None) }.unwrap());
            lane.read(&mut [0; 64]).is_ok_and(|count| count > 0).then_some(())
        });
    });
}

/// Shuts down the sending side of a socket, and waits until the other side's kernel knows.
fn end(socket: &TcpStream) {
    socket.shutdown(Shutdown::Write).unwrap();
    until("the acknowledgement of a socket's end", || {
        // The first byte of the kernel's struct tcp_info (linux/tcp.h) is the state, as net/tcp_states.h numbers it.
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
    // Each attempt may take an eighth of this timeout, and all of them together half.
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

            // There is one lane for each rail. Both reach a stopped process, until they are given up.
            let first = relay.accept();
            peer.stop();
            let first_theirs = relay.dial(&first);
            let second = relay.accept();
            let mut second_theirs = relay.dial(&second);
            for mut dialled in [first, second] {
                assert_eq!(in_time(dialled.socket.read(&mut [0]), "the end of a try"), 0);
            }
            // The end of the first socket arrives before the process continues, the end of the second after the process
            // has taken the socket.
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
            // Not even a line about a rail left out.
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

/// Sends the preface of a connection's one lane and the end of the socket in one packet, as a stopped process finds
/// them once the dialler has given up.
fn given_up(handle: &Handle, token: Token) -> TcpStream {
    let port = WireHandle::decode(&handle.0).expect("the plugin's own handle").control_port;
    let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("a lane connects");
    let bytes = Preface::Lane(LanePreface { token, rail: 0, lane: 0, proof: [0; 14] }).encode();
    // SAFETY: the bytes are readable. They are held back (MSG_MORE, send(2)) until the end is sent with them.
    let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_MORE) };
    assert_eq!(sent, bytes.len() as isize);
    socket.shutdown(Shutdown::Write).expect("the socket is open");
    socket
}

#[test]
fn a_lane_that_its_dialler_gave_up_does_not_take_the_place_of_the_next() {
    alone(&[ONE_RAIL], || {
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let mut stranger = Stranger::greeted(&handle);
        let token = stranger.offer(1);
        stranger.lanes(1);
        let mut answer = Vec::new();
        given_up(&handle, token).read_to_end(&mut answer).expect("the plugin closes it");
        assert_eq!(answer, b"");
        let _lane = stranger.lane(token);
        stranger.send(1, Message::Ready { usable: 1 });
        net.close_recv(accept(&net, &listening)).expect("the receiving end is closed");
    });
}

/// The lanes of a connection, and the connections: in all, more lanes than the control thread takes events in one turn.
const LANES: u8 = 16;
const CONNECTIONS: u32 = 20;

/// A process that is stopped until this value is dropped.
struct Stopped(libc::pid_t);

impl Stopped {
    fn new(process: libc::pid_t) -> Self {
        // SAFETY: the arguments are numbers. The process is this one's parent, which waits for it.
        unsafe { libc::kill(process, libc::SIGSTOP) };
        Self(process)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::kill(self.0, libc::SIGCONT) };
    }
}

#[test]
fn an_answer_that_came_while_the_dialler_stood_still_counts() {
    with_peer(
        // Each attempt of a lane waits for six seconds.
        &[ONE_RAIL, ("RAILWEAVE_LANES", "16"), ("RAILWEAVE_HANDSHAKE_TIMEOUT", "48")],
        &[],
        |mut peer| {
            let (_plugin, net) = start();
            let mut port = [0; 2];
            peer.link.write_all(&std::process::id().to_le_bytes()).unwrap();
            peer.link.read_exact(&mut port).unwrap();
            let named = Stranger::handle((Ipv4Addr::LOCALHOST, u16::from_le_bytes(port)).into());
            let named = WireHandle::decode(&named.0).expect("a handle");
            let mut handles: Vec<_> = (0..CONNECTIONS)
                .map(|nonce| Handle(WireHandle { nonce: nonce.into(), ..named.clone() }.encode()))
                .collect();
            for handle in &mut handles {
                assert!(net.connect(0, handle).expect("connect begins").is_none());
            }
            let sends: Vec<_> = handles
                .iter_mut()
                .map(|handle| until("connect", || net.connect(0, handle).expect("connect succeeds")))
                .collect();
            sends.into_iter().for_each(|send| net.close_send(send).expect("the sending end is closed"));
            assert_eq!(warnings(), Vec::<String>::new());
            drop(peer.link.shutdown(Shutdown::Both));
            peer.wait();
        },
        |mut link: UnixStream| {
            let mut dialler = [0; 4];
            link.read_exact(&mut dialler).unwrap();
            let dialler = libc::pid_t::from_le_bytes(dialler);
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            // SAFETY: the socket is open. All lanes must fit into its queue, which std makes shorter.
            assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 4096) }, 0);
            link.write_all(&listener.local_addr().unwrap().port().to_le_bytes()).unwrap();
            let mut stranger = Stranger::welcome(&listener);
            for connection in 1..=CONNECTIONS {
                let offer = stranger.offered();
                let rails = vec![RailAnswer { connector_port: 0, lanes: LANES, port: offer.ports[0] }];
                stranger.send(connection, Message::Answer { token: Token([6; 16]), step: Step::Subnet, rails });
            }
            for connection in 1..=CONNECTIONS {
                assert!(matches!(stranger.receive(), Message::Lanes(_)));
                let rail = RailLanes::Open { key: 1, endpoints: vec![LaneEndpoint::default(); LANES.into()] };
                stranger
                    .send(connection, Message::Lanes(Lanes { byte_counts: false, stream: 0x1000, rails: vec![rail] }));
            }
            let mut lanes: Vec<_> = (0..CONNECTIONS * u32::from(LANES))
                .map(|_| {
                    let mut lane = listener.accept().expect("the plugin dials").0;
                    lane.read_exact(&mut [0; PREFACE_BYTES]).expect("the plugin says what it dials");
                    lane
                })
                .collect();
            let stopped = Stopped::new(dialler);
            lanes.iter_mut().for_each(|lane| lane.write_all(b"RWLNTKN1").expect("the plugin's kernel reads"));
            // Waits until each attempt has timed out.
            thread::sleep(Duration::from_millis(6100));
            drop(stopped);
            for _ in 0..CONNECTIONS {
                assert!(matches!(stranger.receive(), Message::Ready { usable: 1 }));
            }
            listener.set_nonblocking(true).unwrap();
            let again = listener.accept().map(|_| ()).expect_err("no lane is dialled again");
            assert_eq!(again.kind(), ErrorKind::WouldBlock);
            let _ = link.read(&mut [0]);
        },
    );
}

#[test]
fn a_rail_whose_lane_nobody_answers_is_left_out_in_time_for_the_others() {
    let two = ("RAILWEAVE_RAILS", "127.0.0.1,127.0.0.2");
    alone(&[two, ("RAILWEAVE_LANES", "1"), ("RAILWEAVE_HANDSHAKE_TIMEOUT", "6")], || {
        let (_plugin, net) = start();
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut handle = Stranger::handle((Ipv4Addr::LOCALHOST, port).into());
        assert!(net.connect(0, &mut handle).expect("connect begins").is_none());
        let mut stranger = Stranger::welcome(&listener);
        let offer = stranger.offered();
        let rails =
            (0..2).map(|rail| RailAnswer { connector_port: rail, lanes: 1, port: offer.ports[usize::from(rail)] });
        stranger.send(1, Message::Answer { token: Token([6; 16]), step: Step::Subnet, rails: rails.collect() });
        assert!(matches!(stranger.receive(), Message::Lanes(_)));
        let rail = RailLanes::Open { key: 1, endpoints: vec![LaneEndpoint::default()] };
        stranger.send(1, Message::Lanes(Lanes { byte_counts: false, stream: 0x1000, rails: vec![rail; 2] }));
        listener.set_nonblocking(true).unwrap();
        let mut silent = Vec::new();
        let send = until("connect", || {
            if let Ok((mut lane, _)) = listener.accept() {
                lane.set_nonblocking(false).unwrap();
                let mut preface = [0; PREFACE_BYTES];
                lane.read_exact(&mut preface).expect("the plugin says what it dials");
                if let Ok(Preface::Lane(LanePreface { rail: 0, .. })) = Preface::decode(&preface) {
                    lane.write_all(b"RWLNTKN1").unwrap();
                }
                silent.push(lane);
            }
            net.connect(0, &mut handle).expect("connect succeeds")
        });
        assert!(matches!(stranger.receive(), Message::Ready { usable: 1 }));
        net.close_send(send).expect("the sending end is closed");
    });
}
