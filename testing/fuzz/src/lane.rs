//! A TCP lane whose peer speaks through a bare socket.
//!
//! Whatever arrives: no panic; at most one failure; no more immediates than receives; and only bytes that a frame with
//! the right key named may change: the memory before and behind the registered ranges, the range without write
//! permission and bytes that no frame named stay as they were.

use std::io::{ErrorKind, Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use railweave_fabric::conformance::{Completion, poll};
use railweave_fabric::{
    Access, Domain, LaneId, LocalSlice, Memory, MemoryKind, PendingRail, Rail, RailSpec, Region, Registration,
    RemoteSlice, Role, WorkId, Write,
};
use railweave_fabric_tcp::frame::{Body, Frame, HEADER_BYTES, WriteFrame};
use railweave_fabric_tcp::{TcpConfig, TcpDomain, TcpRail, TcpRegistration};

use crate::input::Input;

/// The bytes before, between and behind the two registered ranges.
const GUARD: usize = 4096;
const WRITABLE: Range<usize> = GUARD..GUARD + 64 * 1024;
const READ_ONLY: Range<usize> = WRITABLE.end + GUARD..WRITABLE.end + GUARD + 8192;
const ALL: usize = READ_ONLY.end + GUARD;
const UNTOUCHED: u8 = 0x5a;
const RECEIVES: u32 = 4;
const MOST_STEPS: usize = 200;
const MOST_BYTES: usize = 1 << 20;

thread_local! {
    static LISTENER: TcpListener = TcpListener::bind("127.0.0.1:0").expect("a loopback port is free");
}

/// A rail with one lane, and its peer.
struct Victim {
    rail: TcpRail,
    peer: TcpStream,
    memory: Arc<Region>,
    writable: Option<TcpRegistration>,
    keys: [u32; 2],
    /// True if a frame with the right key named the byte.
    named: Vec<bool>,
    /// All bytes sent.
    stream: Vec<u8>,
    failures: usize,
    received: u32,
    posted_receives: u32,
    open: bool,
}

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let domain = TcpDomain::new(TcpConfig::default());
    let memory = Arc::new(Region::new(ALL));
    memory.write(0, &[UNTOUCHED; ALL]);
    let writable = register(&domain, &memory, WRITABLE, Access::DATA);
    let read_only = register(&domain, &memory, READ_ONLY, Access::SOURCE);
    let (ours, peer) = sockets();
    let mut victim = Victim {
        rail: rail(&domain, ours),
        peer,
        keys: [writable.remote_key(), read_only.remote_key()],
        writable: Some(writable),
        memory,
        named: vec![false; ALL],
        stream: Vec::new(),
        failures: 0,
        received: 0,
        posted_receives: 0,
        open: true,
    };
    for _ in 0..MOST_STEPS {
        if input.is_empty() || victim.stream.len() > MOST_BYTES {
            break;
        }
        victim.step(&mut input);
    }
    for _ in 0..8 {
        victim.poll();
    }
    victim.check();
    // A reset: sockets that close normally hold their port for a minute.
    let _ = socket2::SockRef::from(&victim.peer).set_linger(Some(Duration::ZERO));
    let Victim { rail, peer, writable, .. } = victim;
    drop(peer);
    drop(rail);
    drop((writable, read_only));
}

#[allow(unsafe_code)] // a part of a region is registered, so that there are guards around it
fn register(domain: &Arc<TcpDomain>, memory: &Arc<Region>, range: Range<usize>, access: Access) -> TcpRegistration {
    let address = memory.address() + range.start as u64;
    assert!(range.end <= memory.len());
    // SAFETY: the range is inside a region, which anybody may read and write at any time and to which no reference
    // exists; `run` keeps the region until both registrations are dropped.
    let memory = unsafe { Memory::from_raw(address, range.len(), MemoryKind::Host) };
    domain.register(memory, access).expect("the table has room")
}

fn sockets() -> (TcpStream, TcpStream) {
    LISTENER.with(|listener| {
        let address = listener.local_addr().expect("a bound socket has an address");
        let ours = TcpStream::connect(address).expect("the listener is there");
        let (peer, _) = listener.accept().expect("the connection is there");
        peer.set_nodelay(true).expect("a TCP socket");
        peer.set_nonblocking(true).expect("a socket");
        (ours, peer)
    })
}

fn rail(domain: &Arc<TcpDomain>, socket: TcpStream) -> TcpRail {
    let spec = RailSpec {
        role: Role::Receiver,
        lanes: 1,
        send_depth: 8,
        receive_depth: RECEIVES,
        lane_receives: RECEIVES,
        traffic_class: None,
        peer: None,
    };
    let mut pending = domain.open_rail(&spec).expect("a fair specification");
    pending.attach(LaneId::FIRST, socket.into()).expect("a connected socket");
    pending.into_rail().expect("its only lane is there")
}

impl Victim {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 14 {
            0..=2 => self.write(input, None),
            3 => {
                let (at, value) = (input.u8(), input.u8());
                self.write(input, Some((usize::from(at) % HEADER_BYTES, value)));
            }
            4 => {
                let length = usize::from(input.u8());
                let bytes = input.take(length);
                self.send(bytes);
            }
            5 => {
                let acknowledged = input.choose(&[1, 0, 2, 8, u64::MAX, 9]);
                self.send(&Frame { acknowledged, body: Body::Acknowledgement }.encode());
            }
            6 | 7 => self.poll(),
            8 => self.post(input),
            9 => {
                let count = u32::from(input.u8() % 8);
                self.posted_receives += self.rail.post_receives(count).unwrap_or(0);
            }
            10 => {
                // Frames with the old key that arrive from here on must not be placed; earlier ones may have been.
                self.poll();
                self.writable = None;
            }
            11 => {
                let _ = self.peer.shutdown(std::net::Shutdown::Write);
                self.open = false;
            }
            12 => self.rail.start_linger(),
            _ => {
                let mut scratch = [0; 4096];
                while matches!(self.peer.read(&mut scratch), Ok(count) if count > 0) {}
            }
        }
    }

    /// Sends a write frame, whole or in part, perhaps with a damaged byte in its header.
    fn write(&mut self, input: &mut Input<'_>, spoil: Option<(usize, u8)>) {
        let flags = input.u8();
        let length = match input.u8() {
            exact @ 0..160 => u32::from(exact),
            units @ 160..250 => u32::from(units - 159) * 512,
            _ => input.u32(),
        };
        let key = match flags >> 4 {
            0..=9 => self.keys[0],
            10 | 11 => self.keys[1],
            12 => self.keys[0] ^ 1 << (input.u8() % 32),
            _ => input.u32(),
        };
        let start = WRITABLE.start + usize::from(input.u16());
        let address = match flags & 3 {
            0 | 1 => self.memory.address() + start as u64,
            2 => self.memory.address() + u64::from(input.u16()) * 2,
            _ => input.u64(),
        };
        let immediate = (flags & 4 != 0).then(|| input.u32());
        let write = WriteFrame { immediate, wants_acknowledgement: flags & 8 != 0, length, key, address };
        let mut bytes = Frame { acknowledged: 0, body: Body::Write(write) }.encode().to_vec();
        if let Some((at, value)) = spoil {
            bytes[at] ^= value;
        }
        let cut = usize::from(input.u8() == 0xff);
        let payload = (length as usize).min(MOST_BYTES / 4) >> cut;
        bytes.resize(HEADER_BYTES + payload, 0xee);
        self.send(&bytes);
    }

    /// For each frame whose header ends in the last `fresh` bytes sent, notes the bytes that it may change. The real
    /// starts of frames depend on the bytes before them; counting a header at any offset avoids tracking that.
    fn name_all(&mut self, fresh: usize) {
        if self.writable.is_none() {
            return;
        }
        let first = self.stream.len().saturating_sub(fresh + HEADER_BYTES - 1);
        for header in self.stream[first..].windows(HEADER_BYTES) {
            let header = header.first_chunk().expect("windows have this length");
            let Ok(Frame { body: Body::Write(write), .. }) = Frame::decode(header) else {
                continue;
            };
            let offset = self.memory.offset_of(write.address, u64::from(write.length));
            if let Some(offset) = offset.filter(|_| write.key == self.keys[0]) {
                let range = offset..offset + write.length as usize;
                if range.start >= WRITABLE.start && range.end <= WRITABLE.end {
                    self.named[range].fill(true);
                }
            }
        }
    }

    fn send(&mut self, mut bytes: &[u8]) {
        self.stream.extend_from_slice(bytes);
        self.name_all(bytes.len());
        for _ in 0..200 {
            if bytes.is_empty() || !self.open {
                return;
            }
            match self.peer.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.poll(),
                // The lane has ended.
                Err(_) => self.open = false,
            }
        }
        // The lane no longer reads, and has received only half a frame.
        self.open = false;
    }

    fn post(&mut self, input: &mut Input<'_>) {
        let length = u32::from(input.u8());
        let (address, key) = (self.memory.address() + READ_ONLY.start as u64, self.keys[1]);
        let local = LocalSlice { address, length, key };
        let remote = RemoteSlice { address: input.u64(), key: input.u32() };
        let write = Write { local, remote, immediate: None, signalled: true, host: true, id: WorkId(7) };
        let _ = self.rail.post(LaneId::FIRST, &[write]);
    }

    fn poll(&mut self) {
        for completion in poll(&mut self.rail, 8) {
            match completion {
                Completion::Sent { id } => assert_eq!(id, WorkId(7), "only what was posted completes"),
                Completion::Received { lane, .. } => {
                    assert_eq!(lane, LaneId::FIRST);
                    self.received += 1;
                }
                Completion::Failed { error, .. } => {
                    let words = error.to_string();
                    assert!(words.contains(' ') && !words.contains(char::is_control), "{words}");
                    self.failures += 1;
                }
            }
        }
        assert!(self.failures <= 1, "a lane fails once");
        assert!(self.received <= self.posted_receives, "an immediate takes a receive");
    }

    fn check(&self) {
        let mut bytes = vec![0; ALL];
        self.memory.read(0, &mut bytes);
        let changed = bytes.iter().zip(&self.named).position(|(byte, named)| *byte != UNTOUCHED && !named);
        assert_eq!(changed, None, "a byte changed that no frame named");
    }
}
