//! Faulty peers: strangers, other versions, peers that stop half-way.

mod common;

use common::{
    ONE_RAIL, OUR_VERSIONS, Pair, Stranger, TWO_RAILS, accept, alone, connect, descriptors, each, listen, noise, start,
    until, until_freed, warnings, warnings_with,
};
use railweave_nccl_host::net::{Handle, NetApi};
use railweave_transport::{Message, Preface};
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
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
        // The stranger receives our HELLO, so that it can name the difference itself, and then nothing more.
        assert!(matches!(stranger.receive(), Message::Hello(_)));
        assert_eq!(stranger.socket.read(&mut [0; 16]).unwrap(), 0);
        let address = stranger.address().to_string();
        let ours = format!("{} to {}", OUR_VERSIONS.0, OUR_VERSIONS.1);
        assert_eq!(warnings_with(&[&address, "stranger (pid 4711)", "7 to 9", &ours, "install"]).len(), 1);
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
        stranger.send(1, Message::Bye(None));
        stranger.until_read();
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
            // The shutdown fails if the plugin has already closed the socket.
            let _ = stranger.socket.shutdown(std::net::Shutdown::Write);
            until("its line", || (warnings().len() > number).then_some(()));
            assert_eq!(warnings_with(&[&address, words]).len(), 1);
            drop(stranger);
            until_freed("its socket closes", || descriptors() == before);
        }
        // A mere check that the port is open is not logged.
        drop(Stranger::dial(&handle));
        pair.exchange(1, 100_000);
        assert_eq!(warnings().len(), 4);
    });
}

/// The last step of a stranger before it closes.
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
                    // A stranger that made an offer has begun a connection: its failure is logged, and accept keeps
                    // waiting.
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
            // The first session is closed with its preface unread, the second after its HELLO: a process that needs
            // room closes a socket whatever it has sent.
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
            // The deadline may pass while the session is being dialled again.
            let said = warnings_with(&["127.0.0.1:"]);
            let ends = ["each time that it was dialled", "Handshake timeout"];
            assert!(said.len() == 1 && ends.iter().any(|end| said[0].contains(end)), "{:?}", warnings());
            assert_eq!(warnings().len(), 1, "{:?}", warnings());
        },
    );
}
