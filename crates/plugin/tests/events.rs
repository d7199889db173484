//! The events that NCCL's profiler gets for the rails of each request, through the callback that NCCL gives the plugin.

#![allow(clippy::disallowed_types, reason = "the profiler of these tests may lock")]

mod common;

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::io::{Read, Write};
use std::path::Path;
use std::ptr::from_ref;
use std::sync::Mutex;
use std::time::Duration;

use common::{Buffer, Pair, TWO_RAILS, alone, each, load, noise, until, with_peer};
use railweave_abi::NcclResult;
use railweave_abi::profiler::ib::{KIND_QP, NetIbDescr, PLUGIN_ID_V1};
use railweave_abi::profiler::parts::StateArgsV4;
use railweave_abi::profiler::{EventState, EventType, v6};
use railweave_nccl_host::net::{Comm, Handle, NetApi, Part, ProfilerHandle, Request};
use railweave_nccl_host::profiler::{CommunicatorInfo, Direction, Op, OpShape, Profiler, ProfilerPlugin};
use railweave_nccl_host::{LoadedNet, Plugin};

/// A call that the profiler got about an event of the plugin.
#[derive(Clone, Debug, PartialEq)]
enum Call {
    Start { event: usize, step: usize, device: i32, opcode: i32, qp: i32, request: u64, bytes: usize },
    Stop(usize),
}

static CALLS: Mutex<Vec<Call>> = Mutex::new(Vec::new());

/// The number of the last event.
static LAST: Mutex<usize> = Mutex::new(0);

/// The mask that `init` writes.
static MASK: Mutex<c_int> = Mutex::new(0);

const OK: NcclResult = NcclResult::SUCCESS;

/// Returns the calls since the last time.
fn calls() -> Vec<Call> {
    std::mem::take(&mut CALLS.lock().unwrap())
}

unsafe extern "C" fn init(
    context: *mut *mut c_void,
    _id: u64,
    mask: *mut c_int,
    _name: *const std::ffi::c_char,
    _hosts: c_int,
    _ranks: c_int,
    _rank: c_int,
    _logger: Option<railweave_abi::NcclLogger>,
) -> NcclResult {
    // SAFETY: the host passes both pointers.
    unsafe {
        *context = std::ptr::without_provenance_mut(1);
        *mask = *MASK.lock().unwrap();
    }
    OK
}

unsafe extern "C" fn start(_: *mut c_void, event: *mut *mut c_void, description: *mut v6::EventDescr) -> NcclResult {
    // SAFETY: the host passes a valid description, and a place for the handle.
    let description = unsafe { &*description };
    let mut last = LAST.lock().unwrap();
    *last += 1;
    if description.kind == EventType::NET_PLUGIN {
        // SAFETY: the union holds this member, and the plugin's data has the layout that its id says.
        let (id, NetIbDescr { kind, qp }) = unsafe {
            let net = description.event.net_plugin;
            (net.id, *net.data.cast::<NetIbDescr>())
        };
        assert_eq!((id, kind), (PLUGIN_ID_V1, KIND_QP));
        CALLS.lock().unwrap().push(Call::Start {
            event: *last,
            step: description.parent_obj.addr(),
            device: qp.device,
            opcode: qp.opcode,
            qp: qp.qp_num,
            request: qp.wr_id,
            bytes: qp.length,
        });
    }
    // SAFETY: as above.
    unsafe { *event = std::ptr::without_provenance_mut(*last) };
    OK
}

unsafe extern "C" fn stop(event: *mut c_void) -> NcclResult {
    assert!(!event.is_null(), "an event that was never started is stopped");
    CALLS.lock().unwrap().push(Call::Stop(event.addr()));
    OK
}

unsafe extern "C" fn record(_: *mut c_void, _: EventState, _: *mut StateArgsV4) -> NcclResult {
    OK
}

unsafe extern "C" fn finalize(_: *mut c_void) -> NcclResult {
    OK
}

static TABLE: v6::Profiler = v6::Profiler {
    name: c"test".as_ptr(),
    init: Some(init),
    start_event: Some(start),
    stop_event: Some(stop),
    record_event_state: Some(record),
    finalize: Some(finalize),
};

/// A plugin that has the callback of this file's profiler, and the profiler.
struct Site {
    net: LoadedNet,
    profiler: Profiler,
    _plugin: Plugin,
}

impl Site {
    fn new(version: Option<u32>, mask: c_int) -> Self {
        *MASK.lock().unwrap() = mask;
        let plugin = load(version);
        // SAFETY: the table is a static of this version.
        let loaded = unsafe { ProfilerPlugin::at(Path::new("test"), 6, from_ref(&TABLE).cast()) };
        let loaded = loaded.expect("there is a place").expect("the version is known");
        let net = plugin.init_with(1, None, Some(&loaded)).expect("the plugin starts");
        let profiler = loaded.init(CommunicatorInfo { ranks: 2, hosts: 2, ..CommunicatorInfo::default() });
        Self { net, profiler: profiler.expect("the profiler starts"), _plugin: plugin }
    }

    /// Returns an operation with one step, which has begun.
    fn op(&self, direction: Direction) -> Op<'_> {
        let call = self.profiler.call();
        let shape = OpShape { channel: 0, peer: 1, steps: 1, chunk_bytes: 1, direction, in_flight: 1 };
        let op = call.proxy_op(call.group().parent(), shape);
        op.start_step(0);
        op
    }
}

fn isend(pair: &Pair<'_>, from: &Buffer, bytes: usize, tag: i32, handle: ProfilerHandle) -> Request {
    until("a receive for this send", || {
        // SAFETY: the buffer lasts until the request is done or the connection is closed.
        unsafe { pair.from.isend_profiled(&pair.send, from.start(), bytes, tag, from.registration(), handle) }
            .expect("isend succeeds")
    })
}

fn irecv(pair: &Pair<'_>, parts: &[Part], handles: &[ProfilerHandle]) -> Request {
    until("room for a receive", || {
        // SAFETY: as above.
        unsafe { pair.to.irecv_profiled(&pair.recv, parts, false, handles) }.expect("irecv succeeds")
    })
}

/// The events of one request: one for each rail, with its device, its number and its bytes. Checks that each was
/// stopped once, after its start.
fn rails_of(calls: &[Call], opcode: i32) -> BTreeMap<i32, (i32, usize)> {
    let mut rails = BTreeMap::new();
    for (place, call) in calls.iter().enumerate() {
        if let Call::Start { event, device, opcode: its, qp, bytes, .. } = call
            && *its == opcode
        {
            assert!(rails.insert(*device, (*qp, *bytes)).is_none(), "two events of rail {device}: {calls:?}");
            let stops = calls.iter().enumerate().filter(|(_, other)| **other == Call::Stop(*event));
            let stops: Vec<usize> = stops.map(|(place, _)| place).collect();
            assert!(matches!(stops[..], [stop] if stop > place), "{event}: {calls:?}");
        }
    }
    rails
}

const SENT: i32 = 3;
const RECEIVED: i32 = 129;
const BIG: usize = 4 << 20;
const ALL: c_int = 0xffff;

#[test]
fn each_rail_of_a_request_has_one_event_from_v10_on() {
    each(
        &[6, 9, 10, 11, 12],
        |_| vec![TWO_RAILS],
        |version| {
            let site = Site::new(Some(*version), ALL);
            let pair = Pair::open(&site.net, &site.net, 0);
            let (from, to) = (pair.outgoing(&noise(1, BIG)), pair.incoming(BIG));
            calls();
            for bytes in [BIG, 8, 0] {
                let (sends, receives) = (site.op(Direction::Send), site.op(Direction::Receive));
                let recv = irecv(&pair, &[to.part(0)], &[receives.handle(0)]);
                let send = isend(&pair, &from, bytes, 0, sends.handle(0));
                let early = calls();
                pair.finish(&[send], &[recv]);
                let all = [early, calls()].concat();
                if *version < 10 {
                    assert_eq!(all, []);
                    continue;
                }
                let (sent, received) = (rails_of(&all, SENT), rails_of(&all, RECEIVED));
                let expected = if bytes == BIG { 2 } else { 1 };
                assert_eq!((sent.len(), received.len()), (expected, expected), "{bytes} bytes: {all:?}");
                assert_eq!(sent.values().map(|(_, bytes)| bytes).sum::<usize>(), bytes);
                assert!(received.values().all(|(_, bytes)| *bytes == 0), "a receiver knows the sum only");
                let numbers = sent.values().chain(received.values()).map(|(number, _)| number);
                assert!(numbers.clone().all(|number| (1..65_536).contains(number)), "ports: {all:?}");
                assert_eq!(sent.keys().collect::<Vec<_>>(), received.keys().collect::<Vec<_>>());
                let parents: Vec<usize> = all
                    .iter()
                    .filter_map(|call| match call {
                        Call::Start { step, opcode, .. } if *opcode == SENT => Some(*step),
                        _ => None,
                    })
                    .collect();
                assert!(parents.iter().all(|step| *step > 0 && *step == parents[0]), "one step: {all:?}");
            }
            pair.close();
        },
    );
}

#[test]
fn nothing_is_reported_where_the_handle_is_null_or_the_mask_is_off() {
    each(
        &[(0, true), (ALL, false), (EventType::PROXY_STEP.bit(), true)],
        |_| vec![TWO_RAILS],
        |(mask, has_handles)| {
            let site = Site::new(None, *mask);
            let pair = Pair::open(&site.net, &site.net, 0);
            let (from, to) = (pair.outgoing(&noise(1, BIG)), pair.incoming(BIG));
            for _ in 0..3 {
                let (sends, receives) = (site.op(Direction::Send), site.op(Direction::Receive));
                calls();
                let handle = |op: &Op<'_>| if *has_handles { op.handle(0) } else { ProfilerHandle::NONE };
                let recv = irecv(&pair, &[to.part(0)], &[handle(&receives)]);
                let send = isend(&pair, &from, BIG, 0, handle(&sends));
                assert_eq!(pair.finish(&[send], &[recv]).0, [BIG as i32]);
                assert_eq!(calls(), []);
            }
            pair.close();
        },
    );
}

#[test]
fn a_group_has_one_event_for_each_rail_of_its_one_receive() {
    alone(&[TWO_RAILS], || {
        let site = Site::new(None, ALL);
        let pair = Pair::open(&site.net, &site.net, 0);
        let half = BIG / 2;
        let (from, to) = (pair.outgoing(&noise(1, half)), [pair.incoming(half), pair.incoming(half)]);
        let (receive, sends) = (site.op(Direction::Receive), [site.op(Direction::Send), site.op(Direction::Send)]);
        calls();
        let handles = [receive.handle(0); 2];
        let recv = irecv(&pair, &[to[0].part(0), to[1].part(1)], &handles);
        let first = isend(&pair, &from, half, 0, sends[0].handle(0));
        assert!(calls().is_empty(), "the group waits for its last message");
        let second = isend(&pair, &from, half, 1, sends[1].handle(0));
        let early = calls();
        pair.finish(&[first, second], &[recv]);
        let all = [early, calls()].concat();
        assert_eq!(rails_of(&all, RECEIVED).len(), 2);
        let of = |request: u64| {
            let is_its =
                |call: &&Call| matches!(call, Call::Start { request: its, opcode: SENT, .. } if *its == request);
            let its = all.iter().filter(is_its).filter_map(|call| match call {
                Call::Start { bytes, .. } => Some(*bytes),
                Call::Stop(_) => None,
            });
            its.collect::<Vec<_>>()
        };
        for request in [1, 2] {
            let bytes = of(request);
            assert_eq!((bytes.len(), bytes.iter().sum::<usize>()), (2, half), "{all:?}");
        }
        pair.close();
    });
}

#[test]
fn a_refused_call_ends_no_event_of_the_requests_in_progress() {
    alone(&[TWO_RAILS], || {
        let site = Site::new(None, ALL);
        let pair = Pair::open(&site.net, &site.net, 0);
        let (from, to) = (pair.outgoing(&noise(1, BIG)), pair.incoming(BIG));
        let (sends, receives) = (site.op(Direction::Send), site.op(Direction::Receive));
        calls();
        let recv = irecv(&pair, &[to.part(0)], &[receives.handle(0)]);
        let send = isend(&pair, &from, BIG, 0, sends.handle(0));
        let begun = calls();
        assert!(!begun.is_empty());
        // SAFETY: a message of more than a device's longest is refused before its bytes are looked at.
        let refused = unsafe {
            let (start, registration) = (from.start(), from.registration());
            pair.from.isend_profiled(&pair.send, start, 2 << 30, 0, registration, ProfilerHandle::NONE)
        };
        assert!(refused.is_err());
        assert_eq!(calls(), [], "the first message goes on");
        pair.finish(&[send], &[recv]);
        let all = [begun, calls()].concat();
        assert_eq!((rails_of(&all, SENT).len(), rails_of(&all, RECEIVED).len()), (2, 2));
        pair.close();
    });
}

#[test]
fn a_request_that_fails_has_its_events_stopped_once() {
    const HUGE: usize = 256 << 20;
    with_peer(
        &[TWO_RAILS, ("RAILWEAVE_RECOVERY", "0")],
        &[],
        |mut peer| {
            let mut handle = Handle::default();
            peer.link.read_exact(&mut handle.0).expect("the peer says where it listens");
            let site = Site::new(None, ALL);
            let comm = common::connect(&site.net, 0, &handle);
            let from = Buffer::holding(&site.net, Comm::Send(&comm), &vec![7; HUGE]);
            let sends = site.op(Direction::Send);
            let send = until("a receive for this send", || {
                // SAFETY: the buffer lasts until the connection is closed.
                unsafe {
                    let (start, registration) = (from.start(), from.registration());
                    site.net.isend_profiled(&comm, start, HUGE, 0, registration, sends.handle(0))
                }
                .expect("isend succeeds")
            });
            assert_eq!(calls().len(), 2, "the rails have begun, and none is done");
            peer.kill();
            until("the failure of the send", || {
                // SAFETY: the request is not done.
                unsafe { site.net.test(&send, None) }.is_err().then_some(())
            });
            let stopped = calls();
            assert!(matches!(stopped[..], [Call::Stop(one), Call::Stop(other)] if one != other), "{stopped:?}");
            // SAFETY: as above.
            assert!(unsafe { site.net.test(&send, None) }.is_err());
            assert_eq!(calls(), [], "they were stopped already");
            site.net.close_send(comm).expect("the sending end is closed");
        },
        |mut link| {
            let net = load(None).init(1, None).unwrap();
            let (listen, handle) = common::listen(&net, 0);
            link.write_all(&handle.0).unwrap();
            let comm = common::accept(&net, &listen);
            let to = Buffer::new(&net, Comm::Recv(&comm), HUGE);
            // SAFETY: the buffer lasts as long as this process.
            let _recv = unsafe { net.irecv(&comm, &[to.part(0)], false) }.unwrap().expect("there is room");
            std::thread::sleep(Duration::from_secs(60));
        },
    );
}
