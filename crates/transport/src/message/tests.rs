//! Every message as bytes: whole, cut, damaged, and at its limits.

use proptest::prelude::*;

use railweave_fabric::{MAX_RAILS, RailId, RailSet};

use super::*;
use crate::sequence::Sequence;

fn port(last: u16) -> PortOffer {
    PortOffer {
        link_layer: LinkLayer::Tcp,
        prefix_len: 24,
        lanes: 2,
        speed_mbps: 100_000,
        mtu: 9000,
        rail_id: -1,
        plane_id: 3,
        address: Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0x0a00, last),
    }
}

fn rail(message: RailMessage) -> Message {
    Message::Rail(RailNews { rail: RailId::default(), incarnation: Incarnation(0xfffe), message })
}

fn listed(size: Option<u32>) -> Listed {
    let of = RailSet::from_bits;
    Listed { sequence: u32::MAX, mask: of(7), unsure: of(3), placed: of(4), size, is_refused: size.is_none() }
}

fn messages() -> Vec<Message> {
    let offer = Offer {
        nonce: 77,
        striped: true,
        traffic_class: Some(104),
        ports: vec![port(1), port(2)],
        ways: Ways {
            first_step: Step::OtherPort,
            others: 1,
            targets: vec![port(3).address; 3],
            routes: vec![Route::Unknown, Route::Leaves, Route::Elsewhere, Route::Leaves, Route::Failed, Route::Unknown],
        },
    };
    let answer = RailAnswer { connector_port: 1, lanes: 2, port: port(9) };
    let lanes = Lanes {
        byte_counts: true,
        stream: 0xffff_0000_1234,
        rails: vec![
            RailLanes::Open { key: 0x55, endpoints: vec![LaneEndpoint([9; 48]); 16] },
            RailLanes::Dropped { reason: "no route to host".into(), is_of_way: false },
            RailLanes::Dropped { reason: "no packet came through".into(), is_of_way: true },
        ],
    };
    vec![
        Message::Hello(vec![1, 2, 3]),
        Message::Offer(offer),
        Message::Answer { token: Token([5; 16]), step: Step::Forwarded, rails: vec![answer; 8] },
        Message::Lanes(lanes),
        Message::Ready { usable: 3 },
        Message::Refuse { fault: Fault::Configuration, of_rails: true, reason: "modes differ".into() },
        Message::Bye(None),
        Message::Bye(Some(Received::new(Sequence::new(77), |slot| slot.number() % 2 == 0))),
        Message::Proof([0xab; 32]),
        Message::Ping(Pulse { number: 7, clock_ns: 1 << 40 }),
        Message::Pong(Pulse { number: u64::MAX, clock_ns: 3 }),
        Message::Wait,
        Message::Probe { rails: 5 },
        Message::Resume(Resume { session: SessionId([7; 16]), attempt: 3, received: 1 << 33 }),
        Message::Resumed(Some(9)),
        Message::Resumed(None),
        Message::Have(12),
        rail(RailMessage::Suspect),
        rail(RailMessage::Down(vec![listed(Some(4096)), listed(None)])),
        rail(RailMessage::State(vec![Seen { sequence: 7, parts: RailSet::from_bits(2) }])),
        rail(RailMessage::Offer(vec![LaneEndpoint([9; 48]); 16])),
        rail(RailMessage::Lanes { token: Token([3; 16]), endpoints: vec![LaneEndpoint([8; 48])] }),
        rail(RailMessage::Up),
    ]
}

#[test]
fn every_message_comes_out_as_it_went_in_and_only_when_it_is_whole() {
    for message in messages() {
        let frame = Frame { connection: 42, message };
        let bytes = frame.encode();
        for cut in 0..bytes.len() {
            assert_eq!(Frame::decode(&bytes[..cut]), Ok(None));
        }
        assert_eq!(Frame::decode(&bytes), Ok(Some((frame, bytes.len()))));
    }
}

#[test]
fn the_longest_message_fits_into_a_frame() {
    let rail = RailLanes::Open { key: 1, endpoints: vec![LaneEndpoint::default(); MAX_LANES] };
    let lanes = Lanes { byte_counts: false, stream: 0, rails: vec![rail; MAX_RAILS] };
    let frame = Frame { connection: 1, message: Message::Lanes(lanes) };
    assert!(frame.encode().len() <= MAX_FRAME_BYTES);
}

#[test]
fn absurd_counts_are_refused_before_they_are_believed() {
    let offer = Frame { connection: 1, message: messages()[1].clone() }.encode();
    for (at, value, words) in [
        (8 + 12, 9, "flags"),
        (24, 0, "number of ports is 0x0; allowed: 1 to 16"),
        (24, 17, "number of ports is 0x11; allowed: 1 to 16"),
        (25, 2, "number of other ports is 0x2; allowed: 1 to 8 fewer"),
        (25, 255, "number of other ports is 0xff"),
        (26, 0, "first step is 0x0; allowed: 1 to 5"),
        (26, 6, "first step is 0x6; allowed: 1 to 5"),
        (27, 16, "number of targets is 0x10; allowed: at most 15"),
        (offer.len() - 1, 4, "a route is 0x4"),
    ] {
        let mut bad = offer.clone();
        bad[at] = value;
        let text = Frame::decode(&bad).unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
    }
    let mut long = offer;
    long[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(Frame::decode(&long).unwrap_err().to_string().contains("length"));
}

#[test]
fn a_long_hello_is_refused_by_its_first_bytes() {
    let hello = |bytes| Frame { connection: 0, message: Message::Hello(vec![7; bytes]) }.encode();
    assert!(matches!(Frame::decode(&hello(MAX_HELLO_BYTES)), Ok(Some(_))));
    let long = hello(MAX_HELLO_BYTES + 1);
    let text = Frame::decode(&long[..FRAME_HEADER_BYTES]).unwrap_err().to_string();
    assert!(text.contains("HELLO's length is 0x201"), "{text}");
}

/// Returns the message that comes out if this one goes in.
fn read_back(message: &Message) -> Result<Message, DecodeError> {
    let bytes = Frame { connection: 1, message: message.clone() }.encode();
    Frame::decode(&bytes).map(|frame| frame.expect("it is whole").0.message)
}

#[test]
fn flags_that_are_not_set_and_a_class_that_is_not_asked_for_come_out_as_they_went_in() {
    for striped in [false, true] {
        for traffic_class in [None, Some(0), Some(1), Some(255)] {
            let offer =
                Message::Offer(Offer { nonce: 1, striped, traffic_class, ports: vec![port(1)], ways: Ways::default() });
            assert_eq!(read_back(&offer), Ok(offer));
        }
    }
    for byte_counts in [false, true] {
        let rails = vec![RailLanes::Dropped { reason: String::new(), is_of_way: false }];
        let lanes = Message::Lanes(Lanes { byte_counts, stream: 1, rails });
        assert_eq!(read_back(&lanes), Ok(lanes));
    }
}

#[test]
fn a_traffic_class_is_one_byte_or_absent() {
    let offer = Offer { nonce: 1, striped: false, traffic_class: None, ports: vec![port(1)], ways: Ways::default() };
    let good = Frame { connection: 1, message: Message::Offer(offer) }.encode();
    for class in [-2i16, 256, i16::MAX] {
        let mut bad = good.clone();
        bad[FRAME_HEADER_BYTES + 10..][..2].copy_from_slice(&class.to_le_bytes());
        assert!(Frame::decode(&bad).unwrap_err().to_string().contains("traffic class"), "{class}");
    }
}

#[test]
fn every_count_and_length_may_reach_its_limit_and_go_no_further() {
    let offer = |port| {
        let ports = vec![port; MAX_RAILS];
        read_back(&Message::Offer(Offer {
            nonce: 1,
            striped: false,
            traffic_class: None,
            ports,
            ways: Ways::default(),
        }))
    };
    assert!(offer(PortOffer { prefix_len: 128, lanes: MAX_LANES as u8, ..port(1) }).is_ok());
    for (wrong, words) in [
        (PortOffer { prefix_len: 129, ..port(1) }, "prefix length is 0x81; allowed: at most 128"),
        (PortOffer { lanes: MAX_LANES as u8 + 1, ..port(1) }, "number of lanes is 0x11; allowed: 1 to 16"),
        (PortOffer { lanes: 0, ..port(1) }, "number of lanes is 0x0; allowed: 1 to 16"),
    ] {
        let text = offer(wrong).unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
    }
    let ways = |others, targets: usize, ports: usize| Ways {
        first_step: Step::Subnet,
        others,
        targets: vec![port(3).address; targets],
        routes: vec![Route::Leaves; targets * ports],
    };
    let offer = |ports: usize, ways| {
        let ports = vec![port(1); ports];
        read_back(&Message::Offer(Offer { nonce: 1, striped: false, traffic_class: None, ports, ways }))
    };
    assert!(offer(MAX_OFFERED_PORTS, ways(8, MAX_TARGETS, MAX_OFFERED_PORTS)).is_ok());
    let too_many = offer(MAX_OFFERED_PORTS, ways(8, MAX_TARGETS + 1, MAX_OFFERED_PORTS)).unwrap_err().to_string();
    assert!(too_many.contains("OFFER's number of targets is 0x10; allowed: at most 15"), "{too_many}");
    assert!(offer(MAX_RAILS + 1, ways(0, 0, 0)).unwrap_err().to_string().contains("other ports"), "nine of one device");
    let answer = Message::Answer {
        token: Token([5; 16]),
        step: Step::Subnet,
        rails: vec![RailAnswer { connector_port: 1, lanes: 2, port: port(9) }],
    };
    let mut bytes = Frame { connection: 1, message: answer }.encode();
    bytes[FRAME_HEADER_BYTES + 17] = 6;
    assert!(Frame::decode(&bytes).unwrap_err().to_string().contains("ANSWER's step is 0x6; allowed: 1 to 5"));
    for rails in [0, MAX_RAILS + 1] {
        let answer = RailAnswer { connector_port: 1, lanes: 2, port: port(9) };
        let text =
            read_back(&Message::Answer { token: Token([5; 16]), step: Step::Subnet, rails: vec![answer; rails] });
        assert!(text.unwrap_err().to_string().contains("ANSWER's number of rails"));
        let rails = vec![RailLanes::Dropped { reason: String::new(), is_of_way: false }; rails];
        let text = read_back(&Message::Lanes(Lanes { byte_counts: false, stream: 0, rails }));
        assert!(text.unwrap_err().to_string().contains("LANES' number of rails"));
    }
}

#[test]
fn a_way_is_that_from_a_port_to_an_address() {
    let Message::Offer(Offer { mut ways, .. }) = messages()[1].clone() else { panic!("the second is OFFER") };
    ways.targets = vec![port(3).address, port(4).address, port(5).address];
    let routes = |of: usize| [3, 4, 5].map(|target| ways.route(of, port(target).address));
    assert_eq!(routes(0), [Route::Unknown, Route::Leaves, Route::Elsewhere]);
    assert_eq!(routes(1), [Route::Leaves, Route::Failed, Route::Unknown]);
    assert_eq!(routes(2), [Route::Unknown; 3], "a port that was not offered");
    assert_eq!(ways.route(0, port(6).address), Route::Unknown, "no target");
}

#[test]
fn a_frame_may_be_16_kib_long_and_no_longer() {
    let header = |length: usize| {
        let mut out = Writer::default();
        out.u32(length as u32).u16(2).zeros(2).u32(1);
        FrameHeader::decode(out.bytes.first_chunk().expect("it is a header"))
    };
    let longest = 16 * 1024 - FRAME_HEADER_BYTES;
    assert_eq!(header(longest), Ok(FrameHeader { length: longest as u32, kind: 2, connection: 1 }));
    assert!(header(longest + 1).unwrap_err().to_string().contains("a frame's length"));
}

#[test]
fn each_fault_keeps_its_number() {
    for (fault, code) in [(Fault::Local, 0), (Fault::Peer, 1), (Fault::Protocol, 2), (Fault::Configuration, 3)] {
        let refuse = Message::Refuse { fault, of_rails: false, reason: String::new() };
        let mut bytes = Frame { connection: 1, message: refuse.clone() }.encode();
        assert_eq!((bytes[FRAME_HEADER_BYTES], read_back(&refuse)), (code, Ok(refuse)));
        bytes[FRAME_HEADER_BYTES] = 4;
        assert!(Frame::decode(&bytes).unwrap_err().to_string().contains("REFUSE's fault"));
    }
}

#[test]
fn each_message_has_a_number_and_a_name_of_its_own() {
    let messages = messages();
    let mut kinds: Vec<u16> = messages.iter().map(Message::kind).collect();
    kinds.dedup();
    assert_eq!(kinds, (1..=21).collect::<Vec<_>>());
    let mut names: Vec<_> = messages.iter().map(Message::name).collect();
    names.dedup();
    let known = [
        "HELLO",
        "OFFER",
        "ANSWER",
        "LANES",
        "READY",
        "REFUSE",
        "BYE",
        "PROOF",
        "PING",
        "PONG",
        "WAIT",
        "PROBE",
        "RESUME",
        "RESUMED",
        "HAVE",
        "RAIL_SUSPECT",
        "RAIL_DOWN",
        "RAIL_STATE",
        "RAIL_OFFER",
        "RAIL_LANES",
        "RAIL_UP",
    ];
    assert_eq!(names, known);
    let unknown = [0, 0, 0, 0, 22, 0, 0, 0, 1, 0, 0, 0];
    assert!(Frame::decode(&unknown).unwrap_err().to_string().contains("allowed: 1 to 21"));
}

#[test]
fn a_message_with_a_byte_too_many_is_refused() {
    for message in messages().into_iter().filter(|message| !matches!(message, Message::Hello(_) | Message::Bye(None))) {
        let mut bytes = Frame { connection: 1, message }.encode();
        let length = (bytes.len() - FRAME_HEADER_BYTES + 1) as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes.push(0);
        assert!(Frame::decode(&bytes).unwrap_err().to_string().ends_with("has 1 bytes too many"));
    }
}

#[test]
fn frames_are_taken_from_a_stream_one_by_one() {
    let frame = |connection, message| Frame { connection, message };
    let (first, second) = (frame(7, Message::Bye(None)), frame(8, Message::Proof([1; 32])));
    let stream = [first.encode(), second.encode()].concat();
    assert_eq!(Frame::decode(&stream), Ok(Some((first, FRAME_HEADER_BYTES))));
    assert_eq!(Frame::decode(&stream[FRAME_HEADER_BYTES..]), Ok(Some((second, FRAME_HEADER_BYTES + 32))));
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(kind in 0u16..17, body in proptest::collection::vec(any::<u8>(), 0..600)) {
        let mut bytes = Writer::default();
        bytes.u32(body.len() as u32).u16(kind).zeros(2).u32(1).put(&body);
        let _ = Frame::decode(&bytes.bytes);
    }

    #[test]
    fn one_changed_byte_never_panics(which in 0usize..11, at: prop::sample::Index, value: u8) {
        let mut bytes = Frame { connection: 42, message: messages()[which].clone() }.encode();
        let at = at.index(bytes.len());
        bytes[at] = value;
        let _ = Frame::decode(&bytes);
    }
}
