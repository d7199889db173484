//! A peer that sends requests and does not read the answers.

mod common;

use common::{Buffer, ONE_RAIL, Stranger, accept, alone, heap_bytes, listen, start, until, warnings, warnings_with};
use railweave_nccl_host::net::{Comm, Handle, NetApi};
use railweave_transport::Message;
use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The most memory that may be in use for the unread answers and for other activity meanwhile.
const MOST_BYTES: usize = 1 << 20;

/// The plugin has stopped reading if it takes no byte for the time `STUCK`. At most `MOST_ASKED` bytes are sent.
const STUCK: Duration = Duration::from_secs(1);
const MOST_ASKED: usize = 64 << 20;

/// A stranger with a connection, and its lane.
fn connected(handle: &Handle) -> (Stranger, TcpStream) {
    let mut stranger = Stranger::dial(handle);
    stranger.shake_hands();
    let token = stranger.offer(1);
    let lane = stranger.go_on(1, token);
    (stranger, lane)
}

/// Offers a connection that already exists again and again, until the plugin stops reading. Returns the bytes sent.
fn ask_until_stuck(stranger: &mut Stranger) -> usize {
    let many = stranger.asking(1).repeat(1000);
    stranger.socket.set_nonblocking(true).expect("a socket can be made non-blocking");
    let (mut asked, mut moved) = (0, Instant::now());
    while moved.elapsed() < STUCK && asked < MOST_ASKED {
        match stranger.socket.write(&many[asked % many.len()..]) {
            Ok(count) => (asked, moved) = (asked + count, Instant::now()),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "the session is closed: {error}"),
        }
    }
    stranger.socket.set_nonblocking(false).expect("a socket can be made non-blocking");
    asked
}

#[test]
fn whoever_does_not_read_is_not_read_from_and_gets_every_answer_once_it_reads() {
    // No PING comes between the answers.
    alone(&[ONE_RAIL, ("RAILWEAVE_PEER_TIMEOUT", "3600")], || {
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let (mut stranger, _lane) = connected(&handle);
        let recv = accept(&net, &listening);
        let (offer, before) = (stranger.asking(1), heap_bytes());
        let asked = ask_until_stuck(&mut stranger);
        let grown = heap_bytes().saturating_sub(before);
        assert!(grown <= MOST_BYTES, "{grown} bytes more are in use");
        // The rest of an offer goes out only while the answers are read.
        let rest = (offer.len() - asked % offer.len()) % offer.len();
        for answer in 0..asked / offer.len() {
            assert!(matches!(stranger.receive(), Message::Refuse { .. }), "answer {answer}");
        }
        if rest > 0 {
            stranger.write(&offer[offer.len() - rest..]);
            assert!(matches!(stranger.receive(), Message::Refuse { .. }));
        }
        stranger.until_read();
        assert_eq!(warnings(), Vec::<String>::new());
        net.close_recv(recv).expect("the receiving end is closed");
    });
}

#[test]
fn whoever_never_reads_is_gone_in_time_and_is_not_called_silent() {
    alone(&[ONE_RAIL, ("RAILWEAVE_PEER_TIMEOUT", "5")], || {
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let (mut stranger, _lane) = connected(&handle);
        let recv = accept(&net, &listening);
        let to = Buffer::new(&net, Comm::Recv(&recv), 1000);
        // SAFETY: the buffer stays until the end.
        let request = until("a receive", || unsafe { net.irecv(&recv, &[to.part(7)], false) }.expect("irecv succeeds"));
        ask_until_stuck(&mut stranger);
        // SAFETY: it is not tested again after its error.
        until("the receive's failure", || unsafe { net.test(&request, None) }.err());
        let said = warnings();
        // It has taken more than is kept for a peer that never says what it has, so its session cannot go on.
        let words = ["test: ", "is gone: it has not read what was sent to it for", "bytes wait for it"];
        assert_eq!((said.len(), warnings_with(&words).len()), (1, 1), "{said:?}");
        net.close_recv(recv).expect("the receiving end is closed");
    });
}
