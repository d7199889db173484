//! The key that processes share: only a peer that has it is let in.

mod common;

use common::{
    ONE_RAIL, Pair, Peer, Stranger, TWO_RAILS, UNSET, accept, alone, connect, each, info_lines, init_refused, listen,
    load, start, until, warnings, warnings_with, with_peer,
};
use railweave_nccl_host::net::{Handle, NetApi};
use std::fs::{OpenOptions, Permissions, set_permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

const KEY: &[u8] = b"sixteen bytes or more";

/// Writes a file with these bytes and this mode, one for each scenario. Returns its path.
fn file(name: &str, bytes: &[u8], mode: u32) -> String {
    let path = format!("{}/key-of-{name}", env!("CARGO_TARGET_TMPDIR"));
    // Several processes of one test write the same bytes.
    let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(&path).unwrap();
    file.write_all(bytes).unwrap();
    set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    path
}

/// Makes a named pipe without a writer. Returns its path.
fn pipe(name: &str) -> String {
    let path = format!("{}/key-of-{name}", env!("CARGO_TARGET_TMPDIR"));
    let name = std::ffi::CString::new(path.as_str()).unwrap();
    // SAFETY: the name is a C string, which the call only reads. The pipe may already exist.
    unsafe { libc::mkfifo(name.as_ptr(), 0o600) };
    path
}

#[test]
fn with_the_same_key_everything_works() {
    let key = file("equal", KEY, 0o600);
    alone(&[TWO_RAILS, ("RAILWEAVE_KEY_FILE", &key)], || {
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        pair.exchange(1, 300_000);
        pair.close();
        assert!(warnings().is_empty());
        let asks = format!("sessions require the key in {}", std::env::var("RAILWEAVE_KEY_FILE").unwrap());
        assert_eq!(info_lines().iter().filter(|line| line.contains(&asks)).count(), 1);
    });
}

#[test]
fn a_key_file_that_cannot_be_used_stops_init_with_one_line() {
    let cases = [
        (format!("{}/no-such-key", env!("CARGO_TARGET_TMPDIR")), "No such file"),
        (env!("CARGO_TARGET_TMPDIR").to_owned(), "not a regular file"),
        (file("short", b"fifteen bytes!!", 0o600), "it has 15 bytes"),
        (file("long", &[7; 4097], 0o600), "more than 4096"),
        (file("open", KEY, 0o640), "others have access to it (mode 0640)"),
        (file("zeros", &[0; 32], 0o600), "can be guessed"),
        (pipe("pipe"), "not a regular file"),
    ];
    each(
        &cases,
        |(path, _)| vec![ONE_RAIL, ("RAILWEAVE_KEY_FILE", path)],
        |(path, words)| {
            let said = init_refused(&load(None), &[("RAILWEAVE_KEY_FILE", path)]);
            assert!(said.contains(&format!("RAILWEAVE_KEY_FILE={path}: ")) && said.contains(words), "{said}");
        },
    );
}

#[test]
fn a_stranger_without_the_key_is_refused_and_others_go_on() {
    let key = file("stranger", KEY, 0o600);
    alone(&[TWO_RAILS, ("RAILWEAVE_KEY_FILE", &key)], || {
        let (_plugin, net) = start();
        let (listen, handle) = listen(&net, 0);
        let stranger = Stranger::greeted(&handle);
        let address = stranger.address().to_string();
        until("its line", || (warnings_with(&[&address, "has no shared key"]).len() == 1).then_some(()));
        assert!(net.accept(&listen).unwrap().is_none());
        let (send, recv) = (connect(&net, 0, &handle), accept(&net, &listen));
        Pair { from: &net, to: &net, send, recv }.exchange(1, 1000);
        assert_eq!(warnings().len(), 1);
    });
}

/// Checks that the listening process refuses the other, logs a line with these words, and goes on.
fn refuse(mut peer: Peer, words: &[&str]) {
    let (_plugin, net) = start();
    let (listen, handle) = listen(&net, 0);
    peer.link.write_all(&handle.0).unwrap();
    peer.wait();
    assert!(net.accept(&listen).unwrap().is_none());
    assert_eq!((warnings().len(), warnings_with(words).len()), (1, 1));
    Pair::open(&net, &net, 0).exchange(1, 1000);
}

/// Checks that this process, the peer, gets an error from connect and logs one line, which has these words.
fn be_refused(mut link: UnixStream, words: &[&str]) {
    let (_plugin, net) = start();
    let mut handle = Handle::default();
    link.read_exact(&mut handle.0).unwrap();
    until("connect", || net.connect(0, &mut handle).map(|_| None).unwrap_or_else(Some));
    assert_eq!((warnings().len(), warnings_with(words).len()), (1, 1));
}

#[test]
fn processes_with_the_same_key_in_files_of_their_own_understand_one_another() {
    let (ours, theirs) = (file("one", KEY, 0o600), file("other", KEY, 0o600));
    with_peer(
        &[TWO_RAILS, ("RAILWEAVE_KEY_FILE", &ours)],
        &[("RAILWEAVE_KEY_FILE", &theirs)],
        |mut peer| {
            let (_plugin, net) = start();
            let (listen, handle) = listen(&net, 0);
            peer.link.write_all(&handle.0).unwrap();
            net.close_recv(accept(&net, &listen)).unwrap();
            peer.wait();
            assert!(warnings().is_empty());
        },
        |mut link| {
            let (_plugin, net) = start();
            let mut handle = Handle::default();
            link.read_exact(&mut handle.0).unwrap();
            net.close_send(connect(&net, 0, &handle)).unwrap();
            assert!(warnings().is_empty());
        },
    );
}

#[test]
fn a_peer_with_another_key_is_refused_on_both_sides() {
    let (ours, theirs) = (file("us", KEY, 0o600), file("them", b"another sixteen bytes", 0o600));
    let words = ["has another key", "RAILWEAVE_KEY_FILE"];
    with_peer(
        &[TWO_RAILS, ("RAILWEAVE_KEY_FILE", &ours)],
        &[("RAILWEAVE_KEY_FILE", &theirs)],
        |peer| refuse(peer, &words),
        |link| be_refused(link, &words),
    );
}

#[test]
fn a_peer_without_a_key_is_refused_on_both_sides() {
    let key = file("alone", KEY, 0o600);
    let words = ["shared key", "RAILWEAVE_KEY_FILE"];
    with_peer(
        &[TWO_RAILS, ("RAILWEAVE_KEY_FILE", &key)],
        &[("RAILWEAVE_KEY_FILE", UNSET)],
        |peer| refuse(peer, &words),
        |link| be_refused(link, &words),
    );
}
