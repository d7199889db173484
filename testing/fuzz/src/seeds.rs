//! The inputs with which a fuzzer starts: scripts that reach deep because most of their fields are right.
//!
//! `cargo run -p railweave-fuzz --example seeds` writes them to `testing/fuzz/corpus`; a test checks that they are
//! there. Findings are kept next to them, under names that begin with `found-`.

mod plans;
mod recoveries;

use std::net::IpAddr;

use railweave_fabric::{Fault, LaneEndpoint, RailId, Route, Step};
use railweave_fabric_tcp::frame::{Body, Frame as LaneFrame, WriteFrame};
use railweave_transport::{
    Frame, Handle, HandleAddress, Hello, Incarnation, LanePreface, Lanes, Message, Offer, Preface, ProcessId, Pulse,
    RailAnswer, RailLanes, RailMessage, RailNews, Resume, SessionId, Token, Ways,
};

use self::plans::{ADAPTIVE, NO_COUNTS, ONE_SIDED, STRIPED, kib, plan};
use crate::peer::port_offer;
use crate::policy_file::WORDS;

/// A file of the corpus.
pub struct Seed {
    /// Its target.
    pub target: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// Returns all seeds.
pub fn seeds() -> Vec<Seed> {
    let mut all = Vec::new();
    let mut add = |target, list: Vec<(&'static str, Vec<u8>)>| {
        all.extend(list.into_iter().map(|(name, bytes)| Seed { target, name, bytes }));
    };
    add("wire", wire());
    add("handshake", handshake());
    add("session", session());
    add("send", send());
    add("receive", receive());
    add("send", recoveries::send());
    add("receive", recoveries::receive());
    add("tcp_lane", lane());
    add("options", options());
    add("telemetry", telemetry());
    add("trace", trace());
    add("policy_file", policy_file());
    add("seed_policy", seed_policy());
    all
}

fn with(head: &[u8], tail: &[u8]) -> Vec<u8> {
    [head, tail].concat()
}

fn wire() -> Vec<(&'static str, Vec<u8>)> {
    let address = |address: IpAddr, prefix_len, port| HandleAddress { address, prefix_len, port };
    let handle = Handle {
        process: ProcessId([7; 16]),
        nonce: 0x0123_4567_89ab_cdef,
        control_port: 4711,
        addresses: vec![
            address([10, 0, 0, 1].into(), 24, 0),
            address([0xfd; 16].into(), 64, 1),
            address([192, 168, 0, 1].into(), 16, HandleAddress::OUT_OF_BAND),
        ],
    };
    let hello = Hello {
        protocol_min: 1,
        protocol_max: 1,
        features: 0,
        mode: 1,
        fabrics: 1,
        network: 42,
        process: ProcessId([7; 16]),
        wanted: ProcessId([8; 16]),
        nonce: [9; 32],
        pid: 4711,
        rank: 3,
        world: 8,
        host: "node7".into(),
        build: "0.1.0".into(),
        control_port: 7,
    };
    let port = port_offer(0, 1, 2);
    let open = RailLanes::Open { key: 0x55, endpoints: vec![LaneEndpoint([9; 48]); 2] };
    let rails = vec![open, RailLanes::Dropped { reason: "no route to host".into(), is_of_way: true }];
    let ways = Ways {
        first_step: Step::Routed,
        others: 1,
        targets: vec![port.address],
        routes: vec![Route::Leaves, Route::Elsewhere, Route::Unknown],
    };
    let offer = Offer { nonce: 77, striped: true, traffic_class: Some(104), ports: vec![port; 3], ways };
    let answer = RailAnswer { connector_port: 1, lanes: 2, port };
    let messages = [
        Message::Hello(hello.encode()),
        Message::Offer(offer),
        Message::Answer { token: Token([5; 16]), step: Step::Subnet, rails: vec![answer; 2] },
        Message::Lanes(Lanes { byte_counts: true, stream: 0xffff_0000_1234, rails }),
        Message::Ready { usable: 3 },
        Message::Refuse { fault: Fault::Configuration, of_rails: false, reason: "RAILWEAVE_MODE differs".into() },
        Message::Bye(None),
        Message::Ping(Pulse { number: 7, clock_ns: 1 << 40 }),
        Message::Pong(Pulse { number: 7, clock_ns: 3 }),
        Message::Wait,
        Message::Resume(Resume { session: SessionId([6; 16]), attempt: 1, received: 9 }),
        Message::Resumed(Some(3)),
        Message::Have(12),
    ];
    let frames: Vec<u8> = messages.into_iter().flat_map(|message| Frame { connection: 42, message }.encode()).collect();
    let lane = Preface::Lane(LanePreface { token: Token([8; 16]), rail: 1, lane: 15, proof: [0; 14] });
    let write =
        WriteFrame { immediate: Some(0xa1b2_c3d4), wants_acknowledgement: true, length: 5, key: 0x33, address: 0x5566 };
    vec![
        ("handle", with(&[0], &handle.encode())),
        ("preface-session", with(&[1], &Preface::Session.encode())),
        ("preface-lane", with(&[1], &lane.encode())),
        ("frames", with(&[2], &frames)),
        ("hello", with(&[3], &hello.encode())),
        ("lane-write", with(&[4], &LaneFrame { acknowledged: 1, body: Body::Write(write) }.encode())),
        ("lane-acknowledgement", with(&[4], &LaneFrame { acknowledged: 9, body: Body::Acknowledgement }.encode())),
        ("immediate", vec![5, 1, 0xab, 2, 0, 1]),
    ]
}

fn session() -> Vec<(&'static str, Vec<u8>)> {
    let (from_opener, from_acceptor, connected) = (vec![0, 0], vec![0, 1], vec![9]);
    let begin = |flags: u8, addresses: u8| vec![flags, addresses - 1];
    let (offers, accepts, refuses) = (vec![10], vec![11, 0], vec![11, 1]);
    let opened = [12, 0, 1, 12, 1, 1].to_vec();
    let closed = |which: u8| vec![14, which];
    let drained = [15, 0, 0, 15, 1, 0].to_vec();
    let due = vec![19, 100];
    let hellos = [connected.clone(), from_opener.clone(), from_acceptor.clone()].concat();
    let proofs = [from_opener.clone(), from_acceptor.clone()].concat();
    let up = [begin(0, 1), hellos.clone()].concat();
    let keyed = |flags| [begin(flags, 1), hellos.clone(), proofs.clone()].concat();
    let set_up = [offers.clone(), from_opener.clone(), accepts.clone()].concat();
    let open = [up.clone(), set_up.clone(), opened.clone()].concat();
    let cut = vec![16, 0, 0, 16, 1, 0];
    let resumed = [from_opener.clone(), from_acceptor.clone()].concat();
    let byes = [from_opener.clone(), from_acceptor.clone()].concat();
    let (hellos_again, resumed_again) = (hellos.clone(), resumed.repeat(3));
    let both_close = [open.clone(), drained, closed(0), closed(1), byes, due.repeat(8)].concat();
    let invent = |wire: u8, connection: u8, message: Message| {
        let kind = message.kind() as u8;
        let body = Frame { connection: 1, message }.encode()[12..].to_vec();
        [&[8, wire, kind, connection, body.len() as u8], &body[..]].concat()
    };
    let late = Message::Refuse { fault: Fault::Peer, of_rails: false, reason: "too late".into() };
    let many = [up.clone(), [offers.clone(), from_opener.clone()].concat().repeat(4), accepts.repeat(2)].concat();
    let asked = [open.clone(), due.repeat(3), from_opener.clone(), vec![17, 1], from_acceptor.clone(), due.repeat(2)];
    vec![
        ("up", up.clone()),
        ("keyed", keyed(1)),
        ("another_key", keyed(7)),
        ("other_addresses", [begin(0, 3), vec![16, 0, 2, 16, 0, 1, 19, 100], hellos.clone(), due.clone()].concat()),
        ("refused", [up.clone(), offers.clone(), from_opener.clone(), refuses, from_acceptor.clone()].concat()),
        ("both_close", both_close.clone()),
        ("number_again", [both_close, invent(0, 1, Message::Bye(None)), invent(0, 1, offer_of_nothing())].concat()),
        ("one_closes", [open.clone(), closed(0), from_opener.clone(), due.repeat(9)].concat()),
        ("given_up_late", [open.clone(), invent(0, 1, late.clone()), due.repeat(3)].concat()),
        ("taken_back", [up.clone(), offers.clone(), from_opener.clone(), invent(0, 1, late)].concat()),
        ("socket_ends", [many, vec![12, 1, 1, 16, 1, 0], due.repeat(4), vec![12, 1, 1]].concat()),
        ("asked", asked.concat()),
        ("silent", [open.clone(), due.repeat(12)].concat()),
        ("resumed", [open.clone(), cut.clone(), hellos.clone(), resumed.clone(), closed(0), resumed.clone()].concat()),
        (
            "resumed_keyed",
            [keyed(1), set_up.clone(), opened.clone(), cut.clone(), hellos, proofs, resumed.clone()].concat(),
        ),
        ("process_ended", [open.clone(), vec![18, 0, 1, 16, 0, 0], vec![16, 0, 3], due.repeat(30)].concat()),
        ("rail_steps", [open.clone(), vec![0xf0, 0xf1], resumed, vec![0xf0], cut.clone(), vec![0xf1]].concat()),
        (
            "rail_steps_resumed",
            [open.clone(), cut.clone(), vec![0xf0, 0xf1, 0xf2], hellos_again, resumed_again].concat(),
        ),
        ("rail_steps_invented", [open.clone(), invent(0, 1, rail_step(1)), invent(1, 5, rail_step(0))].concat()),
        ("opener_looked_for", [open, cut, due.repeat(3), vec![16, 1, 3, 18, 1, 2], due.repeat(30)].concat()),
        ("out_of_turn", [up, invent(0, 0, Message::Proof([1; 32])), invent(1, 1, offer_of_nothing())].concat()),
        ("late", [begin(0, 1), connected, due.repeat(4)].concat()),
    ]
}

fn rail_step(rail: usize) -> Message {
    let rail = RailId::new(rail).unwrap_or_default();
    Message::Rail(RailNews { rail, incarnation: Incarnation(1), message: RailMessage::Down(Vec::new()) })
}

fn offer_of_nothing() -> Message {
    Message::Offer(Offer {
        nonce: 5,
        striped: false,
        traffic_class: None,
        ports: vec![port_offer(0, 1, 1)],
        ways: Ways::default(),
    })
}

fn handshake() -> Vec<(&'static str, Vec<u8>)> {
    let (from_connector, from_acceptor, dialled) = ([0, 0], [0, 1], [8]);
    let sockets = |flags, rails: u8, lanes: u8| {
        let dials = dialled.repeat(usize::from(rails * lanes));
        let exchange = [from_connector, from_acceptor, from_connector, from_acceptor].concat();
        [plan(flags, rails, lanes), exchange, dials, from_connector.to_vec()].concat()
    };
    let one_sided = |rails| {
        let exchange = [from_connector, from_acceptor, from_connector, from_acceptor, from_connector].concat();
        [plan(ONE_SIDED, rails, 2), exchange].concat()
    };
    let mut weighted = sockets(0, 4, 1);
    weighted[5] = 0xff;
    let one_lane_fails = {
        let exchange = [from_connector, from_acceptor, from_connector, from_acceptor].concat();
        [plan(0, 2, 1), exchange, vec![10, 8, 0, 0]].concat()
    };
    let exchanged = [from_connector, from_acceptor, from_connector, from_acceptor].concat();
    let dialled_again = [plan(0, 1, 1), exchanged.clone(), vec![11, 0, 0, 11, 0, 0, 14, 8, 0, 0]].concat();
    let socket_for_a_queue_pair = [plan(ONE_SIDED, 1, 1), exchanged, vec![11, 0, 0, 0, 0]].concat();
    let refusals = [plan(0, 2, 2), vec![12, 0, 0, 1, 0], sockets(0, 2, 2)[6..].to_vec()].concat();
    // Three attempts of each end's two rails are put off: the acceptor's at LANES, the connector's at its answer.
    let later = |acceptor_goes_on: u8| {
        let put_off = |who: u8| vec![12, who, 3 * 40, 0, 0];
        let acceptors = [[13, 3, 1].repeat(usize::from(acceptor_goes_on)), from_acceptor.to_vec()].concat();
        let connectors = [[13, 2, 1].repeat(2), from_connector.to_vec()].concat();
        let begin = [from_connector, from_acceptor].concat();
        let first = [plan(ONE_SIDED, 2, 1), put_off(0), put_off(1), begin, from_connector.to_vec()].concat();
        [first, acceptors, connectors].concat()
    };
    let changed = [plan(0, 2, 1), vec![0, 0, 0, 1, 4, 0, 12, 0, 1, 0, 0, 13, 0, 1]].concat();
    let mut all = vec![
        ("one-rail", sockets(0, 1, 1)),
        ("striped", sockets(STRIPED, 3, 4)),
        ("eight-rails", sockets(0, 8, 2)),
        ("weighted", weighted),
        ("one-sided", one_sided(2)),
        ("one-sided-eight-rails", one_sided(8)),
        ("one-lane-fails", one_lane_fails),
        ("dialled-again", dialled_again),
        ("socket-for-a-queue-pair", socket_for_a_queue_pair),
        ("refusals", refusals),
        ("put-off", later(2)),
        ("put-off-for-too-long", later(1)),
        ("changed", changed),
        ("repeated", [plan(0, 1, 1), vec![5, 0, 0, 0, 0, 0, 0, 1, 5, 0, 0, 0, 0, 1, 8, 0, 0]].concat()),
        ("too-late", [plan(0, 1, 1), vec![0, 0, 13, 1, 1, 0, 1]].concat()),
    ];
    all.extend(answers_of_an_adversary());
    all
}

/// Handshakes in which an end receives messages that its peer did not send.
fn answers_of_an_adversary() -> Vec<(&'static str, Vec<u8>)> {
    let (from_connector, from_acceptor) = ([0, 0], [0, 1]);
    let invent = |wire: u8, message: Message| {
        let kind = message.kind() as u8;
        let body = Frame { connection: 1, message }.encode()[12..].to_vec();
        [&[7, wire, kind], &(body.len() as u16).to_le_bytes()[..], &body].concat()
    };
    let offered = [from_connector, from_acceptor].concat();
    let refuse = Message::Refuse { fault: Fault::Peer, of_rails: false, reason: "no".into() };
    let refused = [plan(0, 1, 1), offered.clone(), invent(1, refuse)].concat();
    let open = RailLanes::Open { key: 1, endpoints: vec![LaneEndpoint::default()] };
    let lanes = |count| Message::Lanes(Lanes { byte_counts: true, stream: 64, rails: vec![open.clone(); count] });
    let more_rails = [plan(0, 1, 1), offered.clone(), invent(1, lanes(2))].concat();
    let more_rails_to_the_acceptor = [plan(0, 1, 1), offered.clone(), invent(0, lanes(8))].concat();
    let ready = |usable| {
        let ready = invent(0, Message::Ready { usable });
        [plan(ONE_SIDED, 2, 1), offered.clone(), from_connector.to_vec(), ready].concat()
    };
    vec![
        ("refused", refused),
        ("more-rails", more_rails),
        ("more-rails-to-the-acceptor", more_rails_to_the_acceptor),
        ("nothing-is-ready", ready(0)),
        ("too-much-is-ready", ready(7)),
        ("one-of-two-is-ready", ready(2)),
    ]
}

fn send() -> Vec<(&'static str, Vec<u8>)> {
    let announce = |tag: u8, sizes: &[u8]| [&[0, sizes.len() as u8 - 1, tag], sizes].concat();
    let isend = |tag: u8, size: u8| vec![4, tag, size];
    let (complete, test) = (vec![8], vec![6, 0]);
    let message = |size: u8| [announce(0, &[size]), isend(0, size), complete.clone(), test.clone()].concat();
    let group = {
        let sizes = [kib(1), kib(64), 0, kib(2), 5, kib(70), 100, kib(8)];
        let sends: Vec<u8> = sizes.iter().enumerate().flat_map(|(at, size)| isend(at as u8 % 4, *size)).collect();
        [announce(0, &sizes), sends, complete.clone(), test.repeat(8)].concat()
    };
    let sizes = [message(0), message(100), message(kib(8)), message(kib(70)), message(255)].concat();
    let spoilt = [plan(0, 2, 1), vec![2, 0, 0, 10, 0, 2, 0, 0, 0, 0, 1, 0, 0, 0], isend(0, 10)].concat();
    let keys = [plan(0, 2, 1), vec![2, 0, 0, kib(70), 0, 3, 1, 2, 3, 4, 5, 6, 7, 8], isend(0, kib(70))].concat();
    let around = [0xff, 0xff, 0xff, 0xff, 0xff, 0xef, 0xff, 0xff];
    let wraps = [plan(0, 2, 1), [&[2, 0, 0, kib(70), 0, 0], &around[..]].concat(), isend(0, kib(70))].concat();
    // Nine entries that each claim nine buffers: the slot, the buffer's index and the number of buffers are changed to
    // fit.
    let says_nine = |at: u8| [10, at, 2, 0, 0, 0, 0, 0, 0, 1, 0];
    let eight: Vec<u8> = (0..8).flat_map(says_nine).collect();
    let ninth = vec![2, 0, 0, 10, 0, 2, 0, 0, 0, 0, 1, 8, 8, 0];
    let nine = [plan(0, 1, 1), vec![2, 7, 0], eight, ninth, isend(0, 1).repeat(3)].concat();
    let scribbled =
        [plan(0, 1, 1), announce(0, &[10]), vec![3, 7, 16, 0, 1, 2, 3, 4, 5, 6, 7, 8], isend(0, 10)].concat();
    let cut = [announce(0, &[kib(1)]), isend(0, kib(70)), complete.clone(), test.clone()].concat();
    let huge = [vec![0, 0, 0, 240, 0, 4, 0, 240, 0], complete.clone(), test.clone()].concat();
    vec![
        ("two-rails", [plan(0, 2, 1), sizes.clone()].concat()),
        ("one-sided", [plan(ONE_SIDED, 8, 1), sizes.clone()].concat()),
        ("striped", [plan(STRIPED, 2, 4), sizes.clone()].concat()),
        ("adaptive", [plan(ADAPTIVE | ONE_SIDED, 2, 1), sizes.clone()].concat()),
        ("no-counts", [plan(NO_COUNTS, 3, 2), sizes].concat()),
        ("group", [plan(0, 2, 1), group.clone(), group].concat()),
        ("cut", [plan(0, 1, 1), cut].concat()),
        ("huge", [vec![ONE_SIDED, 1, 0, 1, 0, 0], huge].concat()),
        ("many", [plan(0, 2, 2), message(kib(8)).repeat(300)].concat()),
        ("spoilt", spoilt),
        ("other-keys", keys),
        ("wraps-around", wraps),
        ("nine-buffers", nine),
        ("scribbled", scribbled),
        ("immediate", [plan(0, 1, 1), message(10), vec![9, 0, 0, 1, 2, 3, 4], isend(0, 1), isend(0, 1)].concat()),
        ("lane-fails", [plan(0, 2, 1), message(kib(70)), vec![10, 1, 0], message(kib(70))].concat()),
        ("lost", [plan(0, 1, 1), message(10), vec![11, 0xff], isend(0, 1), isend(0, 1)].concat()),
    ]
}

fn receive() -> Vec<(&'static str, Vec<u8>)> {
    let irecv = |flags: u8, sizes: &[u8]| [&[0, flags | (sizes.len() as u8 - 1)], sizes].concat();
    let deliver = |sizes: &[u8], mask: u8, record: u8| [&[3, 0, 0], sizes, &[mask, record]].concat();
    let test = vec![2, 0];
    let (optional, gpu) = (8, 16);
    let message =
        |flags, size: u8, mask, record| [irecv(flags, &[size]), deliver(&[size], mask, record), test.clone()].concat();
    let sizes =
        [message(0, 0, 1, 0), message(0, 100, 0, 0), message(0, kib(8), 0, 0), message(0, kib(70), 0, 1)].concat();
    let eight = [kib(1), kib(64), 0, kib(2), 5, kib(70), 100, kib(8)];
    let group = [irecv(0, &eight), deliver(&eight, 0, 0), test.clone()].concat();
    let flush = vec![9, 1, 0, kib(8), 1, 10, 2, 0x80, 2, 0x80];
    let early = [irecv(optional, &[kib(8)]), test.clone(), deliver(&[kib(8)], 0, 0), test.clone()].concat();
    let outside = [irecv(0, &[10]), vec![6, 0, 0, 0, 1, 100, 0], test.clone(), test.clone()].concat();
    let stray = |slot: u8| vec![5, 0, 0, slot, 1, 0, 0, 0, 0, 0, 0];
    let no_slot = [plan(0, 1, 1), irecv(0, &[1]), stray(7), stray(8), test.clone(), test.clone()].concat();
    let records =
        [irecv(0, &[10, 10]), vec![7, 0, 10, 10, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 1, 0, 0xff], test.clone()].concat();
    vec![
        ("two-rails", [plan(0, 2, 1), sizes.clone()].concat()),
        ("one-sided", [plan(ONE_SIDED, 8, 1), sizes.clone()].concat()),
        ("striped", [plan(STRIPED, 2, 4), sizes.clone()].concat()),
        ("no-counts", [plan(NO_COUNTS, 3, 2), sizes].concat()),
        ("group", [plan(0, 2, 1), group.clone(), group].concat()),
        ("early", [plan(ONE_SIDED, 2, 1), early.clone(), early].concat()),
        ("flush", [plan(ONE_SIDED, 2, 1), message(gpu, kib(8), 0, 0), flush].concat()),
        ("many", [plan(0, 2, 2), [message(0, kib(8), 0, 0), vec![10]].concat().repeat(300)].concat()),
        ("outside", [plan(0, 1, 1), outside].concat()),
        ("no-slot", no_slot),
        ("records", [plan(0, 1, 1), records].concat()),
        ("lane-fails", [plan(0, 2, 1), message(0, 10, 0, 0), vec![11, 1, 0], message(0, 10, 0, 0)].concat()),
        ("lost", [plan(0, 1, 1), irecv(0, &[1]), vec![12, 0xff], test.clone(), test].concat()),
    ]
}

fn lane() -> Vec<(&'static str, Vec<u8>)> {
    let (poll, receives) = (vec![6], vec![9, 4]);
    // Flags: bits 0 and 1 the address, 2 an immediate, 3 an acknowledgement, the high half the key.
    let write = |flags: u8, length: u8, start: u16| [&[0, flags, length], &start.to_le_bytes()[..], &[0]].concat();
    let immediate = |length: u8| vec![0, 12, length, 0, 0, 1, 2, 3, 4, 0];
    let post = vec![8, 64, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
    let half = vec![0, 8, 200, 0, 0, 0xff];
    vec![
        ("writes", [write(8, 64, 0), write(8, 249, 100), poll.clone(), write(0, 0, 0), poll.clone()].concat()),
        ("immediates", [receives.clone(), immediate(8), immediate(200), poll.clone(), poll.clone()].concat()),
        ("no-receives", [immediate(8), poll.clone(), poll.clone()].concat()),
        ("read-only", [vec![0, 0xaa, 64, 0, 0, 0, 0x90, 0], poll.clone()].concat()),
        ("outside", [write(8, 249, 0xfff0), poll.clone()].concat()),
        ("just-outside", [write(8, 64, 0xfff0), poll.clone()].concat()),
        ("wrong-key", [vec![0, 0xc8, 64, 3, 0, 0, 0], poll.clone()].concat()),
        ("spoilt", [vec![3, 8, 8, 8, 64, 0, 0, 0], poll.clone()].concat()),
        ("garbage", [vec![4, 40], vec![0xa5; 40], poll.clone()].concat()),
        ("acknowledgements", [post.clone(), post.clone(), vec![5, 0, 6, 5, 2, 6, 5, 5, 6]].concat()),
        ("absurd-acknowledgement", [post, vec![5, 4, 6]].concat()),
        ("half", [half.clone(), poll.clone(), write(8, 8, 0), poll.clone()].concat()),
        ("closed-in-a-frame", [half.clone(), vec![11], poll.clone(), poll.clone()].concat()),
        ("deregistered", [half, poll.clone(), vec![10], write(8, 249, 0), poll.clone()].concat()),
        ("lingering", [vec![12], write(8, 249, 0), vec![4, 4, 1, 2, 3, 4], poll.clone(), vec![11], poll].concat()),
    ]
}

fn options() -> Vec<(&'static str, Vec<u8>)> {
    let set = |name: &str, value: &str| {
        [&[name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
    };
    let many = |variables: &[(&str, &str)]| {
        with(&[1], &variables.iter().flat_map(|(name, value)| set(name, value)).collect::<Vec<_>>())
    };
    let words = [
        ("RAILWEAVE_FABRIC", "tcp"),
        ("RAILWEAVE_MODE", "fused"),
        ("RAILWEAVE_RAILS", "eth0,10.1.0.0/16"),
        ("RAILWEAVE_WEIGHTS", "80,20"),
        ("RAILWEAVE_LANES", "2,3"),
        ("NCCL_IB_QPS_PER_CONNECTION", "128"),
        ("RAILWEAVE_TRAFFIC_CLASS", "0x60"),
    ];
    let units = [
        ("RAILWEAVE_SOCKET_BUFFER", "4M"),
        ("RAILWEAVE_PEER_TIMEOUT", "1500ms"),
        ("RAILWEAVE_HANDSHAKE_TIMEOUT", "2.5"),
        ("RAILWEAVE_CONTROL_PORT", "5000-5100"),
        ("RAILWEAVE_SPLIT_MIN", "8K"),
        ("NCCL_IB_TC", "-1"),
    ];
    vec![
        ("words", many(&words)),
        ("units", many(&units)),
        ("by-number", vec![1, 128, 3, b't', b'c', b'p', 130, 2, b'e', b't', 133, 1, b'2']),
        ("wrong", with(&[1], &[set("RAILWEAVE_LANES", "0"), set("RAILWEAVE_WEIGHTS", "1,,2")].concat())),
        ("two-in-one", with(&[1], &[set("MPIB_SOUT_QP", "2"), set("MPIB_SUP_QP", "3")].concat())),
        (
            "no-utf8",
            with(
                &[1],
                &[set("RAILWEAVE_RAILS", "e"), vec![15], b"RAILWEAVE_RAILS".to_vec(), vec![2, 0xff, 0xfe]].concat(),
            ),
        ),
        ("unknown", many(&[("RAILWEAVE_LANEX", "2")])),
        ("filter", with(&[0], b"^=mlx5_0:1:3:2, mlx5_1::4,mlx5_2:-1::7,")),
        ("filter-addresses", with(&[0], b"10.1.0.0/16,fd00::/8,::ffff:10.0.0.0/104,eth")),
    ]
}

fn trace() -> Vec<(&'static str, Vec<u8>)> {
    // Each process: boot, part, and the numbers of its times.
    let processes = |boots: [u8; 2]| [&[1, boots[0], 0, 0, 0, 0, boots[1], 0, 0, 0, 0][..]].concat();
    // A frame of one thread's records: process, kind of frame, number of records; then thread and lost ones.
    let records = |process: u8, records: &[[u8; 7]]| {
        [&[process, 3, records.len() as u8][..], &records.concat(), &[0, 0]].concat()
    };
    // Time, kind, two small fields, connection, and two numbers, by their places in the list.
    let send = [
        [5, 2, 0, 0, 0, 1, 1],
        [5, 1, 0, 0, 0, 1, 6],
        [5, 4, 0, 0, 0, 1, 5],
        [5, 4, 1, 0, 0, 1, 6],
        [6, 5, 0, 0, 0, 1, 0],
        [7, 5, 1, 0, 0, 1, 0],
        [7, 6, 0, 0, 0, 1, 6],
        [5, 8, 0, 0, 0, 1, 3],
    ];
    let events = [
        [1, 16, 1, 0, 0, 1, 0],
        [1, 17, 0, 1, 0, 5, 2],
        [2, 16, 3, 0, 0, 2, 1],
        [2, 19, 1, 0, 1, 4, 0],
        [3, 16, 4, 0, 0, 3, 2],
        [3, 21, 0, 9, 0, 3, 6],
        [7, 20, 0, 0, 0, 3, 0],
        [7, 20, 0, 0, 0, 2, 0],
        [1, 20, 0, 0, 0, 1, 0],
    ];
    let receive = [
        [4, 3, 1, 0, 0, 1, 6],
        [6, 4, 0, 0, 0, 1, 0],
        [7, 5, 0, 0, 0, 1, 0],
        [7, 6, 0, 0, 0, 1, 6],
        [7, 7, 0, 0, 0, 2, 0],
    ];
    let clock = [0, 0, 1, 5, 6, 1];
    let down = [[0, 1, 1, 1, 5], [0, 1, 2, 1, 7]].concat();
    let sample = [&[1, 2, 0][..], &[0x40, 0x42, 0x0f, 0], &[6, 5, 6]].concat();
    let whole =
        [&processes([0, 1])[..], &clock, &records(0, &events), &records(0, &send), &records(1, &receive)].concat();
    vec![
        ("job", [&whole[..], &down, &sample].concat()),
        ("one-host", [&processes([0, 0])[..], &records(0, &send), &records(1, &receive)].concat()),
        ("ends-first", [&processes([0, 0])[..], &records(0, &send[4..]), &records(0, &send[..4])].concat()),
        ("bytes", with(&[0], &[3, 0, 0, 0, 1, 2, 3, 4, 0x0a, 1, 0])),
    ]
}

fn telemetry() -> Vec<(&'static str, Vec<u8>)> {
    // A process, and for each section its kind, the bytes by which records are larger, their number, and a part of the
    // number of those that are left out.
    let described = |head: [u8; 5], sections: &[[u8; 4]], records: &[Vec<u8>]| {
        let process = [&[7; 20], &[3, 0, 0, 0, 0xff, 0xff, 0xff, 0xff][..], &[0; 36], b"node7"].concat();
        let process = padded(&process, 320);
        with(&[&[2], &head[..], &sections.concat()].concat(), &[process, records.concat()].concat())
    };
    // Records begin with their generation.
    let device = padded(&[&[1], &*padded(b"mlx5_0", 64), &[0, 0, 3, 0, 2, 0, 0, 0], b"verbs"].concat(), 249);
    let connection = padded(&[1, 1, 0, 0, 0, 1, 2, 3, 0, 0, 0, 0, 0, 9, 0, 0, 0], 249);
    let rail =
        [padded(&[2, 1, 0, 0, 0, 0, 1, 3, 1], 89), padded(b"10.0.0.1", 48), padded(b"10.0.0.2", 48), vec![1; 64]];
    let event =
        |number: u8| padded(&[&[2, number][..], &[0; 7], &[1, 0, 0, 0, 0, 0, 4, 0], b"opened \xff"].concat(), 249);
    let port = padded(&[&[2], &*padded(b"mlx5_0", 72), b"verbs"].concat(), 249);
    let all = [vec![device, connection, rail.concat()], (1..=3).map(event).collect()].concat();
    let sections = [[1, 0, 1, 0], [2, 0, 1, 0], [3, 0, 1, 0], [4, 0, 3, 1]];
    // As bytes: a header whose only section has an event, and one without sections.
    let mut bytes = [&b"railweav\x01\0\0\0\0\x02\0\0"[..], &[0; 32], &[0x90, 1, 0, 0, 24, 0, 1, 0]].concat();
    bytes.resize(512, 0);
    bytes[24] = 2;
    bytes[400..424].copy_from_slice(&[&[4, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0][..], &[0; 4], &[1], &[0; 7]].concat());
    bytes.extend(padded(&[&[2, 0, 0, 0, 0, 0, 0, 0], &event(1)[1..]].concat(), 256));
    let mut overlap = bytes.clone();
    overlap.copy_within(400..424, 424);
    (overlap[54], overlap[424]) = (2, 3);
    let mut small_records = bytes.clone();
    (small_records[404], small_records[405]) = (128, 0);
    // Text that takes more room once its first byte is replaced: its last letter is cut.
    let long = [&[2], &[0; 16][..], &[0xff], &[b'x'; 228], "ü".as_bytes()].concat();
    vec![
        ("all-kinds", described([2, 3, 4, 0, 0], &sections, &all)),
        ("full-ring", described([2, 7, 1, 0, 0], &sections[3..], &all[3..])),
        ("later-version", described([2, 1, 2, 9, 16], &[[6, 0, 1, 0], [1, 64, 1, 0]], &all[..2])),
        ("kind-twice", described([1, 0, 2, 0, 0], &[[1, 0, 1, 0]; 2], &all[..1])),
        ("newer-record", described([1, 3, 1, 0, 0], &sections[3..], &all[3..])),
        ("signed", with(&[1], &bytes)),
        ("unsigned", with(&[0], &bytes)),
        ("overlap", with(&[1], &overlap)),
        ("small-records", with(&[1], &small_records)),
        ("ports", described([2, 0, 2, 0, 0], &[[5, 0, 1, 0], [3, 0, 1, 0]], &[port, all[2].clone()])),
        ("long-text", described([2, 1, 1, 0, 0], &[[4, 0, 1, 0]], &[long])),
        ("no-sections", with(&[1], &[&bytes[..54], &[0; 458]].concat())),
        ("other-version", with(&[1], &[b"railweav\x02", &bytes[9..]].concat())),
        ("short", with(&[0], b"railweav\x01")),
    ]
}

fn padded(bytes: &[u8], length: usize) -> Vec<u8> {
    let mut padded = bytes.to_vec();
    padded.resize(length, 0);
    padded
}

fn policy_file() -> Vec<(&'static str, Vec<u8>)> {
    const EXAMPLE: &str = "railweave-policy 1\nwritten 1790000000\nttl 30\n\n# a comment\nrail=mlx5_2 -> drain\n\
        job=4711 rank=0-7 peer=node3,node4 -> weights 80,20\ndevice=mlx5_0+* rail=0 -> only\n\
        peer=node9* -> policy speed\nany -> policy adaptive\n";
    let word = |word: &str| WORDS.iter().position(|known| *known == word).map(|at| vec![128 + at as u8]);
    // A text that is no word is given in full.
    let words = |now: u8, words: &[&str]| {
        let literal = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
        let all = words.iter().flat_map(|text| word(text).unwrap_or_else(|| literal(text)));
        with(&[now, 1], &all.collect::<Vec<_>>())
    };
    let head = ["railweave-policy 1\n", "written 1790000000\n", "ttl 30\n"];
    let rule = |rule: &[&str]| words(0, &[&head, rule, &["\n"]].concat());
    vec![
        ("example", with(&[0, 0], EXAMPLE.as_bytes())),
        ("stale", with(&[1, 0], EXAMPLE.as_bytes())),
        ("future", with(&[2, 0], EXAMPLE.as_bytes())),
        ("no-utf8", with(&[0, 0], b"railweave-policy 1\nttl forever\npeer=\xff -> drain\n")),
        ("empty", vec![]),
        ("forever", words(3, &["railweave-policy 1\n", "ttl forever\n", "any", " -> ", "policy static"])),
        ("weights", rule(&["any", " -> ", "weights 1,0,0,0,0,0,0,1000000"])),
        ("drain-all", rule(&["rail=", "*", " -> ", "drain", " ", "weights 80,20"])),
        ("only", rule(&["rail=1,7", " ", "rank=0-7", " -> ", "only", " ", "policy speed"])),
        ("twice", rule(&["rail=0", " ", "rail=0", " -> ", "drain"])),
        ("weights-and-policy", rule(&["any", " -> ", "weights 80,20", " ", "policy speed"])),
        ("large-number", rule(&["rank=", "18446744073709551615", " -> ", "policy speed"])),
        ("not-printable", rule(&["any", " ", "\u{1b}", "\u{a0}", " -> ", "policy speed"])),
        ("large-weight", rule(&["any", " -> ", "weights 1,1000001"])),
        ("no-weight", rule(&["any", " -> ", "weights 0,0"])),
    ]
}

fn seed_policy() -> Vec<(&'static str, Vec<u8>)> {
    let entry = |weight: f32, version: u32| [weight.to_le_bytes(), version.to_le_bytes()].concat();
    let table = |ranks: u8, entries: &[(f32, u32)]| {
        let entries: Vec<_> = entries.iter().flat_map(|(weight, version)| entry(*weight, *version)).collect();
        with(&[0, ranks, (entries.len() / 8) as u8], &entries)
    };
    let sets = |rank: u8, weight: f32, version: u8| [&[3, rank], &weight.to_le_bytes()[..], &[version]].concat();
    let good = table(3, &[(0.25, 1), (0.5, 2), (0.0, 0)]);
    let then = |steps: &[&[u8]]| with(&good, &steps.concat());
    vec![
        ("agent", then(&[&sets(2, 1.0, 1), &sets(0, 0.125, 2), &sets(1, 0.0, 0)])),
        ("wrong-weights", then(&[&sets(0, f32::NAN, 2), &sets(1, -0.1, 3), &sets(1, 1.5, 4)])),
        ("cut", then(&[&[6, 20, 0], &[6, 7, 0], &[6, 32, 0]])),
        ("other-magic", then(&[&[5, 0, 4], b"abcd", &sets(0, 0.75, 2), &[5, 0, 4, 0x42, 0x49, 0x50, 0x4d]])),
        ("gone", then(&[&sets(0, 2.0, 2), &[7], &table(1, &[(0.5, 1)]), &sets(0, 3.0, 2)])),
        ("replaced", then(&[&table(2, &[(0.0, 0), (0.5, 1)]), &[2, 4], b"none"])),
        ("fewer-ranks", then(&[&[5, 4, 4, 1, 0, 0, 0], &[5, 4, 4, 3, 0, 0, 0]])),
        ("many-ranks", [&[0, 255, 1, 0xff, 0xff, 0xff, 0xff], entry(0.5, 1).as_slice()].concat()),
        ("no-file", vec![7]),
    ]
}
