//! Lanes that are dialled while one of the two processes stands still: what was given up takes nobody's place, and what was
//! answered counts. And lanes that nobody answers.

mod common;

use common::{ONE_RAIL, OUR_VERSIONS, Stranger, accept, alone, listen, start, until, warnings, with_peer};
use railweave_fabric::LaneEndpoint;
use railweave_host::net::{Handle as HandleBytes, NetApi};
use railweave_transport::{Handle, LanePreface, Lanes, Message, PREFACE_BYTES, Preface, RailAnswer, RailLanes, Token};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::Duration;

/// The preface of the one lane of a connection, and the end of the socket, in one packet: as whoever stood still finds it when the
/// dialler's patience is over.
fn given_up(handle: &HandleBytes, token: Token) -> TcpStream {
    let port = Handle::decode(&handle.0).expect("the plugin's own handle").control_port;
    let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("a lane connects");
    let bytes = Preface::Lane(LanePreface { token, rail: 0, lane: 0, proof: [0; 14] }).encode();
    // SAFETY: the bytes are readable. They are kept back (MSG_MORE, send(2)) until the end goes with them.
    let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_MORE) };
    assert_eq!(sent, bytes.len() as isize);
    socket.shutdown(std::net::Shutdown::Write).expect("the socket is open");
    socket
}

#[test]
fn a_lane_that_its_dialler_gave_up_does_not_take_the_place_of_the_next() {
    alone(&[ONE_RAIL], || {
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let mut stranger = Stranger::dial(&handle);
        stranger.shake_hands();
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

/// Lanes of one connection, and connections: more lanes than the control thread takes events at once.
const LANES: u8 = 16;
const CONNECTIONS: u32 = 20;

#[test]
fn an_answer_that_came_while_the_dialler_stood_still_counts() {
    with_peer(
        // Each try of a lane waits for three seconds.
        &[ONE_RAIL, ("RAILWEAVE_LANES", "16"), ("RAILWEAVE_HANDSHAKE_TIMEOUT", "24")],
        &[],
        |mut peer| {
            let (_plugin, net) = start();
            let mut port = [0; 2];
            peer.link.write_all(&std::process::id().to_le_bytes()).unwrap();
            peer.link.read_exact(&mut port).unwrap();
            let named = Stranger::handle((Ipv4Addr::LOCALHOST, u16::from_le_bytes(port)).into());
            let named = Handle::decode(&named.0).expect("a handle");
            let mut handles: Vec<_> = (0..CONNECTIONS)
                .map(|nonce| HandleBytes(Handle { nonce: nonce.into(), ..named.clone() }.encode()))
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
            drop(peer.link.shutdown(std::net::Shutdown::Both));
            peer.wait();
        },
        |mut link: UnixStream| {
            let mut dialler = [0; 4];
            link.read_exact(&mut dialler).unwrap();
            let dialler = libc::pid_t::from_le_bytes(dialler);
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            // SAFETY: the socket is open. All lanes are to fit into its queue, which std makes shorter.
            assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 4096) }, 0);
            link.write_all(&listener.local_addr().unwrap().port().to_le_bytes()).unwrap();
            let mut stranger = Stranger::accept(&listener);
            stranger.expect_preface();
            assert!(matches!(stranger.receive(), Message::Hello(_)));
            let hello = stranger.hello(OUR_VERSIONS);
            stranger.send(0, hello);
            for connection in 1..=CONNECTIONS {
                let Message::Offer(offer) = stranger.receive() else { panic!("OFFER follows") };
                let rails = vec![RailAnswer { connector_port: 0, lanes: LANES, port: offer.ports[0] }];
                stranger.send(connection, Message::Answer { token: Token([6; 16]), rails });
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
            // SAFETY: numbers alone; the process is this one's parent, which waits for it.
            unsafe { libc::kill(dialler, libc::SIGSTOP) };
            lanes.iter_mut().for_each(|lane| lane.write_all(b"RWLNTKN1").expect("the plugin's kernel reads"));
            // The seconds in which each had to be answered pass.
            sleep(Duration::from_millis(3100));
            // SAFETY: as above.
            unsafe { libc::kill(dialler, libc::SIGCONT) };
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
        let mut stranger = Stranger::accept(&listener);
        stranger.expect_preface();
        assert!(matches!(stranger.receive(), Message::Hello(_)));
        let hello = stranger.hello(OUR_VERSIONS);
        stranger.send(0, hello);
        let Message::Offer(offer) = stranger.receive() else { panic!("OFFER follows") };
        let rails =
            (0..2).map(|rail| RailAnswer { connector_port: rail, lanes: 1, port: offer.ports[usize::from(rail)] });
        stranger.send(1, Message::Answer { token: Token([6; 16]), rails: rails.collect() });
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
