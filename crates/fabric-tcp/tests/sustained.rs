//! Both ends on threads of their own, as in two processes, with ordinary buffers and with buffers so small that they
//! cut nearly every frame into pieces.

mod pairs;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pairs::{IPV4, Loopback};
use railweave_fabric::conformance::{Completion, End, Harness, Pair, poll};
use railweave_fabric::{
    Access, Domain, LaneId, LocalSlice, Memory, PostError, Rail, RailSpec, Region, Registration, RemoteSlice, Role,
    WorkId, Write,
};
use railweave_fabric_tcp::{Tcp, TcpConfig};
use railweave_patience::{Deadline, LIMIT};

const LANES: u8 = 2;
const SPEC: RailSpec = RailSpec {
    role: Role::Sender,
    lanes: LANES,
    send_depth: 16,
    receive_depth: 32,
    lane_receives: 32,
    traffic_class: None,
    peer: None,
};
const SIZES: [u32; 6] = [64, 100_000, 1, 4097, 300_001, 20_000];
const MESSAGES: usize = 900;
const AREA: usize = 300_064;

/// Sends and receives all messages. Each direction's source is constant, so that a byte in the wrong place shows.
fn drive(mut end: End<Tcp>, source: &Arc<Region>, target: RemoteSlice, taken: &AtomicUsize, peer_took: &AtomicUsize) {
    let registration = end.domain.register(Memory::from_region(source), Access::SOURCE).unwrap();
    let key = registration.local_key();
    end.rail.post_receives(32).unwrap();
    let (mut posted, mut sent, mut received) = (0, 0, 0);
    let mut bytes = 0u64;
    let deadline = Deadline::new(2 * LIMIT);
    while sent < MESSAGES || received < MESSAGES {
        // Never more than the peer has receives for, as with CTS.
        while posted < MESSAGES && posted - peer_took.load(Ordering::Acquire) < 32 {
            let length = SIZES[posted % SIZES.len()];
            let local = LocalSlice { address: source.address(), length, key };
            let write = Write {
                local,
                remote: target,
                immediate: Some(length),
                signalled: true,
                host: true,
                id: WorkId(posted as u64),
            };
            match end.rail.post(LaneId((posted % usize::from(LANES)) as u8), &[write]) {
                Ok(()) => posted += 1,
                // The next poll reports why a lane is broken.
                Err(PostError::Full | PostError::Broken) => break,
                Err(error) => panic!("{error}"),
            }
        }
        let completions = poll(&mut end.rail, 8);
        let is_idle = completions.is_empty();
        for completion in completions {
            match completion {
                Completion::Sent { .. } => sent += 1,
                Completion::Received { immediate, bytes: count, .. } => {
                    assert_eq!(immediate, count);
                    bytes += u64::from(count);
                    received += 1;
                    assert_eq!(end.rail.post_receives(1), Ok(1));
                    taken.store(received, Ordering::Release);
                }
                Completion::Failed { error, .. } => panic!("{error}"),
            }
        }
        if is_idle {
            deadline.check(format_args!("{sent} sent, {received} received of {MESSAGES}"));
            std::thread::yield_now();
        }
    }
    let expected: u64 = (0..MESSAGES).map(|number| u64::from(SIZES[number % SIZES.len()])).sum();
    assert_eq!(bytes, expected);
    // The peer may still be waiting for acknowledgements.
    while !end.rail.is_drained() {
        poll(&mut end.rail, 8);
    }
}

fn run(mut harness: Loopback) {
    let Pair { near, far } = harness.pair(&SPEC, &RailSpec { role: Role::Receiver, ..SPEC });
    let regions: Vec<_> = (0..4).map(|_| Arc::new(Region::new(AREA))).collect();
    regions[0].write(0, &(0..AREA).map(|at| (at % 251) as u8).collect::<Vec<_>>());
    regions[1].write(0, &(0..AREA).map(|at| (at % 241) as u8).collect::<Vec<_>>());
    let at_near = near.domain.register(Memory::from_region(&regions[2]), Access::DATA).unwrap();
    let at_far = far.domain.register(Memory::from_region(&regions[3]), Access::DATA).unwrap();
    let near_target = RemoteSlice { address: regions[3].address(), key: at_far.remote_key() };
    let far_target = RemoteSlice { address: regions[2].address(), key: at_near.remote_key() };
    let counts = [const { AtomicUsize::new(0) }; 2];
    std::thread::scope(|scope| {
        scope.spawn(|| drive(near, &regions[0], near_target, &counts[0], &counts[1]));
        scope.spawn(|| drive(far, &regions[1], far_target, &counts[1], &counts[0]));
    });
    for (from, to) in [(0, 3), (1, 2)] {
        let (mut one, mut other) = (vec![0; 300_001], vec![0; 300_001]);
        regions[from].read(0, &mut one);
        regions[to].read(0, &mut other);
        assert!(one == other, "direction {from} arrived altered");
        assert_eq!(regions[to].load(300_008, Ordering::Acquire), 0, "bytes beyond the end changed");
    }
}

#[test]
fn with_tiny_send_buffers() {
    run(Loopback { address: IPV4, config: TcpConfig::default(), send_buffer: Some(4608) });
}

#[test]
fn with_small_buffers_both_ways() {
    run(Loopback {
        address: IPV4,
        config: TcpConfig { socket_buffer: Some(64 << 10), ..TcpConfig::default() },
        send_buffer: None,
    });
}

#[test]
fn with_ordinary_buffers() {
    run(Loopback { address: IPV4, config: TcpConfig::default(), send_buffer: None });
}

/// Receives are announced by small writes, and the end that posts them may make no further call. The control thread
/// alone then sends what the kernel had no room for, once the peer reads again.
#[test]
fn small_writes_that_a_full_socket_has_no_room_for_all_arrive_without_a_poll() {
    const BYTES: usize = 64;
    const MOST: usize = 16 << 10;
    let config = TcpConfig { socket_buffer: Some(4096), ..TcpConfig::default() };
    let spec = RailSpec { lanes: 1, send_depth: MOST as u32, ..SPEC };
    let mut harness = Loopback { address: IPV4, config, send_buffer: None };
    let Pair { mut near, mut far } = harness.pair(&spec, &RailSpec { role: Role::Receiver, ..spec.clone() });
    let (source, target) = (Arc::new(Region::new(MOST * BYTES)), Arc::new(Region::new(MOST * BYTES)));
    source.write(0, &(0..MOST * BYTES).map(|at| (at % 251) as u8).collect::<Vec<_>>());
    let from = near.domain.register(Memory::from_region(&source), Access::CONTROL).unwrap();
    let to = far.domain.register(Memory::from_region(&target), Access::CONTROL).unwrap();
    let write = |number: usize| {
        let at = (number * BYTES) as u64;
        Write {
            local: LocalSlice { address: source.address() + at, length: BYTES as u32, key: from.local_key() },
            remote: RemoteSlice { address: target.address() + at, key: to.remote_key() },
            host: true,
            ..Write::default()
        }
    };
    let mut posted = 0;
    // Posts far beyond the point where the kernel has no more room.
    let mut behind = 0;
    while behind < 1000 {
        assert!(posted < MOST, "the socket was never full");
        near.rail.post(LaneId(0), &[write(posted)]).expect("there is room in the queue");
        posted += 1;
        behind += usize::from(near.rail.owes());
    }
    assert!(!near.rail.acknowledge() && near.rail.owes(), "the peer has read nothing");
    // From here on the near end only acknowledges.
    let deadline = Deadline::new(LIMIT);
    while !near.rail.acknowledge() || target.load(posted * BYTES - 8, Ordering::Acquire) == 0 {
        assert_eq!(poll(&mut far.rail, 8), [], "writes without immediates are not reported");
        deadline.check("all writes");
        std::thread::yield_now();
    }
    let (mut sent, mut arrived) = (vec![0; posted * BYTES], vec![0; posted * BYTES]);
    source.read(0, &mut sent);
    target.read(0, &mut arrived);
    assert!(sent == arrived, "the writes arrived altered");
}
