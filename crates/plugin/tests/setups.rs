//! Set-ups that peers begin when all places are taken: those that make room, those that wait, and for how long.
#![allow(clippy::disallowed_types, reason = "tests are not the data path")]

mod common;

use common::{ONE_RAIL, Pair, Stranger, TWO_RAILS, alone, each, listen, start, until, warnings, warnings_with};
use railweave_fabric::Fault;
use railweave_nccl_host::LoadedNet;
use railweave_nccl_host::net::{Handle, NetApi};
use railweave_transport::{Frame, Handle as WireHandle, Message, Token};
use std::io::Write;
use std::net::{Ipv4Addr, Shutdown, TcpListener};
use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

/// Files that the process may have open: a quarter of them are places for set-ups, and as many for sockets without a
/// connection.
const FILES: u64 = 512;
const PLACES: u32 = FILES as u32 / 4;

/// A peer that is silent for a third of this timeout makes room, long before its set-up times out.
const TIMEOUT: (&str, &str) = ("RAILWEAVE_HANDSHAKE_TIMEOUT", "24");
/// A timeout so long that no set-up makes room.
const LONG: (&str, &str) = ("RAILWEAVE_HANDSHAKE_TIMEOUT", "600");

const NO_PROGRESS: &[&str] = &["made no progress for 8 s while others waited"];

fn limit_files() {
    let limit = libc::rlimit { rlim_cur: FILES, rlim_max: FILES };
    // SAFETY: the call reads the structure, and lowers a limit of this process only.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
}

/// Returns a stranger with this many set-ups in progress, and their tokens.
fn occupy(handle: &Handle, places: u32) -> (Stranger, Vec<Token>) {
    let mut stranger = Stranger::greeted(handle);
    let tokens = (1..=places).map(|connection| stranger.offer(connection)).collect();
    (stranger, tokens)
}

/// Repeats `act` while an honest connection, for which there is no place at first, is set up.
fn connect_while(net: &LoadedNet, mut act: impl FnMut(u32)) {
    thread::scope(|scope| {
        let honest = scope.spawn(|| {
            let pair = Pair::open(net, net, 0);
            pair.exchange(1, 1000);
            pair.close();
        });
        for round in 0.. {
            if honest.is_finished() {
                break;
            }
            act(round);
            thread::sleep(Duration::from_millis(100));
        }
        honest.join().unwrap_or_else(|panic| resume_unwind(panic));
    });
}

#[test]
fn a_session_that_stands_still_makes_room_and_one_that_goes_on_keeps_all_it_has() {
    alone(&[ONE_RAIL, TIMEOUT], || {
        limit_files();
        let (_plugin, net) = start();
        let (_listen, handle) = listen(&net, 0);
        // The busy session came first, and most of its set-ups have stood still longest.
        let (mut busy, _) = occupy(&handle, PLACES - 1);
        let (idle, _) = occupy(&handle, 1);
        // An occasional step of one set-up is enough.
        connect_while(&net, |round| {
            if round % 5 == 0 {
                busy.lanes(1 + round / 5);
            }
        });
        let lines = warnings_with(NO_PROGRESS);
        let idle = idle.address().to_string();
        assert!(!lines.is_empty() && lines.iter().all(|line| line.contains(&idle)), "{idle}: {lines:?}");
    });
}

#[test]
fn whoever_says_nothing_but_wait_makes_room_for_others() {
    // The limit of set-ups in progress, whatever the limit of files.
    const MOST: u32 = 1024;
    alone(&[TWO_RAILS, ("RAILWEAVE_HANDSHAKE_TIMEOUT", "20")], || {
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let mut stranger = Stranger::greeted(&handle);
        for connection in 1..=MOST {
            stranger.offer(connection);
        }
        let waits: Vec<u8> =
            (1..=MOST).flat_map(|connection| Frame { connection, message: Message::Wait }.encode()).collect();
        let mut socket = stranger.socket.try_clone().expect("a socket can be shared");
        let talker = thread::spawn(move || {
            while socket.write_all(&waits).is_ok() {
                thread::sleep(Duration::from_millis(50));
            }
        });
        Pair::open(&net, &net, 0).close();
        assert!(warnings().iter().any(|line| line.contains("made no progress for ")), "{:?}", warnings());
        stranger.socket.shutdown(Shutdown::Both).expect("a socket can be shut");
        talker.join().expect("the stranger only writes");
        net.close_listen(listening).expect("the listen is closed");
    });
}

#[test]
fn a_lane_that_comes_is_a_step_forward() {
    alone(&[ONE_RAIL, TIMEOUT], || {
        limit_files();
        let (_plugin, net) = start();
        let (_listen, handle) = listen(&net, 0);
        let (mut busy, tokens) = occupy(&handle, PLACES - 1);
        (1..PLACES).for_each(|connection| busy.lanes(connection));
        let (idle, _) = occupy(&handle, 1);
        let mut lanes = Vec::new();
        connect_while(&net, |round| {
            if round % 5 == 0 {
                lanes.push(busy.lane(tokens[round as usize / 5]));
            }
        });
        let lines = warnings_with(NO_PROGRESS);
        let idle = idle.address().to_string();
        assert!(!lines.is_empty() && lines.iter().all(|line| line.contains(&idle)), "{idle}: {lines:?}");
    });
}

#[test]
fn lanes_that_are_refused_are_no_step_forward() {
    alone(&[ONE_RAIL, TIMEOUT], || {
        limit_files();
        let (_plugin, net) = start();
        let (_listen, handle) = listen(&net, 0);
        let (_stranger, tokens) = occupy(&handle, PLACES);
        // No lane is awaited before LANES.
        connect_while(&net, |_| assert_eq!(Stranger::answer_to_lane(&handle, tokens[0]), b""));
        assert!(!warnings_with(NO_PROGRESS).is_empty(), "{:?}", warnings());
    });
}

#[test]
fn a_session_whose_offers_wait_makes_room_last() {
    alone(&[ONE_RAIL, LONG], || {
        limit_files();
        let (_plugin, net) = start();
        let (_listen, handle) = listen(&net, 0);
        let (first, _) = occupy(&handle, PLACES);
        let mut waiting = Stranger::greeted(&handle);
        waiting.ask(1);
        waiting.until_read();
        let crowd: Vec<Stranger> = (0..PLACES + 8).map(|_| Stranger::dial(&handle)).collect();
        let made_place = &["has not said what it is", "others, and more peers wait"];
        until("somebody of the crowd makes room", || (warnings_with(made_place).len() >= 8).then_some(()));
        // This frees a place for the offer that waits.
        drop(first);
        assert!(matches!(waiting.receive(), Message::Answer { .. }));
        drop(crowd);
    });
}

#[test]
fn an_offer_that_its_peer_takes_back_waits_no_longer() {
    alone(&[ONE_RAIL, LONG], || {
        limit_files();
        let (_plugin, net) = start();
        let (_listen, handle) = listen(&net, 0);
        let (first, _) = occupy(&handle, PLACES);
        let mut waiting = Stranger::greeted(&handle);
        waiting.ask(1);
        waiting.send(1, Message::Bye(None));
        waiting.ask(2);
        waiting.until_read();
        drop(first);
        // Offers get their turns in the order of arrival; the first one was taken back.
        assert!(matches!(waiting.receive(), Message::Answer { .. }), "the second offer's turn has come");
        waiting.until_read();
    });
}

#[test]
fn an_offer_that_waits_for_a_listener_that_is_closed_meanwhile_is_refused() {
    alone(&[ONE_RAIL, LONG], || {
        limit_files();
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let (first, _) = occupy(&handle, PLACES);
        let mut waiting = Stranger::greeted(&handle);
        waiting.ask(1);
        waiting.until_read();
        net.close_listen(listening).expect("the listen is closed");
        drop(first);
        let answer = waiting.receive();
        let told = "there is no such listener";
        assert!(matches!(&answer, Message::Refuse { reason, .. } if reason.contains(told)), "{answer:?}");
        waiting.until_read();
    });
}

#[test]
fn a_place_that_is_free_again_goes_to_whoever_waits_and_not_to_a_newcomer() {
    alone(&[ONE_RAIL, LONG], || {
        limit_files();
        let (_plugin, net) = start();
        let (_listen, handle) = listen(&net, 0);
        let (mut first, _) = occupy(&handle, PLACES);
        let mut waiting = Stranger::greeted(&handle);
        waiting.ask(1);
        waiting.until_read();
        // Both messages are read at once: no set-up can begin in between.
        let mut bytes = Frame { connection: 1, message: Message::Bye(None) }.encode();
        bytes.extend(first.asking(PLACES + 1));
        first.write(&bytes);
        assert!(matches!(waiting.receive(), Message::Answer { .. }));
        first.until_read();
    });
}

#[test]
fn sessions_whose_offers_wait_take_turns() {
    alone(&[ONE_RAIL, LONG], || {
        limit_files();
        let (_plugin, net) = start();
        let (_listen, handle) = listen(&net, 0);
        let (first, _) = occupy(&handle, PLACES);
        // One peer that asks for all places and more, and then one that asks for one.
        let [mut many, mut one] = [PLACES + 1, 1].map(|offers| {
            let mut waiting = Stranger::greeted(&handle);
            (1..=offers).for_each(|connection| waiting.ask(connection));
            waiting.until_read();
            waiting
        });
        drop(first);
        assert!(matches!(one.receive(), Message::Answer { .. }));
        (1..PLACES).for_each(|_| assert!(matches!(many.receive(), Message::Answer { .. })));
        one.until_read();
        many.until_read();
    });
}

/// Set-ups that peers may have in progress at once with many files, in a process and on a session (docs/edge.md).
const MOST_AT_ONCE: u32 = 1024;

/// Offers that may wait in a process, and those of a session that may wait in any case (docs/edge.md).
const MOST_WAITING: u32 = 131_072;
const FEW_WAITING: u32 = 16;

#[test]
fn offers_that_wait_no_longer_take_no_place() {
    each(
        &[true, false],
        |_| vec![ONE_RAIL, LONG],
        |are_taken_back| {
            limit_files();
            let (_plugin, net) = start();
            let (_listen, handle) = listen(&net, 0);
            let (_first, _) = occupy(&handle, PLACES);
            for _ in 0..MOST_WAITING / 1000 + 1 {
                let mut fickle = Stranger::greeted(&handle);
                for connection in 1..=1000 {
                    fickle.ask(connection);
                    if *are_taken_back {
                        fickle.send(connection, Message::Bye(None));
                    }
                }
                fickle.until_read();
            }
            let mut honest = Stranger::greeted(&handle);
            (0..=FEW_WAITING).for_each(|connection| honest.ask(1 + connection));
            honest.until_read();
        },
    );
}

#[test]
fn offers_whose_turn_has_come_wait_no_longer() {
    alone(&[ONE_RAIL, LONG], || {
        let (_plugin, net) = start();
        let (_listen, handle) = listen(&net, 0);
        let (mut first, _) = occupy(&handle, MOST_AT_ONCE);
        for _ in 0..=MOST_WAITING / MOST_AT_ONCE {
            let mut next = Stranger::greeted(&handle);
            (1..=MOST_AT_ONCE).for_each(|connection| next.ask(connection));
            next.until_read();
            // The end of the first session frees its places.
            drop(first);
            (0..MOST_AT_ONCE).for_each(|_| assert!(matches!(next.receive(), Message::Answer { .. })));
            first = next;
        }
        let mut honest = Stranger::greeted(&handle);
        (0..=FEW_WAITING).for_each(|connection| honest.ask(1 + connection));
        honest.until_read();
    });
}

#[test]
fn where_too_many_offers_wait_each_session_keeps_a_few() {
    alone(&[ONE_RAIL, LONG], || {
        let (_plugin, net) = start();
        let (_listen, handle) = listen(&net, 0);
        let (_first, _) = occupy(&handle, MOST_AT_ONCE);
        let _crowd: Vec<Stranger> = (0..MOST_WAITING / MOST_AT_ONCE)
            .map(|_| {
                let mut many = Stranger::greeted(&handle);
                (1..=MOST_AT_ONCE).for_each(|connection| many.ask(connection));
                many.until_read();
                many
            })
            .collect();
        let mut honest = Stranger::greeted(&handle);
        (0..FEW_WAITING).for_each(|connection| honest.ask(1 + connection));
        honest.until_read();
        honest.ask(1 + FEW_WAITING);
        let answer = honest.receive();
        assert!(
            matches!(&answer, Message::Refuse { reason, .. } if reason.contains("of all peers wait")),
            "{answer:?}"
        );
    });
}

/// Connections that a process sets up at once on a session (docs/wire.md).
const MOST_OWN: usize = 512;

#[test]
fn connects_beyond_those_that_are_set_up_at_once_follow_when_others_end() {
    alone(&[ONE_RAIL, LONG], || {
        let (_plugin, net) = start();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let known = Stranger::handle(listener.local_addr().expect("its address"));
        let known = WireHandle::decode(&known.0).expect("a handle");
        let beyond = 30;
        let mut handles: Vec<Handle> = (0..(MOST_OWN + beyond) as u64)
            .map(|nonce| Handle(WireHandle { nonce, ..known.clone() }.encode()))
            .collect();
        for handle in &mut handles {
            assert!(net.connect(0, handle).expect("connect begins").is_none());
        }
        let mut stranger = Stranger::welcome(&listener);
        for _ in 0..MOST_OWN {
            stranger.offered();
        }
        // Further offers would come before the answer to PING.
        stranger.until_read();
        for connection in 1..=beyond as u32 {
            stranger.send(
                connection,
                Message::Refuse { fault: Fault::Peer, of_rails: false, reason: "no place".to_owned() },
            );
            stranger.offered();
        }
        stranger.until_read();
    });
}
