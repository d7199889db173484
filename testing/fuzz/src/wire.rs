//! Everything that is decoded from a peer's bytes alone: the handle, the preface, control frames, HELLO, a lane's
//! frames.
//!
//! Decoded values encode to the same bytes. Three things are lossy on purpose, and for them a second round must change
//! nothing: a handle orders its addresses by port, text loses characters that cannot be printed, and a session's
//! preface and HELLO leave room for later versions.

use std::net::IpAddr;

use railweave_fabric_tcp::frame;
use railweave_topology::{DialAddress, NetworkAddress, dial_order};
use railweave_transport::{
    Frame, Handle, Hello, ImmediateLayout, LanePreface, Message, PREFACE_BYTES, Preface, RailLanes,
};

use crate::input::Input;

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.u8() % 6 {
        0 => handle(&input.array()),
        1 => preface(&input.array()),
        2 => frames(input.rest()),
        3 => hello(input.rest()),
        4 => lane_frame(&input.array()),
        _ => immediate(1 + usize::from(input.u8() % 8), input.u32()),
    }
}

fn handle(bytes: &[u8; Handle::BYTES]) {
    let handle = match Handle::decode(bytes) {
        Ok(handle) => handle,
        Err(error) => return says_something(&error.to_string()),
    };
    let again = Handle::decode(&handle.encode()).expect("what a handle encodes to decodes");
    let sorted = |handle: &Handle| {
        let mut addresses: Vec<_> = handle.addresses.iter().map(|a| (a.port, a.address, a.prefix_len)).collect();
        addresses.sort_unstable();
        addresses
    };
    assert_eq!(sorted(&again), sorted(&handle), "a handle that was decoded loses no address");
    assert_eq!(again.encode(), handle.encode(), "a handle encodes alike twice");
    assert_eq!((again.process, again.nonce), (handle.process, handle.nonce));

    let dial: Vec<_> = handle
        .addresses
        .iter()
        .map(|entry| DialAddress { address: entry.address, prefix_len: entry.prefix_len, purpose: entry.purpose() })
        .collect();
    let own = [NetworkAddress::new(IpAddr::from([10, 0, 0, 1]), 24), NetworkAddress::new(IpAddr::from([0; 16]), 64)];
    let mut order = dial_order(&dial, &own);
    assert!(order.iter().all(|index| *index < dial.len()));
    order.sort_unstable();
    order.dedup();
    assert!(order.len() <= dial.len(), "every address is dialled at most once");
}

fn preface(bytes: &[u8; PREFACE_BYTES]) {
    match Preface::decode(bytes) {
        Ok(lane @ Preface::Lane(LanePreface { .. })) => assert_eq!(lane.encode(), *bytes),
        Ok(Preface::Session) => assert_eq!(Preface::decode(&Preface::Session.encode()), Ok(Preface::Session)),
        Err(error) => says_something(&error.to_string()),
    }
}

/// Decodes a stream of frames as a session reads it: it ends at the first invalid one.
fn frames(mut bytes: &[u8]) {
    loop {
        match Frame::decode(bytes) {
            Ok(None) => return,
            Err(error) => return says_something(&error.to_string()),
            Ok(Some((frame, length))) => {
                assert!(length > 0 && length <= bytes.len(), "a frame of {length} bytes of {}", bytes.len());
                round_trip(&frame, &bytes[..length]);
                bytes = &bytes[length..];
            }
        }
    }
}

fn round_trip(frame: &Frame, bytes: &[u8]) {
    let encoded = frame.encode();
    if is_verbatim(&frame.message) {
        assert_eq!(encoded, bytes, "{}", frame.message.name());
        return;
    }
    let (again, length) = Frame::decode(&encoded).expect("what a frame encodes to decodes").expect("and is whole");
    assert_eq!(length, encoded.len());
    assert_eq!(again.encode(), encoded, "{} encodes alike twice", frame.message.name());
}

/// Returns true if a message's text came through unchanged.
fn is_verbatim(message: &Message) -> bool {
    let whole = |text: &str| !text.contains('\u{fffd}');
    match message {
        Message::Refuse { reason, .. } => whole(reason),
        Message::Lanes(lanes) => lanes.rails.iter().all(|rail| match rail {
            RailLanes::Dropped { reason, .. } => whole(reason),
            RailLanes::Open { .. } => true,
        }),
        _ => true,
    }
}

fn hello(bytes: &[u8]) {
    let theirs = match Hello::decode(bytes) {
        Ok(hello) => hello,
        Err(error) => return says_something(&error.to_string()),
    };
    let encoded = theirs.encode();
    let whole = !theirs.host.contains('\u{fffd}') && !theirs.build.contains('\u{fffd}');
    if whole {
        // Before version 4 it had no port at its end.
        let known = if bytes.len() < encoded.len() { &encoded[..encoded.len() - 2] } else { &encoded };
        assert!(bytes.starts_with(known), "HELLO is what it was decoded from, but for what a later version appends");
    }
    assert_eq!(Hello::decode(&encoded).expect("what HELLO encodes to decodes").encode(), encoded);
    let name = theirs.peer_name();
    assert!(!name.contains(char::is_control), "a peer's name may stand in a log: {name:?}");
    for wanted in [Default::default(), theirs.process] {
        let ours = Hello { protocol_min: 1, protocol_max: 1, mode: 1, fabrics: 1, wanted, ..theirs.clone() };
        if let Err(error) = ours.check(&theirs) {
            says_something(&error.to_string());
        }
    }
}

fn lane_frame(bytes: &[u8; frame::HEADER_BYTES]) {
    match frame::Frame::decode(bytes) {
        Ok(frame) => assert_eq!(frame.encode(), *bytes),
        Err(error) => says_something(&error.to_string()),
    }
}

fn immediate(rails: usize, bits: u32) {
    let layout = ImmediateLayout::new(rails);
    let parts = layout.decode(bits);
    assert_eq!(layout.encode(parts), bits);
    assert!(parts.size_q <= layout.all_ones() && u32::from(parts.mask.bits()) < 1 << rails);
}

fn says_something(text: &str) {
    assert!(
        text.contains(' ') && !text.contains(char::is_control),
        "an error says what is wrong, in one line: {text:?}"
    );
}
