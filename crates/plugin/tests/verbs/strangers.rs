//! Set-ups over a slow kernel, begun by peers that send anything at any time: what this end receives, how long it
//! waits, and what accept returns.
#![allow(clippy::disallowed_types, reason = "tests are not the data path")]

use std::io::Write;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use railweave_fabric::{LaneEndpoint, LinkLayer};
use railweave_fake_ibverbs::FakeVerbs;
use railweave_nccl_host::net::{Handle, NetApi};
use railweave_transport::{Frame, Lanes, Message, Pulse, RailLanes};

use crate::common::{Stranger, accept, alone, each, heap_bytes, listen, start, until, until_within, warnings_with};
use crate::lasting::PLAIN;
use crate::machine::{ROCE, finish, machine, with};

/// Returns a stranger that offers RDMA.
pub(crate) fn greeted(handle: &Handle) -> Stranger {
    let mut stranger = Stranger::dial(handle);
    // The first device of the fake libibverbs has 10.0.0.1.
    stranger.port = (LinkLayer::Roce, Ipv4Addr::new(10, 0, 0, 2));
    stranger.shake_hands();
    stranger
}

/// Set-ups that peers may have in progress at once, in a process and on a session (docs/edge.md).
const MOST_AT_ONCE: u32 = 1024;

#[test]
fn whoever_takes_offers_back_does_not_fill_the_list_of_those_to_be_told_that_they_wait() {
    // Offers with a new connection number each time, and offers that reuse one number, which is waiting whenever the
    // list is tidied.
    each(
        &[true, false],
        |_| with(&[PLAIN, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "600")]),
        |are_new| {
            let fake = machine(ROCE);
            let (_plugin, net) = start();
            let (listening, handle) = listen(&net, 0);
            let (mut first, mut fickle) = (greeted(&handle), greeted(&handle));
            (1..=MOST_AT_ONCE).for_each(|connection| {
                first.offer(connection);
            });
            fickle.ask(1);
            fickle.until_read();
            let before = heap_bytes();
            for round in 2..100_000 {
                let connection = if *are_new { round } else { 2 };
                fickle.ask(connection);
                fickle.send(connection, Message::Bye(None));
            }
            fickle.until_read();
            let grown = heap_bytes().saturating_sub(before);
            assert!(grown <= 512 << 10, "{grown} bytes more are in use");
            // The offer that waited all the time gets its turn.
            drop(first);
            assert!(matches!(fickle.receive(), Message::Answer { .. }));
            drop(fickle);
            net.close_listen(listening).unwrap();
            finish(&fake, net);
        },
    );
}

/// Says PROBE for a connection's only rail, and takes the first packets of this process over mlx5_0, as a peer in
/// another process would. Returns once the answer has come; LANES and WAIT may come before it.
pub(crate) fn probe(fake: &FakeVerbs, stranger: &mut Stranger, connection: u32) {
    fake.cut("mlx5_0", 1).unwrap();
    stranger.send(connection, Message::Probe { rails: 1 });
    until("PROBE", || {
        fake.take("mlx5_0", 1).unwrap();
        let message = stranger.has_input().then(|| stranger.receive())?;
        assert!(matches!(message, Message::Probe { .. } | Message::Lanes(_) | Message::Wait), "{message:?}");
        matches!(message, Message::Probe { rails: 1 }).then_some(())
    });
    fake.mend("mlx5_0", 1).unwrap();
}

/// Returns LANES of one rail with one lane, whose endpoint does not exist.
fn lanes() -> Message {
    let rail = RailLanes::Open { key: 1, endpoints: vec![LaneEndpoint::default()] };
    Message::Lanes(Lanes { byte_counts: false, stream: 0x1000, rails: vec![rail] })
}

#[test]
fn a_set_up_at_the_set_up_thread_makes_no_room_for_others() {
    // A quarter of these descriptors are places for set-ups.
    const FILES: u64 = 64;
    const PLACES: u32 = FILES as u32 / 4;
    // A peer that is silent for a third of this timeout makes room.
    alone(&with(&[PLAIN, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "6")]), || {
        let limit = libc::rlimit { rlim_cur: FILES, rlim_max: FILES };
        // SAFETY: the call reads the structure, and lowers a limit of this process only.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
        let fake = machine(&format!("faults = ['create_qp:1:5000ms']\n{ROCE}"));
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let (mut first, mut second) = (greeted(&handle), greeted(&handle));
        (1..=PLACES).for_each(|connection| {
            first.offer(connection);
        });
        first.send(1, lanes());
        (1..=PLACES).for_each(|connection| second.ask(connection));
        let mut without_progress = 0;
        loop {
            match first.receive() {
                Message::Wait => {}
                Message::Refuse { reason, .. } if reason.contains("made no progress") => without_progress += 1,
                _ => break,
            }
        }
        assert_eq!(without_progress, PLACES - 1, "all but the one that the kernel was busy with");
        drop((first, second));
        net.close_listen(listening).unwrap();
        finish(&fake, net);
    });
}

#[test]
fn a_set_up_that_returns_too_late_is_not_taken_for_the_next_with_its_number() {
    alone(&with(&[PLAIN, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "3")]), || {
        let fake = machine(&format!("faults = ['create_qp:1:8000ms']\n{ROCE}"));
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let mut stranger = greeted(&handle);
        stranger.offer(1);
        stranger.send(1, lanes());
        let refused = until("the set-up is given up", || match stranger.receive() {
            Message::Wait => None,
            other => Some(other),
        });
        assert!(matches!(refused, Message::Refuse { .. }), "{refused:?}");
        stranger.offer(1);
        let late = Instant::now() + Duration::from_secs(7);
        while Instant::now() < late {
            stranger.send(1, Message::Wait);
            // No message about the new set-up arrives.
            stranger.until_read();
            thread::sleep(Duration::from_millis(200));
        }
        drop(stranger);
        net.close_listen(listening).unwrap();
        finish(&fake, net);
    });
}

/// Returns LANES of one rail with one lane, whose endpoint exists.
pub(crate) fn lanes_of(number: u8) -> Message {
    let mut endpoint = LaneEndpoint::default();
    // docs/wire.md, "Lanes of verbs": the queue pair, RoCE, an MTU of 4096, and the GID.
    (endpoint.0[0], endpoint.0[10], endpoint.0[11]) = (number, 1, 5);
    endpoint.0[16..32].copy_from_slice(&Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped().octets());
    let rail = RailLanes::Open { key: 1, endpoints: vec![endpoint] };
    Message::Lanes(Lanes { byte_counts: false, stream: 0x1000, rails: vec![rail] })
}

#[test]
fn wait_from_a_peer_gives_an_end_no_more_time_for_its_own_work() {
    alone(&with(&[PLAIN, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "2")]), || {
        let fake = machine(&format!("faults = ['modify_qp/RTR:*:ETIMEDOUT']\n{ROCE}"));
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let mut stranger = greeted(&handle);
        stranger.offer(1);
        stranger.send(1, lanes_of(5));
        let (saying, mut socket) = (Arc::new(AtomicBool::new(true)), stranger.socket.try_clone().unwrap());
        let says = Arc::clone(&saying);
        let wait = thread::spawn(move || {
            while says.load(Ordering::Relaxed) {
                socket.write_all(&Frame { connection: 1, message: Message::Wait }.encode()).unwrap();
                thread::sleep(Duration::from_millis(100));
            }
        });
        let begin = Instant::now();
        while matches!(stranger.receive(), Message::Wait) {}
        // This would take twenty handshake timeouts if the peer's WAIT counted.
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
        saying.store(false, Ordering::Relaxed);
        wait.join().unwrap();
        drop(stranger);
        net.close_listen(listening).unwrap();
        finish(&fake, net);
    });
}

#[test]
fn an_end_that_waits_for_its_peer_says_nothing_of_waiting() {
    alone(&with(&[PLAIN, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "6")]), || {
        let fake = machine(&format!("faults = ['create_qp:1:2000ms']\n{ROCE}"));
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let mut stranger = greeted(&handle);
        stranger.offer(1);
        stranger.send(1, lanes_of(5));
        let lanes = until("LANES", || Some(stranger.receive()).filter(|it| !matches!(it, Message::Wait)));
        assert!(matches!(lanes, Message::Lanes(_)), "{lanes:?}");
        // The peer must send PROBE next, and its time begins.
        let next = stranger.receive();
        assert!(matches!(&next, Message::Refuse { reason, .. } if reason.contains("PROBE")), "{next:?}");
        drop(stranger);
        net.close_listen(listening).unwrap();
        finish(&fake, net);
    });
}

#[test]
fn what_a_peer_says_while_an_end_is_made_is_heard_afterwards() {
    alone(&with(&[PLAIN, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "600")]), || {
        let fake = machine(&format!("faults = ['create_qp:1:1500ms']\n{ROCE}"));
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let mut stranger = greeted(&handle);
        stranger.offer(1);
        stranger.send(1, lanes_of(5));
        stranger.send(1, Message::Bye(None));
        until("the end of the set-up, whose number is free then", || {
            stranger.ask(1);
            let mut answer = stranger.receive();
            while matches!(answer, Message::Wait | Message::Lanes(_)) {
                answer = stranger.receive();
            }
            matches!(answer, Message::Answer { .. }).then_some(())
        });
        drop(stranger);
        net.close_listen(listening).unwrap();
        finish(&fake, net);
    });
}

#[test]
fn messages_that_wait_for_the_set_up_thread_are_handled_in_their_order() {
    alone(&with(&[PLAIN, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "600")]), || {
        let fake = machine(&format!("faults = ['create_qp:1:1500ms']\n{ROCE}"));
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let mut stranger = greeted(&handle);
        stranger.offer(1);
        stranger.send(1, lanes_of(5));
        // PROBE waits while LANES is handled, and BYE while READY is.
        probe(&fake, &mut stranger, 1);
        stranger.send(1, Message::Ready { usable: 1 });
        stranger.send(1, Message::Bye(None));
        net.close_recv(accept(&net, &listening)).unwrap();
        drop(stranger);
        net.close_listen(listening).unwrap();
        finish(&fake, net);
    });
}

#[test]
fn whoever_says_more_than_a_set_up_takes_while_an_end_is_made_is_closed() {
    // The most messages of a connection that may wait while the set-up thread works on it; a correct peer sends fewer.
    const MOST_WAITING: usize = 12;
    alone(&with(&[PLAIN, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "600")]), || {
        let fake = machine(&format!("faults = ['create_qp:1:3000ms']\n{ROCE}"));
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let mut stranger = greeted(&handle);
        stranger.offer(1);
        stranger.send(1, lanes_of(5));
        (0..MOST_WAITING).for_each(|_| stranger.send(1, Message::Ready { usable: 1 }));
        stranger.until_read();
        until("the work at its end", || (fake.open().completion_queues > 0).then_some(()));
        stranger.send(1, Message::Ready { usable: 1 });
        let said = &["too many control messages came out of turn"];
        until("a line about it", || (!warnings_with(said).is_empty()).then_some(()));
        stranger.until_closed();
        net.close_listen(listening).unwrap();
        finish(&fake, net);
    });
}

#[test]
fn accept_returns_a_connection_whose_peer_was_ready_and_has_left() {
    alone(&with(&[PLAIN, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "600")]), || {
        // The second set-up delays the set-up thread's work for the first one's READY.
        let fake = machine(&format!("faults = ['create_qp:2:2000ms']\n{ROCE}"));
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let (mut first, mut second) = (greeted(&handle), greeted(&handle));
        first.offer(1);
        first.send(1, lanes_of(5));
        assert!(matches!(first.receive(), Message::Lanes(_)));
        probe(&fake, &mut first, 1);
        second.offer(1);
        second.send(1, lanes_of(6));
        second.until_read();
        first.send(1, Message::Ready { usable: 1 });
        first.until_read();
        drop(first);
        net.close_recv(accept(&net, &listening)).unwrap();
        drop(second);
        net.close_listen(listening).unwrap();
        finish(&fake, net);
    });
}

#[test]
fn a_set_up_that_nobody_waits_for_is_skipped() {
    const OFFERS: u32 = 100;
    alone(&with(&[PLAIN, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "600")]), || {
        // The first set-up is slower, so that no LANES is sent before the session ends.
        let fake = machine(&format!("faults = ['create_qp:1:5000ms', 'create_qp:*:500ms']\n{ROCE}"));
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let (mut first, mut second) = (greeted(&handle), greeted(&handle));
        (1..=OFFERS).for_each(|connection| {
            first.offer(connection);
        });
        (1..=OFFERS).for_each(|connection| first.send(connection, lanes_of(5)));
        first.until_read();
        drop(first);
        let begin = Instant::now();
        second.offer(1);
        second.send(1, lanes_of(6));
        until_within(Duration::from_secs(120), "LANES", || matches!(second.receive(), Message::Lanes(_)).then_some(()));
        // The other set-ups of the first session would take another 50 s.
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
        drop(second);
        net.close_listen(listening).unwrap();
        finish(&fake, net);
    });
}

/// Files that a process may have open; a quarter of them are places for set-ups.
const FILES: u64 = 64;
const PLACES: u32 = FILES as u32 / 4;

fn allow_few_files() {
    let limit = libc::rlimit { rlim_cur: FILES, rlim_max: FILES };
    // SAFETY: the call reads the structure, and lowers a limit of this process only.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
}

/// Lets a stranger take all places with set-ups for the set-up thread, which is busy with the first one, and then
/// leave.
fn take_places(fake: &FakeVerbs, handle: &Handle) {
    let mut stranger = greeted(handle);
    (1..=PLACES).for_each(|connection| {
        stranger.offer(connection);
    });
    stranger.send(1, lanes_of(5));
    // Work on the first must have begun when the stranger leaves: work that has not begun is dropped at once.
    until("the work at the first", || (fake.open().completion_queues > 0).then_some(()));
    (2..=PLACES).for_each(|connection| stranger.send(connection, lanes_of(5)));
    stranger.until_read();
}

#[test]
fn a_set_up_at_the_set_up_thread_keeps_its_place_when_its_session_ends() {
    const BUSY: Duration = Duration::from_secs(5);
    alone(&with(&[PLAIN, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "600")]), || {
        allow_few_files();
        let fake = machine(&format!("faults = ['create_qp:1:{}ms']\n{ROCE}", BUSY.as_millis()));
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let mut second = greeted(&handle);
        let begin = Instant::now();
        take_places(&fake, &handle);
        second.ask(1);
        let answer = until("an answer", || Some(second.receive()).filter(|it| !matches!(it, Message::Wait)));
        assert!(matches!(answer, Message::Answer { .. }), "{answer:?}");
        assert!(begin.elapsed() >= BUSY, "begun after {:?}", begin.elapsed());
        drop(second);
        net.close_listen(listening).unwrap();
        finish(&fake, net);
    });
}

#[test]
fn whoever_finds_no_place_hears_of_a_kernel_that_does_not_come_back() {
    alone(&with(&[PLAIN, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "5")]), || {
        allow_few_files();
        let fake = machine(&format!("faults = ['create_qp:1:600000ms']\n{ROCE}"));
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let mut late = greeted(&handle);
        take_places(&fake, &handle);
        let begin = Instant::now();
        late.ask(1);
        let answer = until("an answer", || Some(late.receive()).filter(|it| !matches!(it, Message::Wait)));
        let told = "a call of the kernel that sets up a connection has not returned for 5 s";
        assert!(matches!(&answer, Message::Refuse { reason, .. } if reason.contains(told)), "{answer:?}");
        // If the late peer only received WAIT, this would take nineteen timeouts more.
        assert!(begin.elapsed() < Duration::from_secs(50), "{:?}", begin.elapsed());
        net.close_listen(listening).unwrap();
        net.finalize().unwrap();
    });
}

#[test]
fn whoever_says_nothing_but_wait_is_given_up_in_the_end() {
    alone(&with(&[PLAIN, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "500ms")]), || {
        let fake = machine(ROCE);
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let mut stranger = greeted(&handle);
        stranger.offer(1);
        let begin = Instant::now();
        let (mut last, mut longest) = (begin, Duration::ZERO);
        let said = until_within(Duration::from_secs(120), "the end of the set-up", || {
            stranger.send(1, Message::Wait);
            (longest, last) = (longest.max(last.elapsed()), Instant::now());
            stranger.send(0, Message::Ping(Pulse::default()));
            thread::sleep(Duration::from_millis(50));
            Some(stranger.receive()).filter(|it| !matches!(it, Message::Pong(_)))
        });
        assert!(matches!(&said, Message::Refuse { reason, .. } if reason.contains("in time")), "{said:?}");
        // docs/wire.md: twenty timeouts if nobody else needs the place; fewer if a stalled machine kept the stranger
        // silent.
        let without_progress = longest.max(last.elapsed()) >= Duration::from_millis(400);
        assert!(begin.elapsed() >= Duration::from_secs(10) || without_progress, "{:?}", begin.elapsed());
        drop(stranger);
        net.close_listen(listening).unwrap();
        finish(&fake, net);
    });
}
