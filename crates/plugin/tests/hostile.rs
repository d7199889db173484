//! Strangers at the control port: for each, its log line, its cost in memory, and a check that all this memory is freed
//! and that other connections are not disturbed. docs/edge.md shows the table; `cargo xtask stress table` prints it.

mod common;

use common::{
    OUR_VERSIONS, Pair, Stranger, TWO_RAILS, accept, alone, connect, descriptors, each, heap_bytes, listen, start,
    until, until_freed, until_heap_is_freed, warnings,
};
use hmac::{Hmac, KeyInit, Mac};
use railweave_nccl_host::LoadedNet;
use railweave_nccl_host::net::{Handle as HandleBytes, ListenComm, NetApi};
use railweave_transport::{Frame, Hello, LanePreface, Message, Offer, Preface, Pulse, Token, Ways};
use sha2::Sha256;
use std::fs::{OpenOptions, Permissions, set_permissions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The most memory that one case may take, whatever it sends.
const MOST_BYTES: usize = 1 << 20;
/// The setting for the GNU C library to keep no freed memory for each thread: it would count as memory in use.
const NO_CACHES: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");
/// Spare room of lists that lasts.
const SLACK_BYTES: usize = 16 << 10;
/// The most lines per minute about strangers of one kind.
const MOST_LINES: usize = 10;

/// One kind of stranger.
struct Case {
    name: &'static str,
    settings: &'static [(&'static str, &'static str)],
    /// True if the plugin has a key file.
    keyed: bool,
    /// Plays the stranger. Returns the sockets that it still holds.
    act: fn(&Site<'_>) -> Vec<TcpStream>,
    /// The number of lines logged, and words in each of them.
    lines: usize,
    words: &'static [&'static str],
}

/// The plugin as a stranger finds it.
struct Site<'a> {
    net: &'a LoadedNet,
    listening: &'a ListenComm,
    handle: &'a HandleBytes,
    garbage: &'a [u8],
}

impl Site<'_> {
    fn dial(&self) -> TcpStream {
        Stranger::dial(self.handle).socket
    }

    /// Returns a stranger whose session is up.
    fn greeted(&self) -> Stranger {
        Stranger::greeted(self.handle)
    }

    /// Returns a stranger that has sent this HELLO.
    fn with_hello(&self, change: impl FnOnce(&mut Hello)) -> Stranger {
        let mut stranger = Stranger::dial(self.handle);
        stranger.begin();
        let Message::Hello(bytes) = stranger.hello(OUR_VERSIONS) else { unreachable!("it makes a HELLO") };
        let mut hello = Hello::decode(&bytes).expect("its own HELLO");
        change(&mut hello);
        stranger.send(0, Message::Hello(hello.encode()));
        stranger
    }

    /// Sends ten million bytes, or as many as are taken.
    fn flood(&self, mut socket: TcpStream) -> Vec<TcpStream> {
        for _ in 0..10_000_000 / self.garbage.len() {
            if socket.write_all(self.garbage).is_err() {
                break;
            }
        }
        vec![socket]
    }

    /// Checks that the failure of a stranger's connection is logged, and that accept keeps waiting.
    fn accept_waits_on(&self) {
        until("the line", || {
            assert!(self.net.accept(self.listening).expect("accept has no error").is_none());
            (!warnings().is_empty()).then_some(())
        });
    }
}

/// Resets a socket on close, as the kernel does for a process killed with unread bytes.
fn reset(socket: &TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let place = (&raw const linger).cast();
    let (socket, bytes) = (std::os::fd::AsRawFd::as_raw_fd(socket), size_of::<libc::linger>() as u32);
    // SAFETY: the option takes this structure (socket(7), SO_LINGER).
    assert_eq!(unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_LINGER, place, bytes) }, 0);
}

fn frame(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend(kind.to_le_bytes());
    bytes.extend([0; 2]);
    bytes.extend(1u32.to_le_bytes());
    bytes.extend(body);
    bytes
}

/// Sends these bytes up to a thousand times, until they are no longer taken, and reads nothing.
fn flood(site: &Site<'_>, bytes: &[u8]) -> TcpStream {
    let mut socket = site.greeted().socket;
    socket.set_write_timeout(Some(Duration::from_secs(5))).expect("a timeout can be set");
    for _ in 0..1000 {
        if socket.write_all(bytes).is_err() {
            break;
        }
    }
    socket
}

/// Sends bytes one by one, slower than any deadline, until they are no longer taken.
fn drip(socket: &mut TcpStream, bytes: &[u8]) {
    for byte in bytes {
        thread::sleep(Duration::from_millis(100));
        if socket.write_all(&[*byte]).is_err() {
            return;
        }
    }
}

const KEY: &[u8] = b"a key of some length";

/// Shakes hands as a peer that has the key. Also returns the bytes that it sent.
fn proved(handle: &HandleBytes) -> (Stranger, Vec<u8>) {
    let mut peer = Stranger::dial(handle);
    let mut said = Preface::Session.encode().to_vec();
    peer.write(&said);
    let Message::Hello(theirs) = peer.receive() else { panic!("HELLO comes first") };
    let Message::Hello(ours) = peer.hello(OUR_VERSIONS) else { unreachable!("it makes a HELLO") };
    let mut hello = Hello::decode(&ours).expect("its own HELLO");
    hello.features = Hello::KEYED;
    hello.network = Hello::decode(&theirs).expect("a HELLO").network;
    let ours = hello.encode();
    let frame = Frame { connection: 0, message: Message::Hello(ours.clone()) }.encode();
    peer.write(&frame);
    said.extend(frame);
    // docs/wire.md, PROOF: the opener is 1, and its HELLO comes first.
    let mut mac = Hmac::<Sha256>::new_from_slice(KEY).expect("a key of any length");
    mac.update(b"railweave proof 1\x01");
    for hello in [&ours, &theirs] {
        mac.update(&(hello.len() as u64).to_le_bytes());
        mac.update(hello);
    }
    let proof = Frame { connection: 0, message: Message::Proof(mac.finalize().into_bytes().into()) }.encode();
    peer.write(&proof);
    said.extend(proof);
    assert!(matches!(peer.receive(), Message::Proof(_)));
    (peer, said)
}

/// Shakes hands as a peer that has the key, which is accepted; then sends the same bytes again on another socket.
fn replay(site: &Site<'_>) -> Vec<TcpStream> {
    let (mut peer, mut said) = proved(site.handle);
    let offer = Frame { connection: 1, message: offer_for_nobody() }.encode();
    peer.write(&offer);
    said.extend(offer);
    assert!(matches!(peer.receive(), Message::Refuse { .. }), "the proof was taken, and the offer answered");
    drop(peer);
    let mut socket = site.dial();
    socket.write_all(&said).expect("the control port reads");
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    let (_, length) = Frame::decode(&answer).expect("frames").expect("a HELLO");
    let (frame, length) =
        Frame::decode(&answer[length..]).expect("frames").map(|(f, l)| (f, length + l)).expect("a PROOF");
    assert_eq!(frame.message, Message::Proof([0; 32]), "the acceptor sends no proof before its peer has");
    assert_eq!(answer.len(), length, "and nothing is answered after it");
    vec![socket]
}

const QUICK: &[(&str, &str)] = &[("RAILWEAVE_HANDSHAKE_TIMEOUT", "500ms")];

const CASES: &[Case] = &[
    Case {
        name: "port scan: 1,000 connects, closed at once",
        settings: &[],
        keyed: false,
        act: |site| {
            (0..1000).for_each(|_| drop(site.dial()));
            Vec::new()
        },
        lines: 0,
        words: &[],
    },
    Case {
        name: "100 connects that say nothing",
        settings: QUICK,
        keyed: false,
        act: |site| (0..100).map(|_| site.dial()).collect(),
        lines: MOST_LINES,
        words: &["sent only 0 of the first 40 bytes in time"],
    },
    Case {
        name: "one byte now and then, forever",
        settings: QUICK,
        keyed: false,
        act: |site| {
            let mut socket = site.dial();
            drip(&mut socket, &Preface::Session.encode()[..20]);
            vec![socket]
        },
        lines: 1,
        words: &["of the first 40 bytes in time"],
    },
    Case {
        name: "a HELLO, one byte now and then",
        settings: QUICK,
        keyed: false,
        act: |site| {
            let mut stranger = Stranger::dial(site.handle);
            stranger.begin();
            let hello = Frame { connection: 0, message: stranger.hello(OUR_VERSIONS) }.encode();
            drip(&mut stranger.socket, &hello[..20]);
            vec![stranger.socket]
        },
        lines: 1,
        words: &["did not say who it is in time"],
    },
    Case {
        name: "10 MB of garbage",
        settings: &[],
        keyed: false,
        act: |site| site.flood(site.dial()),
        lines: 1,
        words: &["magic number", "is not Railweave"],
    },
    Case {
        name: "10 MB of garbage behind a session's first bytes",
        settings: &[],
        keyed: false,
        act: |site| {
            let mut socket = site.dial();
            socket.write_all(&Preface::Session.encode()).expect("the first bytes are taken");
            site.flood(socket)
        },
        lines: 1,
        words: &["broke the control protocol"],
    },
    Case {
        name: "a frame that says it has 4 GiB",
        settings: &[],
        keyed: false,
        act: |site| {
            let mut stranger = site.greeted();
            stranger.write(&[0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 1, 0, 0, 0]);
            vec![stranger.socket]
        },
        lines: 1,
        words: &["broke the control protocol", "0xffffffff"],
    },
    Case {
        name: "a HELLO with a text longer than itself",
        settings: &[],
        keyed: false,
        act: |site| {
            let mut stranger = Stranger::dial(site.handle);
            stranger.begin();
            let Message::Hello(mut bytes) = stranger.hello(OUR_VERSIONS) else { unreachable!("it makes a HELLO") };
            bytes[100..102].copy_from_slice(&[0xff; 2]);
            stranger.send(0, Message::Hello(bytes));
            vec![stranger.socket]
        },
        lines: 1,
        words: &["its session was refused"],
    },
    Case {
        name: "a valid HELLO, then an OFFER of 255 ports",
        settings: &[],
        keyed: false,
        act: |site| {
            let mut stranger = site.greeted();
            let mut body = vec![0; 16 + 255 * 32];
            body[12] = 255;
            stranger.write(&frame(2, &body));
            vec![stranger.socket]
        },
        lines: 1,
        words: &["OFFER", "0xff"],
    },
    Case {
        name: "100,000 OFFERs for no listener, the answers unread",
        settings: &[],
        keyed: false,
        act: |site| {
            let offer = Frame { connection: 1, message: offer_for_nobody() }.encode();
            vec![flood(site, &offer.repeat(100))]
        },
        lines: 1,
        words: &["without a connection"],
    },
    Case {
        name: "a million PINGs, the answers unread",
        settings: &[],
        keyed: false,
        act: |site| {
            let ping = Frame { connection: 0, message: Message::Ping(Pulse::default()) }.encode();
            vec![flood(site, &ping.repeat(1000))]
        },
        lines: 1,
        words: &["without a connection"],
    },
    Case {
        name: "a message before HELLO",
        settings: &[],
        keyed: false,
        act: |site| {
            let mut stranger = Stranger::dial(site.handle);
            stranger.begin();
            stranger.send(1, offer_for_nobody());
            vec![stranger.socket]
        },
        lines: 1,
        words: &["out of turn"],
    },
    Case {
        name: "a lane with a guessed token",
        settings: &[],
        keyed: false,
        act: |site| {
            let mut socket = site.dial();
            let lane = LanePreface { token: Token([7; 16]), rail: 0, lane: 0, proof: [0; 14] };
            socket.write_all(&Preface::Lane(lane).encode()).expect("the first bytes are taken");
            vec![socket]
        },
        lines: 1,
        words: &["a token that no connection here awaits"],
    },
    Case {
        name: "a peer of another version",
        settings: &[],
        keyed: false,
        act: |site| vec![site.with_hello(|hello| (hello.protocol_min, hello.protocol_max) = (7, 9)).socket],
        lines: 1,
        words: &["stranger (pid 4711)", "7 to 9"],
    },
    Case {
        name: "a peer in another mode",
        settings: &[],
        keyed: false,
        act: |site| vec![site.with_hello(|hello| hello.mode = 0).socket],
        lines: 1,
        words: &["RAILWEAVE_MODE="],
    },
    Case {
        name: "a peer whose name would forge a line",
        settings: &[],
        keyed: false,
        act: |site| {
            vec![
                site.with_hello(|hello| {
                    hello.mode = 0;
                    hello.host = "evil\nnode1: NCCL WARN all is lost %n%s".to_owned();
                })
                .socket,
            ]
        },
        lines: 1,
        words: &["RAILWEAVE_MODE=", "%n%s"],
    },
    Case {
        name: "no key where one is asked for",
        settings: &[],
        keyed: true,
        act: |site| vec![site.with_hello(|_| ()).socket],
        lines: 1,
        words: &["has no shared key"],
    },
    Case {
        name: "says it has the key, and proves nothing",
        settings: QUICK,
        keyed: true,
        act: |site| vec![site.with_hello(|hello| hello.features = Hello::KEYED).socket],
        lines: 1,
        words: &["did not say who it is in time"],
    },
    Case {
        name: "the handshake of a peer with the key, replayed",
        settings: &[],
        keyed: true,
        act: replay,
        lines: 1,
        words: &["has another key"],
    },
    Case {
        name: "killed after HELLO",
        settings: &[],
        keyed: false,
        act: |site| {
            reset(&site.greeted().socket);
            Vec::new()
        },
        lines: 0,
        words: &[],
    },
    Case {
        name: "killed after OFFER",
        settings: &[],
        keyed: false,
        act: |site| {
            let mut stranger = site.greeted();
            stranger.offer(1);
            reset(&stranger.socket);
            drop(stranger);
            site.accept_waits_on();
            Vec::new()
        },
        lines: 1,
        words: &["accept keeps waiting", "stranger (pid 4711)", "while a connection was set up"],
    },
    Case {
        name: "killed after its lane was taken",
        settings: &[],
        keyed: false,
        act: |site| {
            let mut stranger = site.greeted();
            let token = stranger.offer(1);
            stranger.lanes(1);
            let lane = stranger.lane(token);
            reset(&stranger.socket);
            drop(stranger);
            site.accept_waits_on();
            // The lane stays open until here: if it is reset before the plugin has taken it over, another line is
            // logged.
            drop(lane);
            Vec::new()
        },
        lines: 1,
        words: &["accept keeps waiting", "stranger (pid 4711)"],
    },
    Case {
        name: "stops after OFFER without closing",
        settings: QUICK,
        keyed: false,
        act: |site| {
            let mut stranger = site.greeted();
            stranger.offer(1);
            site.accept_waits_on();
            Vec::new()
        },
        lines: 1,
        words: &["accept keeps waiting", "Handshake timeout"],
    },
];

fn offer_for_nobody() -> Message {
    Message::Offer(Offer {
        nonce: 1,
        striped: false,
        traffic_class: None,
        ports: vec![railweave_transport::PortOffer {
            link_layer: railweave_fabric::LinkLayer::Tcp,
            prefix_len: 8,
            lanes: 1,
            speed_mbps: 10_000,
            mtu: 65_536,
            rail_id: -1,
            plane_id: -1,
            address: Ipv4Addr::LOCALHOST.to_ipv6_mapped(),
        }],
        ways: Ways::default(),
    })
}

fn key_file() -> String {
    let path = format!("{}/key-of-hostile", env!("CARGO_TARGET_TMPDIR"));
    let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(&path).expect("a key file");
    file.write_all(KEY).expect("the key file is written");
    set_permissions(&path, Permissions::from_mode(0o600)).expect("the key file is closed to others");
    path
}

/// The highest memory use since this value was last set.
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[test]
fn a_stranger_costs_one_line_and_little_memory_whatever_it_does_and_nobody_else_notices() {
    let key = key_file();
    each(
        CASES,
        |case| {
            let mut settings = vec![TWO_RAILS, NO_CACHES];
            settings.extend(case.settings);
            if case.keyed {
                settings.push(("RAILWEAVE_KEY_FILE", &key));
            }
            settings
        },
        |case| {
            let (_plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            let (listening, handle) = listen(&net, 0);
            let garbage: Vec<u8> = common::noise(1, 1 << 16);
            pair.exchange(1, 100_000);
            thread::spawn(|| {
                loop {
                    PEAK.fetch_max(heap_bytes(), Ordering::Relaxed);
                    thread::sleep(Duration::from_micros(500));
                }
            });
            thread::sleep(Duration::from_millis(20));
            let (files, heap) = (descriptors(), heap_bytes());
            PEAK.store(heap, Ordering::Relaxed);
            let site = Site { net: &net, listening: &listening, handle: &handle, garbage: &garbage };
            let held = (case.act)(&site);
            let begin = Instant::now();
            until("its lines", || (warnings().len() >= case.lines).then_some(()));
            // The stranger's sockets are closed on the plugin's side, although it keeps its own ends.
            until_freed("its sockets are closed", || descriptors() <= files + held.len());
            let freed = begin.elapsed();
            let most = PEAK.load(Ordering::Relaxed).saturating_sub(heap);
            drop(held);
            until_heap_is_freed(heap + SLACK_BYTES);
            pair.exchange(2, 100_000);
            let (send, recv) = (connect(&net, 0, &handle), accept(&net, &listening));
            Pair { from: &net, to: &net, send, recv }.exchange(3, 1000);
            let lines = warnings();
            assert_eq!(lines.len(), case.lines, "{lines:?}");
            for line in &lines {
                assert!(case.words.iter().all(|word| line.contains(word)), "{line}");
                assert!(line.contains("127.0.0.") && !line.contains(char::is_control), "{line}");
            }
            assert!(most <= MOST_BYTES, "{most} bytes of memory for one stranger");
            tell(case, lines.first(), most, freed);
        },
    );
}

#[test]
fn with_a_key_a_token_that_was_overheard_is_not_enough_for_a_lane() {
    let key = key_file();
    alone(&[TWO_RAILS, ("RAILWEAVE_KEY_FILE", &key)], || {
        let (_plugin, net) = start();
        let (_listening, handle) = listen(&net, 0);
        let (mut peer, _) = proved(&handle);
        let token = peer.offer(1);
        peer.lanes(1);
        assert_eq!(Stranger::answer_to_lane(&handle, token), b"");
        assert_eq!(common::warnings_with(&["without proof that it has the key"]).len(), 1);
    });
}

#[test]
fn repeated_byes_of_an_open_connection_take_no_memory() {
    alone(&[TWO_RAILS, NO_CACHES], || {
        let (_plugin, net) = start();
        let (listening, handle) = listen(&net, 0);
        let mut stranger = Stranger::greeted(&handle);
        let token = stranger.offer(1);
        let _lane = stranger.go_on(1, token);
        let recv = accept(&net, &listening);
        let mut bytes = Frame { connection: 1, message: Message::Bye(None) }.encode().repeat(100_000);
        bytes.extend(Frame { connection: 0, message: Message::Ping(Pulse::default()) }.encode());
        let heap = heap_bytes();
        stranger.write(&bytes);
        assert!(matches!(stranger.receive(), Message::Pong(_)));
        let most = heap_bytes().saturating_sub(heap);
        assert!(most <= SLACK_BYTES, "{most} bytes");
        net.close_recv(recv).expect("the receiving end is closed");
    });
}

/// Adds the case to the list in the file that RAILWEAVE_TEST_TABLE names.
fn tell(case: &Case, line: Option<&String>, most: usize, freed: Duration) {
    let Some(path) = std::env::var_os("RAILWEAVE_TEST_TABLE") else { return };
    let line = line.map_or("nothing".to_owned(), |line| format!("`{}`", line.replace("NET/Railweave : ", "")));
    let count = case.lines;
    let count = if count > 1 { format!("{count} lines a minute, such as ") } else { String::new() };
    let most = most.div_ceil(1024);
    let row = format!("* **{}** ({most} KiB, {} ms): {count}{line}\n", case.name, freed.as_millis());
    let mut file = OpenOptions::new().append(true).create(true).open(path).expect("the table can be written");
    file.write_all(row.as_bytes()).expect("the table can be written");
}
