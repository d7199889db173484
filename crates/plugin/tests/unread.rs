//! A peer that asks and does not read the answers.

mod common;

use common::{ONE_RAIL, Stranger, accept, alone, heap_bytes, listen, start, warnings};
use railweave_host::net::NetApi;
use railweave_transport::Message;
use std::io::{ErrorKind, Write};
use std::time::{Duration, Instant};

/// What may be kept of its answers, and of what others do meanwhile.
const MOST_BYTES: usize = 1 << 20;

/// It is taken for stuck when nothing was taken for so long; more than this is asked nowhere.
const STUCK: Duration = Duration::from_secs(1);
const MOST_ASKED: usize = 64 << 20;

#[test]
fn whoever_does_not_read_is_not_read_from_and_gets_every_answer_once_it_reads() {
    alone(&[ONE_RAIL], || {
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let mut stranger = Stranger::dial(&handle);
        stranger.shake_hands();
        let token = stranger.offer(1);
        let _lane = stranger.go_on(1, token);
        let recv = accept(&net, &listening);
        let (offer, before) = (stranger.asking(1), heap_bytes());
        let many = offer.repeat(1000);
        stranger.socket.set_nonblocking(true).expect("a socket has that");
        let (mut asked, mut moved) = (0, Instant::now());
        while moved.elapsed() < STUCK && asked < MOST_ASKED {
            match stranger.socket.write(&many[asked % many.len()..]) {
                Ok(count) => (asked, moved) = (asked + count, Instant::now()),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "the session is closed: {error}"),
            }
        }
        let grown = heap_bytes().saturating_sub(before);
        assert!(grown <= MOST_BYTES, "{grown} bytes more are in use");
        stranger.socket.set_nonblocking(false).expect("a socket has that");
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
