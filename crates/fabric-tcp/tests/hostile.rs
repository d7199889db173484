//! A peer that talks to a lane through a bare socket. Its bytes never cause a panic or a forbidden write; invalid ones
//! end the lane with a reason in words.

mod pairs;

use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use railweave_fabric::conformance::{Completion, poll};
use railweave_fabric::{
    Access, ClosedAt, Domain, LaneId, LocalSlice, Memory, PostError, Rail, RailError, RailSpec, Region, Registration,
    RemoteSlice, Role, WorkId, Write,
};
use railweave_fabric_tcp::frame::{Body, Frame, HEADER_BYTES, MAX_WRITE, WriteFrame};
use railweave_fabric_tcp::{TcpConfig, TcpDomain, TcpRail, TcpRegistration};
use railweave_patience::{Deadline, LIMIT, in_time};

const LENGTH: usize = 100_000;
const SPEC: RailSpec = RailSpec {
    role: Role::Receiver,
    lanes: 1,
    send_depth: 8,
    receive_depth: 4,
    lane_receives: 4,
    traffic_class: None,
    peer: None,
};

/// A rail with one lane; the test is its peer.
struct Victim {
    rail: TcpRail,
    region: Arc<Region>,
    registration: Option<TcpRegistration>,
    key: u32,
    peer: TcpStream,
    log: Vec<Completion>,
}

impl Victim {
    fn new() -> Self {
        let (ours, peer) = pairs::sockets();
        peer.set_nodelay(true).unwrap();
        peer.set_read_timeout(Some(LIMIT)).unwrap();
        let domain = TcpDomain::new(TcpConfig::default());
        let rail = pairs::rail(&domain, &SPEC, vec![ours]);
        let region = Arc::new(Region::new(LENGTH));
        let registration = domain.register(Memory::from_region(&region), Access::DATA).unwrap();
        let key = registration.remote_key();
        Self { rail, region, registration: Some(registration), key, peer, log: Vec::new() }
    }

    fn poll(&mut self) {
        self.log.append(&mut poll(&mut self.rail, 8));
    }

    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let deadline = Deadline::new(LIMIT);
        while !done(self) {
            deadline.check(format_args!("{what}, with {:?},", self.log));
            self.poll();
        }
    }

    fn until_quiet(&mut self) {
        for _ in 0..50 {
            self.poll();
            std::thread::yield_now();
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.peer.write_all(bytes).unwrap();
    }

    fn receive_frame(&mut self) -> Frame {
        let mut header = [0; HEADER_BYTES];
        in_time(self.peer.read_exact(&mut header), "a frame");
        Frame::decode(&header).unwrap()
    }

    fn failures(&self) -> Vec<RailError> {
        let mut failures = Vec::new();
        for completion in &self.log {
            if let Completion::Failed { error, .. } = completion {
                failures.push((**error).clone());
            }
        }
        failures
    }

    /// Waits for the failure, and checks that it comes once and that the lane stays dead.
    fn expect_failure(&mut self) -> RailError {
        self.until("the failure", |victim| !victim.failures().is_empty());
        self.until_quiet();
        let mut failures = self.failures();
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert_eq!(self.post(0), Err(PostError::Broken));
        assert_eq!(self.rail.post_receives(1), Err(PostError::Broken));
        failures.remove(0)
    }

    /// Like [`Self::expect_failure`], for a write that is refused for this reason.
    fn expect_refusal(&mut self, words: &str) {
        match self.expect_failure() {
            RailError::WriteRefused { why, .. } if why.contains(words) => {}
            other => panic!("{other:?} instead of a write refused because {words:?}"),
        }
    }

    fn write(&self, length: u32) -> WriteFrame {
        WriteFrame {
            immediate: None,
            wants_acknowledgement: true,
            length,
            key: self.key,
            address: self.region.address(),
        }
    }

    fn post(&mut self, length: usize) -> Result<(), PostError> {
        let local = LocalSlice { address: self.region.address(), length: length as u32, key: self.key };
        let write = Write {
            local,
            remote: RemoteSlice::default(),
            immediate: None,
            signalled: true,
            host: true,
            id: WorkId(5),
        };
        self.rail.post(LaneId(0), &[write])
    }

    fn is_untouched(&self) -> bool {
        let mut all = vec![0; LENGTH];
        self.region.read(0, &mut all);
        all.iter().all(|&byte| byte == 0)
    }
}

fn header(write: WriteFrame) -> [u8; HEADER_BYTES] {
    Frame { acknowledged: 0, body: Body::Write(write) }.encode()
}

fn acknowledgement(acknowledged: u64) -> [u8; HEADER_BYTES] {
    Frame { acknowledged, body: Body::Acknowledgement }.encode()
}

#[test]
fn a_well_behaved_bare_socket_is_served() {
    let mut victim = Victim::new();
    // Byte by byte, with polls between.
    for byte in header(victim.write(3)).into_iter().chain([1, 2, 3]) {
        victim.send(&[byte]);
        victim.poll();
    }
    victim.until_quiet();
    assert_eq!(victim.region.load(0, Ordering::Acquire).to_le_bytes(), [1, 2, 3, 0, 0, 0, 0, 0]);
    assert_eq!(victim.receive_frame(), Frame { acknowledged: 1, body: Body::Acknowledgement });
    victim.post(8).unwrap();
    let frame = victim.receive_frame();
    assert!(matches!(frame.body, Body::Write(WriteFrame { length: 8, wants_acknowledgement: true, .. })), "{frame:?}");
    victim.send(&acknowledgement(1));
    victim.until("the completion", |victim| victim.log == [Completion::Sent { id: WorkId(5) }]);
}

#[test]
fn a_peer_that_reads_nothing_for_longer_than_the_timeout_is_served_when_it_reads() {
    let mut victim = Victim::new();
    let config = TcpConfig { peer_timeout: Some(Duration::from_millis(300)), ..TcpConfig::default() };
    let domain = TcpDomain::new(config);
    let (ours, peer) = pairs::sockets();
    victim.rail = pairs::rail(&domain, &SPEC, vec![ours]);
    victim.peer = peer;
    let region = Arc::new(Region::new(64 << 20));
    let registration = domain.register(Memory::from_region(&region), Access::SOURCE).unwrap();
    let local = LocalSlice { address: region.address(), length: 64 << 20, key: registration.local_key() };
    let write =
        Write { local, remote: RemoteSlice::default(), immediate: None, signalled: true, host: true, id: WorkId(1) };
    victim.rail.post(LaneId(0), &[write]).unwrap();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(1500) {
        victim.poll();
    }
    assert_eq!(victim.log, [], "its host answers all the while");
    let mut peer = victim.peer.try_clone().unwrap();
    let reader = std::thread::spawn(move || peer.read_exact(&mut vec![0; HEADER_BYTES + (64 << 20)]).unwrap());
    while !reader.is_finished() {
        victim.poll();
    }
    reader.join().unwrap();
    victim.send(&acknowledgement(1));
    victim.until("the completion", |victim| victim.log == [Completion::Sent { id: WorkId(1) }]);
}

#[test]
fn invalid_headers_end_the_lane() {
    let good = WriteFrame { length: 8, ..WriteFrame::default() };
    let with = |at: usize, value: u8| {
        let mut bytes = header(good);
        bytes[at] = value;
        bytes
    };
    let long = |length| header(WriteFrame { length, ..good });
    let cases = [
        ([0; HEADER_BYTES], "kind 0"),
        ([0xff; HEADER_BYTES], "kind 255"),
        (*b"GET / HTTP/1.1\r\nHost: 127.0.0.1\n", "kind 71"),
        (with(1, 0x80), "flags 0x80"),
        (with(2, 1), "reserved"),
        (with(4, 1), "absent immediate"),
        (long(MAX_WRITE + 1), "1073741825 bytes"),
        (long(u32::MAX), "4294967295 bytes"),
    ];
    for (bytes, words) in cases {
        let mut victim = Victim::new();
        victim.send(&bytes);
        let failure = victim.expect_failure();
        assert!(matches!(&failure, RailError::NoFrame { why } if why.contains(words)), "{words}: {failure:?}");
        assert_eq!(victim.peer.read(&mut [0; 100]).unwrap(), 0, "the peer is not told");
        assert!(victim.is_untouched());
    }
    let mut victim = Victim::new();
    victim.send(&long(MAX_WRITE));
    victim.expect_refusal("registered here");
    assert_eq!(victim.peer.read(&mut [0; 100]).unwrap(), 0, "the peer is not told");
    assert!(victim.is_untouched());
}

#[test]
fn a_longest_write_into_short_memory_is_refused_before_its_first_byte() {
    let mut victim = Victim::new();
    let mut bytes = header(victim.write(MAX_WRITE)).to_vec();
    bytes.resize(20_000, 0xee);
    victim.send(&bytes);
    victim.expect_refusal("outside the 100000 bytes");
    assert!(victim.is_untouched());
}

#[test]
fn impossible_acknowledgements_are_refused() {
    let mut victim = Victim::new();
    victim.send(&acknowledgement(1));
    let failure = victim.expect_failure();
    assert_eq!(failure, RailError::WrongAcknowledgement { count: 1, before: 0, sent: 0 });

    let mut victim = Victim::new();
    victim.post(8).unwrap();
    victim.post(8).unwrap();
    victim.send(&acknowledgement(2));
    victim.until("two completions", |victim| victim.log.len() == 2);
    victim.send(&acknowledgement(1));
    let failure = victim.expect_failure();
    assert_eq!(failure, RailError::WrongAcknowledgement { count: 1, before: 2, sent: 2 });

    // A write of which the kernel has not taken all bytes cannot have been placed.
    let mut victim = Victim::new();
    let region = Arc::new(Region::new(64 << 20));
    let domain = TcpDomain::new(TcpConfig::default());
    let (ours, peer) = pairs::sockets();
    victim.rail = pairs::rail(&domain, &SPEC, vec![ours]);
    victim.peer = peer;
    let registration = domain.register(Memory::from_region(&region), Access::SOURCE).unwrap();
    let local = LocalSlice { address: region.address(), length: 64 << 20, key: registration.local_key() };
    let write =
        Write { local, remote: RemoteSlice::default(), immediate: None, signalled: true, host: true, id: WorkId(1) };
    victim.rail.post(LaneId(0), &[write]).unwrap();
    victim.send(&acknowledgement(1));
    victim.until("the failure", |victim| !victim.failures().is_empty());
    assert_eq!(victim.failures()[0], RailError::WrongAcknowledgement { count: 1, before: 0, sent: 0 });
}

#[test]
fn a_close_inside_a_frame_is_a_failure() {
    let in_write = |done| ClosedAt::Write { done, length: 50_000 };
    for (extra, at) in [(-12, ClosedAt::Header(20)), (0, in_write(0)), (9000, in_write(9000))] {
        let mut victim = Victim::new();
        let mut bytes = header(victim.write(50_000)).to_vec();
        bytes.resize((HEADER_BYTES as i32 + extra) as usize, 1);
        victim.send(&bytes);
        victim.peer.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(victim.expect_failure(), RailError::PeerClosed(at));
    }
}

#[test]
fn a_close_between_frames_is_a_failure_only_if_there_is_work() {
    let mut victim = Victim::new();
    victim.peer.shutdown(std::net::Shutdown::Write).unwrap();
    victim.until_quiet();
    assert!(victim.log.is_empty() && victim.rail.is_drained());
    assert_eq!(victim.post(8), Err(PostError::Broken));
    assert_eq!(victim.expect_failure(), RailError::PeerClosed(ClosedAt::Rest(0)));

    let mut victim = Victim::new();
    victim.post(8).unwrap();
    victim.post(8).unwrap();
    victim.send(&acknowledgement(1));
    victim.peer.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(victim.expect_failure(), RailError::PeerClosed(ClosedAt::Rest(1)));
    assert_eq!(victim.log[0], Completion::Sent { id: WorkId(5) }, "what was acknowledged still completes");

    // Writes that have arrived are reported and acknowledged even though the peer has closed its end.
    let mut victim = Victim::new();
    victim.rail.post_receives(1).unwrap();
    let write = WriteFrame { immediate: Some(9), ..victim.write(2) };
    victim.send(&[&header(write)[..], &[1, 2]].concat());
    victim.peer.shutdown(std::net::Shutdown::Write).unwrap();
    victim.until_quiet();
    assert_eq!(victim.log, [Completion::Received { lane: LaneId(0), immediate: 9, bytes: 2 }]);
    assert_eq!(victim.receive_frame().acknowledged, 1);
}

#[test]
fn a_reset_is_a_failure() {
    let mut victim = Victim::new();
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let size = size_of::<libc::linger>() as libc::socklen_t;
    // SAFETY: the descriptor is open; the value is on the stack, and its size is given with it.
    let result = unsafe {
        let fd = victim.peer.as_raw_fd();
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), size)
    };
    assert_eq!(result, 0);
    let (other, _) = pairs::sockets();
    victim.peer = other;
    assert_eq!(victim.expect_failure(), RailError::Socket { doing: "receiving", errno: libc::ECONNRESET });
}

#[test]
fn memory_deregistered_while_a_payload_arrives_is_not_written() {
    let mut victim = Victim::new();
    let mut bytes = header(victim.write(80_000)).to_vec();
    bytes.resize(HEADER_BYTES + 40_000, 0xee);
    victim.send(&bytes);
    let word = |victim: &Victim, at: usize| victim.region.load(at, Ordering::Acquire);
    victim.until("the first half", |victim| word(victim, 39_992) == u64::from_ne_bytes([0xee; 8]));
    victim.registration = None;
    victim.send(&[0xee; 40_000]);
    victim.expect_refusal("registered here");
    assert_eq!(word(&victim, 40_000), 0, "deregistered memory was written");
}

#[test]
fn immediates_without_receives_end_the_lane() {
    let mut victim = Victim::new();
    victim.rail.post_receives(4).unwrap();
    let mut bytes = Vec::new();
    for value in 0..100 {
        bytes.extend_from_slice(&header(WriteFrame { immediate: Some(value), ..WriteFrame::default() }));
    }
    victim.send(&bytes);
    assert_eq!(victim.expect_failure(), RailError::NoReceive { immediate: 4, bytes: 0 });
    assert_eq!(victim.log.len(), 5, "what had a receive is reported first: {:?}", victim.log);
}

#[test]
fn a_receive_takes_its_room_until_its_completion_is_handed_out() {
    let mut victim = Victim::new();
    assert_eq!(victim.rail.post_receives(4), Ok(4));
    for value in 0..4 {
        victim.send(&header(WriteFrame { immediate: Some(value), ..WriteFrame::default() }));
    }
    for _ in 0..50 {
        assert_eq!(poll(&mut victim.rail, 0), []);
        assert_eq!(victim.rail.post_receives(4), Ok(0), "room for more completions than the pool holds");
        std::thread::yield_now();
    }
    victim.until("the immediates", |victim| victim.log.len() == 4);
    assert_eq!(victim.rail.post_receives(5), Ok(4));
}

/// A receiver that stops polling must know that everything it owes has been sent.
#[test]
fn acknowledging_is_not_done_before_the_kernel_has_it() {
    let mut victim = Victim::new();
    victim.rail.post_receives(1).unwrap();
    // The peer reads nothing, so the kernel stops taking bytes in the middle of a frame.
    let domain = TcpDomain::new(TcpConfig::default());
    let region = Arc::new(Region::new(64 << 20));
    let (ours, peer) = pairs::sockets();
    let mut rail = pairs::rail(&domain, &SPEC, vec![ours]);
    rail.post_receives(1).unwrap();
    let registration = domain.register(Memory::from_region(&region), Access::DATA).unwrap();
    let key = registration.local_key();
    let local = LocalSlice { address: region.address(), length: 64 << 20, key };
    let write =
        Write { local, remote: RemoteSlice::default(), immediate: None, signalled: false, host: true, id: WorkId(1) };
    rail.post(LaneId(0), &[write]).unwrap();
    victim.rail = rail;
    victim.peer = peer;
    for _ in 0..200 {
        victim.poll();
    }
    victim.send(&header(WriteFrame { immediate: Some(1), wants_acknowledgement: true, ..WriteFrame::default() }));
    victim.until_quiet();
    assert_eq!(victim.log.len(), 1, "an immediate need not wait for its acknowledgement");
    assert!(!victim.rail.acknowledge(), "done, although the acknowledgement is not in the kernel");
    let mut reader = victim.peer.try_clone().unwrap();
    let reading = std::thread::spawn(move || {
        let mut rest = HEADER_BYTES + (64 << 20);
        let mut buffer = vec![0; 1 << 20];
        while rest > 0 {
            let asked = rest.min(buffer.len());
            rest -= reader.read(&mut buffer[..asked]).unwrap();
        }
    });
    while !victim.rail.acknowledge() {
        victim.poll();
    }
    reading.join().unwrap();
    assert_eq!(victim.receive_frame(), Frame { acknowledged: 1, body: Body::Acknowledgement });
}

#[test]
fn a_lingering_lane_is_silent_about_garbage() {
    let mut victim = Victim::new();
    victim.rail.start_linger();
    victim.registration = None;
    let mut bytes = header(victim.write(20_000)).to_vec();
    bytes.resize(HEADER_BYTES + 20_000, 0xee);
    bytes.extend_from_slice(&header(WriteFrame { immediate: Some(1), ..victim.write(0) }));
    victim.send(&bytes);
    victim.until_quiet();
    assert!(victim.is_untouched());
    let mut acknowledged = 0;
    while acknowledged < 2 {
        victim.poll();
        acknowledged = victim.receive_frame().acknowledged;
    }
    victim.send(&[0xff; 64]);
    victim.until_quiet();
    assert!(victim.log.is_empty() && victim.rail.is_drained(), "{:?}", victim.log);
}

/// Seeded streams of nearly valid frames cause no panic and no hang, and report no more immediates than receives.
/// Waits until the kernel of the other end has everything that was sent.
fn until_delivered(peer: &TcpStream) {
    let deadline = Deadline::new(LIMIT);
    let mut left: libc::c_int = 1;
    while left > 0 {
        deadline.check("the delivery of what was sent");
        // SAFETY: the descriptor is open, and the kernel writes one number.
        assert_eq!(unsafe { libc::ioctl(peer.as_raw_fd(), libc::TIOCOUTQ, &raw mut left) }, 0);
    }
}

#[test]
fn the_end_of_a_rail_reports_what_has_arrived_whole_and_sends_nothing() {
    let small = |victim: &Victim| WriteFrame { immediate: Some(9), ..victim.write(2) };
    let whole = |victim: &Victim| {
        let frame = Frame { acknowledged: 1, body: Body::Write(small(victim)) };
        [&frame.encode()[..], &[1, 2]].concat()
    };
    // Behind the whole write: nothing, half a header, half a write, bytes that are no frame, and a close.
    type More = fn(&mut Victim);
    let mores: [More; 5] = [
        |_| (),
        |victim| victim.send(&[0; HEADER_BYTES / 2]),
        |victim| victim.send(&[&header(victim.write(50_000))[..], &[7; 9000]].concat()),
        |victim| victim.send(&[0xff; 9000]),
        |victim| victim.peer.shutdown(std::net::Shutdown::Write).unwrap(),
    ];
    for (number, more) in mores.into_iter().enumerate() {
        let mut victim = Victim::new();
        victim.rail.post_receives(1).unwrap();
        victim.post(8).unwrap();
        victim.post(8).unwrap();
        victim.receive_frame();
        let first = whole(&victim);
        victim.send(&first);
        more(&mut victim);
        until_delivered(&victim.peer);
        let Victim { rail, mut peer, mut log, .. } = victim;
        assert!(rail.end(&[RemoteSlice::default()], &mut log).is_visible, "there is nothing to flush");
        let arrival = Completion::Received { lane: LaneId(0), immediate: 9, bytes: 2 };
        assert_eq!(log, [Completion::Sent { id: WorkId(5) }, arrival], "{number}");
        // The payload of the first write, and the second one; no acknowledgement. A close with unread bytes is a reset.
        let mut rest = Vec::new();
        let _ = peer.read_to_end(&mut rest);
        assert!(rest.len() <= 8 + HEADER_BYTES + 8, "{number}: {} bytes", rest.len());
    }
}

#[test]
fn a_peer_that_goes_on_sending_does_not_hold_up_the_end() {
    let Victim { rail, peer, region, registration, key, .. } = Victim::new();
    let address = region.address();
    let write = WriteFrame { immediate: None, wants_acknowledgement: true, length: 50_000, key, address };
    let frame = [&header(write)[..], &[7; 50_000]].concat();
    (&peer).write_all(&frame).unwrap();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| while (&peer).write_all(&frame).is_ok() {});
        let mut log = Vec::new();
        assert!(rail.end(&[], &mut log).is_visible && log.is_empty(), "{log:?}");
        region.write(0, &[0; LENGTH]);
        // The socket is closed, and that ends the sender.
        sender.join().unwrap();
    });
    let mut all = vec![1; LENGTH];
    region.read(0, &mut all);
    assert!(all.iter().all(|byte| *byte == 0), "a write landed after the end");
    drop(registration);
}

#[test]
fn random_streams_do_no_harm() {
    let mut state = 0x1234_5678_9abc_def0u64;
    let mut next = move || {
        // Xorshift (Marsaglia).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..300 {
        let mut victim = Victim::new();
        victim.rail.post_receives(4).unwrap();
        let mut bytes = Vec::new();
        for _ in 0..next() % 12 {
            let length = [0, 1, 8, 64, 5000, 30_000][next() as usize % 6];
            let mut write = victim.write(length);
            write.wants_acknowledgement = next() % 2 == 0;
            write.immediate = (next() % 4 == 0).then_some(next() as u32);
            write.address += next() % (LENGTH as u64 - 20_000);
            match next() % 12 {
                0 => write.key ^= 1 << (next() % 32),
                1 => write.address = next(),
                2 => write.length = next() as u32 % MAX_WRITE,
                _ => {}
            }
            let mut frame = header(write);
            if next() % 16 == 0 {
                frame[next() as usize % HEADER_BYTES] = next() as u8;
            }
            bytes.extend_from_slice(&frame);
            bytes.resize(bytes.len() + length as usize, next() as u8);
        }
        bytes.truncate(bytes.len() - (next() as usize % 40).min(bytes.len()));
        for part in bytes.chunks(1 + next() as usize % 20_000) {
            // The lane may have ended.
            if victim.peer.write_all(part).is_err() {
                break;
            }
            victim.poll();
        }
        let _ = victim.peer.shutdown(std::net::Shutdown::Write);
        victim.until_quiet();
        assert!(victim.failures().len() <= 1, "round {round}: {:?}", victim.failures());
        let received = victim.log.iter().filter(|one| matches!(one, Completion::Received { .. })).count();
        assert!(received <= 4, "round {round}: {received} immediates for 4 receives");
    }
}
